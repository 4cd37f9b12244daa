"""What the serving engine gains on real models, against onnxruntime's defaults on its cores.

    python -m benchmarks.tune_serving              # all models, about 12 minutes
    python -m benchmarks.tune_serving --smoke      # one model, few candidates
    python -m benchmarks.tune_serving --models magika,nudenet --cases 50,100

Three cases: one core (share 50 %), both cores, and both with a busy neighbour on one of them. For
each the engine tries candidates as in a run of `slicewise tune`, through its own client, server
and `finish`, without the crew: one model at a time, nothing overlaps. Then default and winners are
measured anew by turns, and the table shows these figures, not those of the search.
"""

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.serving_models import FOLDER, MODELS, Model, fetched, licence_of, saved_inputs
from benchmarks.serving_models import unpacked as file_of
from benchmarks.tables import markdown, write_result
from slicewise.core.graph import Graph
from slicewise.core.measurement import Job, Protocol
from slicewise.core.tuning import (
    Artifact,
    Piece,
    Prepared,
    SearchOrder,
    Trial,
    TrialOutcome,
    Tuned,
    TuneTask,
    best_of,
)
from slicewise.flows.load import load
from slicewise.flows.measure import run_job, target_here
from slicewise.flows.tuning.options import TuneOptions
from slicewise.flows.tuning.task import make_plan, make_task
from slicewise.measure.quiet import bound_cores, core_share
from slicewise.tune.backends._base import CAREFUL, QUICK
from slicewise.tune.backends.serving import ENGINE
from slicewise.tune.backends.serving.settings import AS_IS, Settings

TRIALS = 20
TURNS = 5
FINALISTS = 1
SLOWER = 0.97  # a winner below this part of the default's speed is a failure
_ONE = Protocol(min_samples=10, max_samples=100, budget_s=0.4, relative_width=0.03)
SMOKE = "ppocr-cls"
_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
CASES = {"50": "one core", "100": "two cores", "shared": "two cores, one of them shared"}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried: candidates, turns of re-measuring, the protocol of these."""

    trials: int = TRIALS
    turns: int = TURNS


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one model in one case. Gains are medians over the turns; `worst` the least."""

    model: Model
    case: str
    candidates: int
    default_ms: float
    plain_gain: float
    plain_settings: str
    int8_gain: float
    int8_settings: str
    worst: float
    int8_word: str
    quiet: float


def main() -> None:
    """Tune, measure anew, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usual = ",".join(each.name for each in MODELS if each.name != SMOKE)
    parser.add_argument("--models", default=usual)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--smoke", action="store_true", help="one model, few candidates, no table")
    given = parser.parse_args()
    names = [SMOKE] if given.smoke else given.models.split(",")
    chosen = [each for each in MODELS if each.name in names]
    effort = Effort(6, 2) if given.smoke else Effort(given.trials)
    began = time.monotonic()
    quiet = core_share(bound_cores(), duration_s=1.0)
    say(f"busy loops get {100 * (quiet or 0):.0f} % of the cores")
    rows: list[Row] = []
    for model in chosen:
        for case in given.cases.split(","):
            rows.append(run(model, case, effort))
            say(told(rows[-1], time.monotonic() - began))
    report(rows, quiet or 0.0, time.monotonic() - began, is_kept=not given.smoke)


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(model: Model, case: str, effort: Effort) -> Row:
    """Tune one model in one case and measure what was found."""
    graph = read(model)
    with tempfile.TemporaryDirectory() as scratch, neighbour(case):
        task = made_task(model, graph, case, Path(scratch))
        prepared = ENGINE.prepare(task)
        trials = searched(prepared, effort)
        plain = finished(task, prepared, trials, is_int8=False)
        best = best_of(trials)
        has_int8 = best is not None and is_of_int8(best)
        with_int8 = finished(task, prepared, trials, is_int8=True) if has_int8 else plain
        assert plain.before is not None and plain.after is not None
        assert with_int8.after is not None
        jobs = [plain.before, plain.after, with_int8.after]
        times = by_turns(jobs, effort.turns)
        share = core_share(bound_cores() if case != "50" else bound_cores()[:1])
        gains = [[turn[0] / each for each in turn] for turn in times]
        plain_gain, int8_gain = (statistics.median(g[i] for g in gains) for i in (1, 2))
        return Row(
            model,
            case,
            sum(not trial.is_alone for trial in trials),
            statistics.median(turn[0] for turn in times),
            plain_gain,
            settings_of(plain),
            int8_gain,
            settings_of(with_int8),
            min(min(g[1:]) for g in gains),
            int8_word(with_int8, trials),
            share or 0.0,
        )


def read(model: Model) -> Graph:
    """Return the model's graph at batch 1."""
    if model.zoo:
        return load(model.zoo, batch=1)
    return load(str(file_of(model)), inputs=model.shapes)


