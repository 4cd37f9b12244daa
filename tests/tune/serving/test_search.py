"""What comes next: nothing twice, everything once where there is little, seeded where not."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.tuning import Piece, Trial, TrialOutcome
from slicewise.tune.backends.serving import search
from slicewise.tune.backends.serving.search import STARTUP, choose
from slicewise.tune.backends.serving.settings import OPENVINO, Settings
from slicewise.tune.backends.serving.space import EXHAUSTIVE, Facts, all_settings

FEW = tuple(each.text for each in all_settings(Facts(2)))
MANY = tuple(each.text for each in all_settings(Facts(16, has_branches=True)))


def trial(config: str) -> Trial:
    """Return a trial whose latency falls with the threads, and more with OpenVINO."""
    made = Settings.parse(config)
    value = 10.0 / made.threads + (0.0 if made.engine == OPENVINO else 3.0)
    return Trial("w", config, latency_ms=Estimate(value, low=value, high=value, source="made"))


def piece(number: int, size: int = 8) -> Piece:
    return Piece(number, "w", number, size, seed=100 + number)


@given(size=st.integers(1, 20), bad=st.sets(st.sampled_from(FEW), max_size=3))
def test_few_settings_are_all_proposed_once_and_then_it_says_so(size: int, bad: set[str]) -> None:
    known: list[Trial] = []
    for number in range(len(FEW) + 1):
        chosen = choose(FEW, piece(number, size), known=known, excluded=bad)
        assert len(chosen.points) <= size
        assert not set(chosen.points) & ({each.config for each in known} | bad)
        known += [trial(config) for config in chosen.points]
        if chosen.is_last:
            break
    assert chosen.is_last
    assert {each.config for each in known} == set(FEW) - bad


def test_the_default_is_the_first_of_all() -> None:
    assert choose(FEW, piece(0), known=(), excluded=()).points[0] == FEW[0]
    assert choose(MANY, piece(0), known=(), excluded=()).points[0] == MANY[0]


def test_rounds_at_the_same_time_do_not_overlap() -> None:
    rounds = [choose(FEW, piece(number), known=(), excluded=()) for number in range(2)]
    assert not set(rounds[0].points) & set(rounds[1].points)
    assert [each.is_last for each in rounds] == [False, True]
    assert set(rounds[0].points) | set(rounds[1].points) == set(FEW)


def _run(points: Sequence[str], rounds: int) -> list[Trial]:
    known: list[Trial] = []
    for number in range(rounds):
        chosen = choose(points, piece(number), known=known, excluded=())
        known += [trial(config) for config in chosen.points]
    return known


@settings(deadline=None, max_examples=1)
@given(st.none())
def test_many_settings_are_searched_the_same_way_each_time(_: None) -> None:
    assert len(MANY) > EXHAUSTIVE
    known = _run(MANY, 5)
    assert len({each.config for each in known}) == len(known) == 40
    assert [each.config for each in _run(MANY, 5)] == [each.config for each in known]


def test_the_search_goes_where_it_is_fast() -> None:
    known = _run(MANY, 6)
    early, late = known[:STARTUP], known[STARTUP:]

    def mean(trials: list[Trial]) -> float:
        return sum(t.latency_ms.value for t in trials if t.latency_ms) / len(trials)

    assert mean(late) < mean(early)
    fastest = min(t.latency_ms.value for t in known if t.latency_ms)
    assert fastest == min(t.latency_ms.value for t in map(trial, MANY) if t.latency_ms)


def test_failures_are_known_but_teach_nothing() -> None:
    known = [Trial("w", c, TrialOutcome.REFUSED, error="no") for c in MANY[: STARTUP + 1]]
    chosen = choose(MANY, piece(3), known=known, excluded=())
    assert len(chosen.points) == 8
    assert not set(chosen.points) & set(MANY[: STARTUP + 1])


def test_without_optuna_a_seeded_draw_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    known = _run(MANY, 2)
    one = choose(MANY, piece(2), known=known, excluded=())
    assert one == choose(MANY, piece(2), known=known, excluded=())
    assert len(set(one.points)) == 8
    assert not set(one.points) & {each.config for each in known}
