"""Whole models and their kernels as NeuSight measured and predicted them; open rows only.

`kernel_frame` are the kernels measured alone, in the columns of `training.kernel_rows`; beside
them NeuSight's and the roofline's stored predictions. `model_cases` are dense models on one GPU,
each the kernels of one layer with how often they run in the whole model. Needs the measured data
($SLICEWISE_DATA); `kernel_level/NOTES.md` of it tells how both files were made.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.kernel_rows import DATA, WIDTH, catalogue_name

LAYERS: Mapping[str, int] = {
    "bert_large": 24, "gpt2_large": 36, "gpt3_xl": 24, "gpt3_27": 32, "opt_13": 24,
}  # fmt: skip
"""Layers of the dense models (their papers); the sums of measured operators that the data gives
beside the totals come out of these within a percent."""

_OPS: Mapping[str, tuple[str, str]] = {
    "BMM": ("gemm", "bmm"), "Linear": ("gemm", "linear_bias"),
    "VECln": ("norm_softmax", "layernorm"), "VECsoftmax": ("norm_softmax", "softmax"),
}  # fmt: skip
_PARTS = ("bmm", "linear", "elementwise", "softmax", "layernorm")
_VOCABULARIES = (50257, 50272)
# Additions and norms of tokens x width that belong to a layer; the others stand before or behind.
_IN_LAYER = 2


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A model on a device: `kernels` are rows of the frame and `counts` how often each runs;
    `operators_ms` is the sum of its measured operators, as the source gives it."""

    model: str
    device: str
    batch: int
    measured_ms: float
    neusight_ms: float
    operators_ms: float
    kernels: NDArray[np.int64]
    counts: NDArray[np.float64]


def kernel_frame() -> pd.DataFrame:
    """Return NVIDIA's rows, one for each kernel of a model at a batch on a device."""
    raw = pd.read_csv(DATA / "model_kernels.csv")
    raw = raw[~raw["device"].str.startswith("MI")].reset_index(drop=True)
    sizes = [_sizes(op, args) for op, args in zip(raw["op"], raw["args"], strict=True)]
    frame = pd.DataFrame({
        "file": [_operator(op)[0] for op in raw["op"]],
        "op": [_operator(op)[1] for op in raw["op"]],
        "source": "NeuSight", "dtype": "fp32", "framework": "pytorch", "version": "2.1.0",
        "runtime": "torch-eager",
        "device": [catalogue_name(name) for name in raw["device"]],
        "latency_s": raw["measured_us"] * 1e-6,
        "neusight_s": raw["neusight_us"] * 1e-6,
        "roofline_s": raw["roofline_us"] * 1e-6,
        "model": raw["model"], "mode": raw["mode"], "batch": raw["batch"],
        "nodes": raw["n_nodes"], "published_op": raw["op"], "published_device": raw["device"],
    })  # fmt: skip
    for i in range(WIDTH):
        frame[f"size_{i}"] = [size[i] if i < len(size) else 0 for size in sizes]
    return frame


def model_cases(frame: pd.DataFrame) -> list[ModelCase]:
    """Return the dense models at inference on one GPU, in the order of the data."""
    raw = pd.read_csv(DATA / "end_to_end.csv")
    raw = raw[(raw["mode"] == "inf") & raw["option"].isna() & raw["model"].isin(list(LAYERS))]
    cases = []
    for row in raw.itertuples():
        its = frame[
            (frame["published_device"] == row.device) & (frame["model"] == row.model)
            & (frame["mode"] == "inf") & (frame["batch"] == row.batch)
        ]  # fmt: skip
        if len(its):
            counts = its["nodes"].to_numpy() * 1.0
            layers = np.array(
                [
                    _in_layer(op, nodes, (one, two), wide, row.batch)
                    for op, nodes, one, two, wide in zip(
                        its["published_op"],
                        its["nodes"],
                        its["size_0"],
                        its["size_1"],
                        its["size_2"],
                        strict=True,
                    )
                ]
            )
            counts += layers * (LAYERS[row.model] - 1)
            cases.append(ModelCase(
                row.model, its["device"].iloc[0], row.batch, row.measured_latency_ms,
                row.neusight_ms, sum(getattr(row, f"measured_{part}_ms") for part in _PARTS),
                its.index.to_numpy(), counts,
            ))  # fmt: skip
    return cases


def _operator(op: str) -> tuple[str, str]:
    """Return file and operator; a division without suffix is by a scalar, as in GPT-2."""
    if op in _OPS:
        return _OPS[op]
    name = op.removeprefix("VEC")
    return "elementwise", {"div": "divu"}.get(name, name)


def _sizes(op: str, args: str) -> tuple[int, ...]:
    """Return sizes as in the open files: of products (batch, m, n, k) from (batch, m, k, n)."""
    read = [int(each) for each in args.split("x")]
    if op == "BMM":
        return read[0], read[1], read[3], read[2]
    return (1, read[0], read[2], read[1]) if op == "Linear" else tuple(read)


def _in_layer(op: str, nodes: int, rows: tuple[int, int], columns: int, batch: int) -> int:
    """Return how many of a kernel's nodes stand in each layer: not those of a pooled token, of
    the vocabulary, or of embeddings and the last norm."""
    is_linear = op == "Linear"
    if op != "BMM" and rows[is_linear] <= batch:
        return 0
    if is_linear and columns in _VOCABULARIES:
        return 0
    return min(nodes, _IN_LAYER) if op in ("VECadd", "VECln") and nodes > _IN_LAYER else nodes
