"""`partition --split`: a cut becomes files that run, and the files are checked against the model.

ONNX sources become one ONNX file for each stage; others get the points where to split a module.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicewise.core.errors import ModelError, PartitionError, UsageError
from slicewise.core.graph import Graph, Tensor
from slicewise.core.notes import Note, unique_notes
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.core.precision import DType
from slicewise.flows.load import load
from slicewise.flows.partitioning.pipeline_material import Material
from slicewise.flows.partitioning.result import PartitionResult

if TYPE_CHECKING:
    from slicewise.partition.split.check import OutputDifference
    from slicewise.partition.split.manifest import StageFiles
    from slicewise.partition.split.points import Layers, SplitPoints

_OPAQUE = Tensor(None, DType.UNKNOWN)


@dataclass(frozen=True, slots=True)
class WrittenStages:
    """What `--split` wrote: `files` of an ONNX source, else `points` into `file`."""

    files: "StageFiles | None" = None
    points: "SplitPoints | None" = None
    file: Path | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class StagesCheck:
    """Each output of the stages run one after the other, against the whole model."""

    outputs: "tuple[OutputDifference, ...]"
    seed: int
    items: int

    @property
    def is_equal(self) -> bool:
        """True where all outputs are the same, bit for bit."""
        return all(each.is_equal for each in self.outputs)

    @property
    def is_within(self) -> bool:
        """True where all outputs are within the tolerance of their type."""
        return all(each.is_within for each in self.outputs)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What makes the check say less than it seems to."""
        return blind_notes(self.outputs)


def blind_notes(outputs: "Sequence[OutputDifference]") -> tuple[Note, ...]:
    """Return a note for each output that has no finite number to compare."""
    text = "it has no finite number in the whole model, so that equal outputs say little"
    return tuple(Note("check-blind", text, node=each.name) for each in outputs if each.is_blind)


def write_stages(result: PartitionResult, directory: Path) -> WrittenStages:
    """Write the stages of a cut into `directory`, whole or not at all.

    An ONNX file becomes one file for each stage with `stages.json`; a PyTorch model gets the file
    `split_points.py`, where the cut falls between its layers. `UsageError` for a folder that
    holds anything else and for a problem without a model; `ModelError`, `PartitionError` as
    `split_model` has them.
    """
    graph = _model_of(result)
    if not is_onnx(graph):
        return _write_points(result, graph, directory)
    from slicewise.partition.split.files import split_model

    files = split_model(
        onnx_file(graph),
        graph,
        stage_of=dict(zip(result.case.material.labels, result.stage_of, strict=True)),
        directory=directory,
        forecast=forecast_of(result),
    )
    return WrittenStages(files=files, notes=unique_notes((*files.notes, *_notes(result))))


def _notes(result: PartitionResult) -> Iterator[Note]:
    if result.case.problem.hops:
        text = "the cut has tensors go through the stages between; the files hand them on directly"
        yield Note("split-direct", text)
    twice = [i for i, load in enumerate(result.partition.loads) if load.replicas > 1]
    if twice:
        listed = ", ".join(map(str, twice))
        text = f"stages {listed} are for several devices; each has one file, to be run on them all"
        yield Note("split-replicas", text)


def check_folder(directory: Path) -> None:
    """Raise `UsageError` for a folder that stages cannot be written to, before a cut is sought."""
    from slicewise.partition.split.folder import check_replaceable

    check_replaceable(directory)


def is_onnx(graph: Graph) -> bool:
    """Return whether the graph comes from an ONNX file."""
    return graph.source is not None and graph.source.runtime == "onnxruntime"


def onnx_file(graph: Graph) -> Path:
    """Return the ONNX file that `graph` is of: its source, or a copy for the batch it is bound to.

    `ModelError` if the source cannot be read; `MeasureError` where no copy can be made.
    """
    from slicewise.graph.frontends.onnx.rebatched import declares_other_shapes, rebatched_copy
    from slicewise.store.home import home

    assert graph.source is not None
    path = os.path.abspath(graph.source.location)
    try:
        is_other = declares_other_shapes(path, graph)
    except OSError as err:
        raise ModelError(f"model {path!r} cannot be read: {err.strerror}; give it again") from err
    return Path(rebatched_copy(path, graph, home() / "exports") if is_other else path)


def forecast_of(result: PartitionResult) -> Any:
    """Return what the cut says of its stages, as the manifest has it (`Forecast`)."""
    from slicewise.partition.split.files import Forecast
    from slicewise.partition.split.manifest import PredictedLoad

    problem = result.case.problem
    loads = {
        stage: PredictedLoad(
            work_ms=load.work_ms,
            receive_ms=load.receive_ms,
            send_ms=load.send_ms,
            load_ms=load.load_ms,
            memory_bytes=load.memory_bytes,
            replicas=load.replicas,
            device=problem.kinds[load.kind].name,
        )
        for stage, load in enumerate(result.partition.loads)
        if load.nodes
    }
    whole = min(sum(problem.kinds[place].work_ms) for place in problem.places)
    return Forecast(loads, whole if whole < float("inf") else None)


# --- split points


def between_layers(material: Material) -> Material:
    """Return the material with cuts between the layers of its model only (`--between-layers`).

    `UsageError` without a model; `PartitionError` where it has no repeated layers.
    """
    return replace(material, together=(*material.together, *_layers_of(material).groups))


def points_of(result: PartitionResult) -> "SplitPoints":
    """Return the cut as split points; `PartitionError` where it goes through a layer."""
    from slicewise.partition.split.points import split_points

    return split_points(_layers_of(result.case.material), result.partition.assignment.stage_of)


