"""int8 files, made of an fp32 file and real inputs by onnxruntime's own quantiser.

Which kinds there are is a table. Whether one is good enough is not decided here; see `gate.py`.
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.core.errors import TuningError
from slicewise.tune.backends.serving.accuracy import Agreement, Array, Samples
from slicewise.tune.backends.serving.space import INT8, INT8_DYNAMIC, INT8_HEAVY

_HEAVY_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Per-channel scales are an attribute of QuantizeLinear from here on (ONNX, operator set 13).
_LEAST_OPSET = 13
_ONNX_DOMAINS = frozenset({"", "ai.onnx"})


Judge = Callable[[Path], Agreement]
# Parts that a model is cut into where all of it in int8 disagrees, and the runs that calibrate
# while they are tried.
_PARTS = 8
_TRIED_WITH = 8
# What is chosen by the calibrating samples agrees a little less with others: parts are left out
# until the agreement is this much nearer to full than the gate asks.
_RESERVE = 0.25


@dataclass(frozen=True, slots=True)
class Kind:
    """A way of quantising.

    `is_static`: activations get ranges from calibration, else from each run. `types` are the
    operators that are quantised, () all that can be. `is_careful`: products with weights alone;
    those by the inputs and the outputs, and convolutions of each channel by itself, stay in
    float, and so do the parts that disagree most, until the rest passes the gate.
    """

    is_static: bool
    types: tuple[str, ...] = ()
    is_careful: bool = False


KINDS: Mapping[str, Kind] = {
    INT8: Kind(is_static=True),
    INT8_HEAVY: Kind(is_static=True, types=_HEAVY_TYPES, is_careful=True),
    INT8_DYNAMIC: Kind(is_static=False, types=("MatMul", "Gemm")),
}


def quantise(
    source: Path, target: Path, *, kind: str, samples: Samples, judge: Judge, least: float
) -> None:
    """Write `source` in int8 to `target`, whole or not at all.

    Weights are signed 8-bit numbers with a scale for each channel, activations unsigned ones with
    the least and greatest value seen in calibration, as onnxruntime's kernels for VNNI want them;
    a processor without VNNI gets 7 bits of weights, since two products of 8 overflow its 16-bit
    sums. `judge` tells how a file agrees with the source on the calibrating samples; a careful
    kind leaves parts in float until that is `least` and a little more. `TuningError` where the
    quantiser does not take the model, or no part of it agrees.
    """
    how = KINDS[kind]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, _silenced():
        made = Path(folder) / "made.onnx"
        try:
            prepared = _prepared(source, Path(folder), samples)
            if how.is_careful:
                _careful(prepared, made, samples, judge=judge, least=least)
            elif how.is_static:
                _static(prepared, made, samples.calibrating, samples)
            else:
                _dynamic(prepared, made, how)
        except TuningError:
            raise
        except Exception as err:
            # whatever it is: the quantiser raises what its insides raise
            text = " ".join(str(err).split())[:300] or type(err).__name__
            raise TuningError(
                f"onnxruntime does not quantise {source.name!r} as {kind}: {text}; the model is"
                " served in its own precision"
            ) from err
        os.replace(made, target)


def _careful(source: Path, target: Path, samples: Samples, *, judge: Judge, least: float) -> None:
    """Quantise the products that can bear it.

    All of them if that agrees, with ranges from the least to the greatest value, or without the
    rare ones beyond a percentile. Else each eighth of them, in order of the network, is tried
    alone; then as many eighths together as still agree, the least harmful first. Bisection: more
    in int8 is taken to agree less.
    """
    nodes = _inner_products(source)
    if not nodes:
        raise TuningError("there is no product with weights but at the model's ends; use int8")

    def agrees(chosen: Sequence[str], runs: Sequence[int], method: str = "MinMax") -> Agreement:
        _static(source, target, runs, samples, nodes=chosen, method=method)
        return judge(target)

    aim = least + _RESERVE * (1.0 - least)
    few = samples.calibrating[:_TRIED_WITH]  # histograms of all activations are slow to make
    if agrees(nodes, samples.calibrating).value >= aim:
        return
    if agrees(nodes, few, "Percentile").value >= aim:
        return
    size = -(-len(nodes) // _PARTS)
    parts = [nodes[i : i + size] for i in range(0, len(nodes), size)]
    parts.sort(key=lambda part: -agrees(part, few).closeness)
    fewest, most = 0, len(parts)  # the first agrees, the last does not
    while most - fewest > 1:
        middle = (fewest + most) // 2
        found = agrees([name for part in parts[:middle] for name in part], few)
        fewest, most = (middle, most) if found.value >= aim else (fewest, middle)
    if fewest == 0:
        raise TuningError("no part of the model agrees in int8; it is served in its own precision")
    agrees([name for part in parts[:fewest] for name in part], samples.calibrating)


def _prepared(source: Path, folder: Path, samples: Samples) -> Path:
    """Return the model with constants folded, batch norms in convolutions and shapes inferred.

    Its inputs get the shapes that it is tuned for, so that all shapes are known. Symbolic shape
    inference is left out: where it gives up it leaves files in the working folder.
    """
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(str(source))
    opset = next((o.version for o in model.opset_import if o.domain in _ONNX_DOMAINS), 0)
    if opset < _LEAST_OPSET:
        try:
            model = version_converter.convert_version(model, _LEAST_OPSET)
        except Exception as err:  # no converter for one of its operators: scales of whole tensors
            logging.getLogger(__name__).debug("operator set of %s stays: %s", source, err)
    _fix_shapes(model.graph, {spec.name: spec.shape for spec in samples.inputs})
    base, made = folder / "fixed.onnx", folder / "prepared.onnx"
    onnx.save(model, str(base))
    try:
        quant_pre_process(str(base), str(made), skip_symbolic_shape=True)
    except Exception as err:
        logging.getLogger(__name__).debug("no preparation of %s: %s", source, err)
        return base
    return made


def _fix_shapes(graph: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the shapes into the inputs; what was said of tensors between them is inferred anew."""
    for each in graph.input:
        dims = each.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes.get(each.name, ()), strict=False):
            dim.dim_value = size
    del graph.value_info[:]


