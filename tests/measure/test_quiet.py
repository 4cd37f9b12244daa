"""Whether the cores are ours: what is told, and when it is not."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.measure import quiet


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def test_busy_loops_get_a_part_of_each_core() -> None:
    share = quiet.core_share(quiet.bound_cores(), duration_s=0.005)
    assert share is not None
    assert 0 < share <= 1


def test_the_probe_leaves_the_binding_of_this_thread_alone() -> None:
    before = os.sched_getaffinity(0)
    quiet.core_share(quiet.bound_cores()[:1], duration_s=0.001)
    assert os.sched_getaffinity(0) == before


def test_a_core_that_is_not_there_is_told_as_unknown() -> None:
    assert quiet.core_share([*quiet.bound_cores(), 1_000_000 % 8191], duration_s=0.001) is None
    assert quiet.core_share([]) is None


class _Machine:
    """Time that passes only in pauses, and shares told one after the other."""

    def __init__(self, shares: Sequence[float | None]) -> None:
        self.now_s = 0.0
        self.looks = 0
        self._shares = shares

    def probe(self, cores: Sequence[int]) -> float | None:
        self.looks += 1
        return self._shares[min(self.looks, len(self._shares)) - 1]

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, patience_s: float) -> float | None:
        return quiet.wait_for_quiet(
            (0,), patience_s=patience_s, probe=self.probe, clock=lambda: self.now_s,
            pause=self.pause,
        )  # fmt: skip


def test_waiting_ends_when_the_cores_are_ours() -> None:
    machine = _Machine([0.4, 0.6, 1.0])
    assert machine.wait(60) == 1.0
    assert machine.looks == 3


@given(st.floats(0, 5))
def test_waiting_never_outlasts_its_budget(patience_s: float) -> None:
    machine = _Machine([0.3])
    assert machine.wait(patience_s) == 0.3
    assert machine.now_s <= patience_s


def test_without_patience_or_without_an_answer_there_is_one_look() -> None:
    for machine, patience_s in ((_Machine([0.1]), 0.0), (_Machine([None]), 9.0)):
        machine.wait(patience_s)
        assert machine.looks == 1


def test_run_delays_are_read_for_each_thread(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    write("proc/self/task/7/schedstat", "100 2000 3\n")
    write("proc/self/task/8/schedstat", "100 500 3\n")
    assert quiet.run_delays(root=tmp_path) == {"7": 2000, "8": 500}
    (tmp_path / "proc/self/task/9").mkdir()  # a thread that has just ended
    assert quiet.run_delays(root=tmp_path) == {"7": 2000, "8": 500}


@pytest.mark.parametrize("text", ["", "1\n", "a b c\n"])
def test_delays_that_cannot_be_read_are_unknown(
    tmp_path: Path, write: Callable[[str, str], None], text: str
) -> None:
    assert quiet.run_delays(root=tmp_path) is None
    write("proc/self/task/7/schedstat", text)
    assert quiet.run_delays(root=tmp_path) is None


def test_waiting_is_a_part_of_the_time_of_all_cores() -> None:
    before, after = {"7": 1_000_000_000}, {"7": 1_500_000_000, "8": 500_000_000}
    assert quiet.waited_part(before, after, seconds=2.0, cores=2) == pytest.approx(0.25)
    assert quiet.waited_part(before, after, seconds=0.1, cores=1) == 1.0
    assert quiet.waited_part(None, after, seconds=2.0, cores=2) is None
    assert quiet.waited_part(before, None, seconds=2.0, cores=2) is None
    assert quiet.waited_part(before, after, seconds=0.0, cores=2) is None


CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 2000.000
flags\t\t: fpu

processor\t: 1
model name\t: Some CPU @ 2.00GHz
cpu MHz\t\t: 3000.000
"""


def test_model_and_clock_come_from_cpuinfo(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    write("proc/cpuinfo", CPUINFO)
    assert quiet.processor_name(root=tmp_path) == "Some CPU @ 2.00GHz"
    assert quiet.clock_hz([0, 1], root=tmp_path) == 2.5e9
    assert quiet.clock_hz([1], root=tmp_path) == 3e9
    assert quiet.clock_hz([7], root=tmp_path) is None


def test_cpufreq_is_believed_before_cpuinfo(
    tmp_path: Path, write: Callable[[str, str], None]
) -> None:
    write("proc/cpuinfo", CPUINFO)
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1200000\n")
    assert quiet.clock_hz([0], root=tmp_path) == 1.2e9
    assert quiet.clock_hz([0, 1], root=tmp_path) == 2.5e9


def test_the_machine_is_described_by_what_it_tells() -> None:
    made = quiet.look_around((0, 1), share=0.5)
    assert made.cores == (0, 1)
    assert made.core_share == 0.5
    assert made.system.split()[0] == os.uname().sysname
    assert made.python.startswith("3.")
