"""The working copy that shapes are inferred on: stale shapes out, nodes as onnx expects them.

`graph/check.py` makes a model well formed; here its work is only asked for where a caller has not
done so. Must not touch the model it is given.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import onnx

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.check import bodies_of, tidy
from slicewise.graph.shape.facts import Fact, label_of, type_fact
from slicewise.graph.shape.reshape import Batch

RANGE_LIMIT = 10**6


def prepare(
    model: onnx.ModelProto, *, is_tidy: bool = False
) -> tuple[onnx.ModelProto, dict[str, Fact], list[Note]]:
    """Return a working copy of `model`, the shapes that the file declares inside it, and notes.

    `is_tidy`: the model is well formed already.
    Declared shapes of inner values and outputs are taken out: they may stem from another batch,
    and onnx believes them before it infers.
    """
    working = onnx.ModelProto()
    working.CopyFrom(model)
    notes: list[Note] = []
    if not is_tidy and (working.functions or not _is_in_order(working.graph, {""})):
        tidied = tidy(working, label="the model")
        working = tidied.model
        notes += tidied.notes
    graphs = list(_graphs_of(working.graph))
    opsets = _import_all(working, graphs)
    declared = {
        value.name: type_fact(value.type)
        for part in (working.graph.value_info, working.graph.output)
        for value in part
    }
    for graph in graphs:
        _check_nodes(graph, opsets)
        _strip(graph, is_body=graph is not working.graph)
    return working, declared, notes


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


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the imported operator sets by domain, '' for ai.onnx."""
    return {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in model.opset_import
    }


def _is_in_order(graph: onnx.GraphProto, outer: set[str]) -> bool:
    """True if every node reads what is there already and every output is made."""
    seen = set(outer)
    seen.update(value.name for value in graph.input)
    seen.update(tensor.name for tensor in graph.initializer)
    seen.update(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        if not seen.issuperset(node.input):
            return False
        if not all(_is_in_order(body, seen) for body in bodies_of(node)):
            return False
        seen.update(node.output)
    return all(value.name in seen for value in graph.output)


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and all bodies within, outer ones first."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from _graphs_of(body)


def _import_all(model: onnx.ModelProto, graphs: Iterable[onnx.GraphProto]) -> dict[str, int]:
    """Import every domain in use, as runtimes silently do: onnx stops at one that is missing."""
    known = opsets_of(model)
    used = {node.domain for graph in graphs for node in graph.node}
    used = {"" if domain == "ai.onnx" else domain for domain in used}
    for domain in sorted(used - known.keys()):
        known[domain] = 1 if domain else onnx.defs.onnx_opset_version()
        model.opset_import.add(domain=domain, version=known[domain])
    return known


def _check_nodes(graph: onnx.GraphProto, opsets: dict[str, int]) -> None:
    """Refuse nodes without the inputs or outputs that their operator is defined with.

    onnx's own inference reads them unseen and brings the whole process down.
    """
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        arity = _arity(domain, node.op_type, opsets[domain])
        inputs = node.input
        if len(inputs) < arity.least or "" in inputs[: arity.required]:
            slot = next((k for k, name in enumerate(inputs) if not name), len(inputs))
            raise ModelError(
                f"{_title(node)} lacks its input {slot}; operator set {opsets[domain]} wants at"
                f" least {arity.least}; correct the model or export it again"
            )
        if len(inputs) > arity.most or len(node.output) > arity.outputs:
            raise ModelError(
                f"{_title(node)} has {len(inputs)} inputs and {len(node.output)} outputs; operator"
                f" set {opsets[domain]} allows {arity.most} and {arity.outputs}; correct the model"
                " or its operator set"
            )
        for attribute in node.attribute if node.op_type == "Split" else ():
            if attribute.name == "num_outputs" and attribute.i != len(node.output):
                raise ModelError(
                    f"{_title(node)} has num_outputs={attribute.i} and {len(node.output)} outputs;"
                    " they have to be equal; correct the model"
                )


def _title(node: onnx.NodeProto) -> str:
    return f"node {label_of(node)!r} ({node.op_type})"


@dataclass(frozen=True, slots=True)
class _Arity:
    """How many inputs an operator needs at least, how many of the first cannot be left out, and
    how many inputs and outputs it has at most."""

    least: int = 0
    required: int = 0
    most: int = 2**31
    outputs: int = 2**31


@lru_cache(maxsize=4096)
def _arity(domain: str, op_type: str, version: int) -> _Arity:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return _Arity()
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    options = [each.option for each in schema.inputs]
    required = next((k for k, option in enumerate(options) if option != single), len(options))
    return _Arity(schema.min_input, required, schema.max_input, schema.max_output)


def _strip(graph: onnx.GraphProto, *, is_body: bool) -> None:
    del graph.value_info[:]
    # the inputs of a body get their shapes from what the node is given
    for value in (*graph.output, *(graph.input if is_body else ())):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def has_huge_range(graph: onnx.GraphProto) -> bool:
    """True if a Range of constants has more than RANGE_LIMIT elements.

    onnx's data propagation writes such a range out, eight bytes an element, and takes the machine
    down; our own rules count its elements only.
    """
    for inner in _graphs_of(graph):
        ranges = [node for node in inner.node if node.op_type == "Range"]
        if not ranges:
            continue
        numbers = {tensor.name: _number(tensor) for tensor in inner.initializer}
        for node in inner.node:
            if node.op_type == "Constant":
                numbers.update((node.output[0], _attribute_number(a)) for a in node.attribute)
        bounds = (numbers.get(name, 0.0) for node in ranges for name in node.input[:2])
        if any(abs(bound) > RANGE_LIMIT for bound in bounds):
            return True
    return False


def _attribute_number(attribute: onnx.AttributeProto) -> float:
    if attribute.name == "value":
        return _number(attribute.t)
    return float(attribute.i or attribute.f)


def _number(tensor: onnx.TensorProto) -> float:
    """Return the value of a scalar constant, 0 where it has none."""
    if not tensor.data_type or prod(tensor.dims) != 1:
        return 0.0
    try:
        return float(onnx.numpy_helper.to_array(tensor).reshape(()))
    except (ValueError, TypeError):
        return 0.0  # its bytes are not in the file
