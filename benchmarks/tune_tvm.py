"""Our tuning with TVM against MetaSchedule's own `tune_tasks`: wall time, and what comes of it.

    python -m benchmarks.tune_tvm                      # about 25 minutes on a quiet machine
    python -m benchmarks.tune_tvm --seeds 0 --trials 32 --no-installed

The model is a small BERT (4 layers, width 256, 4 heads, 1024 inside, 1 x 128 x 256 embeddings in),
tuned for one thread. Each run is a fresh process; the runs of a seed follow one another, so that a
machine that drifts does so for all. At the end all compiled models are measured by turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.metaschedule import run_stock
from benchmarks.tables import RESULTS, write_result
from slicewise.measure.quiet import bound_cores, core_share, wait_for_quiet

NAME = "tune_tvm"
PIECE = 8
TRIALS = 96
CLIENTS = 2
# Candidates of the run with TVM as it is installed, which takes minutes for each batch.
INSTALLED_TRIALS = 24
ROUNDS = 4
_LIMIT_S = 1500.0
_PATIENCE_S = 60.0
STOCK, OURS, LIKE, INSTALLED = "stock", "ours", "ours-stock-search", "stock-as-installed"
Run = dict[str, Any]


# --- the model


def export_model(path: Path) -> None:
    """Write the model as ONNX, with random weights."""
    import torch
    from torch import nn

    from slicewise.graph.frontends.zoo import import_torchvision

    import_torchvision()  # transformers imports it where it can
    from transformers import BertConfig, BertModel

    class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
        """BERT on embeddings."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(
                BertConfig(
                    hidden_size=256,
                    num_hidden_layers=4,
                    num_attention_heads=4,
                    intermediate_size=1024,
                )
            )

        def forward(self, x: "torch.Tensor") -> Any:
            return self.bert(inputs_embeds=x).last_hidden_state

    torch.manual_seed(0)
    program = torch.onnx.export(Encoder().eval(), (torch.randn(1, 128, 256),), dynamo=True)
    assert program is not None
    program.save(str(path))


# --- runs, each in a process of its own


def run_ours(
    model: Path, folder: Path, *, clients: int, search: str, seed: int, trials: int
) -> Run:
    """Tune with `clients` on cores of their own and a server on the last core."""
    from slicewise.core.share import Mechanism, Share
    from slicewise.core.tuning import Budget
    from slicewise.execute.crews._base import make_crew
    from slicewise.tune.run import RunSettings, run_tuning

    task, prepared = _prepared(model, folder, search)
    core = Share(Mechanism.CORES, cores=bound_cores()[-1:])
    seats = _seats(prepared.problem, core, clients)
    # a default is measured for each operator besides; the stock tuner knows none
    budget = Budget(trials=trials + len(prepared.workloads))
    settings = RunSettings(budget, piece_size=PIECE, seed=seed)
    with closing(make_crew("local")) as crew:
        found = run_tuning(
            crew, prepared.workloads, seats, settings=settings, keep=lambda _: None, progress=_say
        )
    artifact = _engine().finish(task, prepared, found.best)
    assert artifact.after is not None
    names = {workload.key: workload.name for workload in prepared.workloads}
    phases = found.phases
    searched = [trial for trial in found.trials if not trial.is_alone]
    defaults = {workload.default_config for workload in prepared.workloads}
    return {
        "schedule": OURS if search == "lean" else LIKE,
        "clients": clients,
        "wall_s": phases.wall_s,
        "search_s": phases.search_s,
        "build_s": phases.build_s,
        "measure_s": phases.measure_s,
        "startup_s": found.client_start_s,
        "candidates": sum(trial.config not in defaults for trial in searched),
        "defaults": sum(trial.config in defaults for trial in searched),
        "failed": sum(not trial.is_ok for trial in searched),
        "held_s": sum(piece.held_s for piece in found.pieces),
        "holds": list(seats.holds.get(0, ())),
        "notes": [str(note) for note in found.notes],
        "library": artifact.after.subject.location,
        "pieces": [
            {
                "workload": names[piece.workload],
                "size": piece.size,
                "search_s": piece.search_s,
                "build_s": piece.build_s,
                "measure_s": piece.measure_s,
            }
            for piece in found.pieces
        ],
    }


def _seats(problem: object, core: Any, clients: int) -> Any:
    from slicewise.core.seating import seat_tuners
    from slicewise.flows.tuning.workers import client_maker, server_maker
    from slicewise.tune.run import Seats

    made = seat_tuners(bound_cores(), share=core, clients=clients)
    return Seats(
        clients=tuple(client_maker("tvm", problem, seat.share) for seat in made.clients),
        servers=tuple(server_maker("tvm", problem, "cpu", seat.share) for seat in made.servers),
        holds=dict(enumerate(made.holds)),
    )


def _engine() -> Any:
    from slicewise.tune.backends._base import load_engine

    return load_engine("tvm")


