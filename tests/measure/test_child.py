"""One measurement in a process of its own: whatever becomes of it is told, and nothing is left."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.measurement import Measurement, Outcome, Protocol
from slicewise.measure import child
from slicewise.measure.child import measure_apart
from tests.measure.binds import bind_impossibly, bind_nothing, bind_to_one_core, bind_wrongly
from tests.measure.jobs import QUICK, make_job


def _apart(
    protocol: Protocol = QUICK,
    *,
    bind: child.Bind = bind_nothing,
    profile: bool = False,
    **options: Any,
) -> Measurement:
    return measure_apart(make_job(protocol, profile=profile, **options), bind=bind)


def test_a_measurement_taken_apart_is_that_of_the_bound_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = _apart(bind=bind_to_one_core, chatter="framework says hello")
    assert made.outcome is Outcome.OK
    assert made.threads == 1
    assert len(made.environment.cores) == 1
    assert made.environment.packages.keys() == {"numpy"}
    assert "bound-in-test" in {note.code for note in made.notes}
    assert len(made.samples_ms) >= 3
    assert made.memory is not None
    assert made.memory.source == "rss"
    # What a framework prints reaches neither standard output nor standard error.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crash": "abort"}, "killed by SIGABRT while warming up"),
        (
            {"crash": "segv", "chatter": "oops", "at": "open"},
            "killed by SIGSEGV while opening the model; its last words: oops | oops",
        ),
        ({"crash": "exit"}, "the process ended with exit code 3 while warming up"),
        ({"fail": "bad shape"}, "RuntimeError: bad shape"),
    ],
)
def test_a_crash_is_a_measurement_that_says_how(options: dict[str, Any], words: str) -> None:
    made = _apart(**options)
    assert made.outcome is Outcome.CRASHED
    assert words in made.error
    assert made.latency_ms is None
    # Known before the crash, so that the same attempt has the same key.
    assert made.environment.packages.keys() == {"numpy"}
    assert made.threads == len(os.sched_getaffinity(0))
    assert made.seconds > 0


def test_what_was_said_while_this_process_was_stopped_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = child._Child.begin

    def stopped(self: Any, payload: bytes) -> None:
        begin(self, payload)
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._end = time.monotonic() - 1.0

    monkeypatch.setattr(child._Child, "begin", stopped)
    assert _apart().outcome is Outcome.OK


def test_a_hang_is_ended_at_the_limit() -> None:
    made = _apart(replace(QUICK, time_limit_s=1.5), hang="1", chatter="waiting for a lock")
    assert made.outcome is Outcome.TIMED_OUT
    assert "time_limit_s=1.5" in made.error
    assert made.seconds >= 1.5


def test_eating_memory_is_ended_at_the_limit() -> None:
    limit = 200 << 20
    made = _apart(replace(QUICK, memory_limit_bytes=limit), eat_memory=str(4 * limit))
    assert made.outcome is Outcome.OUT_OF_MEMORY
    assert f"memory_limit_bytes={limit}" in made.error


def test_memory_below_the_limit_is_no_failure() -> None:
    made = _apart(replace(QUICK, memory_limit_bytes=4 << 30), eat_memory=str(20 << 20))
    assert made.outcome is Outcome.OK


def test_a_crash_of_the_profiler_costs_the_profile_alone() -> None:
    made = _apart(profile=True, crash="abort", at="profile")
    assert made.outcome is Outcome.OK
    assert made.samples_ms
    (note,) = [note for note in made.notes if note.code == "profile-missing"]
    assert "SIGABRT" in note.text


def test_a_refusal_is_an_outcome_and_mistakes_are_raised() -> None:
    assert _apart(refuse="1").outcome is Outcome.REFUSED
    with pytest.raises(UsageError, match="sleep='1' is none of the null runtime"):
        _apart(sleep="1")
    with pytest.raises(DeviceError, match="there is no core 99"):
        _apart(bind=bind_impossibly)


def test_any_other_error_of_the_binding_is_a_crash_with_its_last_words() -> None:
    made = _apart(bind=bind_wrongly)
    assert made.outcome is Outcome.CRASHED
    assert "while starting" in made.error
    assert made.error.endswith("the first line | the last line")


def test_a_job_that_cannot_be_sent_is_refused() -> None:
    job = make_job()
    job = replace(job, subject=replace(job.subject, open=lambda: None))
    with pytest.raises(UsageError, match="'m' cannot be sent to a process of its own"):
        measure_apart(job, bind=bind_nothing)


def test_a_job_that_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "only_here.py"
    module.write_text("def bind(job):\n    return ()\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]

        module.unlink()
        with pytest.raises(UsageError, match="cannot be read in a process of its own"):
            measure_apart(make_job(), bind=only_here.bind)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("only_here", None)


def test_nothing_is_left_of_a_process_when_ctrl_c_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    real = child._start

    def start(log: object) -> object:
        made = real(log)  # type: ignore[arg-type]
        started.append(made.process.pid)
        return made

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_start", start)
    monkeypatch.setattr(connection, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _apart(hang="1")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_importing_it_loads_no_numpy_and_no_framework() -> None:
    code = (
        "import sys, slicewise.measure.child; "
        "print([m for m in ('numpy', 'torch', 'onnxruntime') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def _until(claim: Callable[[], bool]) -> bool:
    """Wait until a claim about another process holds; half a minute is for ever."""
    end = time.monotonic() + 30
    while not claim():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


SCRIPT = """
    import functools, os, sys, threading
    from slicewise.measure.child import measure_apart
    from tests.measure.jobs import make_job

    def tell_and_hang(path, job):
        with open(path + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.replace(path + ".part", path)
        threading.Event().wait()

    if __name__ == "__main__":
        measure_apart(make_job(), bind=functools.partial(tell_and_hang, sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread looks once a second")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_does_not_outlive_the_one_that_started_it(
    how: signal.Signals, tmp_path: Path
) -> None:
    script, told = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(textwrap.dedent(SCRIPT))
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(told)], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert _until(told.exists)
    pid = int(told.read_text())
    assert Path(f"/proc/{pid}").exists()
    parent.send_signal(how)
    _, err = parent.communicate()
    assert ("KeyboardInterrupt" in err) == (how == signal.SIGINT)
    assert _until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    """A process that has ended may still stand in the table, waiting for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_script_that_does_not_ask_for_its_name_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from slicewise.measure.child import measure_apart\n"
        "from tests.measure.binds import bind_nothing\n"
        "from tests.measure.jobs import make_job\n"
        "measure_apart(make_job(), bind=bind_nothing)\n"
    )
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    told = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True
    )
    assert told.returncode == 1
    assert "if __name__ == '__main__'" in told.stderr


def test_it_works_inside_a_worker_that_may_have_no_children() -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:  # its workers are daemonic
        made = pool.apply(functools.partial(measure_apart, make_job(), bind=bind_nothing))
    assert made.outcome is Outcome.OK
