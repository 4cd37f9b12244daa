"""The nine CNNs of the onnx package: macs and parameters equal the published values.

The reference is derived here layer by layer from the definitions that
tests/reference/light_cnns.toml cites, with nothing of slicewise in it.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.graph import Binding
from slicewise.graph.frontends._base import load
from slicewise.graph.work import count_work

REFERENCE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "reference" / "light_cnns.toml").read_text()
)
NAMES = sorted(REFERENCE)


@dataclass
class Tally:
    """A feature map walking through layers, and what they cost."""

    channels: int = 3
    size: int = 224
    macs: int = 0
    parameters: int = 0

    def conv(
        self, out: int, kernel: int, stride: int = 1, *, pad: int | None = None, group: int = 1,
        bias: bool = True, norm: bool = False,
    ) -> "Tally":  # fmt: skip
        """Convolve; `pad` None keeps the size. A norm adds a scale and a shift for each map."""
        pad = kernel // 2 if pad is None else pad
        self.size = (self.size + 2 * pad - kernel) // stride + 1
        weights = out * (self.channels // group) * kernel * kernel
        self.macs += weights * self.size * self.size
        self.parameters += weights + out * (bias + 2 * norm)
        self.channels = out
        return self

    def pool(self, kernel: int, stride: int, *, pad: int = 0, up: bool = False) -> "Tally":
        """Pool, rounding the size down, or up as Caffe does."""
        steps, rest = divmod(self.size + 2 * pad - kernel, stride)
        self.size = steps + 1 + (up and rest > 0)
        return self

    def dense(self, out: int) -> "Tally":
        """Connect every value of the map to each of `out`, with a bias."""
        inputs = self.channels * self.size * self.size
        self.macs += inputs * out
        self.parameters += inputs * out + out
        self.channels, self.size = out, 1
        return self

    def branches(self, *ways: Callable[["Tally"], "Tally"]) -> "Tally":
        """Send the map several ways and concatenate what comes out."""
        ends = [way(Tally(self.channels, self.size)) for way in ways]
        self.channels, self.size = sum(end.channels for end in ends), ends[0].size
        self.macs += sum(end.macs for end in ends)
        self.parameters += sum(end.parameters for end in ends)
        return self


def chain(*convolutions: tuple[int, int]) -> Callable[[Tally], Tally]:
    """Return a way through convolutions (filters, kernel), one after the other."""

    def walk(tally: Tally) -> Tally:
        for out, kernel in convolutions:
            tally.conv(out, kernel)
        return tally

    return walk


def alexnet(size: int = 224) -> Tally:
    t = Tally(size=size).conv(96, 11, 4, pad=0).pool(3, 2)
    t.conv(256, 5, group=2).pool(3, 2)
    t.conv(384, 3).conv(384, 3, group=2).conv(256, 3, group=2).pool(3, 2, up=True)
    return t.dense(4096).dense(4096).dense(1000)


def densenet121(growth: int = 32) -> Tally:
    t = Tally().conv(64, 7, 2, bias=False, norm=True).pool(3, 2, pad=1)
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            before = t.channels
            # BN, ReLU, 1 x 1 to four times the growth; BN, ReLU, 3 x 3
            t.parameters += 2 * before
            t.conv(4 * growth, 1, bias=False, norm=True).conv(growth, 3, bias=False)
            t.channels += before
        t.parameters += 2 * t.channels
        if block < 3:
            t.conv(t.channels // 2, 1, bias=False).pool(2, 2)
    t.size = 1
    return t.dense(1000)


def inception_v1(*, up: bool = False) -> Tally:
    t = Tally().conv(64, 7, 2).pool(3, 2, up=up)
    t.conv(64, 1).conv(192, 3).pool(3, 2, up=up)
    rows = """64 96 128 16 32 32
              128 128 192 32 96 64
              pool
              192 96 208 16 48 64
              160 112 224 24 64 64
              128 128 256 24 64 64
              112 144 288 32 64 64
              256 160 320 32 128 128
              pool
              256 160 320 32 128 128
              384 192 384 48 128 128"""
    for row in map(str.split, rows.splitlines()):
        if row == ["pool"]:
            t.pool(3, 2, up=up)
            continue
        one, three_in, three, five_in, five, pooled = map(int, row)
        t.branches(
            chain((one, 1)),
            chain((three_in, 1), (three, 3)),
            chain((five_in, 1), (five, 5)),
            chain((pooled, 1)),
        )
    t.size = 1
    return t.dense(1000)


def inception_v2() -> Tally:
    def conv(x: Tally, out: int, kernel: int, stride: int = 1) -> Tally:
        return x.conv(out, kernel, stride, bias=False, norm=True)

    def module(one: int, three_in: int, three: int, five_in: int, five: int, pooled: int) -> None:
        t.branches(
            lambda x: conv(x, one, 1),
            lambda x: conv(conv(x, three_in, 1), three, 3),
            lambda x: conv(conv(conv(x, five_in, 1), five, 3), five, 3),
            lambda x: conv(x, pooled, 1),
        )

    def halving(three_in: int, three: int, five_in: int, five: int) -> None:
        t.branches(
            lambda x: conv(conv(x, three_in, 1), three, 3, 2),
            lambda x: conv(conv(conv(x, five_in, 1), five, 3), five, 3, 2),
            lambda x: x.pool(3, 2, up=True),
        )

    t = conv(Tally(), 64, 7, 2).pool(3, 2, up=True)
    t = conv(conv(t, 64, 1), 192, 3).pool(3, 2, up=True)
    module(64, 64, 64, 64, 96, 32)
    module(64, 64, 96, 64, 96, 64)
    halving(128, 160, 64, 96)
    module(224, 64, 96, 96, 128, 128)
    module(192, 96, 128, 96, 128, 128)
    module(160, 128, 160, 128, 160, 96)
    module(96, 128, 192, 160, 192, 96)
    halving(128, 192, 192, 256)
    module(352, 192, 320, 160, 224, 128)
    module(352, 192, 320, 192, 224, 128)
    t.size = 1
    return t.dense(1000)


def resnet50(*, halve_first: bool = False) -> Tally:
    t = Tally().conv(64, 7, 2, bias=False, norm=True).pool(3, 2, pad=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            if not block:
                shortcut = Tally(t.channels, t.size).conv(
                    4 * width, 1, stride, bias=False, norm=True
                )
                t.macs += shortcut.macs
                t.parameters += shortcut.parameters
            first, second = (stride, 1) if halve_first else (1, stride)
            t.conv(width, 1, first, bias=False, norm=True)
            t.conv(width, 3, second, bias=False, norm=True)
            t.conv(4 * width, 1, bias=False, norm=True)
    t.size = 1
    return t.dense(1000)


def shufflenet(group: int = 4) -> Tally:
    t = Tally().conv(24, 3, 2, norm=True).pool(3, 2, pad=1)
    for width, units in ((136, 4), (272, 8), (544, 4)):
        for unit in range(units):
            before = t.channels
            # the first unit of a stage halves the map and concatenates the pooled input
            out = width - before if not unit else width
            t.conv(out, 1, group=group, bias=False, norm=True)
            t.conv(out, 3, 1 if unit else 2, group=out, bias=False, norm=True)
            t.conv(out, 1, group=group, bias=False, norm=True)
            t.channels = width
    t.size = 1
    return t.dense(1000)


def squeezenet() -> Tally:
    t = Tally().conv(64, 3, 2, pad=0).pool(3, 2, up=True)
    for row in ((16, 64), (16, 64), (), (32, 128), (32, 128), (), (48, 192), (48, 192), (64, 256),
                (64, 256)):  # fmt: skip
        if not row:
            t.pool(3, 2, up=True)
            continue
        squeeze, expand = row
        t.conv(squeeze, 1)
        t.branches(
            chain((expand, 1)),
            chain((expand, 3)),
        )
    return t.conv(1000, 1)


def vgg19() -> Tally:
    t = Tally()
    for width, layers in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(layers):
            t.conv(width, 3)
        t.pool(2, 2)
    return t.dense(4096).dense(4096).dense(1000)


def zfnet512() -> Tally:
    t = Tally().conv(96, 7, 2, pad=0).pool(3, 2)
    t.conv(256, 5, 2, pad=0).pool(3, 2)
    t.conv(512, 3).conv(512, 3).conv(512, 3).pool(2, 2)
    return t.dense(4096).dense(1024).dense(1000)


DERIVED = {
    "bvlc_alexnet": alexnet, "densenet121": densenet121, "inception_v1": inception_v1,
    "inception_v2": inception_v2, "resnet50": resnet50, "shufflenet": shufflenet,
    "squeezenet": squeezenet, "vgg19": vgg19, "zfnet512": zfnet512,
}  # fmt: skip


AS_DEFINED: dict[str, Callable[[], Tally]] = {
    "bvlc_alexnet": lambda: alexnet(227),
    "inception_v1": lambda: inception_v1(up=True),
    "resnet50": lambda: resnet50(halve_first=True),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_what_the_layers_of_the_definition_add_up_to(name: str) -> None:
    derived, reference = DERIVED[name](), REFERENCE[name]
    assert (derived.macs, derived.parameters) == (reference["macs"], reference["parameters"])


@pytest.mark.parametrize("name", sorted(AS_DEFINED))
def test_the_geometry_of_the_file_explains_the_difference_to_the_definition(name: str) -> None:
    defined = AS_DEFINED[name]()
    assert defined.macs == REFERENCE[name]["macs_as_defined"]
    assert defined.parameters == REFERENCE[name]["parameters"]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_equals_what_others_print(name: str) -> None:
    reference = REFERENCE[name]
    assert (
        reference.get("published_parameters", reference["parameters"]) == reference["parameters"]
    )
    macs_g = round(reference["macs"] / 1e9, 3)
    assert reference.get("published_macs_g", macs_g) == macs_g


@pytest.mark.parametrize("name", NAMES)
def test_the_count_of_the_file_equals_the_reference(
    name: str, light: Callable[[str], Path]
) -> None:
    graph = load(str(light(name)), Binding())
    work = count_work(graph)
    assert work.total.macs == REFERENCE[name]["macs"]
    assert graph.parameters == REFERENCE[name]["parameters"]
    assert work.notes == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_work_of_a_batch_is_that_of_its_items(name: str, light: Callable[[str], Path]) -> None:
    graph = load(str(light(name)), Binding(batch_size=8))
    work = count_work(graph)
    assert work.total.macs == 8 * REFERENCE[name]["macs"]
    assert graph.parameters == REFERENCE[name]["parameters"]
