"""Compiling and running kernels with Triton and torch: inputs, a reference, one launch.

A kernel is compiled for a compute capability without a GPU at hand, into Triton's own cache;
where it runs, the same call finds it there. It runs in the current CUDA context and on the current
stream. With `interpreted` nothing is compiled: Triton's interpreter runs it on the CPU. Copied
into every artefact.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import Plan

_TYPES = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16"}  # Triton's names
_KERNELS = f"{__name__.rpartition('.')[0]}.kernels"


@contextlib.contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set variables for the block; None takes one away."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def load_kernels(*, interpreted: bool) -> Any:
    """Return the module of the kernels, for the compiler or for the interpreter.

    Triton decides when a function is decorated, by the variable TRITON_INTERPRET: the module is
    loaded once for each, under two names.
    """
    name = f"{_KERNELS}_interpreted" if interpreted else _KERNELS
    if name in sys.modules:
        return sys.modules[name]
    # Triton's own functions are made for the compiler in any case, so that both can be used.
    importlib.import_module("triton.language")
    with environment(TRITON_INTERPRET="1" if interpreted else None):
        if not interpreted:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "kernels.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def compile_plan(op: Operation, plan: Plan, *, capability: int, cache: Path | None) -> Any:
    """Return the compiled kernel, from the cache or compiled now for `capability` (90 is 9.0).

    What the compiler raises is raised. `cache` None: Triton's own folder.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    kernel = getattr(load_kernels(interpreted=False), plan.kernel)
    stored = f"*{_TYPES[op.precision]}"
    types = {
        f"{place}_ptr": "*u8" if name == "mask" and op["mask"] == 1 else stored
        for place, name in zip(_places(kernel), plan.pointers, strict=True)
    }
    # the allocator of torch aligns to 512 bytes: vector loads of 16 are safe
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(plan.pointers))}
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=dict(plan.constants),
        attrs=aligned,
    )
    options = {
        "num_warps": plan.warps,
        "num_stages": plan.stages,
        "enable_fp_fusion": True,  # the default has changed between versions
    }
    where = {} if cache is None else {"TRITON_CACHE_DIR": str(cache)}
    with environment(**where):
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _places(kernel: Any) -> list[str]:
    return [name.removesuffix("_ptr") for name in kernel.arg_names if name.endswith("_ptr")]


def bind_compiled(compiled: Any, plan: Plan, tensors: Mapping[str, Any]) -> Callable[[], None]:
    """Return what launches a compiled kernel once on these tensors."""
    names = compiled.src.fn.arg_names
    pointers = [tensors[name] for name in plan.pointers]
    constants = [plan.constants[name] for name in names[len(pointers) :]]
    start = compiled[(*plan.grid, 1)]

    def launch() -> None:
        start(*pointers, *constants)

    return launch


def bind_interpreted(op: Operation, plan: Plan, tensors: Mapping[str, Any]) -> Callable[[], None]:
    """Return what runs the kernel once on CPU tensors, through Triton's interpreter."""
    start = getattr(load_kernels(interpreted=True), plan.kernel)[plan.grid]
    pointers = [tensors[name] for name in plan.pointers]
    constants = dict(plan.constants)
    if op.precision == "bf16" and "DOT" in constants:
        constants["DOT"] = "wide"

    def launch() -> None:
        # lanes outside the tensors compute what is never stored: infinity less infinity
        with np.errstate(all="ignore"):
            start(*pointers, **constants, num_warps=plan.warps, num_stages=plan.stages)

    return launch


def make_tensors(op: Operation, *, device: str, seed: int) -> dict[str, Any]:
    """Return random inputs and an output full of NaN, by name.

    Values are scaled so that a sum of products stays near 1, whatever its length.
    """
    import torch

    source = torch.Generator(device=device).manual_seed(seed)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(op.precision, torch.float32)
    made: dict[str, Any] = {}
    for name, shape in op.shapes.items():
        if name == "out":
            made[name] = torch.full(shape, float("nan"), dtype=dtype, device=device)
        elif name == "mask" and op["mask"] == 1:
            mask = torch.rand(shape, generator=source, device=device) < 0.8
            mask[..., 0] = True  # a query that sees nothing has no answer
            made[name] = mask.to(torch.uint8)
        else:
            values = torch.randn(shape, generator=source, device=device)
            made[name] = (values * _scale(op, name)).to(dtype)
    return made


def _scale(op: Operation, name: str) -> float:
    if op.kind == "matmul" and name == "b":
        return float(op["k"] ** -0.5)
    if op.kind == "conv" and name == "weight":
        return float((op["c"] * op["kh"] * op["kw"]) ** -0.5)
    return 1.0


