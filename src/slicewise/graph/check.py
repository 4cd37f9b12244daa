"""Makes an ONNX model well formed, or says in one line why it cannot be.

Functions are inlined, domains spelt one way, duplicates dropped, nodes put in topological order;
each repair leaves a Note. What cannot be repaired is a `ModelError`. No shapes and no weights are
looked at, and no file is opened.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note, unique_notes

# The ONNX operator set that came with PyTorch 1.0 and ONNX 1.2; older ones lack broadcasting
# rules that shapes are computed with.
OLDEST_OPSET = 7
_LISTED = 30


@dataclass(frozen=True, slots=True)
class Tidy:
    """A well-formed model, functions inlined, and what had to be repaired."""

    model: onnx.ModelProto
    notes: tuple[Note, ...]


def tidy(model: onnx.ModelProto, *, label: str) -> Tidy:
    """Return `model` repaired; `ModelError` if it is empty, cyclic, dangling or ambiguous.

    `label` names the model in messages. The argument is left as it is.
    """
    if not model.graph.node:
        raise ModelError(f"{label} has an empty graph: no nodes; export the model again")
    if not model.graph.output:
        raise ModelError(
            f"{label} declares no outputs, so nothing needs to be computed; export it again with"
            " its outputs"
        )
    _check_text(model, label=label)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    notes: list[Note] = []
    _spell_domains(copy)
    notes += _import_opsets(copy)
    copy, inlined = _inline(copy, label=label)
    notes += inlined
    reads = _tidy_graph(copy.graph, notes, label=label)
    _check_reads(copy.graph, reads, label=label)
    return Tidy(copy, unique_notes(notes))


def initialiser_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of dense and sparse initialisers of one graph."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the sub-graphs in a node's attributes."""
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            bodies.append(attribute.g)
        bodies.extend(attribute.graphs)
    return bodies


def reads_of(node: onnx.NodeProto) -> list[str]:
    """Return the values a node reads, those its bodies capture included."""
    reads = [name for name in node.input if name]
    for body in bodies_of(node):
        reads.extend(captured_by(body))
    return reads


