"""A model in Relax, and taken apart into the operators that TVM compiles.

Shapes are bound to those of the subject's inputs; weights stay constants of the model and are in
none of the operators.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import TuningError
from slicewise.core.graph import Graph
from slicewise.core.measurement import InputSpec, Subject
from slicewise.core.precision import DType
from slicewise.tune.backends.tvm.build import first_line
from slicewise.tune.backends.tvm.cut import Skipped, without

FORMS = ("onnx", "torch")
_MOST_SKIPPED = 64  # a model of which more cannot be imported is none for this engine


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in Relax, its arguments in order, and the operators that were left out since TVM
    does not import them."""

    module: Any
    inputs: tuple[InputSpec, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A distinct operator as TVM compiles it: several of the model's fused, `count` times.

    `arguments` are (shape, type), results last.
    """

    name: str
    module: Any
    count: int
    arguments: tuple[tuple[tuple[int, ...], str], ...]


def import_model(subject: Subject, graph: Graph) -> Imported:
    """Return the subject in Relax; `TuningError` where TVM can import nothing of it."""
    if subject.form == "torch":
        return Imported(_from_torch(subject), subject.inputs)
    if subject.form != "onnx":
        raise TuningError(
            f"engine tvm takes models of form {' and '.join(FORMS)}, not {subject.form!r} as of"
            f" model {subject.name!r}; export it to ONNX"
        )
    return _from_onnx(subject, graph)


def kernels_of(module: Any, target: Any) -> tuple[Kernel, ...]:
    """Return the distinct operators of a model in Relax, as `compile_relax` would make them."""
    import tvm
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    with target, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.transform.Sequential(passes_before_lookup(target))(module)
    found = []
    for task in ms.relax_integration.extract_tasks(lowered, target):
        made = task.dispatched[0]
        if made.attrs and made.attrs.get("tirx.is_scheduled", False):
            continue
        arguments = tuple(
            (tuple(int(size) for size in info.shape), str(info.dtype))
            for info in ArgInfo.from_entry_func(made)
        )
        found.append(Kernel(str(task.task_name), made, int(task.weight), arguments))
    return tuple(sorted(found, key=lambda kernel: kernel.name))


def passes_before_lookup(target: Any) -> list[Any]:
    """Return the passes before operators are looked up in a database: those of `compile_relax`,
    without which the keys of what is tuned and what is compiled would differ."""
    from tvm import relax

    return [
        *relax.pipeline.library_dispatch_passes(target),
        relax.transform.LegalizeOps(enable_warning=False),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]


# --- ONNX


def _from_onnx(subject: Subject, graph: Graph) -> Imported:
    """Return the ONNX file in Relax, without the operators that TVM does not import."""
    import onnx
    from tvm.relax.frontend.onnx import onnx_frontend

    path = str(subject.open())
    model = onnx.load(path)
    shapes = {spec.name: list(spec.shape) for spec in subject.inputs}
    known = onnx_frontend._get_convert_map()
    lacking = {
        place: f"TVM has no operator {node.op_type}"
        for place, node in enumerate(model.graph.node)
        if node.op_type not in known and node.op_type not in ("If", "Constant")
    }
    while True:
        left, skipped = without(model, lacking, graph=graph, shapes=shapes)
        if not left.graph.node or len(skipped) > _MOST_SKIPPED:
            named = ", ".join(sorted({each.op_type for each in skipped}))
            raise TuningError(
                f"TVM cannot import model {subject.name!r}: {len(skipped)} operators are not"
                f" known to it ({named}); use engine serving"
            )
        try:
            with _quiet():
                module = onnx_frontend.from_onnx(left, shape_dict=shapes)
            specs = {spec.name: spec for spec in subject.inputs}
            inputs = tuple(specs[each.name] for each in left.graph.input if each.name in specs)
            return Imported(module, inputs, skipped)
        except Exception as err:  # of a converter, of any kind
            place = _culprit(left, model, shapes)
            if place is None or place in lacking:
                raise TuningError(
                    f"TVM cannot import model {subject.name!r}: {first_line(err)}; use engine"
                    " serving"
                ) from err
            lacking[place] = f"TVM does not import it: {first_line(err)}"


def _culprit(left: Any, model: Any, shapes: Mapping[str, list[int]]) -> int | None:
    """Return the place in `model` of the node at which the import of `left` stops."""
    from tvm.relax.frontend.onnx import onnx_frontend

    importer = onnx_frontend.ONNXGraphImporter
    seen: list[Any] = []
    original = importer._parse_value_proto  # called with each node before it is converted

    def noting(self: Any, node: Any) -> Any:
        seen.append(node)
        return original(self, node)

    importer._parse_value_proto = noting
    try:
        with _quiet():
            onnx_frontend.from_onnx(left, shape_dict=shapes)
    except Exception:  # the one that is looked for
        pass
    finally:
        importer._parse_value_proto = original
    if not seen or not hasattr(seen[-1], "output"):
        return None
    outputs = list(seen[-1].output)
    places = (i for i, node in enumerate(model.graph.node) if list(node.output) == outputs)
    return next(places, None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the front end from printing and from warning about names that it changes."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# --- torch


def _from_torch(subject: Subject) -> Any:
    """Return a torch module in Relax, by torch.export; batch norms are decomposed first, since
    TVM makes four operators of each that is not."""
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    module: Any = subject.open()
    values = [_example(spec) for spec in subject.inputs]
    names = [spec.name for spec in subject.inputs]
    args, kwargs = (
        ((), dict(zip(names, values, strict=True))) if subject.by_name else (tuple(values), {})
    )
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(module, args, kwargs).run_decompositions()
            return from_exported_program(program, unwrap_unit_return_tuple=False)
    except Exception as err:  # of torch.export or of a converter, of any kind
        raise TuningError(
            f"TVM cannot import model {subject.name!r}: {first_line(err)}; export it to ONNX, or"
            " use engine serving"
        ) from err


def _example(spec: InputSpec) -> Any:
    """Return a tensor that the model can be traced with."""
    import torch

    kind = getattr(torch, numpy_name(spec.dtype))
    return torch.full(spec.shape, spec.low, dtype=kind)


def numpy_name(dtype: DType) -> str:
    """Return what numpy, torch and TVM call a type.

    >>> numpy_name(DType.FP32), numpy_name(DType.INT64)
    ('float32', 'int64')
    """
    return _NAMES.get(dtype, dtype.value)


_NAMES = {
    DType.FP64: "float64", DType.FP32: "float32", DType.FP16: "float16", DType.BF16: "bfloat16",
}  # fmt: skip