def reference(op: Operation, tensors: Mapping[str, Any]) -> Any:
    """Return what the kernel should compute, by torch in fp32 without TF32."""
    import torch

    wide = {name: x if name == "mask" and op["mask"] == 1 else x.float()
            for name, x in tensors.items() if name != "out"}  # fmt: skip
    with _exact_fp32(torch):
        return _REFERENCES[op.kind](torch, op, wide).reshape(op.shapes["out"])


@contextlib.contextmanager
def _exact_fp32(torch: Any) -> Iterator[None]:
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in flags]
    for each in flags:
        each.allow_tf32 = False
    try:
        yield
    finally:
        for each, was in zip(flags, before, strict=True):
            each.allow_tf32 = was


def difference(op: Operation, expected: Any, found: Any) -> float:
    """Return the greatest difference, relative to the largest value expected; inf for NaN."""
    largest = float(expected.abs().max())
    off = float((found.float() - expected).abs().max())
    return off / max(largest, 1e-30) if off == off else float("inf")


def _epilogue(torch: Any, op: Operation, x: Any) -> Any:
    functions = torch.nn.functional
    if op.activation == "relu":
        return torch.relu(x)
    if op.activation == "silu":
        return functions.silu(x)
    if op.activation.startswith("gelu"):
        return functions.gelu(x, approximate="tanh" if op.activation == "gelu-tanh" else "none")
    return x


def _matmul(torch: Any, op: Operation, wide: Mapping[str, Any]) -> Any:
    a = wide["a"].transpose(-1, -2) if op["trans_a"] else wide["a"]
    b = wide["b"].transpose(-1, -2) if op["trans_b"] else wide["b"]
    x = torch.matmul(a, b)
    x = x.expand(op["batch"], op["m"], op["n"]) if x.dim() == 2 else x
    x = x + wide["bias"] if op["bias"] else x
    x = x + wide["residual"] if op["residual"] else x
    return _epilogue(torch, op, x)


def _conv(torch: Any, op: Operation, wide: Mapping[str, Any]) -> Any:
    # padding at the far ends follows from the size of the output
    right = _far_pad(op, "w", "kw", "stride_w", "dilation_w", "pad_w", "out_w")
    below = _far_pad(op, "h", "kh", "stride_h", "dilation_h", "pad_h", "out_h")
    x = torch.nn.functional.pad(wide["x"], (op["pad_w"], right, op["pad_h"], below))
    x = torch.nn.functional.conv2d(
        x, wide["weight"], wide.get("bias"),
        stride=(op["stride_h"], op["stride_w"]), dilation=(op["dilation_h"], op["dilation_w"]),
    )  # fmt: skip
    x = x + wide["residual"] if op["residual"] else x
    return _epilogue(torch, op, x)


def _far_pad(
    op: Operation, size: str, kernel: str, stride: str, dilation: str, pad: str, out: str
) -> int:
    """Return the padding behind the last value that gives the output its size; may be under 0."""
    reach = (op[out] - 1) * op[stride] + (op[kernel] - 1) * op[dilation] + 1
    return reach - op[size] - op[pad]


def _attention(torch: Any, op: Operation, wide: Mapping[str, Any]) -> Any:
    shared_by = op["heads"] // op["kv_heads"]
    keys, values = (wide[name].repeat_interleave(shared_by, 1) for name in ("key", "value"))
    score = wide["query"] @ keys.transpose(-1, -2) * op.number
    if op["mask"] == 1:
        score = score.masked_fill(wide["mask"] == 0, float("-inf"))
    if op["mask"] == 2:
        score = score + wide["mask"]
    if op["causal"]:
        ones = torch.ones(op["q"], op["kv"], dtype=torch.bool, device=score.device)
        score = score.masked_fill(~ones.tril(), float("-inf"))
    return torch.softmax(score, -1) @ values


def _softmax(torch: Any, op: Operation, wide: Mapping[str, Any]) -> Any:
    return torch.softmax(wide["x"], -1)


def _norm(torch: Any, op: Operation, wide: Mapping[str, Any]) -> Any:
    x = wide["x"]
    off = x if op["rms"] else x - x.mean(-1, keepdim=True)
    y = off * torch.rsqrt((off * off).mean(-1, keepdim=True) + op.number)
    y = y * wide["scale"] if op["scale"] else y
    return y + wide["bias"] if op["bias"] else y


_REFERENCES: Mapping[str, Callable[[Any, Operation, Mapping[str, Any]], Any]] = {
    "matmul": _matmul,
    "conv": _conv,
    "attention": _attention,
    "softmax": _softmax,
    "norm": _norm,
}
