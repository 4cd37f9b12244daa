"""`check`: predict, measure, and say where the difference comes from, operator by operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsIndex

from slicewise.core.cost import Kind, NodeEstimate, Prediction
from slicewise.core.errors import MeasureError
from slicewise.core.measurement import Measurement, NodeTime
from slicewise.core.notes import Note
from slicewise.flows.load import ModelLike, load
from slicewise.flows.measure import MeasureOptions, is_usable, measure, target_here
from slicewise.flows.predict import PredictOptions, predict_many


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
    """A kernel that carries the same name on both sides, in ms of one run."""

    name: str
    op_type: str
    predicted_ms: float
    measured_ms: float


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
    keep: bool = True,
    store: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Check:
    """Return prediction and measurement of a model on this machine, explained by operators.

    `MeasureError` where the model could not be measured.

    >>> from slicewise.core.measurement import Protocol
    >>> quick = MeasureOptions(threads=1, protocol=Protocol(min_samples=3, budget_s=0.1))
    >>> found = check(model, device="cpu", options=quick, keep=False)
    >>> found.kinds[0].measured_ms > 0, found.prediction.device
    (True, 'cpu')
    """
    asked = replace(options or MeasureOptions(), profile=True)
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
    predicted = predict_like(model, measured, options=asked, device=device)
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
        _by_name(predicted.nodes, measured.nodes, [node.origin for node in graph.nodes]),
        measured.latency_ms.value - told_ms,
        notes,
    )


def predict_like(
    model: ModelLike, measured: Measurement, *, options: MeasureOptions, device: str | None
) -> Prediction:
    """Return the prediction of the case that a measurement was taken of."""
    target = target_here(device, share=options.share)
    part = target.device
    if measured.slice is not None:
        percent = measured.slice.endswith("%")
        part = part.share(float(measured.slice[:-1])) if percent else part.slice(measured.slice)
    elif part.kind == "cpu" and 0 < measured.threads < part.compute_units:
        part = part.share(100.0 * measured.threads / part.compute_units + 1e-9)
    asked = PredictOptions(
        precision=measured.precision,
        runtime=measured.runtime,
        dims=options.dims,
        inputs=options.inputs,
        batch_axes=options.batch_axes,
    )
    found = predict_many([model], devices=[part], batches=[measured.batch], options=asked)
    return found.predictions[0]


def _by_kind(
    predicted: Prediction, measured: Sequence[NodeTime]
) -> tuple[tuple[KindDifference, ...], tuple[Note, ...]]:
    """Return both sides by kind; the kind of a fused kernel is that of its main operator."""
    theirs: dict[Kind, float] = {}
    calls: dict[Kind, float] = {}
    unknown: set[str] = set()
    for node in measured:
        kind = kind_of(node.op_type)
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


def _by_name(
    predicted: Sequence[NodeEstimate], measured: Sequence[NodeTime], origins: Sequence[str] = ()
) -> tuple[OperatorDifference, ...]:
    """Return what goes by one name on both sides: that of a node, or of the module it is from.

    `origins` are the modules of the nodes, index by index. A kernel goes by the first of its
    nodes, heaviest first, that the runtime names; what has the same name is added up.
    """
    times: dict[str, float] = {}
    for each in measured:
        times[each.origin] = times.get(each.origin, 0.0) + each.latency_ms
    module = dict(zip(map(id, predicted), origins, strict=False))
    ours: dict[str, tuple[str, float]] = {}
    for kernel in _kernels(predicted):
        ranked = sorted(kernel, key=lambda node: -node.latency_ms)
        names = [name for node in ranked for name in (node.name, module.get(id(node), ""))]
        label = next((name for name in names if name in times), None)
        if label is not None:
            op_type, before_ms = ours.get(label, (ranked[0].op_type, 0.0))
            ours[label] = (op_type, before_ms + sum(node.latency_ms for node in kernel))
    rows = [
        OperatorDifference(label, op_type, ms, times[label])
        for label, (op_type, ms) in ours.items()
        if ms > 0 or times[label] > 0
    ]
    rows.sort(key=lambda row: -abs(row.predicted_ms - row.measured_ms))
    return tuple(rows)


# What runtimes call operators beside the names of the operator table.
_RUNTIME_KINDS: Mapping[str, Kind] = {
    # onnxruntime: layout changes of its blocked convolutions
    "ReorderInput": Kind.MOVEMENT,
    "ReorderOutput": Kind.MOVEMENT,
    # PyTorch on a CPU: oneDNN and MKL entry points
    "mkldnn_convolution": Kind.CONV,
    "convolution": Kind.CONV,
    "_convolution": Kind.CONV,
    "thnn_conv2d": Kind.CONV,
    "_slow_conv2d_forward": Kind.CONV,
    "slow_conv_transpose2d": Kind.CONV,
    "addmm": Kind.MATMUL,
    "mm": Kind.MATMUL,
    "bmm": Kind.MATMUL,
    "baddbmm": Kind.MATMUL,
    "mkl_linear": Kind.MATMUL,
    "_scaled_dot_product_flash_attention_for_cpu": Kind.ATTENTION,
    "native_batch_norm": Kind.NORM,
    "native_layer_norm": Kind.NORM,
    "native_group_norm": Kind.NORM,
    "_softmax": Kind.SOFTMAX,
    "max_pool2d_with_indices": Kind.POOL,
    "_adaptive_avg_pool2d": Kind.POOL,
    "copy_": Kind.MOVEMENT,
    "cat": Kind.MOVEMENT,
    "clone": Kind.MOVEMENT,
    "fill_": Kind.MOVEMENT,
    "index_select": Kind.MOVEMENT,
    "empty": Kind.VIEW,
    "empty_strided": Kind.VIEW,
    "as_strided": Kind.VIEW,
    "resize_": Kind.VIEW,
}


def kind_of(op_type: str) -> Kind | None:
    """Return the kind of an operator as a runtime's profiler calls it, None if it is in no table.

    >>> kind_of("FusedConv"), kind_of("aten::relu_"), kind_of("SkipLayerNormalization")
    (<Kind.CONV: 'conv'>, <Kind.ELEMENTWISE: 'elementwise'>, <Kind.NORM: 'norm'>)
    """
    from slicewise.graph.ops import operator

    name = op_type.rpartition("::")[2]
    if name in _RUNTIME_KINDS:
        return _RUNTIME_KINDS[name]
    plain = name.rstrip("_")
    for domain in ("", "com.microsoft", "torch.aten"):
        for word in (name, plain, plain.title().replace("_", "")):
            row = operator(domain, word)
            if row is not None and not row.is_bytes_only:
                return row.kind
    return None
