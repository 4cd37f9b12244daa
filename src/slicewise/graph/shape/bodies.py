"""Shapes inside If, Loop and Scan: bodies with the outer graph in sight, and trip counts.

A body is keyed by the first output name of its node, a nested one 'outer/inner', the branches
of an If '#then' and '#else'. Follows the pages of If, Loop and Scan in the ONNX specification.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.shape.facts import (
    BOOL,
    INT64,
    NOTHING,
    Contradiction,
    Fact,
    Op,
    Shape,
    axis_of,
    show,
    type_fact,
)
from slicewise.graph.shape.walk import Enter, Scope, Walk, contradictory

# A trip count beyond this is a "run until the condition fails", not a number of iterations.
_ENDLESS = 2**31 - 1


def _key(op: Op, key: str) -> str:
    own = next(filter(None, op.node.output), op.label)
    return f"{key}/{own}" if key else own


def _body(op: Op, name: str) -> onnx.GraphProto:
    found = op.attribute(name)
    if found is None:
        raise contradictory(op, Contradiction(f"the attribute {name!r} is missing"), "")
    return found.g


def _run(
    walk: Walk,
    body: onnx.GraphProto,
    given: Sequence[Fact],
    *,
    scope: Scope,
    before: Scope | None,
    key: str,
) -> list[Fact]:
    """Walk a body with `given` bound to its inputs; return the facts of its outputs."""
    facts: dict[str, Fact] = {}
    old = None
    if before is not None and walk.before is not None:
        old = Scope(walk.before.bodies.get(key, {}), before)
    for k, value in enumerate(body.input):
        fact = given[k] if k < len(given) else NOTHING
        if not fact.dtype:
            fact = Fact(fact.shape, type_fact(value.type).dtype, fact.value, fact.parts)
        facts[value.name] = fact if old is None else _as_before(old, value.name, fact)
    inner = Scope(facts, scope)
    walk.bodies[key] = facts
    walk.run(body, inner, known={}, before=old, key=key)
    return [inner.find(value.name) or NOTHING for value in body.output]


def _as_before(old: Scope, name: str, fact: Fact) -> Fact:
    kept = old.facts.get(name)
    if kept is None or kept.shape != fact.shape or kept.parts != fact.parts:
        return fact
    if (kept.value is None) != (fact.value is None):
        return fact
    same = kept.value is None or fact.value is None or np.array_equal(kept.value, fact.value)
    return kept if same else fact


def _if(walk: Walk, op: Op, scope: Scope, before: Scope | None, key: str) -> list[Fact]:
    own = _key(op, key)
    condition = op.inputs[0] if op.inputs else None
    choice = None if condition is None else condition.value
    fixed = choice is not None and choice.size == 1
    taken = "then" if choice is not None and fixed and choice.item() else "else"
    sides: dict[str, list[Fact]] = {}
    refused: list[ModelError] = []
    for side in ("then", "else"):
        body = _body(op, f"{side}_branch")
        try:
            sides[side] = _run(walk, body, (), scope=scope, before=before, key=f"{own}#{side}")
        except ModelError as err:
            # a branch may be written for inputs of another rank and never be taken; but where
            # shapes were guessed, that may be what contradicts
            if (fixed and side == taken) or walk.guessed:
                raise
            refused.append(err)
            _leave_open(walk, body, f"{own}#{side}")
            op.notes.append(Note("branch-contradicts", f"{side} branch left out: {err}", op.label))
    if len(refused) == 2:
        raise refused[0]
    if fixed:
        walk.taken[own] = f"{taken}_branch"
    if fixed or refused:
        return sides[taken if taken in sides else next(iter(sides))]
    return [
        _either(op, name, *facts)
        for name, *facts in zip(op.node.output, *sides.values(), strict=False)
    ]


def _leave_open(walk: Walk, body: onnx.GraphProto, key: str) -> None:
    """Give every value of a body that was not walked to its end an unknown shape."""
    facts = walk.bodies.setdefault(key, {})
    names = [value.name for value in body.input]
    names += [name for node in body.node for name in node.output if name]
    for name in names:
        facts.setdefault(name, NOTHING)
    for node in body.node:
        own = f"{key}/{next(filter(None, node.output), node.name)}"
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                branch = {"then_branch": "#then", "else_branch": "#else"}.get(attribute.name, "")
                _leave_open(walk, attribute.g, own + branch)


def _either(op: Op, name: str, then: Fact, other: Fact) -> Fact:
    if then is other:
        return then
    if then.shape == other.shape and then.shape is not None:
        return Fact(then.shape, then.dtype or other.dtype, parts=then.parts)
    larger = max(then, other, key=lambda f: -1 if f.shape is None else math.prod(f.shape))
    if larger.shape is not None:
        text = f"output {name!r} is {show(then.shape)} or {show(other.shape)}; the larger is taken"
        op.notes.append(Note("branch-shapes-differ", text, op.label))
    return Fact(larger.shape, larger.dtype or then.dtype, parts=larger.parts)


def _carried(fact: Fact) -> Fact:
    """A loop-carried value as its body sees it: the content differs from one turn to the next."""
    return Fact(fact.shape, fact.dtype, parts=fact.parts)


def _loop(walk: Walk, op: Op, scope: Scope, before: Scope | None, key: str) -> list[Fact]:
    body, own = _body(op, "body"), _key(op, key)
    start = [fact or NOTHING for fact in op.inputs[2:]]
    goes_on = op.inputs[1] if len(op.inputs) > 1 else None
    first = np.True_ if goes_on is None else goes_on.value
    turn = (Fact((), INT64), Fact((), BOOL, None if first is None else np.asarray(first)))

    def once(state: Sequence[Fact]) -> list[Fact]:
        given = (*turn, *map(_carried, state))
        return _run(walk, body, given, scope=scope, before=before, key=own)

    after = once(start)
    trips = _trip_count(op, after[0] if after else NOTHING)
    walk.repeats[own] = 1 if trips is None else trips
    count = len(start)
    _ask_for_batch(op, before, start, after[1 : count + 1], first_slot=2)
    ends = _final_state(walk, op, start, after[1 : count + 1], once, trips)
    scans = [_stacked(fact, walk.repeats[own], 0) for fact in after[count + 1 :]]
    return [*ends, *scans]


def _ask_for_batch(
    op: Op,
    before: Scope | None,
    start: Sequence[Fact],
    after: Sequence[Fact],
    *,
    first_slot: int,
) -> None:
    """Raise `Contradiction` where a carried value was made for the old batch.

    It kept its shape from turn to turn at the old batch, did not grow with the batch, and now
    leaves the body in another shape than it came in.
    """
    if before is None:
        return
    wanted = {}
    for k, (a, b) in enumerate(zip(start, after, strict=False)):
        old = before.find(op.node.input[first_slot + k])
        name = op.node.output[k] if k < len(op.node.output) else ""
        end = before.facts.get(name)
        if old is None or end is None or old.shape != end.shape or a.shape != old.shape:
            continue
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            continue
        if b.shape != a.shape:
            wanted[first_slot + k] = b.shape
    if wanted:
        slot, shape = next(iter(wanted.items()))
        own = show(start[slot - first_slot].shape)
        raise Contradiction(f"carried value {own} leaves the body as {show(shape)}", wanted)


def _trip_count(op: Op, condition: Fact) -> int | None:
    """Return how often a Loop's body runs, None (with a note) unless constants fix it."""
    most = op.inputs[0] if op.inputs else None
    always = condition.value is not None and bool(condition.value.all())
    if most is not None and most.value is not None and most.value.size == 1 and always:
        trips = max(0, int(most.value.item()))
        if trips <= _ENDLESS:
            return trips
    starts = op.inputs[1] if len(op.inputs) > 1 else None
    if starts is not None and starts.value is not None and not starts.value.all():
        return 0
    reason = "its condition is computed" if not always else "its trip count is not a constant"
    text = f"Loop: {reason}; its body is counted once"
    op.notes.append(Note("trip-count-unknown", text, op.label))
    return None


