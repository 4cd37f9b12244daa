"""Ray keeps the laws of executors, starts and ends its own, and says nothing on stdout."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from slicewise.core.errors import MissingDependency, SlicewiseError
from slicewise.execute.ray import RayExecutor, _is_running, _see_off
from slicewise.testing.executors import IsolatedExecutorLaws, process_id

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """A Ray with two CPUs for all laws: starting one takes seconds."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
class TestRay(IsolatedExecutorLaws):
    make = staticmethod(RayExecutor)


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_workers_end_with_the_work_and_a_ray_that_was_there_stays() -> None:
    ids = {done.result() for done in RayExecutor(1).as_completed(process_id, range(4))}
    assert len(ids) == 1 and not any(_is_running(pid) for pid in ids)
    assert ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("running")
def test_no_room_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicewise.execute.ray._START_S", 0.2)
    holder = ray.remote(num_cpus=2)(Idle).remote()
    ray.get(holder.here.remote())
    try:
        with pytest.raises(SlicewiseError, match=r"no worker within 0.2 s: of its 2 CPUs 0 are"):
            list(RayExecutor(1).as_completed(process_id, [1]))
    finally:
        ray.kill(holder)


class Idle:
    """Holds what it is given."""

    def here(self) -> bool:
        """Return True once there."""
        return True


# The laws in short, for the default run: starting Ray and each worker of it takes seconds.
SHORT_FORM = """
import sys
import ray
from slicewise.execute._base import make_executor
from slicewise.testing.executors import die_at_three

carried = make_executor("ray", workers=2).as_completed(die_at_three, [1, 2, 3, "no number"])
done = sorted(carried, key=lambda each: each.index)
print([each.value for each in done])
print([type(each.error).__name__ for each in done])
print(done[2].error)
print(ray.is_initialized(), type(sys.stdout).__name__)
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
    values, errors, lost, is_up = out.stdout.splitlines()
    assert values == "[1, 4, None, None]"
    assert errors == "['NoneType', 'NoneType', 'SlicewiseError', 'TypeError']"
    assert lost.startswith("a worker process died on this work 2 times")
    assert is_up == "False TextIOWrapper"


def test_nothing_is_started_for_no_items() -> None:
    assert list(RayExecutor(2).as_completed(process_id, [])) == []


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"slicewise\[dist\]"):
        list(RayExecutor(2).as_completed(process_id, [1]))


def test_what_ray_says_when_it_cannot_be_reached_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**options: object) -> None:
        assert options["address"] == "10.0.0.1:6379"
        raise ConnectionError("no answer\nat all")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(SlicewiseError, match=r"RAY_ADDRESS='10.0.0.1:6379' cannot.*: no answer;"):
        list(RayExecutor(2).as_completed(process_id, [1]))


def test_a_process_that_does_not_go_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicewise.execute.ray._GRACE_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as stubborn:
        monkeypatch.setattr(
            "slicewise.execute.ray._is_running", lambda pid: stubborn.poll() is None
        )
        _see_off(stubborn.pid)
        assert stubborn.returncode == -9
