"""Writes a cut model as one ONNX file for each stage, `stages.json`, and the whole annotated.

Tensors keep their names: a stage reads what earlier ones give or what the model is fed, each
handed on directly, also past the stages between. Nothing is solved, run or measured here.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise._version import __version__
from slicewise.core.errors import ModelError, PartitionError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.partition.split.annotation import (
    DIGEST_KEY,
    STAGE_KEY,
    annotate,
    set_property,
)
from slicewise.partition.split.folder import check_replaceable, whole_folder
from slicewise.partition.split.functions import Opened, open_calls, used_functions
from slicewise.partition.split.manifest import (
    WHOLE,
    CutTensor,
    PredictedLoad,
    StageFile,
    StageFiles,
    write_manifest,
)
from slicewise.partition.split.plan import SplitPlan, StagePlan, plan_split
from slicewise.partition.split.types import Types
from slicewise.partition.split.weights import Weights, keeps_external, tensors_of

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the cut says of each stage by number, and of the model as one stage, in ms."""

    loads: Mapping[int, PredictedLoad] = field(default_factory=dict)
    whole_ms: float | None = None


def split_model(
    source: Path, graph: Graph, *, stage_of: Mapping[str, int], directory: Path,
    forecast: Forecast | None = None,
) -> StageFiles:  # fmt: skip
    """Write the stages of the ONNX model at `source` into `directory` and return what was written.

    `graph` was read from `source`; `stage_of` gives the stage of each of its nodes by name, from
    0. Nodes that the graph has folded away stand where they are read. Stages without nodes get no
    file. The folder appears whole or not at all, in the place of nothing but our own.

    `PartitionError` where a stage would read what a later one gives; `ModelError` for a file that
    is not what the graph was read from, or weights that are not there; `UsageError` for a folder
    that holds anything else.
    """
    check_replaceable(directory)
    model, digest = _load(source)
    stages = _stages_of_tensors(graph, stage_of)
    opened, plan = _planned(model, stages, graph)
    _check_source(model, graph, plan, source)
    cut = _Cut(source, model, graph, plan, opened, digest, forecast or Forecast())
    with whole_folder(directory) as folder:
        files = _write(cut, folder, directory)
        write_manifest(files, folder)
    return files


@dataclass(frozen=True, slots=True)
class _Cut:
    """All that the writing of stages needs."""

    source: Path
    model: "onnx.ModelProto"
    graph: Graph
    plan: SplitPlan
    opened: Opened
    digest: str
    forecast: Forecast


def _load(source: Path) -> "tuple[onnx.ModelProto, str]":
    """Return the model without external weights, and the SHA-256 of its file."""
    import onnx

    try:
        content = source.read_bytes()
        return onnx.load_model_from_string(content), hashlib.sha256(content).hexdigest()
    # What protobuf raises for a damaged file has no root of its own.
    except Exception as err:
        raise ModelError(
            f"model {str(source)!r} cannot be read: {err}; give the ONNX file of the model"
        ) from err


def _stages_of_tensors(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, int]:
    lacking = [node.name for node in graph.nodes if node.name not in stage_of]
    if lacking or min(stage_of.values(), default=0) < 0:
        raise PartitionError(
            f"the cut of {graph.name!r} has no stage from 0 up for node"
            f" {(lacking or [min(stage_of, key=stage_of.__getitem__)])[0]!r}; cut it again"
        )
    # What is known before the run stands where it is read, whatever the cut says of it.
    return {
        name: stage_of[node.name]
        for node in graph.nodes
        for name in node.outputs
        if name and name not in graph.constants
    }


def _planned(
    model: "onnx.ModelProto", stages: Mapping[str, int], graph: Graph
) -> tuple[Opened, SplitPlan]:
    """Return the nodes and their places; calls of functions are opened where one is in the way."""
    weights = frozenset(tensor.name for tensor in model.graph.initializer) | frozenset(
        sparse.values.name for sparse in model.graph.sparse_initializer
    )
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    outputs = [value.name for value in model.graph.output]

    def planned(opened: Opened) -> SplitPlan:
        return plan_split(
            opened.nodes, stage_of=stages, inputs=inputs, weights=weights, outputs=outputs
        )

    opened = open_calls(model, stages)
    try:
        return opened, planned(opened)
    except PartitionError:
        if not model.functions:
            raise
        opened = open_calls(model, stages, every=True)
        return opened, planned(opened)