def _final_state(
    walk: Walk,
    op: Op,
    start: Sequence[Fact],
    after: Sequence[Fact],
    once: Callable[[Sequence[Fact]], list[Fact]],
    trips: int | None,
) -> list[Fact]:
    """Return the carried values after the last turn; where they grow, by the step of a turn."""
    if trips == 0:
        return list(start)
    grows = any(
        a.shape is not None and a.shape != b.shape for a, b in zip(start, after, strict=False)
    )
    if not grows:
        return [
            _carried(b) if b.shape is not None else a for a, b in zip(start, after, strict=False)
        ]
    second = once(after)[1 : len(start) + 1]
    if all(a.shape == b.shape for a, b in zip(after, second, strict=True)):
        return [_carried(fact) for fact in second]  # settled after one turn (a broadcast)
    once(start)  # the body is recorded as its first turn sees it
    ends = []
    for k, (a, b, c) in enumerate(zip(start, after, second, strict=True)):
        shape = _grown(a.shape, b.shape, c.shape, trips)
        if a.shape != b.shape:
            text = (
                f"Loop: carried value {k} grows from {show(a.shape)} to {show(b.shape)} in one"
                f" turn; the body is counted at its first turn, the end is {show(shape)}"
            )
            op.notes.append(Note("loop-carried-grows", text, op.label))
        ends.append(Fact(shape, b.dtype or a.dtype))
    return ends