def _layers_of(material: Material) -> "Layers":
    from slicewise.partition.split.points import find_layers, group_layers

    if material.graph is None:
        raise _no_model()
    edges = ((each.producer, node) for each in material.tensors for node in each.consumers)
    return group_layers(find_layers(material.graph), material.groups, edges)


def _write_points(result: PartitionResult, graph: Graph, directory: Path) -> WrittenStages:
    from slicewise.partition.split.folder import whole_folder
    from slicewise.partition.split.manifest import POINTS
    from slicewise.partition.split.points import split_points_text

    try:
        points = points_of(result)
    except PartitionError as err:
        raise PartitionError(
            f"model {graph.name!r} is no ONNX file, and split points cannot say its cut: {err}"
        ) from err
    with whole_folder(directory) as folder:
        (folder / POINTS).write_text(split_points_text(points), encoding="utf-8")
    text = "the model is no ONNX file: it got split points, and no files of stages"
    return WrittenStages(
        points=points, file=directory / POINTS, notes=(Note("split-points", text),)
    )


def _model_of(result: PartitionResult) -> Graph:
    if result.case.graph is None:
        raise _no_model()
    return result.case.graph


def _no_model() -> UsageError:
    return UsageError(
        "a problem file holds numbers and no model, so that there is nothing to split; give the"
        " model"
    )


# --- running


def check_stages(
    files: "StageFiles", *, source: Path | None = None, seed: int = 0, items: int = 1
) -> StagesCheck:
    """Return how far the stages, run one after the other, are from the whole model.

    `source` is the whole model; None: the annotated one in the folder. Inputs are random, the same
    for the same seed. `MeasureError` where onnxruntime runs one of them not.
    """
    from slicewise.measure.runtimes.stage import open_stage
    from slicewise.partition.split.check import compare_output

    fed = inputs_of(files, seed=seed, items=items)
    path = files.directory / files.whole if source is None else source
    wanted = list(files.outputs)
    run = open_stage(StageSpec("whole", str(path), {}, dict.fromkeys(wanted, _OPAQUE)))
    whole = [dict(run(item)) for item in fed]
    staged: list[dict[str, Any]] = [dict(item) for item in fed]
    for stage in files.stages:
        outputs = dict.fromkeys(stage.outputs, _OPAQUE)
        place = str(files.directory / stage.file)
        run = open_stage(StageSpec(f"stage {stage.index}", place, {}, outputs))
        for values in staged:
            values.update(run({name: values[name] for name in stage.inputs}))
    worst = [
        max(
            (compare_output(name, a[name], b[name]) for a, b in zip(whole, staged, strict=True)),
            key=lambda each: (not each.is_within, not each.is_equal, each.relative),
        )
        for name in wanted
    ]
    return StagesCheck(tuple(worst), seed=seed, items=items)


def inputs_of(files: "StageFiles", *, seed: int, items: int) -> list[dict[str, Any]]:
    """Return random valid inputs of the whole model, the same for the same seed."""
    from slicewise.graph.inputs import input_specs
    from slicewise.measure.inputs import make_values

    shapes = {
        name: files.tensors[name].shape or ()
        for name in files.inputs
        if files.tensors[name].shape is not None
    }
    graph = load(str(files.directory / files.whole), inputs=shapes)
    specs = input_specs(graph)
    names = [spec.name for spec in specs]
    lacking = [name for name in files.inputs if name not in names]
    if lacking:
        raise ModelError(f"the whole model has no input {lacking[0]!r}; split the model again")
    return [dict(zip(names, make_values(specs, seed=seed + i), strict=True)) for i in range(items)]


def stage_specs(
    files: "StageFiles", cores: Sequence[tuple[int, ...]], *, threads: int
) -> tuple[StageSpec, ...]:
    """Return the stages as `measure` runs them, each on its cores.

    `UsageError` for a tensor that no queue can hold: a sequence, or one of unknown size.
    """
    return tuple(
        StageSpec(
            f"stage {stage.index}",
            str(files.directory / stage.file),
            _tensors(files, stage.inputs),
            _tensors(files, stage.outputs),
            cores=own,
            threads=threads,
        )
        for stage, own in zip(files.stages, cores, strict=True)
    )


def whole_spec(files: "StageFiles", cores: tuple[int, ...], *, threads: int) -> StageSpec:
    """Return the whole model as a pipeline of one stage, which takes all inputs, read or not."""
    return StageSpec(
        "whole",
        str(files.directory / files.whole),
        _tensors(files, files.inputs),
        _tensors(files, handed_out(files)),
        cores=cores,
        threads=threads,
    )


def handed_out(files: "StageFiles") -> list[str]:
    """Return the outputs that a stage gives, each once, in the model's order."""
    return [name for name in dict.fromkeys(files.outputs) if name not in files.passed]


def _tensors(files: "StageFiles", names: Sequence[str]) -> Mapping[str, Tensor]:
    return dict(_sized(files, names))


def _sized(files: "StageFiles", names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        tensor = files.tensors[name]
        if tensor.kind != "tensor" or tensor.shape is None or tensor.dtype == DType.UNKNOWN:
            raise UsageError(
                f"{name!r} is a {tensor.kind} of type {tensor.dtype} and shape {tensor.shape}; a"
                " queue between stages needs a tensor of known size; cut elsewhere, or run the"
                " stages with --check"
            )
        yield name, Tensor(tensor.shape, DType(tensor.dtype))
