"""`pack`: workloads and cards -> slices, batches and processes, on as few cards as can be.

The rooms meet here: models are predicted, predictions shared among processes, judged against the
targets, packed, checked by an independent verifier and, where asked, played request by request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from slicewise.core.errors import PredictionError, UsageError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.packing import (
    GpuStock,
    LatencyModel,
    Offer,
    Packing,
    PackObjective,
    PackProblem,
    PlacedGpu,
)
from slicewise.core.units import format_ms
from slicewise.flows.packing.calm import calmed
from slicewise.flows.packing.fleet import Part, fleet_notes, parts_of, stock_of
from slicewise.flows.packing.offers import Served, served
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.result import PackResult, Simulated, left_over
from slicewise.flows.packing.standing import current_of, refuse_uncounted, ways_standing
from slicewise.flows.packing.ways import MEASURED, Reader, predicted_ways
from slicewise.flows.packing.workload import WorkloadSpec, refuse_duplicates
from slicewise.flows.predict import DeviceLike

Workloads = str | PathLike[str] | Sequence[WorkloadSpec]
Progress = Callable[[str], None]
# Requests that are played for a workload: fewer where there are many, so that all take a minute.
_FEWEST, _MOST, _IN_ALL = 20_000, 100_000, 5_000_000


def pack(
    workloads: Workloads,
    *,
    devices: Sequence[DeviceLike | None],
    counts: Sequence[int | None] = (),
    options: PackOptions | None = None,
    progress: Progress | None = None,
) -> PackResult:
    """Return where workloads run, on which slices and how, so that all targets are met on the
    fewest cards, with a proven bound on how few could do.

    `workloads` is the path of a YAML file or a list of `WorkloadSpec`. `counts` says how many of
    each kind of `devices` there are, or of every kind if it holds one number; none: as many as
    needed. Rates beyond the cards that there are come back in `packing.unserved`. `Infeasible`
    where a workload is answered in time by no slice of any of the cards, `UsageError` and
    `DeviceError` for what cannot be asked, `PredictionError` if `strict` and anything was assumed.

    >>> asked = [WorkloadSpec("cat", model=model, rate_per_s=200, latency_ms=100)]
    >>> made = pack(asked, devices=["a100-sxm4-80gb"], counts=[8])
    >>> made.packing.gpus_used, made.packing.unserved
    (1, ())
    """
    from slicewise.slices.verify import verify

    asked = options or PackOptions()
    specs = specs_of(workloads)
    further = () if asked.what_if is None else specs_of(asked.what_if)
    stock = stock_of(devices, counts=counts, costs=asked.costs)
    standing, notes = _standing(asked, stock)
    reader = Reader(_parts(stock, standing), asked.predict, progress)
    known = {spec.name: served_of(spec, reader, asked, standing) for spec in specs}
    wanted = {
        **known,
        **{spec.name: served_of(spec, reader, asked, standing) for spec in further},
    }
    current, gone = current_of(standing, known)
    problem = _problem(known, stock, asked, current)
    before = None
    if further:
        before = _solve(problem, asked, progress)
        problem = _problem(wanted, stock, asked, current_of(before.gpus, wanted)[0])
    packing = calmed(problem, _solve(problem, asked, progress))
    verify(problem, packing)
    played: tuple[Simulated, ...] = ()
    if asked.simulates or asked.model is LatencyModel.QUEUE:
        played = _play(problem, packing, asked, progress)
    made = PackResult(
        problem=problem,
        packing=packing,
        served=tuple(wanted.values()),
        options=asked,
        left_over=left_over(problem, packing.gpus),
        simulated=played,
        before=before,
        added=tuple(spec.name for spec in further),
        standing=current,
    )
    made = replace(made, notes=_notes(made, [*fleet_notes(stock), *notes, *gone]))
    if asked.strict and made.notes:
        listed = "; ".join(str(note) for note in made.notes)
        raise PredictionError(
            f"strict: {len(made.notes)} assumptions were made: {listed}; leave strict out to"
            " accept"
        )
    return made


def specs_of(workloads: Workloads) -> tuple[WorkloadSpec, ...]:
    """Return the workloads of a file or a list; `UsageError` where two have one name."""
    if isinstance(workloads, str | PathLike):
        from slicewise.flows.packing.workloads_file import read_workloads

        return read_workloads(Path(workloads))
    listed: object = workloads
    if not isinstance(listed, Sequence) or not listed:
        raise UsageError(
            f"workloads {workloads!r}: give the path of a YAML file, or a list of WorkloadSpec"
        )
    for each in workloads:
        if not isinstance(each, WorkloadSpec):
            raise UsageError(f"workload {each!r} is a {type(each).__name__}; give a WorkloadSpec")
    refuse_duplicates(workloads)
    return tuple(workloads)


def _standing(
    options: PackOptions, stock: Sequence[GpuStock]
) -> tuple[tuple[PlacedGpu, ...], tuple[Note, ...]]:
    """Return the cards of the current layout, none where there is none."""
    if options.current is None:
        return (), ()
    from slicewise.flows.packing.current_file import read_current

    found = read_current(Path(options.current), [each.device for each in stock])
    refuse_uncounted(found.gpus, stock)
    return found.gpus, found.notes


def _parts(stock: Sequence[GpuStock], standing: Sequence[PlacedGpu]) -> tuple[Part, ...]:
    """Return every part of every kind of card, those that stand included."""
    made: list[Part] = []
    for each in stock:
        also = {
            placed.profile
            for gpu in standing
            if gpu.device == each.device.name
            for placed in gpu.slices
            if placed.profile is not None
        }
        made += parts_of(each.device, also=also)
    return tuple(made)


def served_of(
    spec: WorkloadSpec, reader: Reader, options: PackOptions, standing: Sequence[PlacedGpu]
) -> Served:
    """Return a workload with all ways to serve it, those that stand already among them."""
    if spec.profile is not None:
        from slicewise.flows.packing.profile_ways import measured_ways

        counts_energy = PackObjective(options.objective) is PackObjective.ENERGY
        ways, notes = measured_ways(
            spec, reader.profile(spec), reader.parts, tells_energy=counts_energy
        )
    else:
        batches, processes = ways_standing(standing, spec.name)
        ways, notes = predicted_ways(
            spec,
            reader,
            batches=sorted({*spec.batches_tried, *batches}),
            processes=sorted({*spec.processes_tried, *processes}),
        )
    return served(spec, ways, options, notes)


def _problem(
    workloads: Mapping[str, Served],
    stock: tuple[GpuStock, ...],
    options: PackOptions,
    current: tuple[PlacedGpu, ...],
) -> PackProblem:
    return PackProblem(
        workloads=tuple(each.workload for each in workloads.values()),
        stock=stock,
        objective=PackObjective(options.objective),
        current=current,
    )


def _solve(problem: PackProblem, options: PackOptions, progress: Progress | None) -> Packing:
    """Return a packing that an independent check agrees with."""
    from slicewise.slices.pack import pack as solve
    from slicewise.slices.verify import verify

    if progress is not None:
        progress("packing")
    made = solve(
        problem,
        time_limit_s=options.time_limit_s,
        seed=options.seed,
        workers=options.workers,
        told=progress,
    )
    verify(problem, made)
    return made


def _play(
    problem: PackProblem, packing: Packing, options: PackOptions, progress: Progress | None
) -> tuple[Simulated, ...]:
    """Return what simulating the requests of each workload comes to, with its safety."""
    from slicewise.slices.simulate import arrivals_of, simulate

    played = []
    requests = max(_FEWEST, min(_MOST, _IN_ALL // max(1, len(problem.workloads))))
    uses: dict[str, list[tuple[Offer, float]]] = {}
    for gpu in packing.gpus:
        for each in gpu.slices:
            if each.workload is not None and each.offer is not None and each.rate_per_s > 0:
                uses.setdefault(each.workload, []).append((each.offer, each.rate_per_s))
    for workload in problem.workloads:
        parts = uses.get(workload.name)
        if not parts:
            continue
        if progress is not None:
            progress(f"simulating {workload.name}")
        safety = min(
            options.safety_of(is_measured=part.serving.source == MEASURED) for part, _ in parts
        )
        found = simulate(
            parts,
            percentiles=(workload.percentile,),
            requests=requests,
            seed=options.seed,
            arrivals=arrivals_of(options.model),
            safety=safety,
        )
        played.append(
            Simulated(
                workload.name,
                workload.percentile,
                found.percentiles_ms[0],
                workload.latency_ms,
                found.requests,
            )
        )
    return tuple(played)


def _notes(made: PackResult, first: Sequence[Note]) -> tuple[Note, ...]:
    """Return all notes: of the call, of each workload, of what was chosen, of the search."""
    notes = list(first)
    for outcome, served_ in zip(made.outcomes, made.served, strict=True):
        notes += served_.workload.notes
        for use in outcome.uses:
            way = served_.way(use.offer)
            if way is not None:
                notes += (*way.notes, *(() if way.prediction is None else way.prediction.notes))
    for played in made.simulated:
        if not played.is_met:
            text = (
                f"workload {played.workload!r}: {format_ms(played.latency_ms)} at"
                f" {played.percentile:g} % in simulation, its target is"
                f" {format_ms(played.target_ms)}"
            )
            notes.append(Note("simulation-missed", text))
    return unique_notes([*notes, *made.packing.notes])
