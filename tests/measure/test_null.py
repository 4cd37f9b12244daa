"""The null runtime: work in proportion to the batch, failures on request, nothing opened."""

import ast
import inspect
from typing import Any

import numpy as np
import pytest

from slicewise.core.errors import MeasureError, UsageError
from slicewise.measure.inputs import make_values
from slicewise.measure.runtimes import null
from slicewise.measure.runtimes._base import Session, Setup, load_runtime
from tests.measure.jobs import make_job


def _open(batch: int = 2, **options: Any) -> Session:
    subject = make_job(batch=batch).subject
    values = make_values(subject.inputs, seed=0)
    return load_runtime("null").open(subject, values, Setup(options=options))


def test_work_is_in_proportion_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []

    class Counting:
        def reduce(self, numbers: object) -> None:
            sums.append(numbers)

    one, eight = _open(1, work="3"), _open(8, work="3")
    monkeypatch.setattr(np, "add", Counting())
    one.run()
    assert len(sums) == 3
    eight.run()
    assert len(sums) == 3 + 24


def test_outputs_are_sums_of_the_inputs() -> None:
    session = _open()
    (value,) = make_values(make_job().subject.inputs, seed=0)
    (made,) = session.outputs()
    assert made == pytest.approx(value.sum())
    session.close()
    session.close()


@pytest.mark.parametrize("place", ["open", "run", "profile"])
def test_it_refuses_where_it_is_told_to(place: str) -> None:
    def use() -> None:
        session = _open(refuse="1", at=place, profile="1")
        assert place != "open"
        if place == "profile":
            session.run()
            session.profile(1)
        session.run()

    with pytest.raises(MeasureError, match=f"refuses to {place}"):
        use()


def test_memory_is_eaten_and_given_back() -> None:
    session = _open(eat_memory="50000000")
    session.run()
    kept = session._kept  # type: ignore[attr-defined]
    assert sum(chunk.nbytes for chunk in kept) == 50_000_000
    session.close()
    assert not kept


def test_a_profile_is_given_only_on_request() -> None:
    (node,) = _open(profile="1", work="5").profile(2)
    assert node.calls == 10
    with pytest.raises(MeasureError, match="profile=1"):
        _open().profile(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sleep": "1"}, "sleep='1' is none of the null runtime"),
        ({"crash": "softly"}, "crash='softly' is impossible"),
        ({"work": "much"}, "work='much' is no number"),
        ({"noise": "-1"}, "noise='-1' is no number"),
        ({"eat_memory": "inf"}, "eat_memory='inf' is no number"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _open(**options)


def test_every_option_that_is_read_is_described() -> None:
    tree = ast.parse(inspect.getsource(null))
    read = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and isinstance(node.args[0], ast.Constant)
    }
    assert read <= set(null.OPTIONS)
