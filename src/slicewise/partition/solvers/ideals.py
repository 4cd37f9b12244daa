"""A CP-SAT model of a chain of ideals (sets of nodes closed under predecessors), window by window.

Ideal l is everything in the first blocks; between two ideals lies a block of one or more stages.
Nodes that the windows of work leave no choice are constants, so that a model of few stages in a
long graph is small. Nothing is searched for here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slicewise.partition.solvers.engine import load_cp_model
from slicewise.partition.solvers.rounding import Rounded, RoundedTensor

Literal = Any  # a Boolean variable of CP-SAT, or the constants 0 and 1


@dataclass(frozen=True, slots=True)
class Window:
    """The least and the most work (units) of an ideal."""

    least: int
    most: int


NOTHING = Window(-1, 0)  # not even the nodes without work


def everything(rounded: Rounded) -> Window:
    """Return the window of the ideal of all nodes, also of those without work."""
    return Window(rounded.total, rounded.total + 1)


@dataclass(frozen=True, slots=True)
class Closure:
    """Work of each node with all it needs, and with all that needs it."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdealChain:
    """A model, its ideals (`levels[l][v]`), and the work of each as an expression."""

    model: Any
    levels: tuple[tuple[Literal, ...], ...]
    works: tuple[Any, ...]


def close(rounded: Rounded) -> Closure:
    """Return the work of all ancestors and of all descendants of each node, itself included.

    Time and memory O(n^2) bits.
    """
    count = len(rounded.work)
    inputs: list[list[int]] = [[] for _ in range(count)]
    for tensor in rounded.tensors:
        for node in tensor.consumers:
            inputs[node].append(tensor.producer)
    outputs: list[list[int]] = [[] for _ in range(count)]
    for node, sources in enumerate(inputs):
        for source in sources:
            outputs[source].append(node)
    before = _reached_work(rounded, inputs, range(count))
    after = _reached_work(rounded, outputs, range(count - 1, -1, -1))
    return Closure(before, after)


def _reached_work(rounded: Rounded, neighbours: list[list[int]], order: range) -> tuple[int, ...]:
    import numpy as np

    count = len(rounded.work)
    work = np.array(rounded.work, dtype=np.int64)
    reached = np.zeros((count, count), dtype=bool)
    for node in order:
        row = reached[node]
        row[node] = True
        for other in neighbours[node]:
            row |= reached[other]
    return tuple(int(work[reached[node]].sum()) for node in range(count))


def build_chain(
    rounded: Rounded,
    closure: Closure,
    windows: Sequence[Window],
    *,
    sizes: Sequence[int],
    load: Any,
) -> IdealChain | None:
    """Return the model of ideals in `windows` whose block j has at most `sizes[j]` times `load`.

    `load` is a number or a function that makes a variable from the model. Block j lies between
    the ideals j and j + 1. None: a window leaves no ideal at all.
    """
    cp_model = load_cp_model()
    model = cp_model.CpModel()
    levels = []
    for window in windows:
        level = level_in(model, rounded, closure, window)
        if level is None:
            return None
        levels.append(level)
    most = load(model) if callable(load) else load
    works = tuple(weighted(rounded.work, level) for level in levels)
    ok = True
    for level, window, work in zip(levels, windows, works, strict=True):
        ok &= _add_range(model, work, window.least, window.most)
        ok &= add_order(model, rounded, level)
    for inner, outer in itertools.pairwise(levels):
        for first, second in zip(inner, outer, strict=True):
            ok &= clause(model, [(first, False), (second, True)])
    for index, size in enumerate(sizes):
        least = windows[index + 1].least - windows[index].most
        apart = never_passing(rounded, closure, least)
        ends = (levels[index], levels[index + 1])
        ok &= _add_block(model, rounded, apart, ends, size, most)
    return IdealChain(model, tuple(levels), works) if ok else None


def level_in(
    model: Any, rounded: Rounded, closure: Closure, window: Window
) -> tuple[Literal, ...] | None:
    """Return one literal per node: 1 where leaving it out leaves too little work, 0 where taking
    it takes too much; None where a node is both."""
    total = rounded.total
    if window.least < 0:
        return (0,) * len(rounded.work)
    if window.most > total:
        return (1,) * len(rounded.work)
    level: list[Literal] = []
    for node in range(len(rounded.work)):
        is_in = total - closure.after[node] < window.least
        is_out = closure.before[node] > window.most
        if is_in and is_out:
            return None
        level.append(int(is_in) if is_in or is_out else model.new_bool_var(""))
    return tuple(level)


def _is_constant(literal: Literal) -> bool:
    return isinstance(literal, int)


def clause(model: Any, literals: Sequence[tuple[Literal, bool]]) -> bool:
    """Add that one of the literals has the value beside it; False if none of them can."""
    left = []
    for literal, wanted in literals:
        if _is_constant(literal):
            if bool(literal) == wanted:
                return True
        else:
            left.append(literal if wanted else literal.negated())
    if not left:
        return False
    if len(left) == 2:
        model.add_implication(left[0].negated(), left[1])
    else:
        model.add_bool_or(left)
    return True


