"""Ray keeps the laws of crews, places workers by their resources, and ends what it started."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.crew import AnswerKind
from slicewise.core.errors import MissingDependency, SlicewiseError
from slicewise.execute.crews.ray import RayCrew
from slicewise.testing.crew_work import is_running, make_work
from slicewise.testing.crews import IsolatedCrewLaws, Listener

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """A Ray with two CPUs and two slices for all laws: starting one takes seconds."""
    ray.init(
        address="local",
        num_cpus=2,
        resources={"slice": 2},
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
class TestRayCrew(IsolatedCrewLaws):
    make = staticmethod(RayCrew)
    examples = 4


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_a_worker_waits_for_its_slice_and_takes_that_of_one_who_left() -> None:
    with RayCrew() as crew:
        listener = Listener(crew)
        first, _, third = (
            crew.hire(make_work, label=str(i), resources={"slice": 1}) for i in range(3)
        )
        assert listener.next(first).kind is AnswerKind.READY
        assert crew.wait(timeout_s=0) == () or not listener.heard.get(third)
        crew.dismiss(first)
        assert listener.next(third).kind is AnswerKind.READY
    assert ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_no_room_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicewise.execute.crews.ray._START_S", 0.2)
    with RayCrew() as crew:
        worker = crew.hire(make_work, label="server 3", resources={"slice": 3})
        (answer,) = crew.wait()
        assert (answer.worker, answer.kind) == (worker, AnswerKind.LOST)
        assert "no place for worker 'server 3' within 0.2 s; it needs slice 3 (of 2, 2 free)" in (
            str(answer.error)
        )
        assert crew.wait() == ()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_a_killed_actor_is_a_lost_worker_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    with RayCrew() as crew:
        listener = Listener(crew)
        worker = listener.hire()
        started = listener.ask(worker, "start", str(tmp_path / "count"), True).value
        folder = listener.ask(worker, "folder").value
        pid = listener.ask(worker, "hang").value
        assert isinstance(started, int) and isinstance(pid, int) and isinstance(folder, str)
        ray.kill(crew._workers[worker].actor)
        lost = listener.next(worker)
        assert lost.kind is AnswerKind.LOST
        assert "worker 'it' of Ray was lost while it worked on an order" in str(lost.error)
        while is_running(pid) or is_running(started) or Path(folder).exists():
            os.sched_yield()


# The laws in short, for the default run: starting Ray and each actor of it takes seconds.
SHORT_FORM = """
import sys
import ray
from slicewise.execute.crews._base import make_crew
from slicewise.testing.crew_work import make_work, is_running
from slicewise.testing.crews import Listener

crew = make_crew("ray")
listener = Listener(crew)
worker = crew.hire(make_work, label="server 0", resources={"slice": 1})
print(listener.next(worker).kind.value, crew.hold([worker]))
crew.give(worker, ("steps", 2))
print([listener.next(worker).value for _ in range(3)])
print(listener.ask(worker, "fail", "it is odd").error)
pid = listener.ask(worker, "who").value[0]
answer = listener.ask(worker, "die", 3)
print(answer.kind.value, answer.error)
crew.close()
print(is_running(pid), ray.is_initialized(), type(sys.stdout).__name__)
"""


def test_it_starts_its_own_and_ends_it_and_keeps_stdout_clean() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHORT_FORM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    ready, told, failed, lost, after = out.stdout.splitlines()
    assert ready == "ready ()"
    assert told == "[0, 1, 'told']"
    assert failed == "it is odd"
    assert lost.startswith("lost worker 'server 0' ended with exit code 3 while it worked")
    assert after == "False False TextIOWrapper"


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        closing(RayCrew()) as crew,
        pytest.raises(MissingDependency, match=r"crew 'ray'.*slicewise\[dist\]"),
    ):
        crew.hire(make_work, label="it")


def test_a_cluster_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("no answer\nat all")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with (
        closing(RayCrew()) as crew,
        pytest.raises(SlicewiseError, match=r"RAY_ADDRESS='10.0.0.1:6379' cannot.*: no answer;"),
    ):
        crew.hire(make_work, label="it")