def _grown(a: Shape | None, b: Shape | None, c: Shape | None, trips: int | None) -> Shape | None:
    if a is None or b is None or c is None or len(a) != len(b) or len(b) != len(c):
        return b
    if trips is None:
        return b
    steps = [z - y for y, z in zip(b, c, strict=True)]
    return tuple(max(0, y + (trips - 1) * step) for y, step in zip(b, steps, strict=True))


def _stacked(fact: Fact, count: int, axis: int) -> Fact:
    if fact.shape is None:
        return Fact(None, fact.dtype)
    place = axis_of(axis, len(fact.shape) + 1)
    return Fact((*fact.shape[:place], count, *fact.shape[place:]), fact.dtype)


def _scan(walk: Walk, op: Op, scope: Scope, before: Scope | None, key: str) -> list[Fact]:
    body, own = _body(op, "body"), _key(op, key)
    batched = op.version < 9  # opset 8: sequence_lens first, then a batch axis on everything
    inputs = [fact or NOTHING for fact in op.inputs[1 if batched else 0 :]]
    scans = op.integer("num_scan_inputs", 1)
    count = len(inputs) - scans
    axes = op.ints("scan_input_axes") or [0] * scans
    lead = _batch_of(inputs) if batched else ()
    if batched:
        inputs = [_without_lead(fact) for fact in inputs]
    lengths, items = [], []
    for fact, axis in zip(inputs[count:], axes, strict=False):
        if fact.shape is None:
            items.append(Fact(None, fact.dtype))
            continue
        place = axis_of(axis, len(fact.shape))
        lengths.append(fact.shape[place])
        items.append(Fact((*fact.shape[:place], *fact.shape[place + 1 :]), fact.dtype))
    if len(set(lengths)) > 1:
        clash = Contradiction(f"scan inputs of lengths {sorted(set(lengths))}")
        raise contradictory(op, clash, walk.advice)
    if not lengths:
        text = "Scan: the length of its inputs is unknown; its body is counted once"
        op.notes.append(Note("trip-count-unknown", text, op.label))
    trips = lengths[0] if lengths else 1
    state = [_carried(fact) for fact in inputs[:count]]
    after = _run(walk, body, [*state, *items], scope=scope, before=before, key=own)
    walk.repeats[own] = trips
    if not batched:
        _ask_for_batch(op, before, state, after[:count], first_slot=0)
    out_axes = op.ints("scan_output_axes") or [0] * len(after)
    ends = [b if b.shape is not None else a for a, b in zip(state, after[:count], strict=False)]
    outs = [_stacked(f, trips, axis) for f, axis in zip(after[count:], out_axes, strict=False)]
    found = [*map(_carried, ends), *outs]
    return [_with_lead(fact, lead) for fact in found] if batched else found


def _batch_of(inputs: Sequence[Fact]) -> Shape:
    return next((fact.shape[:1] for fact in inputs if fact.shape), ())


def _without_lead(fact: Fact) -> Fact:
    return Fact(fact.shape[1:] if fact.shape else None, fact.dtype)


def _with_lead(fact: Fact, lead: Shape) -> Fact:
    return Fact(None if fact.shape is None else (*lead, *fact.shape), fact.dtype)


def _sequence_map(walk: Walk, op: Op, scope: Scope, before: Scope | None, key: str) -> list[Fact]:
    """The body runs for each element of the first sequence; extra tensors are passed whole."""
    body, own = _body(op, "body"), _key(op, key)
    given = [fact or NOTHING for fact in op.inputs]
    items = [Fact(fact.shape, fact.dtype) for fact in given]
    turns = given[0].parts if given else None
    after = _run(walk, body, items, scope=scope, before=before, key=own)
    walk.repeats[own] = 1 if turns is None else len(turns)
    if turns is None:
        text = "SequenceMap: the length of its sequence is unknown; its body is counted once"
        op.notes.append(Note("trip-count-unknown", text, op.label))
        return [_carried(fact) for fact in after]
    return [
        Fact(f.shape, f.dtype, parts=None if f.shape is None else (f.shape,) * len(turns))
        for f in after
    ]


ENTER: Mapping[str, Enter] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