def captured_by(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the values that a body reads from outside itself, in order of reading."""
    own = {value.name for value in graph.input} | initialiser_names(graph)
    own.update(name for node in graph.node for name in node.output)
    for node in graph.node:
        yield from (name for name in reads_of(node) if name not in own)
    yield from (value.name for value in graph.output if value.name and value.name not in own)


def title_of(node: onnx.NodeProto) -> str:
    """Return how messages name a node: its name, else its kind and first output."""
    return node.name or f"{node.op_type} of {next((name for name in node.output if name), '?')}"


def listed(names: Iterable[str]) -> str:
    """Return names quoted and joined; very long lists end in a count."""
    every = [repr(name) for name in dict.fromkeys(names)]
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


# --- text


def _check_text(model: onnx.ModelProto, *, label: str) -> None:
    """Refuse names that are not UTF-8: protobuf hands them over as bytes."""
    texts = [*_texts_of_model(model), *_texts_of_graph(model.graph)]
    if bytes not in set(map(type, texts)):
        return
    for text in texts:
        if isinstance(text, bytes):
            raise ModelError(
                f"{label} has a name that is not UTF-8 text: {text[:40]!r}; the file is damaged"
                " or written in another encoding; export it again"
            )


def _texts_of_model(model: onnx.ModelProto) -> Iterator[str | bytes]:
    yield from (opset.domain for opset in model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        yield from (opset.domain for opset in function.opset_import)
        yield from _texts_of_nodes(function.node)


def _texts_of_graph(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    yield graph.name
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        kind = value.type
        while kind.WhichOneof("value") in ("optional_type", "sequence_type"):
            kind = getattr(kind, kind.WhichOneof("value")).elem_type
        for tensor in (kind.tensor_type, kind.sparse_tensor_type):
            yield from (dim.dim_param for dim in tensor.shape.dim)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            if attribute.HasField("t"):
                yield attribute.t.name
        for body in bodies_of(node):
            yield from _texts_of_graph(body)


# --- versions and functions


def _spell_domains(model: onnx.ModelProto) -> None:
    """Write the standard domain as '': 'ai.onnx' is its other spelling (ONNX IR specification)."""
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    groups: list[Iterable[onnx.NodeProto]] = [model.graph.node]
    for function in model.functions:
        groups.append(function.node)
        for opset in function.opset_import:
            opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    while groups:
        for node in groups.pop():
            if node.domain == "ai.onnx":
                node.domain = ""
            groups.extend(body.node for body in bodies_of(node))


def _import_opsets(model: onnx.ModelProto) -> Iterator[Note]:
    """Complete the operator-set imports and note versions outside the supported range."""
    standard = [opset for opset in model.opset_import if opset.domain == ""]
    if not standard or standard[0].version < 1:
        version = _opset_of_ir(model.ir_version)
        opset = standard[0] if standard else model.opset_import.add()
        opset.domain, opset.version = "", version
        if _uses_standard(model):
            text = f"the model imports no ai.onnx operator set; read as opset {version}"
            yield Note("opset-missing", text)
    else:
        version = standard[0].version
    newest = onnx.defs.onnx_opset_version()
    if version < OLDEST_OPSET:
        yield Note(
            "opset-old",
            f"opset {version} is older than {OLDEST_OPSET}, the oldest supported; some shapes may"
            " be wrong",
        )
    if version > newest:
        yield Note(
            "opset-newer",
            f"opset {version} is newer than {newest}, the newest that the installed onnx knows;"
            " operators are read as of that one",
        )
        next(o for o in model.opset_import if o.domain == "").version = newest
    if model.ir_version > onnx.IR_VERSION:
        yield Note(
            "ir-newer",
            f"IR version {model.ir_version} is newer than {onnx.IR_VERSION}, the newest that the"
            " installed onnx knows; read as that one",
        )
        model.ir_version = onnx.IR_VERSION


def _uses_standard(model: onnx.ModelProto) -> bool:
    """True if a node of the graph, its bodies or the functions is of the domain ''."""
    groups: list[Iterable[onnx.NodeProto]] = [model.graph.node]
    groups += [function.node for function in model.functions]
    while groups:
        for node in groups.pop():
            if node.domain == "":
                return True
            groups.extend(body.node for body in bodies_of(node))
    return False


def _opset_of_ir(ir_version: int) -> int:
    """Return the newest opset released with an IR version (onnx.helper.VERSION_TABLE)."""
    released = [row[2] for row in onnx.helper.VERSION_TABLE if row[1] == ir_version]
    return max(released, default=1 if ir_version < 3 else onnx.defs.onnx_opset_version())


_INLINER_ERRORS = (
    RuntimeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline functions of another operator set as well where onnx can convert them."""
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except _INLINER_ERRORS:
        # without conversion; functions that would need it are kept, which leaves a Note
        return onnx.inliner.inline_local_functions(model, convert_version=False)


def _inline(model: onnx.ModelProto, *, label: str) -> tuple[onnx.ModelProto, tuple[Note, ...]]:
    """Return the model with its own functions replaced by their bodies."""
    if not model.functions:
        return model, ()
    try:
        inlined = _inlined(model)
    except _INLINER_ERRORS as err:
        first = str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
        raise ModelError(
            f"{label} has functions that cannot be inlined: {first}; export it again without"
            " functions"
        ) from err
    if not inlined.functions:
        return inlined, ()
    names = listed(f"{function.domain}:{function.name}" for function in inlined.functions)
    note = Note(
        "function-kept",
        f"functions of another operator set stay single operators of unknown cost: {names}",
    )
    return inlined, (note,)


# --- one graph


def _tidy_graph(graph: onnx.GraphProto, notes: list[Note], *, label: str) -> list[list[str]]:
    """Repair a graph and its bodies in place; return what each of its nodes reads."""
    notes += _drop_duplicates(graph)
    _check_declarations(graph, label=label)
    _check_single_writers(graph, label=label)
    reads = [reads_of(node) for node in graph.node]
    if not _is_sorted(graph, reads):
        _sort(graph, reads, label=label)
        reads = [reads_of(node) for node in graph.node]
        text = f"nodes of graph {graph.name!r} were out of order; sorted"
        notes.append(Note("nodes-unsorted", text))
    notes += _unused_initialisers(graph, reads)
    for node in graph.node:
        if not node.op_type:
            raise ModelError(
                f"{label} has a node without an operator name ({title_of(node)!r}); every node"
                " needs op_type; export it again"
            )
        for body in bodies_of(node):
            _tidy_graph(body, notes, label=label)
    return reads


def _drop_duplicates(graph: onnx.GraphProto) -> Iterator[Note]:
    """Keep the first of inputs and of initialisers that share a name."""
    groups: tuple[tuple[str, Any, list[str]], ...] = (
        ("input", graph.input, [value.name for value in graph.input]),
        ("initialiser", graph.initializer, [tensor.name for tensor in graph.initializer]),
        (
            "sparse initialiser",
            graph.sparse_initializer,
            [sparse.values.name for sparse in graph.sparse_initializer],
        ),
    )
    for kind, values, names in groups:
        first = {name: i for i, name in reversed(tuple(enumerate(names)))}
        again = [i for i, name in enumerate(names) if first[name] != i]
        if again:
            twice = listed(names[i] for i in again)
            yield Note("duplicate-name", f"{kind} declared more than once, first kept: {twice}")
            for i in reversed(again):
                del values[i]


def _check_declarations(graph: onnx.GraphProto, *, label: str) -> None:
    """Refuse inputs, outputs and constants that no node could name or no memory hold."""
    for kind, values in (("input", graph.input), ("output", graph.output)):
        if any(not value.name for value in values):
            raise ModelError(f"{label} has an {kind} without a name; export it again")
    tensors = (*graph.initializer, *graph.sparse_initializer)
    for tensor in tensors:
        name = tensor.values.name if hasattr(tensor, "values") else tensor.name
        if any(size < 0 for size in tensor.dims):
            raise ModelError(
                f"{label} has an initialiser {name!r} of shape {list(tensor.dims)}; sizes are"
                " never negative; export it again"
            )


def _check_single_writers(graph: onnx.GraphProto, *, label: str) -> None:
    given = {value.name for value in graph.input} | initialiser_names(graph)
    seen: set[str] = set()
    twice: list[str] = []
    for node in graph.node:
        for name in node.output:
            if name and (name in seen or name in given):
                twice.append(name)
            seen.add(name)
    if twice:
        raise ModelError(
            f"{label} writes the same value more than once: {listed(twice)}; each value has one"
            " producer; rename the outputs"
        )


def _sort(graph: onnx.GraphProto, reads: Sequence[Sequence[str]], *, label: str) -> None:
    """Put the nodes in topological order, ties by their place in the file."""
    producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producer[name] for name in names if name in producer} for names in reads]
    waiting = [len(sources) for sources in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for i, sources in enumerate(needs):
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(needs):
        names = " -> ".join(repr(title_of(graph.node[i])) for i in _cycle(needs, set(order)))
        raise ModelError(
            f"{label} has a cycle: {names}; a graph must be acyclic (a loop is a Loop or Scan"
            " node); export it again"
        )
    nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)


