"""The open kernel-level measurements as kernels of this package, ready to train on.

`read_rows()` gives one frame of all rows that can be used, `sample()` a balanced part of it and
`samples_of()` the arrays, like those of whole models: each kernel is a graph of one node that the
product's own code counts, so that a kernel measured alone and the same kernel inside a model look
alike. Nothing is trained or predicted here.

Sources, all with a licence: NeuSight (MIT), aiconfigurator (Apache-2.0), DeepBench (Apache-2.0);
`kernel_level/NOTES.md` of the data folder tells how each was measured. NeuSight: single launches
of eager PyTorch, hot cache, fp32 without TF32, launch inside the time (runtime `torch-eager`).
aiconfigurator: replays of captured graphs, no launch inside (`replayed`), weights cycled over five
or six tensors. DeepBench: best algorithm of the vendor's library, loops of one call (`library`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slicewise.core.cost import NodeWork
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.graph import AttrValue, Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict.basis import BASIS, basis_of
from slicewise.predict.context import CONTEXT, context_of
from slicewise.predict.kernels import Row, kernels_of, tabulate, unit_costs
from training.model_rows import ModelRow
from training.samples import Samples

Array = NDArray[np.float64]
Sizes = tuple[int, ...]
Draw = Callable[[str, Sizes, DType], Graph]

DATA = Path(os.environ.get("SLICEWISE_DATA", "../shared/data")) / "kernel_level"
RUNTIMES: Mapping[str, str] = {
    "NeuSight": "torch-eager", "aiconfigurator": "replayed", "DeepBench": "library",
}  # fmt: skip
SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k"),
    "conv": ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w",
             "groups"),
    "elementwise": ("rows", "cols"),
    "norm_softmax": ("rows", "cols"),
    "attention": ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"),
    "rnn": ("batch", "hidden", "timesteps"),
}  # fmt: skip
"""File -> the columns that say the size of a kernel."""

_DTYPES: Mapping[str, DType] = {
    "fp32": DType.FP32, "fp16": DType.FP16, "bfloat16": DType.BF16, "fp8": DType.FP8,
    "int8": DType.INT8,
}  # fmt: skip
CYCLED: Mapping[str, tuple[int, bool]] = {
    "trtllm": (5, False), "sglang": (6, True), "vllm": (6, True),
}  # fmt: skip
"""Framework of aiconfigurator -> the most tensors of weights that its loops cycle over, and
whether they are one more than fill the cache. Read off the open rows: under trtllm, weights of 96
MiB, half and a third of it come three times as fast as the memory of an L40S (cache: 96 MiB) can
give them; those of 84 and of 112 MiB do not."""

# Part of the cache that cycled weights fill while all of them stay, and from which none does:
# under trtllm, at 1.00 they come 1.4 times as fast as the memory of an RTX PRO 6000, at 1.08 0.8.
_ALL_KEPT, _NONE_KEPT = 1.0, 1.08
_SITES = {"gemm": ["n", "k"]}  # what a fold keeps together, other files: all sizes
_FOLDS = 10
WIDTH = max(len(names) for names in SIZES.values())
# P4: training rows of linear layers above this reach 18 % of the peak, its test rows 74 %
# (NOTES.md, section 2): the card was throttled.
_THROTTLED_S = 5e-3


def read_rows(files: Sequence[str] = tuple(SIZES)) -> pd.DataFrame:
    """Return the usable rows of some files; `device` is the name in the catalogue.

    `fold` 0..9 groups rows by shape, those of gemm by site (n, k). Left out: backward passes,
    windows and quantised caches of attention, block-scaled and weight-only types, devices
    without data sheet, and the throttled rows of P4.
    """
    frames = []
    for file in files:
        raw = pd.read_parquet(DATA / f"kernels_{file}.parquet")
        raw = raw[_usable(file, raw)]
        names = SIZES[file]
        frame = pd.DataFrame({
            "file": file,
            "source": raw["source"].astype(str),
            "device": raw["device"].astype(str),
            "op": raw["op"].astype(str),
            "dtype": raw["dtype"].astype(str),
            "framework": raw["framework"].astype(str),
            "version": raw["version"].astype(str),
            "split": raw["orig_split"].astype(str) if "orig_split" in raw else "",
            "latency_s": raw["latency_us"].astype(np.float64) * 1e-6,
        })  # fmt: skip
        for i in range(WIDTH):
            frame[f"size_{i}"] = raw[names[i]].astype(np.int64) if i < len(names) else 0
        frame["fold"] = _fold(raw[_SITES.get(file, list(names))])
        frames.append(frame)
    made = pd.concat(frames, ignore_index=True)
    made["runtime"] = made["source"].map(RUNTIMES)
    known = {name: catalogue_name(name) for name in made["device"].unique()}
    made["device"] = made["device"].map(known)
    throttled = (
        (made["device"] == "p4") & (made["op"] == "linear_bias") & (made["split"] == "train")
        & (made["latency_s"] > _THROTTLED_S)
    )  # fmt: skip
    return made[made["device"].notna() & ~throttled].reset_index(drop=True)


def sample(rows: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Return about `count` rows, as evenly as they go over source, device, operator and type."""
    rng = np.random.default_rng(seed)
    strata = rows.groupby(["source", "device", "op", "dtype"], sort=True).ngroup().to_numpy()
    sizes = np.bincount(strata)
    # the share of each stratum that makes the sum right where small ones give all they have
    low, high = 0, int(sizes.max())
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if np.minimum(sizes, middle).sum() < count else (low, middle)
        )
    mixed = rng.permutation(len(rows))
    mixed = mixed[np.argsort(strata[mixed], kind="stable")]
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rows.iloc[np.sort(mixed[rank < low])].reset_index(drop=True)