def weighted(weights: Sequence[int], literals: Sequence[Literal]) -> Any:
    """Return the sum of the weights of the literals that hold."""
    cp_model = load_cp_model()
    free = [(w, x) for w, x in zip(weights, literals, strict=True) if not _is_constant(x) and w]
    fixed = sum(w for w, x in zip(weights, literals, strict=True) if _is_constant(x) and x)
    if not free:
        return fixed
    return cp_model.LinearExpr.weighted_sum([x for _, x in free], [w for w, _ in free]) + fixed


def _add_range(model: Any, value: Any, least: int, most: int) -> bool:
    if isinstance(value, int):
        return least <= value <= most
    model.add_linear_constraint(value, least, most)
    return True


def add_order(model: Any, rounded: Rounded, level: Sequence[Literal]) -> bool:
    ok = True
    for tensor in rounded.tensors:
        source = level[tensor.producer]
        for node in tensor.consumers:
            ok &= clause(model, [(level[node], False), (source, True)])
    for group in rounded.together:
        for node, other in itertools.pairwise(group):
            ok &= clause(model, [(level[node], False), (level[other], True)])
            ok &= clause(model, [(level[node], True), (level[other], False)])
    return ok


def never_passing(rounded: Rounded, closure: Closure, least: int) -> list[tuple[bool, ...]]:
    """Return for each tensor and consumer whether a block of `least` work has one end of it.

    A block between producer and consumer without either is made of nodes that neither needs nor
    feeds them: no more than the work left beside their ancestors and descendants.
    """
    total = rounded.total
    return [
        tuple(
            total - closure.before[tensor.producer] - closure.after[node] < least
            for node in tensor.consumers
        )
        for tensor in rounded.tensors
    ]


def _add_block(
    model: Any,
    rounded: Rounded,
    apart: Sequence[tuple[bool, ...]],
    ends: tuple[Sequence[Literal], Sequence[Literal]],
    size: int,
    most: Any,
) -> bool:
    """Add that the nodes of the second ideal outside the first, with what they receive and send,
    are no more than `size` stages can carry."""
    inner, outer = ends
    parts = [weighted(rounded.work, outer) - weighted(rounded.work, inner)]
    for is_sent in (False, True):
        paid = paid_tensors(
            model, rounded.tensors, ends, apart=apart, is_sent=is_sent, hops=rounded.hops
        )
        parts.append(weighted([tensor.cost for tensor in rounded.tensors], paid))
    ok = True
    for part in parts if rounded.overlaps else [sum(parts)]:
        ok &= add_at_most(model, part, size * most)
    if rounded.memory_limit is not None:
        held = weighted(rounded.memory, outer) - weighted(rounded.memory, inner)
        ok &= add_at_most(model, held, size * rounded.memory_limit)
    return ok


def add_at_most(model: Any, part: Any, most: Any, *, where: Sequence[Literal] = ()) -> bool:
    """Add that an expression is at most another, where the literals hold; False: it cannot be."""
    if isinstance(part, int) and isinstance(most, int):
        return part <= most or (bool(where) and clause(model, [(x, False) for x in where]))
    constraint = model.add(part <= most)
    if where:
        constraint.only_enforce_if(list(where))
    return True


def paid_tensors(
    model: Any,
    tensors: Sequence[RoundedTensor],
    ends: tuple[Sequence[Literal], Sequence[Literal]],
    *,
    apart: Sequence[tuple[bool, ...]],
    is_sent: bool,
    hops: bool,
) -> list[Literal]:
    """Return for each tensor a literal that holds if the block receives it, or sends it.

    A tensor is received if its producer is in the inner ideal and a consumer in the block; sent if
    its producer is in the block and a consumer outside the outer ideal. With hops, or where it
    cannot pass over the block, every tensor that crosses the border is.
    """
    inner, outer = ends
    end = outer if is_sent else inner
    paid: list[Literal] = []
    for tensor, never_passes in zip(tensors, apart, strict=True):
        rules = []
        for node, is_apart in zip(tensor.consumers, never_passes, strict=True):
            rule = [(end[tensor.producer], False), (end[node], True)]
            if not (hops or is_apart):  # else two literals: a plain cut, far stronger as an LP
                rule.append((inner[tensor.producer], True) if is_sent else (outer[node], False))
            if not any(_is_constant(x) and bool(x) == wanted for x, wanted in rule):
                rules.append([pair for pair in rule if not _is_constant(pair[0])])
        if not tensor.cost or not rules:
            paid.append(0)
        elif not all(rules):
            paid.append(1)
        else:
            is_paid = model.new_bool_var("")
            paid.append(is_paid)
            for rule in rules:
                clause(model, [*rule, (is_paid, True)])
    return paid