def _is_sorted(graph: onnx.GraphProto, reads: Sequence[Sequence[str]]) -> bool:
    """True if no node reads what itself or a later one makes."""
    later = {name for node in graph.node for name in node.output if name}
    for node, names in zip(graph.node, reads, strict=True):
        if not later.isdisjoint(names):
            return False
        later.difference_update(node.output)
    return True


def _cycle(needs: Sequence[set[int]], done: set[int]) -> list[int]:
    """Return nodes along a cycle among those not done, in the direction of the data."""
    here = next(i for i in range(len(needs)) if i not in done)
    path: list[int] = []
    while here not in path:
        path.append(here)
        here = min(source for source in needs[here] if source not in done)
    return [*reversed(path[path.index(here) :]), path[-1]]


def _check_reads(graph: onnx.GraphProto, reads: Sequence[Sequence[str]], *, label: str) -> None:
    """Refuse values that are read, or returned, but that nothing gives.

    `reads`: what each node reads (`reads_of`).
    """
    given = {value.name for value in graph.input} | initialiser_names(graph)
    given.update(name for node in graph.node for name in node.output)
    missing: dict[str, str] = {}
    for node, names in zip(graph.node, reads, strict=True):
        if given.issuperset(names):
            continue
        for name in names:
            if name not in given:
                missing.setdefault(name, f"{name!r} (by node {title_of(node)!r})")
    for value in graph.output:
        if value.name not in given:
            missing.setdefault(value.name, f"{value.name!r} (by the outputs)")
    if missing:
        shown = list(missing.values())
        more = f" and {len(shown) - _LISTED} more" if len(shown) > _LISTED else ""
        raise ModelError(
            f"{label} reads values that no node, input or initialiser gives:"
            f" {', '.join(shown[:_LISTED])}{more}; export it again"
        )


def _unused_initialisers(graph: onnx.GraphProto, reads: Sequence[Sequence[str]]) -> Iterator[Note]:
    """Note the constants of this graph that no node of it reads, those of its bodies included."""
    read = {name for names in reads for name in names}
    read.update(value.name for value in graph.output)
    unused = [tensor.name for tensor in graph.initializer if tensor.name not in read]
    unused += [s.values.name for s in graph.sparse_initializer if s.values.name not in read]
    if unused:
        text = f"read by no node, so not counted as parameters: {listed(unused)}"
        yield Note("unused-initialiser", text)
