"""Following the batch through a Reshape: which entry of the target has to hold it.

Pure arithmetic on shapes; no graph here.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from slicewise.graph.shape.facts import Contradiction, Shape, show
from slicewise.graph.shape.layout import resolve_reshape


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch a model was made for and the one it is wanted at."""

    old: int
    new: int

    def scaled(self, size: int) -> int | None:
        """Return `size` at the new batch, None if it is no multiple of the old one."""
        return None if size % self.old else size // self.old * self.new


@dataclass(frozen=True, slots=True)
class _Home:
    """An axis of a reshaped tensor where the batch can be: `exact` if it holds nothing else,
    `kept` if the input has the same axis without the batch; `inner` as in `Retarget`."""

    axis: int
    exact: bool
    inner: int | None
    kept: bool
    barred: bool = False


# Tells which of some axes of the reshaped tensor cannot hold the batch.
Bar = Callable[[Collection[int]], Collection[int]]


def _nowhere(axes: Collection[int]) -> Collection[int]:
    return ()


@dataclass(frozen=True, slots=True)
class Retarget:
    """A Reshape target for the new batch.

    `inner`: how many elements of the axis that has the batch lie behind it, None where nothing
    of the axis lies in front: [sequence, batch, heads, size] -> [sequence * batch * heads, size]
    puts `heads` behind.
    """

    target: tuple[int, ...]
    inner: int | None = None


def rebatch_target(
    target: Sequence[int],
    *,
    before: Shape,
    after: Shape,
    result: Shape,
    batch: Batch,
    allow_zero: bool = False,
    inner: int | None = None,
    bar: Bar = _nowhere,
) -> tuple[Retarget, ...]:
    """Return the Reshape targets that serve the new batch, most likely first; at least one.

    `before` -> `result` is what `target` does at the old batch, `after` its input at the new one.
    Reshape keeps the row-major order, so the batch, an axis of stride s in `before`, has to be in
    an axis of the result whose span of strides covers s. The target comes back unchanged where it
    puts the batch there by itself. `inner`: where in its axis of `before` the batch is.
    `bar` is asked where several axes could hold it. `Contradiction` if none can.

    >>> rebatch_target((1, -1, 768), before=(1, 768, 196), after=(8, 768, 196),
    ...                result=(1, 196, 768), batch=Batch(1, 8))
    (Retarget(target=(8, -1, 768), inner=None),)
    """
    plain = resolved(after, target, allow_zero=allow_zero)
    changed = [k for k, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
    plans = []
    if len(before) == len(after) and changed and 0 not in before:
        plans = list(_plans(before, after, result, changed, batch, inner=inner, bar=bar))
    if not plans:
        if plain is None:
            raise Contradiction(f"target {show(target)}, input {show(after)}")
        return (Retarget(tuple(target)),)
    exact = [home.axis for _, home in plans if home.exact]
    if exact == changed:
        plans = plans[:1]  # an axis of its own, where it stood, is where the batch belongs
    alike = [plan for plan in plans if plan[1].barred == plans[0][1].barred]
    if not plans[0][1].exact:
        # one merged axis is as good as another: let the model choose
        alike.sort(key=lambda plan: plan[0] != plain)
    return tuple(
        Retarget(
            tuple(target)
            if shape == plain
            else _restate(target, after, shape, allow_zero=allow_zero),
            home.inner,
        )
        for shape, home in alike
    )


def resolved(shape: Shape, target: Sequence[int], *, allow_zero: bool) -> Shape | None:
    """Return what a Reshape gives, None if its target does not fit."""
    try:
        return resolve_reshape(shape, target, allow_zero=allow_zero)
    except Contradiction:
        return None


def _plans(
    before: Shape,
    after: Shape,
    result: Shape,
    changed: Sequence[int],
    batch: Batch,
    *,
    inner: int | None,
    bar: Bar,
) -> Iterator[tuple[Shape, _Home]]:
    """Yield the shapes of the result that keep the batch in its place, most likely first."""
    axis, rest = changed[0], changed[1:]
    for home in _homes(before, axis, result, batch, inner=inner, bar=bar):
        size = result[home.axis] * after[axis]
        if size % before[axis]:
            continue
        out = (*result[: home.axis], size // before[axis], *result[home.axis + 1 :])
        if not rest:
            if math.prod(out) == math.prod(after):
                yield out, home
            continue
        # more than one axis holds the batch (a matrix of all against all): place the others
        middle = (*before[:axis], after[axis], *before[axis + 1 :])
        yield from _plans(middle, after, out, rest, batch, inner=None, bar=bar)


def _homes(
    before: Shape, axis: int, result: Shape, batch: Batch, *, inner: int | None, bar: Bar
) -> list[_Home]:
    stride = math.prod(before[axis + 1 :])
    place = stride * (before[axis] // batch.old if inner is None else inner)
    homes = []
    kept = {(math.prod(before[k + 1 :]), d) for k, d in enumerate(before) if k != axis}
    for j, size in enumerate(result):
        low = math.prod(result[j + 1 :])
        covers = low <= place and place * batch.old <= low * size
        if covers and place % low == 0 and low * size % (place * batch.old) == 0:
            exact = size == batch.old and low == place
            # among axes of 1 in front of it, too, the batch stays the last
            is_behind = j < axis if exact else low * size != place * batch.old
            behind = place // low if is_behind else None
            homes.append(_Home(j, exact, behind, (low, size) in kept))
    if len(homes) > 1 and not any(home.exact for home in homes):
        barred = bar([home.axis for home in homes])
        homes = [replace(home, barred=home.axis in barred) for home in homes]
    return sorted(homes, key=lambda home: _rank(home, axis, is_last=inner is not None))


def _rank(home: _Home, axis: int, *, is_last: bool) -> tuple[bool, bool, bool, bool, int]:
    """An axis of its own first, best where it stood (behind what it was merged with, if it was);
    then one that is not simply passed on."""
    moved = home.exact and not is_last and home.axis != axis
    place = -home.axis if home.exact and is_last else home.axis
    return home.barred, not home.exact, moved, home.kept, place


def _restate(
    target: Sequence[int], after: Shape, wanted: Shape, *, allow_zero: bool
) -> tuple[int, ...]:
    """Return `target` with as few entries changed as give `wanted`."""
    mended = list(target)
    for k, (entry, size) in enumerate(zip(target, wanted, strict=True)):
        copies = entry == 0 and not allow_zero and k < len(after) and after[k] == size
        if entry != -1 and not copies:
            mended[k] = size
    return tuple(mended) if resolved(after, mended, allow_zero=allow_zero) == wanted else wanted