def _check_source(model: "onnx.ModelProto", graph: Graph, plan: SplitPlan, source: Path) -> None:
    """Raise `ModelError` where the file lacks what the graph has, or reads what nothing gives."""
    made = {name for step in plan.steps for name in step.node.output}
    lacking = [
        name
        for node in graph.nodes
        for name in node.outputs
        if name and name not in made and not model.functions
    ]
    given = made | {value.name for value in model.graph.input}
    dangling = [name for stage in plan.stages for name in stage.inputs if name not in given]
    if lacking or dangling:
        raise ModelError(
            f"model {str(source)!r} has no {(lacking or dangling)[0]!r}, which the graph that was"
            " cut has; give the file that it was read from"
        )


# --- writing


def _write(cut: _Cut, folder: Path, directory: Path) -> StageFiles:
    types = Types(cut.model, cut.graph)
    weights = Weights(cut.source, keeps_external(cut.model))
    stages = tuple(_write_stage(cut, plan, types, weights, folder) for plan in cut.plan.stages)
    _write_whole(cut, weights, folder)
    held = _weights_of(cut)
    inputs = tuple(value.name for value in cut.model.graph.input if value.name not in held)
    outputs = tuple(value.name for value in cut.model.graph.output)
    described = dict.fromkeys(
        (*inputs, *outputs, *(n for s in stages for n in (*s.inputs, *s.outputs)))
    )
    return StageFiles(
        directory=directory,
        model=cut.graph.name,
        digest=cut.digest,
        graph_digest=cut.graph.digest,
        stages=stages,
        tensors={name: types.describe(name) for name in described},
        inputs=inputs,
        outputs=outputs,
        cuts=tuple(_cuts(cut.plan)),
        passed=cut.plan.passed,
        whole_ms=cut.forecast.whole_ms,
        versions=_versions(),
        notes=unique_notes((*types.notes, *_notes(cut))),
    )


def _weights_of(cut: _Cut) -> set[str]:
    graph = cut.model.graph
    return {tensor.name for tensor in graph.initializer} | {
        sparse.values.name for sparse in graph.sparse_initializer
    }


def _write_stage(
    cut: _Cut, plan: StagePlan, types: Types, weights: Weights, folder: Path
) -> StageFile:
    model = _stage_model(cut, plan, types)
    size = sum(weights.size_of(tensor) for tensor in tensors_of(model.graph))
    file = f"stage-{plan.index}.onnx"
    data = f"{file}.data"
    moved = weights.relocate(model, folder, data)
    (folder / file).write_bytes(model.SerializeToString(deterministic=True))
    return StageFile(
        index=plan.index,
        file=file,
        inputs=plan.inputs,
        outputs=plan.outputs,
        nodes=len(model.graph.node),
        weight_bytes=size,
        data=data if moved else "",
        predicted=cut.forecast.loads.get(plan.index),
    )


def _stage_model(cut: _Cut, plan: StagePlan, types: Types) -> "onnx.ModelProto":
    model = _shell(cut)
    set_property(model.metadata_props, STAGE_KEY, str(plan.index))
    set_property(model.metadata_props, DIGEST_KEY, cut.digest)
    graph, source = model.graph, cut.model.graph
    graph.name = f"{source.name or 'graph'} stage {plan.index}"
    for i in sorted((*plan.steps, *plan.frozen)):
        if i in plan.frozen:
            graph.node.extend(_frozen(cut.plan.steps[i].node, cut.graph, types))
        else:
            graph.node.append(cut.plan.steps[i].node)
    model.functions.extend(used_functions(graph.node, cut.model.functions))
    for tensor in source.initializer:
        if tensor.name in plan.weights:
            graph.initializer.append(tensor)
    for sparse in source.sparse_initializer:
        if sparse.values.name in plan.weights:
            graph.sparse_initializer.append(sparse)
    made = {name for node in graph.node for name in node.output if name}
    for names, values in ((plan.inputs, graph.input), (plan.outputs, graph.output)):
        for name in names:
            value = types.value(name)
            if value is None:
                raise ModelError(
                    f"the type of tensor {name!r}, which is cut, is known to no one; keep the"
                    " nodes that make and read it together, or declare it in the file"
                )
            values.append(value)
    inner = made - set(plan.outputs)
    for declared in source.value_info:
        if declared.name in inner and (value := types.declared(declared.name)) is not None:
            graph.value_info.append(value)
    present = {*made, *plan.inputs, *plan.weights}
    for mark in source.quantization_annotation:
        if mark.tensor_name in present:
            graph.quantization_annotation.append(mark)
    return model


