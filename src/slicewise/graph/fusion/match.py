"""Finds the expressions of a table in a graph: trees whose inner results nobody else reads."""

from collections.abc import Collection, Iterator, Sequence

from slicewise.graph.fusion.pattern import Call, Expression, Value, expression
from slicewise.graph.fusion.wiring import Wiring

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "Sum"})
# First letters of words for constants; the same word may stand for several of them.
CONSTANT_WORDS = frozenset("cbw")


def find_expressions(
    wiring: Wiring, rows: Sequence[Expression], taken: set[int]
) -> Iterator[tuple[Expression, tuple[int, ...]]]:
    """Yield each row with the nodes that it stands for, root last; `taken` grows by them.

    Rows go first to last, roots in graph order; a node is in one find only. Time O(rows x nodes
    with the operator of a row's root).
    """
    places: dict[str, list[int]] = {}
    for i, op in enumerate(wiring.ops):
        places.setdefault(op, []).append(i)
    for row in rows:
        tree = expression(row.text)
        if not _may_occur(tree, places):
            continue
        for i in sorted(i for op in tree.ops for i in places.get(op, ())):
            found = _find(wiring, tree, i, taken)
            if found is not None:
                taken.update(found)
                yield row, found


def holds(wiring: Wiring, text: str, i: int) -> bool:
    """True where the expression describes node `i`, wired up to its inputs."""
    tree, node = expression(text), wiring.graph.nodes[i]
    return node.op_type in tree.ops and _operands(wiring, tree, node.inputs, {}, [], frozenset())


def _may_occur(tree: Call, places: Collection[str]) -> bool:
    """True where every operator that the tree cannot do without is in the graph."""
    if not tree.is_optional and not any(op in places for op in tree.ops):
        return False
    calls = (operand.call if isinstance(operand, Value) else operand for operand in tree.operands)
    return all(_may_occur(call, places) for call in calls if call is not None)


def _find(wiring: Wiring, tree: Call, i: int, taken: set[int]) -> tuple[int, ...] | None:
    if i in taken:
        return None
    found: list[int] = []
    name = wiring.result(i)
    if not _call(wiring, tree, name, {}, found, taken):
        return None
    members = set(found)
    for inner in found[1:]:
        if wiring.leaves(inner) or not members.issuperset(wiring.readers_of(inner)):
            return None
    return tuple(sorted(members))


def _call(
    wiring: Wiring, call: Call, name: str, bound: dict[str, str], found: list[int],
    taken: set[int] | frozenset[int],
) -> bool:  # fmt: skip
    """True where `name` is made by the call; `bound` and `found` grow only then."""
    name = wiring.root_of(name)
    i = wiring.maker.get(name)
    if i is not None and wiring.ops[i] in call.ops and i not in taken:
        node = wiring.graph.nodes[i]
        if node.outputs[0] == name:
            is_commutative = node.op_type in _COMMUTATIVE and len(node.inputs) == 2
            for inputs in (node.inputs, node.inputs[::-1])[: 1 + is_commutative]:
                trial, members = dict(bound), [*found, i]
                if _operands(wiring, call, inputs, trial, members, taken):
                    bound.update(trial)
                    found[:] = members
                    return True
    if call.is_optional:
        return _term(wiring, call.operands[0], name, bound, found, taken)
    return False


def _operands(
    wiring: Wiring, call: Call, inputs: Sequence[str], bound: dict[str, str], found: list[int],
    taken: set[int] | frozenset[int],
) -> bool:  # fmt: skip
    if len(inputs) < len(call.operands):
        return False
    return all(
        _term(wiring, operand, name, bound, found, taken)
        for operand, name in zip(call.operands, inputs, strict=False)
    )


def _term(
    wiring: Wiring, term: Value | Call, name: str, bound: dict[str, str], found: list[int],
    taken: set[int] | frozenset[int],
) -> bool:  # fmt: skip
    if isinstance(term, Call):
        return _call(wiring, term, name, bound, found, taken)
    root = wiring.root_of(name)
    if term.word in bound:
        return bound[term.word] == root
    if term.call is not None and not _call(wiring, term.call, name, bound, found, taken):
        return False
    if not is_worded(wiring, term.word, name):
        return False
    if term.word[0] not in CONSTANT_WORDS:
        bound[term.word] = root
    return True


def is_worded(wiring: Wiring, word: str, name: str) -> bool:
    """True where the tensor `name` may stand for `word`: its first letter says what for."""
    letter = word[0]
    if letter == "t":
        return not wiring.is_constant(name)
    if letter not in CONSTANT_WORDS:
        return True
    is_constant = wiring.is_constant(name)
    if letter == "w" or not is_constant:
        return is_constant
    tensor = wiring.scope.tensors.get(name)
    if tensor is None:
        return False
    return tensor.elements == (1 if letter == "c" else max(tensor.shape or (1,)))
