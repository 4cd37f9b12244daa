"""The learned predictor: networks scale the costs of kernels where open rows cover the case.

    kernel = sum over causes of theta(context, conditions) x basis, but never above the peak
    busy = sum of kernels; launches are hidden behind it: (busy^4 + launches^4)^(1/4)
    latency = busy, plus what launches add (told by the kernels they belong to), plus host

Weights lie in `weights/` as an ONNX model with a card (`weights.py`); onnxruntime runs them. What
no row covers keeps the roofline, and a Note says so. Training: `training/` in the repository.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from slicewise.core.conditions import USUAL, Conditions, version_text
from slicewise.core.cost import GraphWork, Kind, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import PredictionError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.precision import Precision
from slicewise.predict.basis import BASIS, basis_of
from slicewise.predict.conditions import figures_of
from slicewise.predict.context import context_of
from slicewise.predict.correction import Card
from slicewise.predict.kernels import KINDS, Array, KernelTable, KernelTimes, Row, UnitCosts
from slicewise.predict.weights import WeightsCard, read_card, weights_path

LAUNCH_SHARPNESS = 4
# Boost clocks lie above those of data sheets by so much at most: RTX 4090, 2.52 GHz stated, about
# 2.8 GHz seen in use.
BOOST = 1.15
# Multiplications that Winograd's F(4x4, 3x3) saves (Lavin and Gray, CVPR 2016); fp32 only.
WINOGRAD = 4.0
_NO_CARDS: Mapping[str, Card] = MappingProxyType({})
_MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Learned:
    """What the networks say of one graph on one device.

    `times` as launched, launches included; `host_s`; `low` and `high` are the factors of the 90 %
    interval; `source` names the weights; `notes` tell what lies outside of what was learned.
    """

    times: KernelTimes
    host_s: float
    low: float
    high: float
    source: str
    notes: tuple[Note, ...] = ()


def predict_network_on(
    graph: Graph,
    work: GraphWork,
    devices: Sequence[Device],
    *,
    precision: Precision,
    runtime: str,
    cards: Mapping[str, Card] = _NO_CARDS,
    conditions: Conditions = USUAL,
) -> tuple[Prediction, ...]:
    """Return the predicted cost of `graph` on each of several whole devices.

    Learned where the weights cover the kind of device, the runtime and the precision; else the
    roofline's answer, with the Note `learned-uncovered`. Errors are those of the roofline.
    """
    from slicewise.predict.roofline import predict_on

    return predict_on(
        graph, work, devices, precision=precision, runtime=runtime, cards=cards,
        conditions=conditions, learned=learned_times,
    )  # fmt: skip


def learned_times(
    graph: Graph,
    rows: Sequence[Row],
    table: KernelTable,
    costs: UnitCosts,
    times: KernelTimes,
    *,
    device: Device,
    precision: str,
    runtime: str,
    conditions: Conditions = USUAL,
) -> Learned | Note:
    """Return the learned times of the kernels `rows`, or the Note that says why there are none."""
    card = read_card()
    reason = card.uncovered(device, runtime, precision)
    if reason:
        text = f"no learned figures for {reason}; the roofline is used"
        return Note("learned-uncovered", text)
    context = _context_of(graph, rows, conditions.layout)
    asked = conditions.runtime_version or ()
    version = card.known_version(runtime, asked)
    basis_us = basis_of(table, costs, device) * 1e6
    made = _run(
        context, basis_us, device, card,
        runtime=runtime, precision=precision, layout=conditions.layout, version=version,
    )  # fmt: skip
    repeats = np.array([row.repeats for row in rows])
    least_us = _least_us(table, basis_us)
    members_us = np.maximum(made.kernels_us, least_us[None, :])
    busy_us = members_us @ repeats
    launch_us = device.launch_s * 1e6 * made.launch * float(repeats.sum())
    power = LAUNCH_SHARPNESS
    together_us = (busy_us**power + launch_us**power) ** (1 / power)
    # each member's own total, shared by its kernels: what launches add is the same for each kernel
    added_us = (together_us - busy_us) / max(float(repeats.sum()), 1.0)
    kernels_us = (members_us + added_us[:, None]).mean(axis=0)
    host_us = float(made.host_us.mean())
    totals_us = together_us + made.host_us
    spread = float(np.std(np.log(totals_us))) if len(totals_us) > 1 else 0.0
    reasons = card.outside(
        graph, rows, device=device, runtime=runtime, precision=precision, version=version,
        layout=conditions.layout, batch=graph.batch_size, kernel_s=kernels_us * repeats,
    )  # fmt: skip
    low, high = card.factors(
        device, runtime, spread=spread, outside=len(reasons), precision=precision
    )
    notes = [Note("learned-extrapolated", _outside_text(reasons))] if reasons else []
    if version != asked:
        text = (
            f"{runtime} {version_text(asked)} is outside of the versions that were learned from;"
            f" predicted as {version_text(version)}"
        )
        notes.append(Note("version-clamped", text))
    return Learned(
        _times_of(kernels_us * 1e-6, members_us.mean(axis=0) * 1e-6, times),
        host_us * 1e-6, low, high, card.source, tuple(notes),
    )  # fmt: skip


def _outside_text(reasons: Sequence[str]) -> str:
    return f"outside of what was learned from: {'; '.join(reasons)}; interval widened"


def _times_of(launched_s: Array, busy_s: Array, plain: KernelTimes) -> KernelTimes:
    """Return the parts of learned times: arithmetic and bytes keep the roofline's ratio, and
    neither takes longer than the kernel does."""
    longest = np.maximum(plain.compute_s, plain.memory_s)
    scale = np.minimum(1.0, busy_s / np.where(longest > 0, longest, 1.0))
    return KernelTimes(
        launched_s,
        np.minimum(plain.padded_s * scale, launched_s),
        plain.compute_s * scale,
        plain.memory_s * scale,
        np.minimum(plain.saturated_s, busy_s),
    )


def _least_us(table: KernelTable, basis_us: Array) -> Array:
    """Return what no kernel can take less than: its arithmetic at the peak."""
    fp32 = np.array([dtype.bits == 32 for dtype in table.dtypes], dtype=bool)
    is_wide = fp32[table.dtype] if len(table.dtypes) else np.zeros(0, dtype=bool)
    saved = np.where(is_wide & (table.kind == KINDS.index(Kind.CONV)), WINOGRAD, 1.0)
    least: Array = basis_us[:, BASIS.index(_MATRIX)] / (BOOST * saved)
    return least


@dataclass(frozen=True, slots=True)
class _Made:
    """What the networks return: [members, kernels], [members], [members]."""

    kernels_us: Array
    launch: Array
    host_us: Array


def _run(
    context: Array, basis_us: Array, device: Device, card: WeightsCard, *,
    runtime: str, precision: str, layout: str, version: Sequence[int],
) -> _Made:  # fmt: skip
    # kernels alike in everything are asked for once
    figures = figures_of(device, runtime=runtime, layout=layout, version=version)
    given = {
        "context": context.astype(np.float32),
        "basis_us": basis_us.astype(np.float32),
        "figures": np.array([figures], dtype=np.float32),
        "device": np.array([card.device_number(device.name)], dtype=np.int64),
        "under": np.array(
            [card.condition_number(runtime, precision, layout, version)], dtype=np.int64
        ),
    }
    kernels_us, launch, host_us = _session().run(None, given)
    return _Made(
        kernels_us.astype(np.float64), launch.astype(np.float64), host_us.astype(np.float64)
    )


@cache
def _session() -> Any:
    """Return the session that runs the networks; `PredictionError` where it cannot be made."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    path = weights_path()
    try:
        return onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as err:
        raise PredictionError(
            f"the weights {path.name} cannot be run: {type(err).__name__}: {err}; install"
            " slicewise anew, or predict with --predictor roofline"
        ) from err


# What a graph's kernels are like does not change with the batch or the device.
_CONTEXTS: dict[tuple[int, int, str], tuple[Any, Any, Array]] = {}
_KEPT = 8


def _context_of(graph: Graph, rows: Sequence[Row], layout: str) -> Array:
    """Return the context, kept for graphs that are asked for on several devices in turn."""
    key = (id(graph), id(rows), layout)
    found = _CONTEXTS.get(key)
    if found is not None and found[0] is graph and found[1] is rows:
        return found[2]
    made = context_of(graph, rows, layout=layout)
    if len(_CONTEXTS) >= _KEPT:
        _CONTEXTS.pop(next(iter(_CONTEXTS)))
    _CONTEXTS[key] = (graph, rows, made)
    return made