def _shell(cut: _Cut) -> "onnx.ModelProto":
    """Return a model with all of the source's head and no graph."""
    import onnx

    model = onnx.ModelProto(
        # Below 4 every initialiser has to be an input too.
        ir_version=max(cut.model.ir_version, 4),
        producer_name="slicewise",
        producer_version=__version__,
        domain=cut.model.domain,
        model_version=cut.model.model_version,
    )
    model.opset_import.extend(cut.model.opset_import)
    known = {"" if e.domain == "ai.onnx" else e.domain for e in cut.model.opset_import}
    for domain, version in cut.opened.opsets.items():
        if ("" if domain == "ai.onnx" else domain) not in known:
            model.opset_import.add(domain=domain, version=version)
    model.metadata_props.extend(cut.model.metadata_props)
    return model


def _frozen(node: "onnx.NodeProto", graph: Graph, types: Types) -> "Iterator[onnx.NodeProto]":
    """Yield a constant in the place of Shape or Size: what the graph is bound to."""
    import onnx

    tensor = graph.tensors.get(node.input[0])
    shape = tensor.shape if tensor is not None else types.describe(node.input[0]).shape
    if shape is None:
        raise PartitionError(
            f"node {node.name or node.output[0]!r} gives the shape of {node.input[0]!r}, which is"
            " not known, to an earlier stage; cut the model again"
        )
    numbers = {attribute.name: int(attribute.i) for attribute in node.attribute}
    if node.op_type == "Size":
        size = 1
        for each in shape:
            size *= each
        value = onnx.helper.make_tensor(node.output[0], onnx.TensorProto.INT64, (), [size])
    else:
        kept = shape[numbers.get("start", 0) : numbers.get("end", len(shape))]
        value = onnx.helper.make_tensor(node.output[0], onnx.TensorProto.INT64, (len(kept),), kept)
    yield onnx.helper.make_node("Constant", [], [node.output[0]], name=node.name, value=value)


def _write_whole(cut: _Cut, weights: Weights, folder: Path) -> None:
    """Write the whole model, its nodes in order, annotated; what no output needs is left out."""
    model = _shell(cut)
    kept = [step for step in cut.plan.steps if step.stages]
    graph, source = model.graph, cut.model.graph
    graph.name = source.name or "graph"
    graph.doc_string = source.doc_string
    graph.node.extend(step.node for step in kept)
    model.functions.extend(used_functions(graph.node, cut.model.functions))
    used = {name for stage in cut.plan.stages for name in stage.weights}
    graph.initializer.extend(t for t in source.initializer if t.name in used)
    graph.sparse_initializer.extend(s for s in source.sparse_initializer if s.values.name in used)
    names = _weights_of(cut)
    graph.input.extend(value for value in source.input if value.name not in names)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    graph.quantization_annotation.extend(source.quantization_annotation)
    graph.metadata_props.extend(source.metadata_props)
    weights.point(model)
    count = max(plan.index for plan in cut.plan.stages) + 1
    loads = cut.forecast.loads
    devices = [loads[i].device if i in loads else "" for i in range(count)]
    annotate(
        model,
        [step.stages for step in kept],
        devices=[name or f"stage-{i}" for i, name in enumerate(devices)],
        digest=cut.digest,
    )
    (folder / WHOLE).write_bytes(model.SerializeToString(deterministic=True))


# --- what is said of it


def _cuts(plan: SplitPlan) -> Iterator[CutTensor]:
    given = {name: stage.index for stage in plan.stages for name in stage.outputs}
    for name, source in given.items():
        targets = tuple(stage.index for stage in plan.stages if name in stage.inputs)
        if targets:
            yield CutTensor(name, source, targets)


def _notes(cut: _Cut) -> Iterator[Note]:
    dead = [step for step in cut.plan.steps if not step.stages]
    if dead:
        yield Note("split-unused", f"no output needs {len(dead)} nodes of the file: left out")
    copied = sum(len(step.stages) > 1 for step in cut.plan.steps)
    if copied:
        text = f"{copied} nodes that need no item (constants, shapes) stand in several stages"
        yield Note("split-copied", text)
    for step in cut.plan.steps:
        if step.frozen:
            text = (
                f"its result is needed before stage {step.stages[0]}: a constant for the shapes"
                " that the model is bound to stands there"
            )
            yield Note("shape-frozen", text, node=step.node.name or step.node.output[0])
    if cut.opened.calls_opened:
        yield Note("split-functions", f"{cut.opened.calls_opened} calls of functions are opened")
    if cut.model.training_info:
        yield Note("split-training", "what the file says of training is left out")
    inputs = {value.name for value in cut.model.graph.input}
    defaults = sorted(inputs & _weights_of(cut))
    if defaults and cut.model.ir_version >= 4:
        text = f"inputs that have a value in the file are constants now: {', '.join(defaults)}"
        yield Note("split-defaults", text)


def _versions() -> dict[str, str]:
    import onnx

    return {"slicewise": __version__, "onnx": str(onnx.__version__)}
