"""`--share auto`: the knee of the predicted latencies, confirmed by a few measurements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.flows.tuning.choice import TOLERANCE, confirmed, knee
from slicewise.flows.tuning.result import SharePoint

_LATENCIES = st.lists(st.floats(0.1, 100), min_size=1, max_size=10)


def _points(latencies: list[float]) -> list[SharePoint]:
    count = len(latencies)
    return [
        SharePoint(100 * (i + 1) / count, Estimate(ms, low=ms, high=ms, source=""))
        for i, ms in enumerate(latencies)
    ]


@given(_LATENCIES.map(lambda found: sorted(found, reverse=True)))
def test_the_knee_is_the_smallest_share_within_the_tolerance(latencies: list[float]) -> None:
    points = _points(latencies)
    found = knee(points, tolerance=TOLERANCE)
    limit = latencies[-1] * (1 + TOLERANCE)
    for point in points:
        assert (point.predicted_ms.value <= limit) == (point.percent >= found)


@given(_LATENCIES, st.data())
def test_what_is_confirmed_measures_within_the_tolerance(
    latencies: list[float], data: st.DataObject
) -> None:
    percents = [point.percent for point in _points(latencies)]
    times = dict(zip(percents, latencies, strict=True))
    start = data.draw(st.sampled_from(percents))
    found = confirmed(percents, start, times.__getitem__, tolerance=TOLERANCE)
    limit = latencies[-1] * (1 + TOLERANCE)
    assert times[found] <= limit
    place = percents.index(found)
    assert place == 0 or times[percents[place - 1]] > limit


def test_a_right_knee_costs_three_measurements() -> None:
    asked: list[float] = []
    times = {25.0: 9.0, 50.0: 5.2, 75.0: 5.1, 100.0: 5.0}

    def measured(percent: float) -> float:
        asked.append(percent)
        return times[percent]

    assert confirmed(list(times), 50.0, measured, tolerance=0.1) == 50.0
    assert set(asked) == {100.0, 50.0, 25.0}


@pytest.mark.parametrize(("start", "chosen"), [(25.0, 50.0), (100.0, 50.0)])
def test_a_wrong_knee_moves_to_where_it_is(start: float, chosen: float) -> None:
    times = {25.0: 9.0, 50.0: 5.2, 75.0: 5.1, 100.0: 5.0}
    assert confirmed(list(times), start, times.__getitem__, tolerance=0.1) == chosen
