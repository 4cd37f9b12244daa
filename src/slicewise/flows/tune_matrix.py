"""`tune --matrix`: one fixed set of candidates measured at several shares."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, SupportsIndex

from slicewise.core.errors import TuningError, UsageError
from slicewise.core.graph import Graph
from slicewise.core.notes import Note, unique_notes
from slicewise.core.share import Mechanism
from slicewise.core.tuning import Phases
from slicewise.flows.load import ModelLike
from slicewise.flows.measure import Target, target_here
from slicewise.flows.predict import describe
from slicewise.flows.tune import read_model
from slicewise.flows.tuning.options import TuneOptions
from slicewise.flows.tuning.result import MatrixResult
from slicewise.flows.tuning.sweep import AtShare, Sweep
from slicewise.flows.tuning.task import make_plan, make_task, run_name

if TYPE_CHECKING:
    from slicewise.tune.backends._base import Engine

# Each candidate is measured so often at each share, all candidates in between, so that a machine
# that grows slower does so for all.
ROUNDS = 3


def tune_matrix(
    model: ModelLike,
    *,
    shares: Sequence[str],
    device: str | None = None,
    batch: SupportsIndex | None = None,
    options: TuneOptions | None = None,
    progress: Callable[[str], None] | None = None,
    rounds: int = ROUNDS,
) -> MatrixResult:
    """Return what a model tuned at one share costs at another, for all pairs of `shares`.

    At most `options.candidates` candidates of each workload, proposed for the largest share and
    the smallest, are measured at every share, `rounds` times each, alone on the device. Errors
    are those of `tune`.

    >>> rehearsed = TuneOptions(engine="simulated", candidates=4, executor="inline")
    >>> made = tune_matrix(model, shares=["100", "50"], device="cpu", options=rehearsed, rounds=1)
    >>> [cell.penalty.value for cell in made.total.cells if cell.tuned_at == cell.run_at]
    [1.0, 1.0]
    """
    from slicewise.execute.crews._base import make_crew
    from slicewise.tune.backends._base import load_engine

    asked = options or TuneOptions()
    if len(set(shares)) < 2:
        raise UsageError(
            f"a matrix compares shares, given {', '.join(shares) or 'none'}; give two or more, as"
            " in shares=['50', '100']"
        )
    began = time.perf_counter()
    engine = load_engine(asked.engine)
    graph, whole = read_model(model, device, batch, asked, engine=engine, progress=progress)
    notes = engine.check()
    at = _taken_up(graph, whole, shares, engine=engine, options=asked, progress=progress)
    with closing(make_crew(asked.executor)) as crew:
        sweep = Sweep(crew, at, options=asked, place=whole.place, progress=progress)
        sweep.propose()
        sweep.measure(rounds=rounds)
    every = (*notes, *(note for each in at.values() for note in each.prepared.notes))
    return _result(graph, whole, sweep, at, options=asked, notes=every, began_s=began)


def _taken_up(
    graph: Graph,
    whole: Target,
    shares: Sequence[str],
    *,
    engine: "Engine",
    options: TuneOptions,
    progress: Callable[[str], None] | None,
) -> dict[str, AtShare]:
    """Return the task as the engine takes it up for each share, the smallest first."""
    from slicewise.store.home import home

    found: dict[str, AtShare] = {}
    for text in shares:
        target = target_here(whole.place, share=text)
        plan = make_plan(graph, target, options, progress=progress)
        name = target.slice or "100%"
        if name in found:
            raise UsageError(f"shares {', '.join(shares)} name {name} twice; give each once")
        folder = home() / "tune" / run_name(plan, options)
        folder.mkdir(parents=True, exist_ok=True)
        prepared = engine.prepare(make_task(plan, options, folder=folder))
        found[name] = AtShare(prepared, target.share)
    return {name: found[name] for name in sorted(found, key=_size)}


def _size(name: str) -> float:
    """Return the size of a share among others: percent, or slices of a MIG profile."""
    return float(name.rstrip("%").split("g.")[0])


def _result(
    graph: Graph,
    whole: Target,
    sweep: Sweep,
    at: dict[str, AtShare],
    *,
    options: TuneOptions,
    notes: Sequence[Note],
    began_s: float,
) -> MatrixResult:
    from slicewise.tune.matrix import matrix_of, total_of

    able = sweep.able()
    if not able:
        told = "; ".join(dict.fromkeys(note.text for note in sweep.notes))
        raise TuningError(
            f"no candidate of {graph.name} ran at each of {', '.join(sweep.shares)}"
            f"{': ' + told if told else ''}; give other shares, or more candidates"
        )
    matrices = tuple(
        matrix_of(each, sweep.samples[each.key], sweep.shares, seed=options.seed) for each in able
    )
    first = at[sweep.shares[0]]
    mechanism = Mechanism.CORES if first.share is None else first.share.mechanism
    wall_s = time.perf_counter() - began_s
    return MatrixResult(
        model=describe(graph),
        engine=first.prepared.engine,
        engine_version=first.prepared.version,
        device=whole.device.name,
        mechanism=mechanism.value,
        batch=graph.batch_size,
        shares=sweep.shares,
        candidates=sum(len(each) for each in sweep.chosen.values()),
        total=total_of(matrices, {each.key: each.count for each in able}, sweep.shares),
        workloads=matrices,
        phases=Phases(sweep.search_s, sweep.build_s, sweep.measure_s, wall_s),
        notes=unique_notes((*notes, *sweep.notes, *sweep.left_out())),
    )
