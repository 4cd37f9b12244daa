"""What a runtime's profiler timed, beside the kernels of a graph: which is which.

    by name     the name of a node, of its result, or of the module that called it; and the kind
    by module   what is left in a module: operators that the runtime takes apart or puts together
    by kind     what is left of a kind, where there are about as many on both sides

Entries that are of no kernel (shape arithmetic, changes of layout, views) stay by themselves.
Nothing is measured or fitted here.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from slicewise.core.cost import GraphWork, Kind
from slicewise.core.graph import Graph
from slicewise.core.measurement import NodeTime

if TYPE_CHECKING:
    from slicewise.predict.kernels import Row
    from slicewise.predict.operators import OperatorTime

Match: TypeAlias = tuple[list[int], list[int]]  # entries of a profile, and kernels

# Of no node of a model: onnxruntime's changes between plain and blocked layout.
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})
# Rows of the ATen table whose operator depends on the call, not the kind.
_KIND_BY_CALL = {
    "convolution": Kind.CONV,
    "_convolution": Kind.CONV,
    "adaptive_avg_pool": Kind.POOL,
    "adaptive_max_pool": Kind.POOL,
    "max": Kind.REDUCTION,
    "min": Kind.REDUCTION,
}
# What onnxruntime appends to a name where it puts something else in place of a node.
_SUFFIXES = ("_nchwc", "/MatMulScaleFusion/", "/MatmulTransposeFusion/", "/GemmActivationFusion/")
# In front of the modules of a model that is exported inside another.
_WRAPPER = "inner"
_ALONE = "alone"
# Of a kind only, entries and kernels are taken for the same where there are this many times as
# many of one as of the other at most.
_SIMILAR = 1.5


# What runtimes call operators beside the names of the operator table.
_RUNTIME_KINDS: Mapping[str, Kind] = {
    # onnxruntime: layout changes of its blocked convolutions
    "ReorderInput": Kind.MOVEMENT,
    "ReorderOutput": Kind.MOVEMENT,
    # PyTorch on a CPU: oneDNN and MKL entry points
    "mkldnn_convolution": Kind.CONV,
    "convolution": Kind.CONV,
    "_convolution": Kind.CONV,
    "thnn_conv2d": Kind.CONV,
    "_slow_conv2d_forward": Kind.CONV,
    "slow_conv_transpose2d": Kind.CONV,
    "addmm": Kind.MATMUL,
    "mm": Kind.MATMUL,
    "bmm": Kind.MATMUL,
    "baddbmm": Kind.MATMUL,
    "mkl_linear": Kind.MATMUL,
    "_scaled_dot_product_flash_attention_for_cpu": Kind.ATTENTION,
    "native_batch_norm": Kind.NORM,
    "native_layer_norm": Kind.NORM,
    "native_group_norm": Kind.NORM,
    "_softmax": Kind.SOFTMAX,
    "max_pool2d_with_indices": Kind.POOL,
    "_adaptive_avg_pool2d": Kind.POOL,
    "copy_": Kind.MOVEMENT,
    "cat": Kind.MOVEMENT,
    "clone": Kind.MOVEMENT,
    "fill_": Kind.MOVEMENT,
    "index_select": Kind.MOVEMENT,
    "empty": Kind.VIEW,
    "empty_strided": Kind.VIEW,
    "as_strided": Kind.VIEW,
    "resize_": Kind.VIEW,
}


def kind_of(op_type: str) -> Kind | None:
    """Return the kind of an operator as a runtime's profiler calls it, None if it is in no table.

    >>> kind_of("FusedConv"), kind_of("aten::relu_"), kind_of("SkipLayerNormalization")
    (<Kind.CONV: 'conv'>, <Kind.ELEMENTWISE: 'elementwise'>, <Kind.NORM: 'norm'>)
    """
    from slicewise.graph.ops import operator

    name = op_type.rpartition("::")[2]
    if name in _RUNTIME_KINDS:
        return _RUNTIME_KINDS[name]
    plain = name.rstrip("_")
    for domain in ("", "com.microsoft", "torch.aten"):
        for word in (name, plain, plain.title().replace("_", "")):
            row = operator(domain, word)
            if row is not None and not row.is_bytes_only:
                return row.kind
    return None


def operator_times(
    graph: Graph, work: GraphWork, nodes: Sequence[NodeTime]
) -> "tuple[OperatorTime, ...]":
    """Return every entry of a profile once, alone or with others, and which kernels it is.

    `work` is launched for the runtime that was profiled. Entries and kernels that cannot be told
    apart are one row with the sum of their times. Time O(entries + kernels).
    """
    from slicewise.predict.kernels import kernels_of

    rows = list(kernels_of(work))
    entries = {i: kind for i, node in enumerate(nodes) if (kind := kernel_kind(node)) is not None}
    kernels = set(range(len(rows)))
    made: list[Match] = []
    modules = {k: _modules_of(graph, row) for k, row in enumerate(rows)}
    for ours_of, is_by_name in ((_names_of(graph, work, rows), True), (modules, False)):
        theirs = {
            i: _names(nodes[i], kind) if is_by_name else _modules(nodes[i])
            for i, kind in entries.items()
        }
        found = _connected(theirs, {k: ours_of[k] for k in sorted(kernels)})
        made += found
        for its, ours in found:
            kernels.difference_update(ours)
            for i in its:
                del entries[i]
    made += _of_a_kind(nodes, entries, rows, kernels)
    return _summed(nodes, made)


def kernel_kind(node: NodeTime) -> Kind | None:
    """Return the kind of kernel that an entry would be, None for one that no kernel is.

    PyTorch's are told by the table that its graphs are read with: the same call is the same kind.
    """
    from slicewise.graph.frontends.torch.aten import find_row
    from slicewise.graph.frontends.torch.aten.row import Storage
    from slicewise.graph.ops import operator

    if node.op_type in _LAYOUT:
        return None
    row = find_row(node.op_type)
    if row is None:
        kind = kind_of(node.op_type)
        return None if kind in (Kind.VIEW, Kind.CONTROL) else kind
    if row.storage in (Storage.VIEW, Storage.SAME, Storage.NOTHING):
        return None
    if not isinstance(row.op_type, str):
        return _KIND_BY_CALL[row.aten.rstrip("123d")]
    told = operator(row.domain, row.op_type)
    # what is a view by its operator, and owns what it returns, is a copy
    return Kind.MOVEMENT if told is None or told.kind is Kind.VIEW else told.kind


def entry_kind(node: NodeTime) -> Kind | None:
    """Return the kind of an entry, that of a kernel or not; None if it is in no table."""
    from slicewise.graph.frontends.torch.aten import find_row

    kind = kernel_kind(node) or kind_of(node.op_type)
    return Kind.VIEW if kind is None and find_row(node.op_type) is not None else kind


def _names(node: NodeTime, kind: Kind) -> list[Hashable]:
    """Return what a kernel may go by which is this entry, the surest first."""
    name = node.origin
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    module = _module(node.origin)
    return [(name, kind), (module, kind), (module, _ALONE)]


def _modules(node: NodeTime) -> list[Hashable]:
    return [_module(node.origin)]


def _module(name: str) -> str:
    """Return the path of the module that an operator is of: its name itself but in exported files.

    These repeat the path so far where a list stands in it.

    >>> _module("/layer1/layer1.0/conv1/Conv"), _module("layer1.0.conv1")
    ('layer1.0.conv1', 'layer1.0.conv1')
    """
    if not name.startswith("/"):
        return name
    path: list[str] = []
    for word in name.split("/")[1:-1]:
        if path and re.fullmatch(re.escape(path[-1]) + r"(\.\d+)+", word):
            path[-1] = word
        elif path or word != _WRAPPER:
            path.append(word)
    return ".".join(path)


def _names_of(graph: Graph, work: GraphWork, rows: "Sequence[Row]") -> dict[int, list[Hashable]]:
    """Return all that entries for each kernel, or for a node of it, may be called and be."""
    count = Counter(module for row in rows for module in _modules_of(graph, row))
    keys: dict[int, list[Hashable]] = {}
    for k, row in enumerate(rows):
        its: list[Hashable] = []
        for i in row.nodes:
            node = graph.nodes[i]
            for label in (node.name, *node.outputs, _module(node.origin)):
                its += [(label, row.kernel.kind), (label, work.nodes[i].kind)]
        # whatever else is in a module with one kernel belongs to that
        its += [(module, _ALONE) for module in _modules_of(graph, row) if count[module] == 1]
        keys[k] = its
    return keys


def _modules_of(graph: Graph, row: "Row") -> list[Hashable]:
    its = (graph.nodes[i] for i in row.nodes)
    return list(dict.fromkeys(_module(node.origin or node.name) for node in its))


def _connected(
    theirs: Mapping[int, Sequence[Hashable]], ours: Mapping[int, Sequence[Hashable]]
) -> "list[Match]":
    """Return the sets of entries and kernels that share keys, each with some of both.

    An entry goes by the first of its keys that a kernel has.
    """
    having: dict[Hashable, list[int]] = defaultdict(list)
    for k, keys in ours.items():
        for key in dict.fromkeys(keys):
            having[key].append(k)
    leader: dict[int, int] = {}

    def find(k: int) -> int:
        while leader.setdefault(k, k) != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    place: dict[int, int] = {}
    for i, keys in theirs.items():
        its = next((having[key] for key in keys if key in having), None)
        if its is not None:
            place[i] = find(its[0])
            for k in its[1:]:
                leader[find(k)] = find(its[0])
    groups: dict[int, Match] = {}
    for i, k in place.items():
        groups.setdefault(find(k), ([], []))[0].append(i)
    for k in sorted(leader):
        groups[find(k)][1].append(k)
    return list(groups.values())


def _of_a_kind(
    nodes: Sequence[NodeTime],
    entries: Mapping[int, Kind],
    rows: "Sequence[Row]",
    kernels: set[int],
) -> "list[Match]":
    """Return what is left of each kind, where entries and kernels are about as many."""
    found = []
    for kind in Kind:
        its = [i for i, of_entry in entries.items() if of_entry is kind]
        ours = [k for k in sorted(kernels) if rows[k].kernel.kind is kind]
        calls = sum(nodes[i].calls for i in its)
        launches = sum(rows[k].repeats for k in ours)
        if its and ours and max(calls, launches) <= _SIMILAR * min(calls, launches):
            found.append((its, ours))
    return found


def _summed(nodes: Sequence[NodeTime], made: "Sequence[Match]") -> "tuple[OperatorTime, ...]":
    """Return the rows with their times; every entry in none of them is a row without kernels."""
    from slicewise.predict.operators import OperatorTime

    matched = {i for its, _ in made for i in its}
    alone: list[Match] = [([i], []) for i in range(len(nodes)) if i not in matched]
    return tuple(
        OperatorTime(
            tuple(sorted(ours)),
            sum(nodes[i].latency_ms for i in its),
            sum(nodes[i].calls for i in its),
        )
        for its, ours in [*made, *alone]
    )
