"""Cards with slices on them, made up: by hand and by hypothesis."""

from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.packing import (
    GpuStock,
    Offer,
    Packing,
    PackProblem,
    PlacedGpu,
    PlacedSlice,
    Serving,
)
from slicewise.hardware.catalogue import find_device
from slicewise.slices.layouts import maximal_layouts

A100, A30, L4 = find_device("a100-sxm4-80gb"), find_device("a30"), find_device("l4")
B200, RTX = find_device("b200-sxm"), find_device("rtx-pro-6000-ws")  # B200: ids are not known
KINDS = (A100, A30, L4, B200)
NASTY = "a\n\"'$(rm -rf x)`# : é\x00\u2028{}"


def placed(
    device: Device,
    profile: str | None,
    start: int,
    workload: str | None = None,
    *,
    batch: int = 8,
    processes: int = 1,
    delay_ms: float = 4.25,
    in_use: bool = False,
) -> PlacedSlice:
    if workload is None:
        return PlacedSlice(profile, start, in_use=in_use)
    serving = Serving(batch, processes, Estimate(5.0, 4.0, 6.0, "test"), 100.0, 2e9)
    offer = Offer(device.name, profile, serving, 90.0, delay_ms)
    return PlacedSlice(profile, start, workload, offer, 45.0, in_use)


def problem(*devices: Device, current: tuple[PlacedGpu, ...] = ()) -> PackProblem:
    return PackProblem((), tuple(GpuStock(device) for device in devices), current=current)


def packing(*gpus: PlacedGpu) -> Packing:
    return Packing(gpus, float(len(gpus)), ())


def fixed() -> tuple[Packing, PackProblem]:
    """Three cards, one un-sliced, one without MIG."""
    sliced = PlacedGpu(
        A100.name, 0,
        (
            placed(A100, "2g.20gb", 0, "bert"),
            placed(A100, "1g.10gb", 2, "ResNet 50", batch=1),
            placed(A100, "1g.10gb", 3, "ResNet 50", batch=1),
            placed(A100, "3g.40gb", 4, "vgg", batch=16, processes=2),
        ),
    )  # fmt: skip
    whole = PlacedGpu(A100.name, 1, (placed(A100, None, 0, "llm"),))
    plain = PlacedGpu(L4.name, 0, (placed(L4, None, 0, "vgg"),))
    return packing(sliced, whole, plain), problem(A100, L4)


@st.composite
def gpus(draw: st.DrawFn, device: Device, index: int) -> PlacedGpu:
    names = st.sampled_from(["bert", "vgg", "ResNet 50", "resnet-50", NASTY, "x" * 90])
    if not device.profiles or draw(st.integers(0, 3)) == 0:
        return PlacedGpu(device.name, index, (placed(device, None, 0, draw(names)),))
    layout = draw(st.sampled_from(maximal_layouts(device)))
    slices = tuple(
        placed(
            device, each.profile, each.start, draw(st.one_of(names, st.none())),
            batch=draw(st.sampled_from([1, 2, 8])), processes=draw(st.integers(1, 3)),
            delay_ms=draw(st.sampled_from([0.0, 0.5, 7.1234])),
        )
        for each in layout
        if draw(st.booleans())
    )  # fmt: skip
    return PlacedGpu(device.name, index, slices)


@st.composite
def packings(draw: st.DrawFn) -> tuple[Packing, PackProblem]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True))
    made = [
        draw(gpus(device, index))
        for device in kinds
        for index in sorted(draw(st.sets(st.integers(0, 19), max_size=3)))
    ]
    return packing(*made), problem(*kinds)