def as_samples(count: int, seed: int = 0) -> Samples:
    """Return about `count` kernels as samples beside those of whole models."""
    return samples_of(sample(read_rows(), count, seed))


def samples_of(rows: pd.DataFrame, *, device_of: Callable[[str], Device] = find_device) -> Samples:
    """Return some rows as samples of one kernel each. About 0.3 ms a shape and 20 us a row."""
    keys = rows[["file", "op", "dtype", *(f"size_{i}" for i in range(WIDTH))]]
    shape_of = keys.groupby(list(keys.columns), sort=False).ngroup().to_numpy()
    first = np.unique(shape_of, return_index=True)[1]
    kernels: list[NodeWork] = []
    contexts = np.zeros((len(first), len(CONTEXT)), dtype=np.float32)
    for i, values in enumerate(keys.iloc[first].itertuples(index=False)):
        file, op, dtype, *sizes = values
        row, contexts[i] = kernel_of(file, op, _DTYPES[dtype], tuple(sizes[: len(SIZES[file])]))
        kernels.append(row.kernel)
    is_cycled = (rows["file"] == "gemm") & rows["framework"].isin(list(CYCLED))
    framework = rows["framework"].where(is_cycled, "")
    basis = np.zeros((len(rows), len(BASIS)), dtype=np.float32)
    for (name, cycled), at in rows.groupby([rows["device"], framework]).indices.items():
        shapes, place = np.unique(shape_of[at], return_inverse=True)
        costs_s = device_basis([kernels[k] for k in shapes], device_of(name), cycled)
        basis[at] = costs_s[place] * 1e6
    distinct, number = np.unique(contexts, axis=0, return_inverse=True)
    return Samples(
        [_model_row(each) for each in rows.itertuples(index=False)],
        distinct,
        number.reshape(-1)[shape_of].astype(np.int64),
        basis,
        np.ones(len(rows), dtype=np.float32),
        np.arange(len(rows) + 1),
    )


