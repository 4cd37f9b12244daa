"""Configurations: their text, the rules that prune them, and what is tried when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.tuning import Piece, SearchOrder, Trial, TrialOutcome
from slicewise.tune.backends.triton.operations import SIZES, Operation
from slicewise.tune.backends.triton.plans import (
    count_programs,
    make_plan,
    read_config,
    write_config,
)
from slicewise.tune.backends.triton.search import choose
from slicewise.tune.backends.triton.spaces import (
    Target,
    default_config,
    estimate_shared_bytes,
    neighbours,
    space_of,
    spread,
    why_not,
)

CONV = {"n": 2, "c": 64, "h": 14, "w": 14, "o": 128, "kh": 3, "kw": 3, "stride_h": 1,
        "stride_w": 1, "pad_h": 1, "pad_w": 1, "out_h": 14, "out_w": 14, "dilation_h": 1,
        "dilation_w": 1}  # fmt: skip
MATMUL = Operation.make("matmul", "bf16", batch=1, m=128, n=768, k=768, trans_b=1)
OPERATIONS = (
    MATMUL,
    Operation.make("matmul", "fp32", batch=1, m=1, n=1, k=1),
    Operation.make("matmul", "fp32", batch=12, m=512, n=512, k=64, a_batched=1, b_batched=1),
    Operation.make("conv", "fp16", **CONV),
    Operation.make("attention", "bf16", number=0.1, batch=1, heads=12, kv_heads=12, q=128, kv=128,
                   depth=64),
    Operation.make("softmax", "fp16", rows=1536, columns=128),
    Operation.make("norm", "bf16", number=1e-5, rows=128, columns=4096),
)  # fmt: skip
SOME = st.sampled_from(OPERATIONS)
TARGETS = st.builds(Target, st.sampled_from((75, 80, 86, 90, 95, 120)), st.integers(1, 144))


@given(SOME, TARGETS)
@settings(deadline=None)
def test_a_space_holds_what_may_run_and_no_configuration_twice(op: Operation, to: Target) -> None:
    space = space_of(op, to)
    texts = [write_config(config) for config in space]
    assert texts and len(set(texts)) == len(texts)
    for config in space[:: max(1, len(space) // 50)]:
        assert not why_not(op, config, to)
        assert estimate_shared_bytes(op, config) <= to.shared_bytes
        assert read_config(op.kind, write_config(config)) == config
    assert default_config(op, to) in space


@given(SOME, TARGETS)
@settings(deadline=None)
def test_a_plan_covers_the_operation(op: Operation, to: Target) -> None:
    config = default_config(op, to)
    plan = make_plan(op, config)
    assert plan.grid[0] * plan.grid[1] == count_programs(op, config) >= 1
    assert set(plan.pointers) <= set(op.shapes) and plan.pointers[-1] == "out"
    assert set(op.shapes) <= set(plan.pointers)
    assert (plan.warps, plan.stages) == (config["warps"], config["stages"])


@given(SOME)
def test_an_operation_is_read_as_it_was_written(op: Operation) -> None:
    assert Operation.parse(op.text) == op
    assert op.flops > 0 and op.moved_bytes > 0 and op.refusal == ""


def test_more_shared_memory_allows_more() -> None:
    small, large = (len(space_of(MATMUL, Target(each, 16))) for each in (86, 90))
    assert small < large


def test_few_blocks_on_many_sms_are_left_out() -> None:
    few, many = (space_of(MATMUL, Target(90, sms)) for sms in (16, 132))
    assert min(count_programs(MATMUL, each) for each in few) < 132 / 4
    assert min(count_programs(MATMUL, each) for each in many) >= 132 / 4


@pytest.mark.parametrize(
    ("text", "why"),
    [("{}", "has block_m"), ("[1]", "has block_m"), ("no", "Expecting"),
     (write_config({**default_config(MATMUL, Target(90, 16)), "warps": 3}), "power of two"),
     (write_config({**default_config(MATMUL, Target(90, 16)), "warps": 0}), "power of two")],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_config("matmul", text)


WIDE = {"block_m": 128, "block_n": 256, "block_k": 16, "group": 1, "stages": 1, "warps": 2}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"block_m": 256, "block_n": 256, "block_k": 128, "stages": 4}, "shared memory"),
        ({"block_m": 256, "block_n": 256, "stages": 1, "warps": 2}, "over the 128"),
        (WIDE, "registers"),
        ({"block_m": 16, "block_n": 16, "warps": 8}, "under 4 results"),
    ],
)
def test_rules_say_why(config: dict[str, int], why: str) -> None:
    assert why in why_not(MATMUL, {**default_config(MATMUL, Target(90, 16)), **config},
                          Target(90, 16))  # fmt: skip


def test_sizes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="rows=0"):
        Operation.make("softmax", "fp16", rows=0, columns=1)
    with pytest.raises(ValueError, match="has no"):
        Operation.make("softmax", "fp16", rows=1, columns=1, depth=2)
    with pytest.raises(ValueError, match="no kernel"):
        Operation.make("pool", "fp16")
    with pytest.raises(ValueError, match="has the sizes"):
        Operation("softmax", "fp16", (("rows", 1),))
    assert set(SIZES) == {op.kind for op in OPERATIONS}


def test_what_kernels_cannot_index_is_told() -> None:
    huge = Operation.make("softmax", "fp16", rows=1 << 20, columns=1 << 11)
    assert "2^31" in huge.refusal

    def heads(**sizes: int) -> Operation:
        return Operation.make("attention", "fp16", number=0.1, batch=1, q=8, kv=8, **sizes)

    deep = heads(heads=2, kv_heads=2, depth=512)
    odd = heads(heads=3, kv_heads=2, depth=8)
    many = Operation.make("matmul", "fp16", batch=70000, m=1, n=1, k=1, a_batched=1)
    assert "256" in deep.refusal and "evenly" in odd.refusal and "65535" in many.refusal


def test_flops_of_attention_count_what_is_seen() -> None:
    def flops(**sizes: int) -> int:
        return Operation.make(
            "attention", "fp16", number=0.1, batch=1, heads=1, kv_heads=1, depth=1, **sizes
        ).flops

    assert flops(q=3, kv=4) == 4 * 12
    assert flops(q=3, kv=4, causal=1) == 4 * (1 + 2 + 3)
    assert flops(q=4, kv=2, causal=1) == 4 * (1 + 2 + 2 + 2)


# --- the search


def order(**more: object) -> SearchOrder:
    piece = Piece(0, "key", 0, 12, seed=5)
    return SearchOrder(piece, **more)  # type: ignore[arg-type]


def trial(config: str, ms: float) -> Trial:
    return Trial("key", config, TrialOutcome.OK, Estimate(ms, ms, ms, source="measured"))


@given(SOME, TARGETS, st.integers(1, 40), st.data())
@settings(deadline=None, max_examples=50)
def test_a_search_repeats_nothing_until_the_space_is_empty(
    op: Operation, to: Target, size: int, data: st.DataObject
) -> None:
    space = [write_config(config) for config in space_of(op, to)]
    share = data.draw(st.sampled_from((0.0, 0.5, 1.0)))
    known = tuple(
        trial(text, float(i + 1)) for i, text in enumerate(space[: int(share * len(space))])
    )
    asked = SearchOrder(Piece(0, "key", 1, size, seed=data.draw(st.integers(0, 9))), known)
    found = choose(op, to, asked)
    assert len(set(found.configs)) == len(found.configs) <= size
    assert set(found.configs) <= set(space) - {each.config for each in known}
    assert len(found.configs) == min(size, len(space) - len(known))
    assert found.is_last == (len(space) - len(known) <= size)
    assert choose(op, to, asked) == found


def test_the_default_comes_first_then_what_was_good_for_kin() -> None:
    to = Target(90, 64)
    default = write_config(default_config(MATMUL, to))
    hint = write_config(space_of(MATMUL, to)[7])
    found = choose(MATMUL, to, order(hints=(hint, "{}", "nonsense"))).configs
    assert found[:2] == (default, hint) and len(found) == 12
    assert default not in choose(MATMUL, to, order(avoid=frozenset({default}))).configs


def test_a_first_piece_is_spread_wider_than_neighbours_are() -> None:
    to = Target(90, 64)
    first = [read_config("matmul", text) for text in choose(MATMUL, to, order()).configs]
    for name in ("block_m", "block_n", "block_k", "warps"):
        assert len({config[name] for config in first}) >= 2


def test_later_pieces_stay_near_the_best_for_the_most_part() -> None:
    to = Target(90, 64)
    space = space_of(MATMUL, to)
    best = space[len(space) // 2]
    known = (trial(write_config(best), 1.0),)
    found = choose(MATMUL, to, order(known=known)).configs
    near = {write_config(config) for config in neighbours(best, space)}
    assert sum(text in near for text in found) >= 8


def test_a_rebuild_searches_nothing() -> None:
    wanted = ("b", "a")
    assert choose(MATMUL, Target(90, 64), order(rebuild=wanted)).configs == wanted


@given(st.integers(0, 12))
def test_a_spread_is_of_the_size_asked(count: int) -> None:
    space = space_of(OPERATIONS[5], Target(90, 64))
    chosen = spread(space, count, range(8))
    assert len(chosen) == (min(max(count, 1), 8))