def made_task(model: Model, graph: Graph, case: str, scratch: Path) -> TuneTask:
    """Return the task of a run of `slicewise tune` with the serving engine."""
    has_data = model.data is not None
    options = TuneOptions(
        engine="serving",
        share="50" if case == "50" else None,
        engine_options={"confirm": "2"},  # the turns below judge once more
        accuracy_data=next(iter(saved_inputs(model).values())).parent if has_data else None,
    )
    target = target_here("cpu", share=options.share)
    task = make_task(make_plan(graph, target, options), options, folder=scratch)
    # int8 does not depend on the share: it is made once for all cases
    kept = FOLDER / "int8" / model.name
    kept.mkdir(parents=True, exist_ok=True)
    (scratch / "int8").symlink_to(kept, target_is_directory=True)
    return task


def searched(prepared: Prepared, effort: Effort) -> list[Trial]:
    """Return the trials of a whole run: candidates in pieces, then the finalists alone."""
    (workload,) = prepared.workloads
    client, server = ENGINE.client(prepared.problem), ENGINE.server(prepared.problem)
    trials: list[Trial] = []
    built: dict[str, object] = {}
    for number in range(effort.trials):
        size = min(ENGINE.piece_size, effort.trials - len(trials))
        order = SearchOrder(Piece(number, workload.key, number, size, seed=number), tuple(trials))
        proposal = client.propose(order, ignore)
        trials += [*proposal.failed, *server.measure(proposal.built, QUICK, ignore)]
        built |= {each.config: each for each in proposal.built}
        if proposal.is_exhausted or len(trials) >= effort.trials:
            break
    final = {t.config for kind in (True, False) for t in fastest(trials, is_int8=kind)}
    final.add(workload.default_config)
    order = SearchOrder(
        Piece(effort.trials, workload.key, effort.trials, len(final), seed=0),
        rebuild=tuple(sorted(final)),
    )
    again = server.measure(client.propose(order, ignore).built, CAREFUL, ignore)
    return [*trials, *(replace(trial, is_alone=True) for trial in again)]


def ignore(_: object) -> None:
    """Take what a worker tells, and leave it."""


def fastest(trials: Sequence[Trial], *, is_int8: bool) -> list[Trial]:
    """Return the fastest trials with int8, or without."""
    good = [trial for trial in trials if trial.is_ok and is_of_int8(trial) is is_int8]
    return sorted(good, key=lambda t: t.latency_ms.value if t.latency_ms else 0.0)[:FINALISTS]


def is_of_int8(trial: Trial) -> bool:
    """True for a candidate in int8."""
    return Settings.parse(trial.config).numerics != AS_IS


def finished(
    task: TuneTask, prepared: Prepared, trials: Sequence[Trial], *, is_int8: bool
) -> Artifact:
    """Return what the engine makes of the best trial, among those without int8 or all."""
    (workload,) = prepared.workloads
    best = best_of([t for t in trials if is_int8 or not is_of_int8(t)])
    assert best is not None and best.latency_ms is not None, "the default did not run"
    tuned = Tuned(workload, best.config, best.latency_ms, len(trials))
    made = ENGINE.finish(task, prepared, {workload.key: tuned})
    kept = task.folder / ("with-int8" if is_int8 else "plain")  # the next one is written there too
    made.path.rename(kept)
    assert made.after is not None
    return replace(made, path=kept, after=_moved(made.after, kept / "model.onnx"))


def _moved(job: Job, path: Path) -> Job:
    from functools import partial

    subject = replace(job.subject, location=str(path), open=partial(str, str(path)))
    return replace(job, subject=subject)


def by_turns(jobs: Sequence[Job], turns: int) -> list[list[float]]:
    """Return the latency in ms of each job in each turn; equal jobs are measured once a turn."""
    times: list[list[float]] = []
    for _ in range(turns):
        known: dict[tuple[object, ...], float] = {}
        for job in jobs:
            key = _key(job)
            if key not in known:
                made = run_job(replace(job, protocol=_ONE))
                assert made.latency_ms is not None, made.error
                known[key] = made.latency_ms.value
        times.append([known[_key(job)] for job in jobs])
    return times


def _key(job: Job) -> tuple[object, ...]:
    return (job.runtime, job.precision, job.threads, tuple(sorted(job.options.items())))


@contextlib.contextmanager
def neighbour(case: str) -> Iterator[None]:
    """Keep the last core busy from another process, where the case has a shared core."""
    if case != "shared":
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _BUSY, str(bound_cores()[-1])])
    try:
        yield
    finally:
        process.kill()
        process.wait()


