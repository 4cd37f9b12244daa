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
    """An axis of a reshaped tensor where the batch can be: `exact` if it holds nothing else."""

    axis: int
    exact: bool
    innermost: bool
    kept: bool
    barred: bool = False


# Tells which of some axes of the reshaped tensor cannot hold the batch.
Bar = Callable[[Collection[int]], Collection[int]]


def _nowhere(axes: Collection[int]) -> Collection[int]:
    return ()


def rebatch_target(
    target: Sequence[int],
    *,
    before: Shape,
    after: Shape,
    result: Shape,
    batch: Batch,
    allow_zero: bool = False,
    innermost: bool = False,
    bar: Bar = _nowhere,
) -> tuple[tuple[int, ...], bool]:
    """Return the Reshape target for the new batch, and whether the batch ends up innermost.

    `before` -> `result` is what `target` does at the old batch, `after` its input at the new one.
    Reshape keeps the row-major order, so the batch, an axis of stride s in `before`, has to be in
    an axis of the result whose span of strides covers s. The target comes back unchanged where it
    puts the batch there by itself. `innermost`: the batch is the fast part of a merged axis.
    `bar` is asked where several axes could hold it.

    >>> rebatch_target((1, -1, 768), before=(1, 768, 196), after=(8, 768, 196),
    ...                result=(1, 196, 768), batch=Batch(1, 8))
    ((8, -1, 768), False)
    """
    plain = resolved(after, target, allow_zero=allow_zero)
    changed = [k for k, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
    if len(before) != len(after) or not changed or 0 in before:
        if plain is None:
            raise Contradiction(f"target {show(target)}, input {show(after)}")
        return tuple(target), False
    plans = list(_plans(before, after, result, changed, batch, innermost=innermost, bar=bar))
    for shape, home in _equals(plans):
        if plain == shape:
            return tuple(target), home.innermost
    if not plans:
        if plain is None:
            raise Contradiction(f"target {show(target)}, input {show(after)}")
        return tuple(target), False
    shape, home = plans[0]
    mended = _restate(target, after, shape, allow_zero=allow_zero)
    return mended, home.innermost


def resolved(shape: Shape, target: Sequence[int], *, allow_zero: bool) -> Shape | None:
    """Return what a Reshape gives, None if its target does not fit."""
    try:
        return resolve_reshape(shape, target, allow_zero=allow_zero)
    except Contradiction:
        return None


def _equals(plans: Sequence[tuple[Shape, _Home]]) -> Sequence[tuple[Shape, _Home]]:
    """Return the plans that are as good as the first one."""
    if plans and plans[0][1].exact:
        return plans[:1]  # an axis of its own is where the batch belongs
    return [plan for plan in plans if plan[1].barred == plans[0][1].barred]


def _plans(
    before: Shape,
    after: Shape,
    result: Shape,
    changed: Sequence[int],
    batch: Batch,
    *,
    innermost: bool,
    bar: Bar,
) -> Iterator[tuple[Shape, _Home]]:
    """Yield the shapes of the result that keep the batch in its place, most likely first."""
    axis, rest = changed[0], changed[1:]
    for home in _homes(before, axis, result, batch, innermost=innermost, bar=bar):
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
        yield from _plans(middle, after, out, rest, batch, innermost=innermost, bar=bar)


def _homes(
    before: Shape, axis: int, result: Shape, batch: Batch, *, innermost: bool, bar: Bar
) -> list[_Home]:
    stride = math.prod(before[axis + 1 :])
    place = stride if innermost else stride * before[axis] // batch.old
    homes = []
    kept = {(math.prod(before[k + 1 :]), d) for k, d in enumerate(before) if k != axis}
    for j, size in enumerate(result):
        low = math.prod(result[j + 1 :])
        covers = low <= place and place * batch.old <= low * size
        if covers and place % low == 0 and low * size % (place * batch.old) == 0:
            exact = size == batch.old and low == place
            inner = low == place and not exact and low * size != place * batch.old
            homes.append(_Home(j, exact, inner, (low, size) in kept))
    if len(homes) > 1:
        barred = bar([home.axis for home in homes if not home.exact])
        homes = [replace(home, barred=home.axis in barred) for home in homes]
    return sorted(homes, key=lambda home: _rank(home, axis))


def _rank(home: _Home, axis: int) -> tuple[bool, bool, bool, bool, int]:
    """An axis of its own first, best where it stood; then one that is not simply passed on."""
    moved = home.exact and home.axis != axis
    return home.barred, not home.exact, moved, home.kept, home.axis


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
