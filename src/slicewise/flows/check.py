"""`check`: predict, measure, and say where the difference comes from, operator by operator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsIndex

from slicewise.core.cost import Kind, NodeEstimate, Prediction
from slicewise.core.errors import MeasureError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Measurement, NodeTime
from slicewise.core.notes import Note
from slicewise.core.precision import Precision
from slicewise.flows.load import ModelLike, load
from slicewise.flows.measure import (
    MeasureOptions,
    is_usable,
    measure,
    part_of,
    target_here,
)
from slicewise.flows.predict import DEFAULT_PREDICTOR, PredictOptions, predict_many, ready_graph


@dataclass(frozen=True, slots=True)
class KindDifference:
    """Predicted and measured time of all operators of a kind, in ms of one run.

    `measured_ms` is what the runtime's profiler tells.
    """

    kind: Kind
    predicted_ms: float
    measured_ms: float
    calls: float


@dataclass(frozen=True, slots=True)
class OperatorDifference:
    """Kernels that could be told on both sides, in ms of one run: mostly one kernel.

    `name` and `op_type` are those of the heaviest of the `nodes` behind them.
    """

    name: str
    op_type: str
    predicted_ms: float
    measured_ms: float
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Check:
    """A prediction beside the measurement of the same case.

    `kinds` and `operators` come largest difference first. `outside_ms` is the measured latency
    less the profiler's sum: work between operators, or the profiler's own cost where negative.
    """

    prediction: Prediction
    measurement: Measurement
    kinds: tuple[KindDifference, ...]
    operators: tuple[OperatorDifference, ...]
    outside_ms: float
    notes: tuple[Note, ...] = ()

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured latency."""
        assert self.measurement.latency_ms is not None
        measured = self.measurement.latency_ms.value
        return (self.prediction.latency_ms.value - measured) / measured

    @property
    def is_inside(self) -> bool:
        """True where the measured latency lies in the predicted 90 % interval."""
        assert self.measurement.latency_ms is not None
        predicted = self.prediction.latency_ms
        return predicted.low <= self.measurement.latency_ms.value <= predicted.high