# --- words


def settings_of(artifact: Artifact) -> str:
    """Return the settings of an artefact in few words, those of the default left out."""
    import json

    told = json.loads((artifact.path / "config.json").read_text())
    default = {**asdict(Settings()), **told["default"], "compute": "f32"}
    changed = {k: v for k, v in told["settings"].items() if default[k] != v}
    if not changed:
        return "default"
    engine = changed.pop("engine", "")
    words = [engine, *(f"{name} {value}" for name, value in changed.items())]
    return ", ".join(filter(None, words))


def int8_word(artifact: Artifact, trials: Sequence[Trial]) -> str:
    """Return the agreement of the int8 that is served, or why none is."""
    if artifact.agreement is not None:
        return f"{artifact.agreement:.4g}"
    tried = [trial for trial in trials if is_of_int8(trial)]
    if any(trial.is_ok for trial in tried):
        return "not faster"
    codes = {note.code for t in tried if t.outcome is TrialOutcome.REFUSED for note in t.notes}
    words = {
        "no-accuracy-data": "refused: no data",
        "int8-disagrees": "refused: disagrees",
        "int8-refused": "refused",
    }
    if "int8-disagrees" in codes:
        return words["int8-disagrees"]
    return next((word for code, word in words.items() if code in codes), "none to make")


def told(row: Row, seconds: float) -> str:
    """Return a row as a line of progress."""
    return (
        f"{seconds:5.0f} s  {row.model.name:11} {CASES[row.case]:30} {row.default_ms:8.2f} ms"
        f"  x{row.plain_gain:.2f} ({row.plain_settings})  x{row.int8_gain:.2f}"
        f" ({row.int8_settings}; int8 {row.int8_word})"
    )


def mean_gain(gains: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, gains)))


def report(rows: Sequence[Row], quiet: float, seconds: float, *, is_kept: bool) -> None:
    """Write the tables, or show the summary where they are not kept."""
    cases = {case: [row for row in rows if row.case == case] for case in CASES}
    summary = [summary_row(CASES[case], some) for case, some in cases.items() if some]
    summary.append(summary_row("all", rows))
    heads = ("case", "models", "gain without int8", "gain with int8", "slowest", "over 3 % slower")
    shown = "\n".join(markdown(heads, summary))
    say(shown)
    if not is_kept:
        return
    columns = (
        "model", "cores", "default ms", "gain without int8", "settings", "gain with int8",
        "settings with int8", "int8 agreement", "worst turn", "candidates", "core share",
    )  # fmt: skip
    write_result(
        "tune_serving",
        title="The serving engine against onnxruntime's defaults",
        command="python -m benchmarks.tune_serving",
        words=(
            f"Batch 1, latency; medians of {TURNS} measurements of default and winners by turns,"
            " each in a process of its own on the share. Gain: default / winner. The int8 gate is"
            " 0.99. Busy loops got"
            f" {100 * quiet:.0f} % of the cores at the start; {seconds / 60:.0f} minutes in all,"
            f" {os.cpu_count()} cores."
        ),
        columns=columns,
        rows=[cells(row) for row in rows],
        more="\n".join(["## Geometric means", "", shown, "", "## Models", "", *sources(rows)]),
    )


def summary_row(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the means of some rows."""
    plain, int8 = [r.plain_gain for r in rows], [r.int8_gain for r in rows]
    slower = sum(gain < SLOWER for gain in (*plain, *int8))
    return (
        name, str(len(rows)), f"{mean_gain(plain):.2f}", f"{mean_gain(int8):.2f}",
        f"{min(*plain, *int8):.2f}", str(slower),
    )  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        row.model.name, CASES[row.case], f"{row.default_ms:.3g}", f"{row.plain_gain:.2f}",
        row.plain_settings, f"{row.int8_gain:.2f}", row.int8_settings, row.int8_word,
        f"{row.worst:.2f}", str(row.candidates), f"{row.quiet:.2f}",
    )  # fmt: skip


def sources(rows: Sequence[Row]) -> list[str]:
    """Return where the models come from, as a table."""
    models: Mapping[str, Model] = {row.model.name: row.model for row in rows}
    table = []
    for model in models.values():
        if model.wheel:
            number, licence = licence_of(fetched(model.wheel))
            origin = f"{model.wheel.partition('==')[0]} {number} ({licence}), trained"
        else:
            origin = f"{model.zoo}, random weights"
        data = (model.data.__doc__ or "").partition("\n")[0] if model.data else "none"
        table.append((model.name, model.what, origin, data.removeprefix("Return ").rstrip(".")))
    return markdown(("model", "what it is", "from", "real inputs"), table)


if __name__ == "__main__":
    main()
