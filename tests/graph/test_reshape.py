"""Laws and examples of moving a baked batch through a Reshape target."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slicewise.graph.shape.facts import Contradiction
from slicewise.graph.shape.layout import resolve_reshape
from slicewise.graph.shape.reshape import Batch, Retarget, rebatch_target

SIZES = st.integers(1, 6)


def retarget(target: Sequence[int], **case: Any) -> tuple[int, ...]:
    """The most likely target."""
    return rebatch_target(target, **case)[0].target


@st.composite
def leading_batch(draw: st.DrawFn) -> tuple[Batch, tuple[int, ...], tuple[int, ...]]:
    """A batch change, an input [batch, ...] and a regrouping of its other axes."""
    batch = Batch(draw(st.integers(1, 4)), draw(st.integers(1, 9)))
    factors = draw(st.lists(SIZES, min_size=1, max_size=5))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(factors) - 1)), max_size=3)))
    edges = [0, *cuts, len(factors)]
    groups = [math.prod(factors[a:b]) for a, b in itertools.pairwise(edges)]
    return batch, tuple(factors), tuple(groups)


@given(leading_batch(), st.booleans())
def test_rewritten_target_keeps_the_number_of_elements_and_leads_with_the_batch(
    case: tuple[Batch, tuple[int, ...], tuple[int, ...]], free_entry: bool
) -> None:
    batch, inner, groups = case
    before, after = (batch.old, *inner), (batch.new, *inner)
    target = [batch.old, *groups]
    if free_entry:
        target[-1] = -1
    result = resolve_reshape(before, target, allow_zero=False)
    wanted = retarget(target, before=before, after=after, result=result, batch=batch)
    assert resolve_reshape(after, wanted, allow_zero=False) == (batch.new, *groups)


@given(leading_batch())
def test_a_target_that_follows_the_batch_by_itself_is_left_alone(
    case: tuple[Batch, tuple[int, ...], tuple[int, ...]],
) -> None:
    batch, inner, groups = case
    before, after = (batch.old, *inner), (batch.new, *inner)
    for target in ([-1, *groups], [0, *groups], [0, -1]):
        assume(0 not in target[1:])
        result = resolve_reshape(before, target, allow_zero=False)
        wanted = retarget(target, before=before, after=after, result=result, batch=batch)
        assert wanted == tuple(target)


@given(leading_batch(), SIZES)
def test_a_batch_merged_into_the_first_axis_is_multiplied(
    case: tuple[Batch, tuple[int, ...], tuple[int, ...]], heads: int
) -> None:
    batch, inner, _ = case
    before, after = (batch.old, heads, *inner), (batch.new, heads, *inner)
    target = (batch.old * heads, *inner)
    wanted = retarget(target, before=before, after=after, result=target, batch=batch)
    assert wanted == (batch.new * heads, *inner)


@given(st.lists(SIZES, min_size=1, max_size=4), st.data())
def test_resolving_agrees_with_numpy(shape: list[int], data: st.DataObject) -> None:
    import numpy as np

    target = list(data.draw(st.permutations(shape)))
    free = data.draw(st.integers(0, len(target) - 1))
    target[free] = -1
    expected = np.zeros(shape).reshape(target).shape
    assert resolve_reshape(tuple(shape), target, allow_zero=False) == expected


ONE_TO_EIGHT = Batch(1, 8)


@pytest.mark.parametrize(
    ("target", "before", "after", "wanted"),
    [
        # the classifier of light_resnet50
        ((1, 2048), (1, 2048, 1, 1), (8, 2048, 1, 1), (8, 2048)),
        # channel shuffle
        ((1, 4, 28, 56, 56), (1, 112, 56, 56), (8, 112, 56, 56), (8, 4, 28, 56, 56)),
        # ViT patches: the batch would silently go into the free axis
        ((1, -1, 768), (1, 196, 768), (8, 196, 768), (8, -1, 768)),
        ((1, 768, -1), (1, 768, 14, 14), (8, 768, 14, 14), (8, 768, -1)),
        ((1, -1), (1, 512, 7, 7), (8, 512, 7, 7), (8, -1)),
        # heads split off, heads merged with the batch, and back
        ((1, 64, 12, 64), (1, 64, 768), (8, 64, 768), (8, 64, 12, 64)),
        ((12, 64, 64), (1, 12, 64, 64), (8, 12, 64, 64), (96, 64, 64)),
        ((1, 12, 64, 64), (12, 64, 64), (96, 64, 64), (8, 12, 64, 64)),
        ((12, -1, 64), (1, 12, 50, 64), (8, 12, 50, 64), (96, -1, 64)),
        # tokens of all items in one axis
        ((197, 768), (1, 197, 768), (8, 197, 768), (1576, 768)),
        ((-1, 768), (1, 197, 768), (8, 197, 768), (-1, 768)),
        ((1, 197, 768), (197, 768), (1576, 768), (8, 197, 768)),
        # sequence first, as torch's multi-head attention: [L, N, E] -> [L, N * heads, size]
        ((10, 12, 64), (10, 1, 768), (10, 8, 768), (10, 96, 64)),
        ((10, -1, 64), (10, 1, 768), (10, 8, 768), (10, -1, 64)),
        ((10, 768), (10, 1, 768), (10, 8, 768), (80, 768)),
        ((10, 1, 768), (10, 1, 12, 64), (10, 8, 12, 64), (10, 8, 768)),
        # 0 copies the batch
        ((0, 12, -1), (1, 12, 7, 7), (8, 12, 7, 7), (0, 12, -1)),
        ((0, -1), (1, 2048, 1, 1), (8, 2048, 1, 1), (0, -1)),
    ],
)
def test_known_exports_are_rewritten(
    target: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    wanted: tuple[int, ...],
) -> None:
    result = resolve_reshape(before, target, allow_zero=False)
    found = retarget(target, before=before, after=after, result=result, batch=ONE_TO_EIGHT)
    assert found == wanted


def test_a_batch_that_is_the_fast_part_of_an_axis_is_unpacked_behind() -> None:
    # torch's attention: [L, N, E] -> [L * N, E] -> [L, N, E]
    packed = rebatch_target(
        (10, 768), before=(10, 1, 768), after=(10, 8, 768), result=(10, 768), batch=ONE_TO_EIGHT
    )
    assert packed[0] == Retarget((80, 768), inner=1)
    unpacked = retarget(
        (10, 1, 768),
        before=(10, 768),
        after=(80, 768),
        result=(10, 1, 768),
        batch=ONE_TO_EIGHT,
        inner=1,
    )
    assert unpacked == (10, 8, 768)


def test_two_axes_that_hold_the_batch_are_both_rewritten() -> None:
    wanted = retarget((2, 2, 1), before=(2, 2), after=(6, 6), result=(2, 2, 1), batch=Batch(2, 6))
    assert wanted == (6, 6, 1)


def test_a_batch_that_fits_nowhere_is_refused() -> None:
    # the batch of 2 lies across the axes of 3 and 4
    with pytest.raises(Contradiction, match=r"target \[3,4\], input \[10,6\]"):
        rebatch_target((3, 4), before=(2, 6), after=(10, 6), result=(3, 4), batch=Batch(2, 10))


def test_an_empty_tensor_keeps_its_target() -> None:
    wanted = retarget(
        (0, 0, 64), before=(1, 0, 64), after=(8, 0, 64), result=(1, 0, 64), batch=ONE_TO_EIGHT
    )
    assert wanted == (0, 0, 64)


@pytest.mark.parametrize("target", [(-1, -1), (-2, 3), (7,), (0, 0, 0)])
def test_impossible_targets_contradict(target: tuple[int, ...]) -> None:
    with pytest.raises(Contradiction):
        resolve_reshape((2, 3), target, allow_zero=False)