def _static(
    source: Path,
    target: Path,
    runs: Sequence[int],
    samples: Samples,
    *,
    nodes: Sequence[str] | None = None,
    method: str = "MinMax",
) -> None:
    """Quantise `nodes` (None: all that can be), activations by the ranges seen in `runs`."""
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    quantize_static(
        str(source),
        str(target),
        _reader(samples, runs),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=None if nodes is None else list(_HEAVY_TYPES),
        nodes_to_quantize=None if nodes is None else list(nodes),
        per_channel=True,
        reduce_range=not has_vnni(),
        calibrate_method=CalibrationMethod[method],
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _dynamic(source: Path, target: Path, how: Kind) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(source),
        str(target),
        op_types_to_quantize=list(how.types),
        per_channel=True,
        reduce_range=not has_vnni(),
        weight_type=QuantType.QInt8,
    )


def _reader(samples: Samples, numbers: Sequence[int]) -> Any:
    """Return runs as the quantiser reads them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives one run after the other, then None."""

        def __init__(self) -> None:
            self._runs: Iterator[Mapping[str, Array]] = samples.runs(numbers)

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self._runs, None)

    return Reader()


def _inner_products(path: Path) -> list[str]:
    """Return the names of the products with weights, in order, without those by the inputs and
    the outputs of the model, whose error is seen most, and without convolutions of each channel
    by itself, which have little work and scales that fit badly."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {each.name: each for each in graph.initializer}
    kept = {
        node.name: node
        for node in graph.node
        if node.op_type in _HEAVY_TYPES and len(node.input) > 1 and node.input[1] in weights
    }
    first = _reaching(graph.node, kept)
    last = _reaching(list(reversed(graph.node)), kept, is_backward=True)
    return [
        name
        for name, node in kept.items()
        if name in first and name in last and not _is_depthwise(node, weights[node.input[1]])
    ]


def _reaching(
    nodes: Sequence[Any], kept: Mapping[str, Any], *, is_backward: bool = False
) -> set[str]:
    """Return those of `kept` that another of them lies before (behind, in reversed `nodes`)."""
    seen: set[str] = set()  # tensors behind one of them
    found: set[str] = set()
    for node in nodes:
        read, written = (node.output, node.input) if is_backward else (node.input, node.output)
        is_behind = any(name in seen for name in read)
        if is_behind:
            found.add(node.name)
        if is_behind or node.name in kept:
            seen.update(filter(None, written))
    return found & kept.keys()


def _is_depthwise(node: Any, weight: Any) -> bool:
    group = next((each.i for each in node.attribute if each.name == "group"), 1)
    return bool(node.op_type == "Conv" and group > 1 and group == weight.dims[0])


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True where the processor sums products of 8-bit numbers in 32 bits (AVX-512 VNNI, AVX-VNNI,
    AMX-INT8, or the dot products of ARM)."""
    try:
        told = cpuinfo.read_text()
    except OSError:
        return False
    flags = set(told.replace("\t", " ").split())
    return bool(flags & {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep the quantiser's advice from the user: it speaks to the root logger, prints and
    warns."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
