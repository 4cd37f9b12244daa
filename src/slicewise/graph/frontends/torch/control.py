"""Control flow of exported programs: branches and loops become nodes with bodies.

A region that only sets a mode of torch (gradients, autocast) is put in line. Called by
`torch/convert.py`, whose scopes it makes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slicewise.core.graph import Graph, Node
from slicewise.core.notes import Note
from slicewise.graph.frontends.torch.convert import (
    Scope,
    add_step,
    convert_nodes,
    finish,
    names_of,
    read_names,
    record_outputs,
)
from slicewise.graph.frontends.torch.names import scopes_of

# Regions put in line: where the sub-program stands among the arguments, and where its operands do.
_IN_LINE: Mapping[str, tuple[int, int]] = {
    "wrap_with_set_grad_enabled": (1, 2),
    "wrap_with_autocast": (4, 5),
    "invoke_subgraph": (0, 2),
    "hints_wrapper": (0, 1),
    "wrap": (0, 1),
    "tag_activation_checkpoint": (0, 1),
}


def convert_higher_order(node: Any, module: Any, scope: Scope) -> None:
    """Convert a call of an operator that takes sub-programs."""
    name = node.target.name()
    if name in _IN_LINE:
        at, first = _IN_LINE[name]
        operands = node.args[first:]
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = tuple(operands[0])
        _convert_in_line(node, _program(node.args[at], module), operands, scope)
        return
    convert = _WITH_BODIES.get(name)
    made = _opaque(node, scope) if convert is None else convert(node, module, scope)
    outputs = tuple(record_outputs(node, scope.values.of(node), scope))
    if outputs:
        made = replace(made, outputs=outputs, storage_of="")
        add_step(scope, node, made, name)


def _program(argument: Any, module: Any) -> Any:
    """Return the sub-program that a get_attr node stands for."""
    found = module
    for part in str(argument.target).split("."):
        found = getattr(found, part)
    return found


def _placeholders(program: Any) -> list[Any]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _result(program: Any) -> Any:
    return next(node for node in program.graph.nodes if node.op == "output").args[0]


def _convert_in_line(node: Any, program: Any, operands: Sequence[Any], scope: Scope) -> None:
    inner = scope.inside(f"{node.name}.", scopes_of(node))
    for placeholder, operand in zip(_placeholders(program), operands, strict=False):
        if hasattr(operand, "meta") and operand in scope.names:
            inner.names[placeholder] = scope.names[operand]
    convert_nodes(program, inner)
    result = _result(program)
    if isinstance(result, list | tuple):
        scope.names[node] = tuple(next(names_of(each, inner), "") for each in result)
    else:
        scope.names[node] = next(names_of(result, inner), None)


# --- bodies


def _body(
    node: Any,
    program: Any,
    name: str,
    operands: Sequence[Any],
    scope: Scope,
    *,
    own: int,
) -> Graph:
    """Return a sub-program as a body: the first `own` operands are its inputs, new in each run;
    the others are captured from around it."""
    inner = scope.apart(f"{node.name}.{name}.", scopes_of(node))
    inputs: list[str] = []
    for i, placeholder in enumerate(_placeholders(program)):
        value = scope.values.of(placeholder)
        if i < own:
            inputs += record_outputs(placeholder, value, inner)
            continue
        outer = next(read_names(node, operands[i], scope), None)
        if outer is not None:
            inner.names[placeholder] = outer
            inner.tensors[outer] = scope.tensors[outer]
    convert_nodes(program, inner)
    outputs = tuple(names_of(_result(program), inner))
    scope.notes.extend(inner.notes)
    body = finish(inner, {}, tuple(inputs), outputs, name=f"{node.name}/{name}")
    return replace(body, batch_axes=_symbolic_axes(program, inputs))


def _symbolic_axes(program: Any, inputs: Sequence[str]) -> Mapping[str, int]:
    """Return for each input of a body its first axis that is a symbol: it follows the batch."""
    axes: dict[str, int] = {}
    for name, placeholder in zip(inputs, _placeholders(program), strict=False):
        sizes = getattr(placeholder.meta.get("val"), "shape", ())
        axis = next((i for i, size in enumerate(sizes) if not isinstance(size, int)), None)
        if axis is not None:
            axes[name] = axis
    return axes


def _cond(node: Any, module: Any, scope: Scope) -> Node:
    predicate, true, false, operands = node.args[:4]
    bodies = tuple(
        _body(node, _program(branch, module), name, operands, scope, own=0)
        for name, branch in (("then", true), ("else", false))
    )
    return Node("", "If", tuple(read_names(node, predicate, scope)), (), bodies=bodies)


def _while_loop(node: Any, module: Any, scope: Scope) -> Node:
    condition, body, carried, captured = node.args[:4]
    operands = (*carried, *captured)
    bodies = tuple(
        _body(node, _program(part, module), name, operands, scope, own=len(carried))
        for name, part in (("body", body), ("condition", condition))
    )
    text = "how often the loop runs depends on data; its body is counted once"
    scope.notes.append(Note("trip-count-unknown", text, node.name))
    return Node("", "Loop", tuple(read_names(node, carried, scope)), (), bodies=bodies)


def _scan(node: Any, module: Any, scope: Scope) -> Node:
    combine, initial, sequences, captured = node.args[:4]
    steps = scope.values.shape(scope.values.of(sequences[0]))[0] if sequences else 1
    operands = (*initial, *sequences, *captured)
    own = len(initial) + len(sequences)
    body = _body(node, _program(combine, module), "body", operands, scope, own=own)
    inputs = tuple(read_names(node, [*initial, *sequences], scope))
    return Node("", "Scan", inputs, (), bodies=(body,), repeats=max(1, steps))


def _map(node: Any, module: Any, scope: Scope) -> Node:
    function, sequences, captured = node.args[:3]
    steps = scope.values.shape(scope.values.of(sequences[0]))[0] if sequences else 1
    operands = (*sequences, *captured)
    body = _body(node, _program(function, module), "body", operands, scope, own=len(sequences))
    inputs = tuple(read_names(node, sequences, scope))
    return Node("", "Scan", inputs, (), bodies=(body,), repeats=max(1, steps))


def _flex_attention(node: Any, module: Any, scope: Scope) -> Node:
    inputs = tuple(read_names(node, node.args[:3], scope))
    return Node("", "FlexAttention", inputs, (), domain="ai.onnx.preview")


def _opaque(node: Any, scope: Scope) -> Node:
    """Return a node under torch's own name, counted by its bytes."""
    inputs = tuple(read_names(node, node.args, scope))
    return Node("", node.target.name(), inputs, (), domain="torch.higher_order")


_WITH_BODIES: Mapping[str, Callable[[Any, Any, Scope], Node]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "flex_attention": _flex_attention,
}
