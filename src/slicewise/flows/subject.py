"""`subject_of`: from a graph to what a process of its own can open and run.

A graph has no weights: the file or the zoo that it came from is opened again, in the form that
the runtime takes. No framework is imported in this process.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.measurement import InputSpec, Subject
from slicewise.core.notes import Note, unique_notes

_TAKES_ONNX = "onnxruntime and openvino"
_EXPORTED = ("fp32", "fp16", "bf16")
_RANDOM = Note("weights-random", "weights are random: of times it tells, not of answers")
# The zoo whose models are called by names of arguments.
_BY_NAME = "transformers:"


def subject_of(graph: Graph, *, form: str, precision: str, exports: Path) -> Subject:
    """Return the model behind `graph` as a child process can open it, in `form` for a runtime.

    An ONNX file is given as it is, or as a copy in `exports` where its batch is fixed to another
    one. A zoo name gets random weights; for the form 'onnx' it, or a .pt2 file, is exported into
    `exports`, once. `UsageError` for a form or precision that the model cannot have, for a graph
    without a source and for a module that cannot be made again in another process;
    `MeasureError` where an export fails.
    """
    from slicewise.graph.inputs import input_specs

    source = graph.source
    if source is None:
        raise UsageError(
            f"graph {graph.name!r} has no source to run; load the model with slicewise.load"
        )
    opened = _opened(graph, source.location, input_specs(graph))
    if form == "onnx":
        return _as_onnx(graph, opened, precision=precision, exports=exports)
    if opened.is_onnx:
        raise UsageError(
            f"model {source.location!r} is an ONNX file, which {_TAKES_ONNX} run; choose one of"
            " these runtimes, or give the PyTorch model"
        )
    return _subject(graph, opened, form, opened.open, notes=opened.notes)


@dataclass(frozen=True, slots=True)
class _Opened:
    """How a model is opened: `open` returns a module, or the path of an ONNX file."""

    location: str
    inputs: tuple[InputSpec, ...]
    open: Callable[[], object]
    identity: tuple[str, ...] = ()
    is_onnx: bool = False
    by_name: bool = False
    notes: tuple[Note, ...] = ()


def _opened(graph: Graph, location: str, inputs: tuple[InputSpec, ...]) -> _Opened:
    from slicewise.flows.cached_load import package_versions
    from slicewise.graph.frontends import _base
    from slicewise.graph.frontends.torch import ModuleSource, ProgramSource
    from slicewise.graph.frontends.torch.module import program_module
    from slicewise.graph.frontends.zoo.real import real_module
    from slicewise.store.graphs import file_digest

    versions = tuple(f"{name} {version}" for name, version in package_versions().items())
    if isinstance(graph.source, ModuleSource | ProgramSource):
        raise UsageError(
            f"model {location!r} was given as an object in Python, which a process of its own"
            " cannot open; save it with torch.export.save and give the .pt2 file, or give a zoo"
            " name"
        )
    kind = _base.format_of(location)
    path = os.path.abspath(location)
    if kind == "onnx":
        return _Opened(path, inputs, partial(str, path), is_onnx=True)
    if kind == "pt2":
        shapes = tuple(spec.shape for spec in inputs)
        identity = (file_digest(Path(path)), *versions)
        return _Opened(path, inputs, partial(program_module, path, shapes), identity)
    return _Opened(
        location,
        inputs,
        partial(real_module, location),
        (location, *versions),
        by_name=location.strip().lower().startswith(_BY_NAME),
        notes=(_RANDOM,),
    )


def _as_onnx(graph: Graph, opened: _Opened, *, precision: str, exports: Path) -> Subject:
    if opened.is_onnx:
        return _file(graph, opened, precision=precision, exports=exports)
    from slicewise.graph.frontends.torch.to_onnx import Export, to_onnx

    if precision not in _EXPORTED:
        raise UsageError(
            f"model {opened.location!r} cannot be exported to ONNX in precision {precision!r};"
            f" {', '.join(_EXPORTED)} can; give one, or a quantised .onnx file"
        )
    export = Export(
        f"model {opened.location!r}",
        opened.open,
        opened.inputs,
        opened.by_name,
        graph.batch_size,
        dict(graph.batch_axes),
        precision,
        opened.identity,
    )
    path, notes = to_onnx(export, exports)
    return _subject(graph, opened, "onnx", partial(str, path), notes=(*opened.notes, *notes))


def _file(graph: Graph, opened: _Opened, *, precision: str, exports: Path) -> Subject:
    from slicewise.graph.frontends.onnx.rebatched import declares_other_shapes, rebatched_copy
    from slicewise.graph.precision import own_precision

    own = own_precision(graph).name
    if precision != own:
        raise UsageError(
            f"model {graph.name!r} is an ONNX file in {own}, which runs in no other precision;"
            f" asked is {precision}; convert the file, or leave precision out"
        )
    try:
        is_other = declares_other_shapes(opened.location, graph)
    except OSError as err:
        raise ModelError(
            f"model {opened.location!r} cannot be read: {err.strerror}; give it again"
        ) from err
    if not is_other:
        return _subject(graph, opened, "onnx", opened.open)
    path = rebatched_copy(opened.location, graph, exports)
    text = f"the file is fixed to other shapes; a copy for batch {graph.batch_size} is measured"
    return _subject(
        graph, opened, "onnx", partial(str, path), notes=(Note("file-rebatched", text),)
    )


def _subject(
    graph: Graph,
    opened: _Opened,
    form: str,
    opener: Callable[[], object],
    *,
    notes: tuple[Note, ...] = (),
) -> Subject:
    assert graph.source is not None
    return Subject(
        name=graph.name,
        location=graph.source.location,
        digest=graph.digest,
        inputs=opened.inputs,
        form=form,
        open=opener,
        by_name=opened.by_name,
        binding=graph.binding,
        notes=unique_notes(notes),
    )
