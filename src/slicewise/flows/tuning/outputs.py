"""The outputs of a job, run once in a process of its own that is bound to the job's share.

Nothing is timed here. What the process prints is not shown; it ends when this one does.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicewise.core.errors import MeasureError, SlicewiseError, UsageError
from slicewise.core.measurement import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODE = """\
import sys
sys.path[:] = sys.argv[3:]
from slicewise.flows.tuning.outputs import serve
serve(sys.argv[1], sys.argv[2])
"""
_LAST_CHARACTERS = 400


def outputs_of(job: Job, inputs: Mapping[str, Path] | None = None) -> "tuple[NDArray[Any], ...]":
    """Return the outputs of the job's model, floats as float32, from one run.

    `inputs` are files of arrays (.npy) by the name of the input; the others, and all where none
    is given, are made up by the job's seed, the same for the same shapes. `MeasureError` where
    the model does not run, the process dies, or the protocol's `time_limit_s` is over;
    `UsageError` for a job that cannot be, and for an input that the model does not have.
    """
    known = {spec.name for spec in job.subject.inputs}
    for name in inputs or {}:
        if name not in known:
            raise UsageError(
                f"model {job.subject.name!r} has no input {name!r}; it has"
                f" {', '.join(sorted(known)) or 'none'}"
            )
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "asked", Path(folder) / "answer"
        asked.write_bytes(pickle.dumps((job, dict(inputs or {}))))
        words = _run(job, asked, answer)
        if not answer.exists():
            raise MeasureError(f"no outputs of {job.subject.name!r} on {job.runtime}: {words}")
        told: tuple[str, Any] = pickle.loads(answer.read_bytes())
    kind, value = told
    if kind == "outputs":
        return tuple(value)
    from slicewise.core import errors

    raise getattr(errors, kind, MeasureError)(value)


def _run(job: Job, asked: Path, answer: Path) -> str:
    """Run the process to its end; return how it ended and its last words."""
    command = [sys.executable, "-P", "-c", _CODE, str(asked), str(answer), *_search_path()]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end tells the process that nobody waits any more
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the terminal reaches this process alone
        )
        try:
            code = process.wait(job.protocol.time_limit_s)
        except subprocess.TimeoutExpired:
            return f"the process was still running after {job.protocol.time_limit_s:g} s"
        finally:
            # what it has started goes with it, also where it has ended by itself
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        log.seek(0)
        words = " ".join(log.read().decode(errors="replace").split())[-_LAST_CHARACTERS:]
    how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the process was {how}{'; its last words: ' + words if words else ''}"


def _search_path() -> Sequence[str]:
    """Return where this process imports from, so that the job's functions are found again."""
    root = str(Path(__file__).parents[3])
    return [root, *(os.path.abspath(each) for each in sys.path if each)]


# From here on: what runs in the process.


def serve(asked: str, answer: str) -> None:
    """Read the job from a file, run it, and write its outputs, or the error, to another."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told: tuple[str, object]
    try:
        job, inputs = pickle.loads(Path(asked).read_bytes())
        told = ("outputs", _outputs(job, inputs))
    except SlicewiseError as err:
        told = (type(err).__name__, str(err))
    except MemoryError as err:
        told = ("MeasureError", f"memory ran out: {err}")
    part = Path(f"{answer}.part")
    part.write_bytes(pickle.dumps(told))
    os.replace(part, answer)
    # Frameworks like to crash or hang while they are taken down, and all is told.
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _outputs(job: Job, inputs: Mapping[str, Path]) -> "tuple[NDArray[Any], ...]":
    from slicewise.measure.shares._base import bind_share, entered_share, inner_device

    bind_share(job)  # before any framework is imported: libraries count cores when they load
    from slicewise.measure.inputs import make_values
    from slicewise.measure.quiet import bound_cores
    from slicewise.measure.runtimes._base import Setup, load_runtime
    from slicewise.tune.arrays import read_array

    runtime = load_runtime(job.runtime)
    runtime.load()
    made = make_values(job.subject.inputs, seed=job.seed)
    values = [
        read_array(inputs[spec.name]).astype(value.dtype) if spec.name in inputs else value
        for spec, value in zip(job.subject.inputs, made, strict=True)
    ]
    with entered_share(job):
        threads = job.threads or len(bound_cores())
        setup = Setup(inner_device(job), threads, job.precision, job.options)
        session = runtime.open(job.subject, values, setup)
        try:
            return session.outputs()
        finally:
            session.close()
