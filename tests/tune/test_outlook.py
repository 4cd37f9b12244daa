from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.tuning import Trial, TrialOutcome, Workload
from slicewise.tune.outlook import outlook

WORK = (
    Workload("a", "a", ("Conv",), count=2, weight_ms=4.0),
    Workload("b", "b", ("MatMul",), count=1, weight_ms=1.0),
)


def trials(values: list[float], key: str = "a") -> list[Trial]:
    return [
        Trial(key, f"{key}{i}", latency_ms=Estimate(v, v, v)) for i, v in enumerate(values)
    ]  # fmt: skip


values = st.lists(st.floats(0.5, 20), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(one=values, two=values, seconds=st.floats(0, 5000))
def test_more_time_is_never_worse_and_the_interval_holds_the_value(
    one: list[float], two: list[float], seconds: float
) -> None:
    known = [*trials(one), *trials(two, "b")]
    now = 2 * min(one) + min(two)
    made = outlook(WORK, known, seconds=seconds, rate_per_s=0.5)
    more = outlook(WORK, known, seconds=2 * seconds + 10, rate_per_s=0.5)
    assert made.trials == int(seconds * 0.5)
    assert 0 < made.low <= made.value <= made.high + 1e-9 and made.value <= now + 1e-9
    assert more.value <= made.value + 1e-9
    assert made == outlook(WORK, known, seconds=seconds, rate_per_s=0.5)


def test_no_time_brings_nothing() -> None:
    made = outlook(WORK, trials([3.0, 2.0]), seconds=0, rate_per_s=1)
    assert made.value == 2 * 2.0 + 1.0 and made.trials == 0


def test_what_still_falls_is_expected_to_fall_further() -> None:
    falling = outlook(WORK, trials([10.0 * n**-0.5 for n in range(1, 65)]), seconds=640,
                      rate_per_s=0.1)  # fmt: skip
    level = outlook(WORK, trials([10.0 / 8] * 64), seconds=640, rate_per_s=0.1)
    assert falling.value < level.value


def test_failures_and_lone_measurements_teach_nothing() -> None:
    known = trials([3.0, 2.0])
    extra = [
        Trial("a", "x", TrialOutcome.CRASHED, error="x"),
        Trial("a", "a1", latency_ms=Estimate(0.1, 0.1, 0.1), is_alone=True),
    ]
    made = outlook(WORK, [*known, *extra], seconds=0, rate_per_s=1)
    assert made.value == 2 * 2.0 + 1.0


def test_the_store_sets_where_it_begins() -> None:
    warm = Trial("b", "w", latency_ms=Estimate(0.25, 0.2, 0.3), is_warm=True)
    made = outlook(WORK, [*trials([2.0]), warm], seconds=0, rate_per_s=1)
    assert made.value == 2 * 2.0 + 0.25
