"""Keeps calls of a model's own functions that one stage holds whole, and opens those that are cut.

Decides no stage. Names inside an opened call are those that onnx's inliner gives, which are the
names that a graph read from the same file has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicewise.core.errors import ModelError
from slicewise.partition.split.plan import bodies_of
from slicewise.partition.split.types import without_weights

if TYPE_CHECKING:
    import onnx

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Opened:
    """The nodes of a file, calls opened where asked, and operator sets that they brought along."""

    nodes: "tuple[onnx.NodeProto, ...]"
    opsets: Mapping[str, int]
    calls_opened: int = 0


def open_calls(
    model: "onnx.ModelProto", stage_of: Mapping[str, int], *, every: bool = False
) -> Opened:
    """Return the model's nodes; a call whose inside is in more than one stage is opened.

    `every`: all calls are. `stage_of` gives the stage of a tensor that a graph's node makes.
    `ModelError` where onnx cannot inline.
    """
    nodes = tuple(model.graph.node)
    if not model.functions:
        return Opened(nodes, {})
    inlined = _inlined(without_weights(model, model.graph.node))
    opsets = {entry.domain: entry.version for entry in inlined.opset_import}
    opened = tuple(inlined.graph.node)
    count = len(nodes)
    parts = None if every else _aligned(model, inlined)
    if parts is None:
        return Opened(opened, opsets, len(opened) - count)
    kept: list[onnx.NodeProto] = []
    cut = 0
    for node, part in zip(nodes, parts, strict=True):
        stages = {stage_of[name] for each in part for name in each.output if name in stage_of}
        is_cut = len(stages) > 1
        kept.extend(part if is_cut else [node])
        cut += is_cut
        if not is_cut and stages and len(part) > 1:
            # What the graph knows by an inner node, the plan reads from the call's outputs.
            node_outputs = [name for name in node.output if name]
            if not any(name in stage_of for name in node_outputs):
                kept[-1:] = part
    return Opened(tuple(kept), opsets, cut)


def used_functions(
    nodes: "Sequence[onnx.NodeProto]", functions: "Sequence[onnx.FunctionProto]"
) -> "list[onnx.FunctionProto]":
    """Return the functions that nodes call, directly, in bodies or through others."""
    known = {_key(function): function for function in functions}
    used: dict[Key, onnx.FunctionProto] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        key = (_domain(node.domain), node.op_type, node.overload)
        if key in known and key not in used:
            used[key] = known[key]
            waiting.extend(known[key].node)
        for body in bodies_of(node):
            waiting.extend(body.node)
    return [function for key, function in known.items() if key in used]


def _key(function: "onnx.FunctionProto") -> Key:
    return (_domain(function.domain), function.name, function.overload)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _inlined(model: "onnx.ModelProto") -> "onnx.ModelProto":
    import onnx.inliner

    last: Exception | None = None
    for converts in (True, False):
        try:
            return onnx.inliner.inline_local_functions(model, convert_version=converts)
        # onnx's own errors share no root; without conversion it may still do.
        except Exception as err:
            last = err
    lines = str(last).strip().splitlines() or [type(last).__name__]
    raise ModelError(
        f"the model has functions that cannot be inlined: {lines[0]}; export it again without"
        " functions"
    ) from last


def _aligned(
    model: "onnx.ModelProto", inlined: "onnx.ModelProto"
) -> "list[list[onnx.NodeProto]] | None":
    """Return for each node what it became; None where the two lists do not go together."""
    known = {_key(function): function for function in model.functions}
    for function in inlined.functions:
        known.pop(_key(function), None)
    sizes: dict[Key, int] = {}
    left: Iterator[onnx.NodeProto] = iter(inlined.graph.node)
    parts: list[list[onnx.NodeProto]] = []
    for node in model.graph.node:
        part = [each for _, each in zip(range(_size(node, known, sizes)), left, strict=False)]
        made = {name for each in part for name in each.output}
        if not made.issuperset(filter(None, node.output)):
            return None
        parts.append(part)
    return parts if next(left, None) is None else None


def _size(
    node: "onnx.NodeProto", known: "Mapping[Key, onnx.FunctionProto]", sizes: dict[Key, int]
) -> int:
    key = (_domain(node.domain), node.op_type, node.overload)
    function = known.get(key)
    if function is None:
        return 1
    if key not in sizes:
        sizes[key] = 0  # a function that calls itself is no model; the lists then differ
        sizes[key] = sum(_size(inner, known, sizes) for inner in function.node)
    return sizes[key]