def _prepared(model: Path, folder: Path, search: str) -> tuple[Any, Any]:
    """Return the task for one thread, and the operators with their predicted weights."""
    from slicewise.flows.load import load
    from slicewise.flows.measure import target_here
    from slicewise.flows.tuning.options import TuneOptions
    from slicewise.flows.tuning.task import make_plan, make_task

    target = target_here("cpu", share=f"cores:{bound_cores()[-1]}")
    options = TuneOptions(engine="tvm", threads=1, engine_options={"search": search})
    task = make_task(make_plan(load(str(model)), target, options), options, folder=folder)
    # the compiled models are measured together at the end
    task = replace(task, measure=_not_now)
    return task, _engine().prepare(task)


def _not_now(_: object) -> Any:
    from slicewise.core.errors import MeasureError

    raise MeasureError("measured later")


def _say(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


# --- all of them


def jobs(*, is_first: bool, with_installed: bool) -> list[tuple[str, int]]:
    """Return the runs of a seed: schedule and clients."""
    listed = [(STOCK, 1), (OURS, CLIENTS), (OURS, 1), (LIKE, CLIENTS)]
    return [*listed, (INSTALLED, 1)] if is_first and with_installed else listed


def apart(schedule: str, clients: int, seed: int, trials: int, model: Path, folder: Path) -> Run:
    """Run one of them in a process of its own and return what it told."""
    folder.mkdir(parents=True)
    out = folder / "run.json"
    share = wait_for_quiet(bound_cores(), patience_s=_PATIENCE_S)
    command = [
        sys.executable, "-m", "benchmarks.tune_tvm", "--one", schedule, "--clients", str(clients),
        "--seeds", str(seed), "--trials", str(trials), "--model", str(model), "--out", str(out),
    ]  # fmt: skip
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "SLICEWISE_HOME": str(folder / "home")}
        subprocess.run(
            command, check=True, stdout=log, stderr=log, timeout=_LIMIT_S, env=environment
        )
    run: Run = json.loads(out.read_text())
    run |= {
        "seed": seed,
        "core_share_before": share,
        "core_share_after": core_share(bound_cores(), duration_s=0.5),
        "process_s": time.perf_counter() - started,
    }
    run["busy_share"] = run["measure_s"] / run["wall_s"]
    # what was measured beside the pieces are finalists, and no tuner works meanwhile
    quick_s = sum(piece["measure_s"] for piece in run["pieces"])
    run["busy_share_in_search"] = quick_s / (run["wall_s"] - (run["measure_s"] - quick_s))
    if schedule == INSTALLED:
        done, of = len(run["pieces"]), -(-TRIALS // PIECE)
        each_s = (run["wall_s"] - run["startup_s"]) / done
        run |= {"measured_wall_s": run["wall_s"], "batches": done}
        run["wall_s"] = run["startup_s"] + each_s * of
    print(
        f"{schedule}, {clients} client{'s' if clients > 1 else ''}, seed {seed}:"
        f" {run['wall_s']:.1f} s, {run['candidates']} candidates, measuring"
        f" {100 * run['busy_share']:.0f} %, cores ours {share}",
        flush=True,
    )
    return run


def measure_all(runs: Sequence[Run], model: Path) -> float:
    """Add `latency_ms` to each run: all compiled models by turns, on one thread of one core.

    Return that of ONNX Runtime beside them.
    """
    from slicewise.core.measurement import Job, Protocol, Subject
    from slicewise.core.share import Mechanism, Share
    from slicewise.flows.load import load
    from slicewise.flows.measure import MeasureOptions, jobs_of, run_job, target_here

    (base,) = jobs_of(load(str(model)), target_here("cpu"), [1], options=MeasureOptions(threads=1))
    core = Share(Mechanism.CORES, cores=bound_cores()[-1:])
    protocol = Protocol(min_samples=15, max_samples=100, budget_s=1.5)
    base = replace(base, share=core, protocol=protocol)
    asked: list[Job] = [base]
    for run in runs:
        location = run["library"]
        subject: Subject = replace(
            base.subject, location=location, form="tvm", open=Path(location).as_posix
        )
        asked.append(replace(base, subject=subject, runtime="tvm"))
    samples: list[list[float]] = [[] for _ in asked]
    for number in range(ROUNDS):
        for place, job in enumerate(asked):
            made = run_job(job)
            assert made.latency_ms is not None, made.error
            samples[place].append(made.latency_ms.value)
        print(f"measured all, {number + 1} of {ROUNDS}", flush=True)
    medians = [statistics.median(each) for each in samples]
    for run, median in zip(runs, medians[1:], strict=True):
        run["latency_ms"] = median
    return medians[0]


def summarise(runs: Sequence[Run], onnxruntime_ms: float) -> str:
    """Return the figures that the goals speak of, as a sentence each."""
    stock = _of(runs, STOCK, 1)
    told = []
    for name, group in (
        (f"{CLIENTS} clients", _of(runs, OURS, CLIENTS)),
        ("1 client", _of(runs, OURS, 1)),
        (f"{CLIENTS} clients with the stock search", _of(runs, LIKE, CLIENTS)),
    ):
        told.append(
            f"{name} against stock: wall time {_ratio(group, stock, 'wall_s'):.2f}, busy share"
            f" {_ratio(group, stock, 'busy_share'):.2f} times (while searching"
            f" {_ratio(group, stock, 'busy_share_in_search'):.2f}), tuned latency"
            f" {100 * (_ratio(group, stock, 'latency_ms') - 1):+.1f} %"
        )
    installed = _of(runs, INSTALLED, 1)
    if installed:
        times = 1 / _ratio(_of(runs, OURS, CLIENTS), installed, "wall_s")
        told.append(f"stock as installed takes {times:.1f} times as long as {CLIENTS} clients")
    told.append(f"ONNX Runtime takes {onnxruntime_ms:.2f} ms beside them")
    return ". ".join(text[0].upper() + text[1:] for text in told) + "."


def _of(runs: Sequence[Run], schedule: str, clients: int) -> list[Run]:
    return [run for run in runs if run["schedule"] == schedule and run["clients"] == clients]


def _median(runs: Sequence[Run], name: str) -> float:
    return statistics.median(float(run[name]) for run in runs)


def _ratio(runs: Sequence[Run], others: Sequence[Run], name: str) -> float:
    return _median(runs, name) / _median(others, name)


def write(runs: Sequence[Run], onnxruntime_ms: float) -> None:
    """Write the table and the runs."""
    columns = (
        "schedule", "clients", "seed", "wall s", "search s", "build s", "measure s",
        "busy share %", "candidates", "latency ms", "cores ours %",
    )  # fmt: skip
    rows = [
        (
            run["schedule"], str(run["clients"]), str(run["seed"]), f"{run['wall_s']:.1f}",
            f"{run['search_s']:.1f}", f"{run['build_s']:.1f}", f"{run['measure_s']:.1f}",
            f"{100 * run['busy_share']:.0f}", str(run["candidates"]),
            f"{run['latency_ms']:.2f}", _percent(run["core_share_before"]),
        )
        for run in runs
    ]  # fmt: skip
    write_result(
        NAME,
        title="Tuning with TVM: our schedule against MetaSchedule's",
        command="python -m benchmarks.tune_tvm",
        words=summarise(runs, onnxruntime_ms),
        columns=columns,
        rows=rows,
        more=_WORDS,
    )
    path = RESULTS / f"{NAME}.json"
    document = json.loads(path.read_text())
    # the runs that a simulation is checked against are those of our own search and of stock
    document["runs"] = [
        {key: value for key, value in run.items() if key not in _left_out(run)} for run in runs
    ]
    document["onnxruntime_ms"] = onnxruntime_ms
    path.write_text(json.dumps(document, indent=1) + "\n")


def _left_out(run: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({"library", *(("pieces",) if run["schedule"] == LIKE else ())})


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


_WORDS = """\
Ratios are of medians over the seeds. Model: BERT with 4 layers, width 256, 4 heads, 1024 inside,
on 1 x 128 x 256 embeddings, random weights; target: this processor with one thread.

- `stock`: `tune_tasks` on both cores (2 build workers, 2 search threads), batches of 8, workers
  that import the instructions of this processor alone. `stock-as-installed`: they import all, as
  TVM comes; measured over a few batches, wall time scaled to the number of the others.
- `ours`: clients pinned to a core each, a server pinned to the last core, whose client stands
  still while it measures; a sample of the design space until a cost model is trained.
  `ours-stock-search`: the same with the population that MetaSchedule evolves in any case.
- Wall time is from the extracted operators to the last measurement: start of the workers included,
  and for ours the finalists measured alone and a default for each operator. Search and build are
  summed over the clients. `candidates` are without those defaults.
- `latency ms`: the compiled model on one thread, all by turns at the end. `cores ours`: what a
  busy loop got of both cores before the run.
"""


def main() -> None:
    """Run all, or one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--no-installed", action="store_true")
    parser.add_argument("--one", default="")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seeds = [int(text) for text in given.seeds.split(",")]
    if given.one:
        given.out.write_text(json.dumps(_one(given, seeds[0])))
        return
    with tempfile.TemporaryDirectory(prefix="slicewise-tune-") as made:
        folder = Path(made)
        model = folder / "bert_small.onnx"
        export_model(model)
        runs = []
        for seed in seeds:
            for schedule, clients in jobs(
                is_first=seed == seeds[0], with_installed=not given.no_installed
            ):
                trials = min(given.trials, INSTALLED_TRIALS)
                if schedule != INSTALLED:
                    trials = given.trials
                place = folder / f"{schedule}-{clients}-{seed}"
                runs.append(apart(schedule, clients, seed, trials, model, place))
        onnxruntime_ms = measure_all(runs, model)
    write(runs, onnxruntime_ms)
    print(summarise(runs, onnxruntime_ms))


def _one(given: argparse.Namespace, seed: int) -> Run:
    folder = given.out.parent
    if given.one in (STOCK, INSTALLED):
        return run_stock(
            given.model,
            folder,
            seed=seed,
            trials=given.trials,
            piece=PIECE,
            is_installed=given.one == INSTALLED,
        ) | {"schedule": given.one}
    search = "lean" if given.one == OURS else "stock"
    return run_ours(
        given.model, folder, clients=given.clients, search=search, seed=seed, trials=given.trials
    )


if __name__ == "__main__":
    main()
