"""Each kernel computes what torch computes, at odd sizes and in every precision."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.tune.backends.triton.operations import ACTIVATIONS, TOLERANCE, Operation
from slicewise.tune.backends.triton.plans import Config, make_plan
from slicewise.tune.backends.triton.spaces import Target, default_config, space_of

pytest.importorskip("triton", reason="the kernels need Triton")
torch = pytest.importorskip("torch", reason="inputs and references are made by torch")

from slicewise.tune.backends.triton import launch  # noqa: E402

TARGET = Target(90, sms=16)
PRECISIONS = st.sampled_from(("fp32", "tf32", "fp16", "bf16"))
FLAG = st.integers(0, 1)
ACTIVATION = st.integers(0, len(ACTIVATIONS) - 1)
# every program is interpreted in Python: small sizes, few of them
EXAMPLES = settings(max_examples=30, deadline=None)


@st.composite
def products(draw: st.DrawFn) -> Operation:
    sizes = {name: draw(st.integers(1, 40)) for name in ("m", "n", "k")}
    batch = draw(st.integers(1, 3))
    flags = {name: draw(FLAG) for name in ("trans_a", "trans_b", "bias", "residual")}
    both = {name: draw(FLAG) for name in ("a_batched", "b_batched")}
    activation = draw(ACTIVATION)
    return Operation.make(
        "matmul", draw(PRECISIONS), batch=batch, activation=activation, **sizes, **flags, **both
    )


@st.composite
def convolutions(draw: st.DrawFn) -> Operation:
    def size(h: int, kernel: int, stride: int, dilation: int, pad: int, far: int) -> int:
        return (h + pad + far - (kernel - 1) * dilation - 1) // stride + 1

    spatial: dict[str, int] = {}
    for axis in ("h", "w"):
        kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        dilation, pad = draw(st.integers(1, 2)), draw(st.integers(0, 2))
        least = (kernel - 1) * dilation + 1
        length = draw(st.integers(least, least + 5))
        spatial |= {
            axis: length, f"k{axis}": kernel, f"stride_{axis}": stride, f"pad_{axis}": pad,
            f"dilation_{axis}": dilation,
            f"out_{axis}": size(length, kernel, stride, dilation, pad, draw(st.integers(0, pad))),
        }  # fmt: skip
    return Operation.make(
        "conv", draw(PRECISIONS), n=draw(st.integers(1, 2)), c=draw(st.integers(1, 9)),
        o=draw(st.integers(1, 20)), bias=draw(FLAG), residual=draw(FLAG),
        activation=draw(ACTIVATION), **spatial,
    )  # fmt: skip


@st.composite
def attentions(draw: st.DrawFn) -> Operation:
    kv_heads = draw(st.integers(1, 2))
    mask = draw(st.integers(0, 2))
    flags = {name: draw(FLAG) if mask else 0 for name in
             ("mask_batched", "mask_heads", "mask_rows")}  # fmt: skip
    return Operation.make(
        "attention", draw(PRECISIONS), number=draw(st.sampled_from((0.125, 0.3))),
        batch=draw(st.integers(1, 2)), heads=kv_heads * draw(st.integers(1, 2)),
        kv_heads=kv_heads, q=draw(st.integers(1, 40)), kv=draw(st.integers(1, 40)),
        depth=draw(st.integers(1, 40)), causal=draw(FLAG), mask=mask, **flags,
    )  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Operation:
    sizes = {"rows": draw(st.integers(1, 9)), "columns": draw(st.integers(1, 300))}
    if draw(st.booleans()):
        return Operation.make("softmax", draw(PRECISIONS), **sizes)
    flags = {name: draw(FLAG) for name in ("rms", "scale", "bias")}
    return Operation.make("norm", draw(PRECISIONS), number=1e-5, **sizes, **flags)


def off_by(op: Operation, config: Config, *, seed: int = 0) -> float:
    """Return the greatest relative difference between the interpreted kernel and torch."""
    tensors = launch.make_tensors(op, device="cpu", seed=seed)
    launch.bind_interpreted(op, make_plan(op, config), tensors)()
    return launch.difference(op, launch.reference(op, tensors), tensors["out"])


def check(op: Operation, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(space_of(op, TARGET)))
    assert off_by(op, config) <= TOLERANCE[op.precision]


@EXAMPLES
@given(products(), st.data())
def test_products_are_those_of_torch(op: Operation, data: st.DataObject) -> None:
    check(op, data)


@EXAMPLES
@given(convolutions(), st.data())
def test_convolutions_are_those_of_torch(op: Operation, data: st.DataObject) -> None:
    check(op, data)


@EXAMPLES
@given(attentions(), st.data())
def test_attentions_are_those_of_torch(op: Operation, data: st.DataObject) -> None:
    check(op, data)


@EXAMPLES
@given(rows(), st.data())
def test_softmax_and_norms_are_those_of_torch(op: Operation, data: st.DataObject) -> None:
    check(op, data)


@pytest.mark.parametrize("block_c", [32, 512])
def test_softmax_of_huge_and_of_hidden_values(block_c: int) -> None:
    op = Operation.make("softmax", "fp32", rows=3, columns=300)
    tensors = launch.make_tensors(op, device="cpu", seed=0)
    tensors["x"][0] *= 1e4
    tensors["x"][1, :290] = -math.inf
    config = {"block_r": 2, "block_c": block_c, "stages": 1, "warps": 4}
    launch.bind_interpreted(op, make_plan(op, config), tensors)()
    expected = torch.softmax(tensors["x"], -1)
    assert torch.allclose(tensors["out"], expected, rtol=1e-5, atol=1e-7)


def test_a_norm_of_values_far_from_zero_keeps_its_digits() -> None:
    op = Operation.make("norm", "fp32", number=1e-5, rows=2, columns=300)
    tensors = launch.make_tensors(op, device="cpu", seed=0)
    tensors["x"] += 1e3
    config = {"block_r": 1, "block_c": 64, "stages": 1, "warps": 4}
    launch.bind_interpreted(op, make_plan(op, config), tensors)()
    expected = torch.nn.functional.layer_norm(tensors["x"].double(), (300,), eps=1e-5)
    assert float((tensors["out"] - expected).abs().max()) < 1e-3


def test_a_kernel_that_computes_something_else_is_seen() -> None:
    op = Operation.make("matmul", "fp16", batch=1, m=20, n=20, k=20, bias=1)
    other = Operation.make("matmul", "fp16", batch=1, m=20, n=20, k=20)
    tensors = launch.make_tensors(op, device="cpu", seed=0)
    launch.bind_interpreted(other, make_plan(other, default_config(other, TARGET)), tensors)()
    expected = launch.reference(op, tensors)
    assert launch.difference(op, expected, tensors["out"]) > TOLERANCE["fp16"]


def test_an_output_that_is_not_written_is_seen() -> None:
    op = Operation.make("softmax", "fp32", rows=2, columns=8)
    tensors = launch.make_tensors(op, device="cpu", seed=0)
    assert launch.difference(op, launch.reference(op, tensors), tensors["out"]) == math.inf


# --- compiled without a GPU

SMALL = {
    "matmul": {"batch": 2, "m": 64, "n": 48, "k": 96, "a_batched": 1, "trans_b": 1, "bias": 1,
               "residual": 1, "activation": 2},
    "conv": {"n": 1, "c": 16, "h": 8, "w": 8, "o": 32, "kh": 3, "kw": 3, "stride_h": 1,
             "stride_w": 1, "pad_h": 1, "pad_w": 1, "out_h": 8, "out_w": 8, "dilation_h": 1,
             "dilation_w": 1, "bias": 1, "residual": 1, "activation": 1},
    "attention": {"batch": 1, "heads": 2, "kv_heads": 1, "q": 64, "kv": 64, "depth": 32,
                  "causal": 1, "mask": 1, "mask_rows": 1},
    "softmax": {"rows": 16, "columns": 1000},
    "norm": {"rows": 16, "columns": 768, "scale": 1, "bias": 1},
}  # fmt: skip


def build(op: Operation, folder: Path, **more: Any) -> Any:
    config = {**default_config(op, TARGET), **more}
    return launch.compile_plan(op, make_plan(op, config), capability=90, cache=folder)


@pytest.mark.parametrize("kind", list(SMALL))
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(
    kind: str, precision: str, tmp_path: Path
) -> None:
    op = Operation.make(kind, precision, number=0.1, **SMALL[kind])
    compiled = build(op, tmp_path)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert compiled.metadata.target.arch == 90
    assert 0 <= compiled.metadata.shared <= TARGET.shared_bytes


def test_what_was_compiled_is_found_in_the_cache(tmp_path: Path) -> None:
    op = Operation.make("softmax", "fp16", rows=4, columns=64)
    first = build(op, tmp_path)
    files = sorted(tmp_path.rglob("*.cubin"))
    again = build(op, tmp_path)
    assert first.hash == again.hash and sorted(tmp_path.rglob("*.cubin")) == files != []
    assert build(op, tmp_path, warps=1).hash != first.hash


def test_a_launch_hands_over_what_the_kernel_names(tmp_path: Path) -> None:
    op = Operation.make("matmul", "fp16", batch=2, m=64, n=48, k=96, a_batched=1, bias=1)
    plan = make_plan(op, default_config(op, TARGET))
    given: dict[str, Any] = {}

    class Compiled:
        src = build(op, tmp_path).src

        def __getitem__(self, grid: tuple[int, int, int]) -> Any:
            names = self.src.fn.arg_names
            return lambda *args: given.update(dict(zip(names, args, strict=True)), grid=grid)

    tensors = dict.fromkeys(op.shapes)
    launch.bind_compiled(Compiled(), plan, {name: name for name in tensors})()
    assert given["grid"] == (*plan.grid, 1)
    assert [given[f"{name}_ptr"] for name in ("a", "b", "bias", "out")] == [*op.shapes]
    assert given["residual_ptr"] == "a"  # not read, but there must be some pointer
    assert {name: given[name] for name in plan.constants} == dict(plan.constants)


def test_an_interpreted_kernel_leaves_the_compiler_as_it_was(tmp_path: Path) -> None:
    op = Operation.make("matmul", "bf16", batch=1, m=8, n=8, k=8)
    assert off_by(op, default_config(op, TARGET)) <= TOLERANCE["bf16"]
    assert build(op, tmp_path).asm["cubin"]
    assert off_by(op, default_config(op, TARGET), seed=1) <= TOLERANCE["bf16"]