def check(
    model: ModelLike,
    *,
    device: str | None = None,
    batch: SupportsIndex | None = None,
    options: MeasureOptions | None = None,
    card: str | None = None,
    predictor: str = DEFAULT_PREDICTOR,
    keep: bool = True,
    store: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Check:
    """Return prediction and measurement of a model on this machine, explained by operators.

    `card` and `predictor` are those of `PredictOptions`. `MeasureError` where the model could not
    be measured.

    >>> from slicewise.core.measurement import Protocol
    >>> quick = MeasureOptions(threads=1, protocol=Protocol(min_samples=3, budget_s=0.1))
    >>> found = check(model, device="cpu", options=quick, keep=False)
    >>> found.kinds[0].measured_ms > 0, found.prediction.device
    (True, 'cpu')
    """
    asked = replace(options or MeasureOptions(), profile=True)
    _refuse_unpredicted(asked.runtime)
    (measured,) = measure(
        model,
        device=device,
        batches=[batch],
        options=asked,
        keep=keep,
        store=store,
        progress=progress,
    )
    if not is_usable(measured):
        raise MeasureError(
            f"{measured.model} could not be measured: {measured.outcome}: {measured.error}"
        )
    predicted = predict_like(
        model, measured, options=asked, device=device, card=card, predictor=predictor
    )
    kinds, notes = _by_kind(predicted, measured.nodes)
    assert measured.latency_ms is not None
    told_ms = sum(node.latency_ms for node in measured.nodes)
    graph = load(
        model,
        batch=measured.batch,
        dims=asked.dims,
        inputs=asked.inputs,
        batch_axes=asked.batch_axes,
    )
    return Check(
        predicted,
        measured,
        kinds,
        _by_operator(graph, predicted, measured),
        measured.latency_ms.value - told_ms,
        notes,
    )


def _refuse_unpredicted(name: str | None) -> None:
    """Raise `UsageError` for a runtime that is measured only, before anything runs."""
    from slicewise.measure.runtimes._base import RUNTIMES, load_runtime
    from slicewise.predict.runtimes import RUNTIMES as PREDICTED

    if name is None or load_runtime(name).name in PREDICTED:
        return
    both = ", ".join(each for each in RUNTIMES if each in PREDICTED)
    raise UsageError(
        f"runtime {name} is not predicted, so that there is nothing to check; choose among {both},"
        " or run slicewise measure"
    )


def predict_like(
    model: ModelLike,
    measured: Measurement,
    *,
    options: MeasureOptions,
    device: str | None,
    card: str | None = None,
    predictor: str = DEFAULT_PREDICTOR,
) -> Prediction:
    """Return the prediction of the case that a measurement was taken of."""
    part = part_of(target_here(device).device, measured)
    asked = PredictOptions(
        precision=measured.precision,
        runtime=measured.runtime,
        dims=options.dims,
        inputs=options.inputs,
        batch_axes=options.batch_axes,
        card=card,
        predictor=predictor,
    )
    found = predict_many([model], devices=[part], batches=[measured.batch], options=asked)
    return found.predictions[0]


def _by_kind(
    predicted: Prediction, measured: Sequence[NodeTime]
) -> tuple[tuple[KindDifference, ...], tuple[Note, ...]]:
    """Return both sides by kind; the kind of a fused kernel is that of its main operator."""
    from slicewise.flows.operators import entry_kind

    theirs: dict[Kind, float] = {}
    calls: dict[Kind, float] = {}
    unknown: set[str] = set()
    for node in measured:
        kind = entry_kind(node)
        if kind is None:
            unknown.add(node.op_type)
            kind = Kind.OPAQUE
        theirs[kind] = theirs.get(kind, 0.0) + node.latency_ms
        calls[kind] = calls.get(kind, 0.0) + node.calls
    ours: dict[Kind, float] = {}
    for kernel in _kernels(predicted.nodes):
        kind = max(kernel, key=lambda node: node.latency_ms).kind
        ours[kind] = ours.get(kind, 0.0) + sum(node.latency_ms for node in kernel)
    rows = [
        KindDifference(kind, ours.get(kind, 0.0), theirs.get(kind, 0.0), calls.get(kind, 0.0))
        for kind in Kind
        if ours.get(kind, 0.0) > 0 or theirs.get(kind, 0.0) > 0
    ]
    rows.sort(key=lambda row: -abs(row.predicted_ms - row.measured_ms))
    notes: tuple[Note, ...] = ()
    if unknown:
        listed = ", ".join(sorted(unknown)[:5])
        notes = (
            Note("operator-unmatched", f"the profiler's {listed} are of no known kind; opaque"),
        )
    return tuple(rows), notes


def _kernels(nodes: Sequence[NodeEstimate]) -> list[list[NodeEstimate]]:
    """Return the nodes of each kernel together; one that launches nothing is by itself."""
    by_kernel: dict[int, list[NodeEstimate]] = {}
    for i, node in enumerate(nodes):
        by_kernel.setdefault(node.kernel if node.kernel >= 0 else -1 - i, []).append(node)
    return list(by_kernel.values())


def _by_operator(
    graph: Graph, predicted: Prediction, measured: Measurement
) -> tuple[OperatorDifference, ...]:
    """Return what the profiler timed beside the kernels that it is, those of one name together."""
    from slicewise.flows.operators import operator_times

    _, work = ready_graph(graph, Precision.named(measured.precision), runtime=measured.runtime)
    in_kernel = {
        kernel[0].kernel: kernel for kernel in _kernels(predicted.nodes) if kernel[0].kernel >= 0
    }
    rows = []
    for found in operator_times(graph, work, measured.nodes):
        nodes = [node for k in found.kernels for node in in_kernel.get(k, ())]
        if nodes:
            main = max(nodes, key=lambda node: node.latency_ms)
            ours_ms = sum(node.latency_ms for node in nodes)
            rows.append(
                OperatorDifference(main.name, main.op_type, ours_ms, found.latency_ms, len(nodes))
            )
    rows.sort(key=lambda row: -abs(row.predicted_ms - row.measured_ms))
    return tuple(rows)
