"""The crew without processes keeps the laws, and one is found by name."""

import pytest

from slicewise.core.crew import Answer, AnswerKind
from slicewise.core.errors import UsageError
from slicewise.execute.crews._base import CREWS, make_crew
from slicewise.execute.crews.inline import InlineCrew
from slicewise.testing.crew_work import make_work
from slicewise.testing.crews import CrewLaws


class TestInlineCrew(CrewLaws):
    make = staticmethod(InlineCrew)


def test_answers_are_in_the_order_in_which_orders_were_given() -> None:
    with InlineCrew() as crew:
        workers = [crew.hire(make_work, label=str(i)) for i in range(3)]
        assert crew.wait() == tuple(Answer(worker, AnswerKind.READY) for worker in workers)
        for worker in (2, 0, 1):
            crew.give(worker, ("steps", 1))
        assert [(answer.worker, answer.value) for answer in crew.wait()] == [
            (2, 0), (2, "told"), (0, 0), (0, "told"), (1, 0), (1, "told"),
        ]  # fmt: skip


@pytest.mark.parametrize("name", list(CREWS))
def test_every_row_of_the_table_makes_a_crew_that_has_started_nothing(name: str) -> None:
    crew = make_crew(name)
    assert crew.wait() == ()
    crew.close()


def test_an_unknown_crew_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'loca' is unknown; known are .*did you mean local"):
        make_crew("loca")
