"""Kill a tuner at random moments, let it go on, and look for trials that were lost.

    python -m benchmarks.tune_kills

A child tunes with the engine `simulated` over real worker processes (some candidates are refused,
some end their worker) and tells each trial that was kept over a pipe. It is killed (SIGKILL) after
a random number of them and a random pause, a part of the kills while it still starts. All runs go
on with one journal, and the last one goes on to the end.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import write_result
from slicewise.core.tuning import Trial
from slicewise.store.trials import open_trials

KILLS = 50
BUDGET = 2000
_MOST = 14  # trials kept before a kill
_DIGEST = "tune_kills"
_MARK = "SLICEWISE_TUNE_KILLS"
_PATIENCE_S = 20.0  # for workers to notice that their tuner is gone


@dataclass(frozen=True, slots=True)
class Kill:
    """What one kill left: trials told as kept, told and lost, kept and not told (those between
    the disk and the pipe), and workers that outlived their tuner."""

    told: int
    lost: int
    beyond: int
    orphans: int


def tune(path: Path, budget: int) -> None:
    """Tune up to `budget` trials in all, telling each trial once it is kept. The child's part."""
    from slicewise.core.tuning import Budget, Workload
    from slicewise.execute.crews._base import make_crew
    from slicewise.tune.backends.simulated import (
        Fates,
        SimulatedProblem,
        client_maker,
        server_maker,
        text_of,
    )
    from slicewise.tune.run import RunSettings, Seats, run_tuning

    default = text_of([8, 8, 8, 8])
    workloads = tuple(
        Workload(f"w{i}", f"operator {i}", ("MatMul",), weight_ms=8.0 / (i + 1),
                 default_config=default)
        for i in range(6)
    )  # fmt: skip
    problem = SimulatedProblem(
        base_ms={each.key: each.mean_ms / 2 for each in workloads},
        defaults={each.key: default for each in workloads},
        fates=Fates(refuse=0.1, crash=0.01, wrong=0.02, run_crash=0.01),
    )
    seats = Seats((client_maker(problem),) * 2, (server_maker(problem),), holds={0: (0,)})
    journal = open_trials(path, digest=_DIGEST, fresh=False)
    os.write(1, b"opened\n")

    def keep(trial: Trial) -> None:
        journal.append(trial)
        os.write(1, f"{int(trial.is_alone)} {trial.workload} {trial.config}\n".encode())

    crew = make_crew("local")
    try:
        run_tuning(
            crew, workloads, seats, settings=RunSettings(Budget(budget), losses=50),
            known=tuple(journal.entries), keep=keep,
        )  # fmt: skip
    finally:
        crew.close()


def start(path: Path, mark: str) -> "subprocess.Popen[bytes]":
    """Start the child."""
    code = "import sys; from pathlib import Path; from benchmarks.tune_kills import tune;"
    code += " tune(Path(sys.argv[1]), int(sys.argv[2]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(BUDGET)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, _MARK: mark},
    )


def kill_once(path: Path, *, after: int, pause_s: float) -> Kill:
    """Tune, kill once `after` trials are told and `pause_s` is over, and look at the journal."""
    before = identities(kept(path))
    mark = uuid.uuid4().hex
    with start(path, mark) as child:
        assert child.stdout is not None and child.stderr is not None
        lines = [child.stdout.readline() for _ in range(after)]
        time.sleep(pause_s)
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
        words = child.stderr.read().decode(errors="replace")
    if after and not all(lines[:after]):
        raise RuntimeError(f"the tuner ended by itself: {words[-2000:]}")
    told = Counter(line.decode().strip() for line in lines if line.endswith(b"\n"))
    told.pop("opened", None)
    found = identities(kept(path))
    new = found - before
    return Kill(
        told.total(), (before - found).total() + (told - new).total(), (new - told).total(),
        len(orphans(mark)),
    )  # fmt: skip


def kept(path: Path) -> list[Trial]:
    """Return the trials in the journal; it must be whole."""
    if not path.exists():
        return []
    journal = open_trials(path, digest=_DIGEST, fresh=False)
    journal.close()
    return list(journal.entries)


def identities(trials: Sequence[Trial]) -> "Counter[str]":
    """Return how often each candidate was kept, among others and alone."""
    return Counter(f"{int(t.is_alone)} {t.workload} {t.config}" for t in trials)


def orphans(mark: str) -> list[int]:
    """Return processes of the child that live on though they had time to end."""
    end = time.monotonic() + _PATIENCE_S
    while found := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                    if is_marked(pid, mark)]:  # fmt: skip
        if time.monotonic() > end:
            return found
        time.sleep(0.1)
    return []


def is_marked(pid: int, mark: str) -> bool:
    """True if a process has the mark in its environment, and is more than a dead entry."""
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def finish(path: Path) -> None:
    """Let the tuner go on to its end."""
    with start(path, "last") as child:
        assert child.stderr is not None
        _, errors = child.communicate()
        if child.returncode != 0:
            raise RuntimeError(f"the tuner failed: {errors.decode(errors='replace')[-2000:]}")


def main() -> None:
    """Kill, finish and write the table."""
    draw = random.Random(0)
    kills = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.jsonl"
        for i in range(KILLS):
            # every fifth while it starts; the others from the journal's opening on
            after = 0 if i % 5 == 0 else draw.randint(1, 1 + _MOST)
            kills.append(kill_once(path, after=after, pause_s=draw.uniform(0, 0.2)))
            print(f"kill {i + 1}: {kills[-1]}", flush=True)
        before = len(kept(path))
        finish(path)
        trials = kept(path)
    each = identities(trials)
    counted = sum(not trial.is_alone for trial in trials)
    twice = sum(times > 1 for times in each.values())
    failed = Counter(trial.outcome.value for trial in trials if not trial.is_ok)
    rows = [
        ("kills", str(len(kills)), str(KILLS)),
        ("of them before the first trial of the run", str(sum(k.told == 0 for k in kills)), ""),
        ("trials told as kept before a kill", str(sum(k.told for k in kills)), ""),
        ("told and lost", str(sum(k.lost for k in kills)), "0"),
        ("kept, killed before it was told", str(sum(k.beyond for k in kills)), "at most 1 a kill"),
        ("workers left behind by a kill", str(sum(k.orphans for k in kills)), "0"),
        ("trials when the last run began", str(before), ""),
        ("trials at its end, finalists left out", str(counted), str(BUDGET)),
        ("candidates tried twice", str(twice), "0"),
        (
            "candidates that failed",
            ", ".join(f"{count} {what}" for what, count in sorted(failed.items())),
            "",
        ),
    ]
    write_result(
        "tune_kills",
        title=f"Trials after {KILLS} kills of a tuner",
        command="python -m benchmarks.tune_kills",
        words="Two clients and a server tune six simulated operators in real processes; some"
        " candidates end their worker. The tuner is killed with SIGKILL after a random number of"
        f" trials (0 to {_MOST}) and a random pause, and goes on with the same journal each time.",
        columns=("what", "found", "to reach"),
        rows=rows,
    )


if __name__ == "__main__":
    main()
