import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.tuning import Piece, Trial, TrialOutcome, Workload
from slicewise.tune.schedule import Progress, exponent, gain_ms, next_piece, piece_seed


def workload(name: str, *, weight_ms: float = 1.0, count: int = 1) -> Workload:
    return Workload(name, name, ("Conv",), count=count, weight_ms=weight_ms)


def after(bests: list[float], **changes: object) -> Progress:
    made = Progress(workload("w"), bests_ms=tuple(bests))
    return replace(made, **changes)  # type: ignore[arg-type]  # the test names real fields


def hand_out(
    weights: list[float], *, budget: int, size: int, clients: int, lag: int, seed: int = 0
) -> list[Piece]:
    """Hand out a whole budget; `lag` pieces are in flight before the first is tried."""
    standings = {f"w{i}": Progress(workload(f"w{i}", weight_ms=w)) for i, w in enumerate(weights)}
    flying: list[Piece] = []
    pieces: list[Piece] = []
    tried = 0
    while True:
        left = budget - tried - sum(piece.size for piece in flying)
        piece = next_piece(
            tuple(standings.values()), left=left, piece_size=size, clients=clients,
            client=len(pieces) % clients, number=len(pieces), seed=seed,
        )  # fmt: skip
        if piece is None and not flying:
            return pieces
        if piece is not None:
            pieces.append(piece)
            flying.append(piece)
            now = standings[piece.workload]
            standings[piece.workload] = replace(
                now, in_flight=now.in_flight + piece.size, pieces=now.pieces + 1,
                client=len(pieces) % clients,
            )  # fmt: skip
        if piece is None or len(flying) > lag:
            done = flying.pop(0)
            for i in range(done.size):
                value = 1.0 / (1 + tried % 5 + i)
                trial = Trial(done.workload, f"{tried}", latency_ms=Estimate(value, value, value))
                now = standings[done.workload].tried(trial)
                standings[done.workload] = replace(now, in_flight=now.in_flight - 1)
                tried += 1


cases = given(
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=8),
    budget=st.integers(1, 120),
    size=st.integers(1, 16),
    clients=st.integers(1, 6),
    lag=st.integers(0, 6),
)


@settings(max_examples=150, deadline=None)
@cases
def test_the_whole_budget_is_handed_out_and_no_more(
    weights: list[float], budget: int, size: int, clients: int, lag: int
) -> None:
    pieces = hand_out(weights, budget=budget, size=size, clients=clients, lag=lag)
    assert sum(piece.size for piece in pieces) == budget
    assert all(1 <= piece.size <= size for piece in pieces)
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert len({(piece.workload, piece.round) for piece in pieces}) == len(pieces)
    assert pieces == hand_out(weights, budget=budget, size=size, clients=clients, lag=lag)


@settings(max_examples=150, deadline=None)
@cases
def test_everyone_gets_a_piece_before_anyone_gets_a_second(
    weights: list[float], budget: int, size: int, clients: int, lag: int
) -> None:
    pieces = hand_out(weights, budget=budget, size=size, clients=clients, lag=lag)
    first = [piece.workload for piece in pieces[: len(weights)]]
    assert len(set(first)) == len(first)
    if budget >= len(weights):
        assert len(first) == len(weights)
    order = [weights[int(name[1:])] for name in first]
    assert order == sorted(weights, reverse=True)[: len(order)]


def test_a_doubling_of_trials_saves_what_the_exponent_says() -> None:
    bests = [10.0 * n**-0.5 for n in range(1, 257)]
    assert exponent(after(bests)) == pytest.approx(0.5, abs=0.03)
    assert exponent(after([])) == pytest.approx(0.25)
    assert exponent(after([3.0] * 200)) < 0.03


@settings(max_examples=100)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=60), st.integers(1, 16))
def test_a_gain_is_a_part_of_what_is_there(values: list[float], size: int) -> None:
    bests = [min(values[: i + 1]) for i in range(len(values))]
    made = after(bests)
    assert 0 <= gain_ms(made, size) * size <= made.best_ms
    assert gain_ms(replace(made, in_flight=8), size) <= gain_ms(made, size) + 1e-12
    twice = replace(made, workload=replace(made.workload, count=2))
    assert gain_ms(twice, size) == pytest.approx(2 * gain_ms(made, size))


def test_failures_count_and_gain_nothing() -> None:
    made = after([])
    for i in range(50):
        made = made.tried(Trial("w", str(i), TrialOutcome.CRASHED, error="x"))
    assert made.trials == 50 and math.isinf(made.best_ms)
    assert made.expected_ms == made.workload.mean_ms
    assert exponent(made) < exponent(after([]))


def choose(standings: list[Progress], client: int) -> str:
    piece = next_piece(
        standings, left=100, piece_size=8, clients=2, client=client, number=0, seed=0
    )
    assert piece is not None
    return piece.workload


def test_a_client_stays_where_it_is_warm_if_that_gains_nearly_as_much() -> None:
    one = Progress(workload("a"), bests_ms=(2.0,) * 8, pieces=1, client=0)
    two = Progress(workload("b"), bests_ms=(1.8,) * 8, pieces=1, client=1)
    assert choose([one, two], 0) == "a" and choose([one, two], 1) == "b"
    assert choose([one, two], 5) == "a"
    poor = replace(two, bests_ms=(0.2,) * 8)
    assert choose([one, poor], 1) == "a"


def test_pieces_in_flight_spread_the_clients() -> None:
    one = Progress(workload("a"), bests_ms=(2.0,) * 8, pieces=1)
    two = Progress(workload("b"), bests_ms=(1.9,) * 8, pieces=1)
    assert choose([one, two], 3) == "a"
    assert choose([replace(one, in_flight=8), two], 3) == "b"


def test_closed_workloads_get_nothing() -> None:
    one = Progress(workload("a"), is_closed=True)
    two = Progress(workload("b"))
    assert choose([one, two], 0) == "b"
    closed = [one, replace(two, is_closed=True)]
    assert next_piece(
        closed, left=None, piece_size=8, clients=1, client=0, number=0, seed=0
    ) is None  # fmt: skip


def test_small_budgets_give_each_workload_something() -> None:
    pieces = hand_out([5.0, 4.0, 3.0, 2.0, 1.0], budget=10, size=8, clients=2, lag=1)
    assert Counter(piece.workload for piece in pieces) == {f"w{i}": 1 for i in range(5)}
    assert {piece.size for piece in pieces} == {2}


def test_the_last_pieces_are_smaller() -> None:
    pieces = hand_out([1.0], budget=64, size=16, clients=4, lag=4)
    sizes = [piece.size for piece in pieces]
    assert sizes[0] == 16 and sizes[-1] <= 4 and sorted(sizes, reverse=True)[-1] >= 1
    assert sizes[1:] == sorted(sizes[1:], reverse=True)


def test_seeds_follow_from_run_workload_and_round() -> None:
    seeds = {piece_seed(s, w, r) for s in range(3) for w in ("a", "b") for r in range(3)}
    assert len(seeds) == 18 and piece_seed(1, "a", 2) == piece_seed(1, "a", 2)
    assert all(0 <= seed < 2**31 for seed in seeds)