def _model_row(row: Any) -> ModelRow:
    sizes = "x".join(str(getattr(row, f"size_{i}")) for i in range(len(SIZES[row.file])))
    return ModelRow(
        source=row.source,
        file=f"{row.source}-{row.device}-{row.op}",
        model_name=row.op,
        key=f"{row.op} {sizes}",
        device=row.device,
        runtime=row.runtime,
        precision=_DTYPES[row.dtype].value,
        layout="nchw",
        version=_release(row.version) if row.runtime.startswith("torch") else (),
        batch=1,
        latency_s=row.latency_s,
        family_fold=-1,
        model_fold=-1,
        group=row.op,
        gmacs=0.0,
        macts=0.0,
        params_m=0.0,
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def device_basis(kernels: Sequence[NodeWork], device: Device, framework: str = "") -> Array:
    """Return the costs by cause of some kernels on a device, in seconds.

    `framework`: whose loops cycled over weights; what the cache keeps of these from the last time
    is not read from memory. Without one, weights are read cold, as those of a model.
    """
    table = tabulate(kernels)
    costs, _ = unit_costs(table, device)
    if framework in CYCLED:
        most, is_more = CYCLED[framework]
        fill = device.cache_bytes / np.maximum(table.weight_bytes, 1.0)
        copies = np.minimum(np.floor(fill) + 1 if is_more else np.ceil(fill), most)
        missed = np.clip((copies / fill - _ALL_KEPT) / (_NONE_KEPT - _ALL_KEPT), 0.0, 1.0)
        costs = replace(costs, weight_s=costs.weight_s * missed)
    return basis_of(table, costs, device)


def kernel_of(file: str, op: str, dtype: DType, sizes: Sizes) -> tuple[Row, Array]:
    """Return one kernel of a data file and its context; `sizes` as in `SIZES`."""
    graph = _DRAW[file](op, sizes, dtype)
    rows = list(kernels_of(count_work(graph)))
    return rows[0], context_of(graph, rows)[0]


def _usable(file: str, raw: pd.DataFrame) -> "pd.Series[bool]":
    usable = raw["dtype"].astype(str).isin(list(_DTYPES)) & (raw["latency_us"] > 0)
    if "phase" in raw:
        usable &= raw["phase"].astype(str) == "fwd"
    if file == "attention":
        plain = raw["kv_dtype"].astype(str) == raw["dtype"].astype(str)
        usable &= plain & (raw["window"] <= 0)
        usable &= raw["op"].astype(str).isin(["context_attention", "encoder_attention"])
    if file == "elementwise":  # quantisation has shapes of its own
        usable &= raw["source"].astype(str) == "NeuSight"
    return usable


def _fold(sizes: pd.DataFrame) -> "pd.Series[int]":
    hashed = pd.util.hash_pandas_object(sizes.astype(np.int64), index=False)
    return (hashed % _FOLDS).astype(np.int64)


def catalogue_name(name: str) -> str | None:
    try:
        return find_device(name).name
    except DeviceError:
        return None


def _graph(
    op: str, reads: Sequence[Sizes], made: Sizes, dtype: DType, *, constants: Sequence[int] = (),
    out: DType | None = None, attrs: Mapping[str, AttrValue] | None = None,
) -> Graph:  # fmt: skip
    names = tuple(f"read {i}" for i in range(len(reads)))
    tensors = {name: Tensor(shape, dtype) for name, shape in zip(names, reads, strict=True)}
    tensors["made"] = Tensor(made, out or dtype)
    fixed = {names[i]: Constant(Role.PARAMETER, tensors[names[i]].size_bytes) for i in constants}
    node = Node("kernel", op, names, ("made",), attrs or {})
    free = tuple(name for name in names if name not in fixed)
    return Graph("kernel", (node,), tensors, free, ("made",), fixed)


def _gemm(op: str, sizes: Sizes, dtype: DType) -> Graph:
    batch, m, n, k = sizes
    if op == "bmm":
        return _graph("MatMul", [(batch, m, k), (batch, k, n)], (batch, m, n), dtype)
    if op == "linear_bias":
        reads = [(m, k), (n, k), (n,)]
        return _graph("Gemm", reads, (m, n), dtype, constants=(1, 2), attrs={"transB": 1})
    # 8-bit products give 16-bit results to the next layer
    out = DType.BF16 if dtype.bits == 8 else dtype
    return _graph("MatMul", [(m, k), (k, n)], (m, n), dtype, constants=(1,), out=out)


def _conv(op: str, sizes: Sizes, dtype: DType) -> Graph:
    n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, groups = sizes
    groups = max(groups, 1)
    made = (n, k, (h + 2 * pad_h - r) // stride_h + 1, (w + 2 * pad_w - s) // stride_w + 1)
    attrs: dict[str, AttrValue] = {
        "kernel_shape": (r, s), "strides": (stride_h, stride_w), "group": groups,
        "pads": (pad_h, pad_w, pad_h, pad_w),
    }  # fmt: skip
    reads = [(n, c, h, w), (k, c // groups, r, s)]
    return _graph("Conv", reads, made, dtype, constants=(1,), attrs=attrs)


_BINARY = {"add": "Add", "mul": "Mul", "div": "Div", "pow": "Pow"}
_UNARY = {"relu": "Relu", "gelu": "Gelu", "tanh": "Tanh", "softmax": "Softmax"}


def _rowwise(op: str, sizes: Sizes, dtype: DType) -> Graph:
    rows, cols = sizes
    shape = (rows, cols)
    if op in ("layernorm", "ln"):
        reads = [shape, (cols,), (cols,)]
        return _graph("LayerNormalization", reads, shape, dtype, constants=(1, 2))
    if op in _UNARY:
        return _graph(_UNARY[op], [shape], shape, dtype)
    if op in _BINARY:
        return _graph(_BINARY[op], [shape, shape], shape, dtype)
    return _graph(_BINARY[op.removesuffix("u")], [shape, ()], shape, dtype, constants=(1,))


def _attention(op: str, sizes: Sizes, dtype: DType) -> Graph:
    batch, queries, keys, heads, kv_heads, size = sizes
    made = (batch, heads, queries, size)
    held = (batch, kv_heads, keys, size)
    out = DType.BF16 if dtype.bits == 8 else dtype
    attrs: dict[str, AttrValue] = {"is_causal": int(op == "context_attention")}
    return _graph("Attention", [made, held, held], made, dtype, out=out, attrs=attrs)


_GATES = {"rnn_vanilla": ("RNN", 1), "rnn_gru": ("GRU", 3), "rnn_lstm": ("LSTM", 4)}


def _recurrent(op: str, sizes: Sizes, dtype: DType) -> Graph:
    batch, hidden, steps = sizes
    name, gates = _GATES[op]
    reads = [(steps, batch, hidden), (1, gates * hidden, hidden), (1, gates * hidden, hidden)]
    made = (steps, 1, batch, hidden)
    attrs: dict[str, AttrValue] = {"hidden_size": hidden}
    return _graph(name, reads, made, dtype, constants=(1, 2), attrs=attrs)


_DRAW: Mapping[str, Draw] = {
    "gemm": _gemm, "conv": _conv, "elementwise": _rowwise, "norm_softmax": _rowwise,
    "attention": _attention, "rnn": _recurrent,
}  # fmt: skip
