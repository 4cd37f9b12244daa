"""The working copy of a model: functions inlined, nodes in order, stale shapes out.

Must not touch the model it is given.
"""

from collections.abc import Iterable, Iterator

import onnx

from slicewise.core.errors import ModelError
from slicewise.graph.shape.facts import Fact, label_of, type_fact
from slicewise.graph.shape.reshape import Batch


def prepare(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Fact]]:
    """Return a working copy of `model` and the shapes that the file declares inside it.

    Declared shapes of inner values and outputs are taken out: they may stem from another batch,
    and onnx believes them before it infers.
    """
    working = onnx.ModelProto()
    working.CopyFrom(model)
    if working.functions:
        working = _inlined(working)
    _import_all(working)
    declared = {
        value.name: type_fact(value.type)
        for part in (working.graph.value_info, working.graph.output)
        for value in part
    }
    names = {value.name for value in working.graph.input}
    names.update(tensor.name for tensor in working.graph.initializer)
    names.update(sparse.values.name for sparse in working.graph.sparse_initializer)
    _put_in_order(working.graph, names, frozenset())
    _strip(working.graph)
    return working, declared


def with_batch(
    model: onnx.ModelProto,
    batch: Batch,
    batch_inputs: Iterable[str] | None,
    *,
    everywhere: bool,
) -> onnx.ModelProto:
    """Return a copy of `model` with the leading axis of its batch inputs set to the old batch.

    `everywhere`: every axis of every input that has the size of the new batch is set.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    chosen = None if batch_inputs is None else frozenset(batch_inputs)
    for value in copy.graph.input:
        if value.name in constants:
            continue
        leads = chosen is None or value.name in chosen
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value == batch.new and (everywhere or (leads and axis == 0)):
                dim.dim_value = batch.old
    return copy


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that hang on a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except (onnx.checker.ValidationError, RuntimeError, ValueError, TypeError) as err:
        reason = str(err).strip().partition("\n")[0]
        raise ModelError(
            f"the functions of the model cannot be inlined ({reason}); correct their definitions"
            " or export without functions"
        ) from err


def _import_all(model: onnx.ModelProto) -> None:
    """Import every domain in use, as runtimes silently do: onnx stops at one that is missing."""
    known = {"" if entry.domain == "ai.onnx" else entry.domain for entry in model.opset_import}
    used: set[str] = set()
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            used.add("" if node.domain == "ai.onnx" else node.domain)
            pending.extend(bodies_of(node))
    for domain in sorted(used - known):
        entry = model.opset_import.add()
        entry.domain = domain
        entry.version = 1 if domain else onnx.defs.onnx_opset_version()


def _strip(graph: onnx.GraphProto, *, is_body: bool = False) -> None:
    del graph.value_info[:]
    # the inputs of a body get their shapes from what the node is given
    for value in (*graph.output, *(graph.input if is_body else ())):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies_of(node):
            _strip(body, is_body=True)


def _put_in_order(graph: onnx.GraphProto, known: set[str], outer: frozenset[str]) -> None:
    """Sort the nodes of `graph` topologically where they are not, its bodies likewise.

    `known`: values of this graph that are there before its nodes run; `outer`: values around it.
    `ModelError` for a value that nothing makes, that two nodes make, or a cycle.
    """
    if _is_in_order(graph, known, outer):
        return
    makers: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and (name in makers or name in known):
                raise ModelError(
                    f"value {name!r} is made twice, again by node {label_of(node)!r}"
                    f" ({node.op_type}); a value has one maker; rename one of them"
                )
            if name:
                makers[name] = index
    reads = [_reads(node) for node in graph.node]
    visible = outer | known | makers.keys()
    for node, names in zip(graph.node, reads, strict=True):
        missing = sorted(names - visible)
        if missing:
            raise ModelError(
                f"node {label_of(node)!r} ({node.op_type}) reads {missing[0]!r}, which nothing"
                " makes; the file is cut short or edited by hand; export it again"
            )
    order = _order([{makers[x] for x in names if x in makers} for names in reads])
    if len(order) < len(reads):
        stuck = graph.node[min(set(range(len(reads))) - set(order))]
        raise ModelError(
            f"the graph has a cycle through node {label_of(stuck)!r} ({stuck.op_type}); a model"
            " has none; correct it"
        )
    if order != list(range(len(order))):
        nodes = [onnx.NodeProto.FromString(graph.node[k].SerializeToString()) for k in order]
        del graph.node[:]
        graph.node.extend(nodes)
    for node in graph.node:
        for body in bodies_of(node):
            inside = {value.name for value in body.input}
            inside.update(tensor.name for tensor in body.initializer)
            inside.update(sparse.values.name for sparse in body.sparse_initializer)
            _put_in_order(body, inside, frozenset(visible))


def _is_in_order(graph: onnx.GraphProto, known: set[str], outer: frozenset[str]) -> bool:
    """True if every node reads what is there already; bodies are left to the thorough way."""
    seen = {"", *known, *outer}
    for node in graph.node:
        if not seen.issuperset(node.input) or any(True for _ in bodies_of(node)):
            return False
        before = len(seen)
        made = [name for name in node.output if name]
        seen.update(made)
        if len(seen) != before + len(made):
            return False
    return True


def _order(needs: list[set[int]]) -> list[int]:
    """Return a topological order, the given one where it is one; short if there is a cycle."""
    if all(max(need, default=-1) < k for k, need in enumerate(needs)):
        return list(range(len(needs)))
    readers: list[list[int]] = [[] for _ in needs]
    missing = [len(need) for need in needs]
    for k, need in enumerate(needs):
        for maker in need:
            readers[maker].append(k)
    ready = [k for k in reversed(range(len(needs))) if not missing[k]]
    order = []
    while ready:
        k = ready.pop()
        order.append(k)
        for reader in reversed(readers[k]):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return order


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the values a node needs, those captured by its bodies included."""
    names = {name for name in node.input if name}
    for body in bodies_of(node):
        inside = {value.name for value in body.input}
        inside.update(tensor.name for tensor in body.initializer)
        inside.update(sparse.values.name for sparse in body.sparse_initializer)
        for inner in body.node:
            inside.update(inner.output)
        for inner in body.node:
            names |= _reads(inner) - inside
        names |= {value.name for value in body.output} - inside
    return names - {""}
