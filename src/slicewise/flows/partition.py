"""`partition`: a model or a problem file -> pipeline stages, and how good the cut is at least."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import SupportsIndex

from slicewise.core.device import Device
from slicewise.core.errors import Infeasible, PartitionError, UsageError
from slicewise.core.notes import unique_notes
from slicewise.core.pipeline import Objective, Partition, PipelineProblem
from slicewise.flows.load import ModelLike, load
from slicewise.flows.partitioning.answers import checked, compact, joined
from slicewise.flows.partitioning.baselines import baselines
from slicewise.flows.partitioning.options import PartitionOptions, stages_asked, wishes_of
from slicewise.flows.partitioning.pipeline_material import Case, CutTensor, Material
from slicewise.flows.partitioning.result import PartitionCurve, PartitionResult
from slicewise.flows.partitioning.wishes import Wishes
from slicewise.flows.predict import PredictOptions

PartitionSubject = ModelLike | PipelineProblem


def partition(
    model: PartitionSubject,
    *,
    stages: SupportsIndex | None = None,
    device: str | Device | None = None,
    batch: SupportsIndex | None = None,
    options: PartitionOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> PartitionResult:
    """Return the cut of a model into at most `stages` pipeline stages with the least bottleneck,
    and a proven bound that no cut can beat.

    `model` is what `load` takes, the path of a problem file (`pipeline-workload/1`, .json), or a
    `PipelineProblem`. `device` is the one of all stages (None: this machine, or 'accel' of a
    problem file); unlike ones are `options.devices`. `stages` None is the number of devices.
    Ctrl-C and the time limit give the best cut until then, marked. `UsageError`, `ModelError`,
    `DeviceError`; `Infeasible` where no cut keeps the limits.

    >>> from slicewise.flows.partitioning.options import PartitionOptions
    >>> quick = PartitionOptions(time_limit_s=5)
    >>> made = partition(model, stages=4, device="a100-sxm4-80gb", batch=8, options=quick)
    >>> len(made.used) <= 4, made.partition.bound <= made.partition.bottleneck_ms
    (True, True)
    """
    asked = options or PartitionOptions()
    number = None if stages is None else stages_asked(stages)
    wishes = _with_device(wishes_of(asked), device, asked)
    material = _material(model, device, batch, asked, wishes, progress)
    count = _stages(material, wishes, number)
    return _solve_all(material, wishes, [count], asked, progress).results[0]


def partition_curve(
    model: PartitionSubject,
    *,
    stages: Iterable[SupportsIndex],
    device: str | Device | None = None,
    batch: SupportsIndex | None = None,
    options: PartitionOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> PartitionCurve:
    """Return the cut for each of several numbers of stages; see `partition`.

    The time limit is shared: each number gets an equal part of what is left. More stages are never
    worse, and a bound of more stages holds for fewer. Numbers that no cut can keep are left out
    and told; `Infeasible` where all are. `UsageError` where devices are named one by
    one, since these say how many stages there are.

    >>> from slicewise.flows.partitioning.options import PartitionOptions
    >>> quick = PartitionOptions(time_limit_s=5)
    >>> found = partition_curve(model, stages=[1, 2], device="l4", options=quick)
    >>> one, two = (made.partition.bottleneck_ms for made in found.results)
    >>> two <= one
    True
    """
    asked = options or PartitionOptions()
    numbers = sorted({stages_asked(each) for each in stages})
    if not numbers:
        raise UsageError("a curve needs numbers of stages; give stages=range(2, 17)")
    wishes = _with_device(wishes_of(asked), device, asked)
    if len(wishes.devices) > 1 or len(wishes.links) > 1:
        raise UsageError(
            "devices or links named one by one are those of one number of stages; give that"
            " number, or one device and link for all"
        )
    material = _material(model, device, batch, asked, wishes, progress)
    return _solve_all(material, wishes, numbers, asked, progress)


def _with_device(wishes: Wishes, device: str | Device | None, options: PartitionOptions) -> Wishes:
    """Return the wishes with one device for all stages, where it is given, over a file's."""
    if device is None:
        return wishes
    if options.devices or options.wishes.devices:
        raise UsageError("give one device for all stages, or devices one by one, not both")
    return replace(wishes, devices=(), any_order=options.any_order or None)


def _material(
    model: PartitionSubject,
    device: str | Device | None,
    batch: SupportsIndex | None,
    options: PartitionOptions,
    wishes: Wishes,
    progress: Callable[[str], None] | None,
) -> Material:
    from slicewise.flows.partitioning.workload_file import is_workload, read_workload

    if isinstance(model, PipelineProblem):
        _refuse_layers(options, model.name)
        return _own_problem(model)
    if isinstance(model, str | PathLike) and is_workload(fspath(model)):
        if isinstance(device, Device):
            raise UsageError("a problem file has times by name of device; give device='accel'")
        _refuse_layers(options, fspath(model))
        if batch is not None:
            raise UsageError("a problem file has its batch in its times; leave batch out")
        _refuse_predicting(options.predict, fspath(model))
        names = wishes.devices or (() if device is None else (device,))
        return read_workload(Path(model), devices=names, honour=options.honour)
    if options.honour:
        raise UsageError(
            f"honour {', '.join(options.honour)} is for problem files, which have such fields;"
            " give constraints for a model"
        )
    from slicewise.flows.partitioning.pipeline_model import model_material

    if progress is not None:
        progress("reading the model")
    asked = options.predict
    graph = load(
        model, batch=batch, dims=asked.dims, inputs=asked.inputs, batch_axes=asked.batch_axes
    )
    named: list[str | Device | None] = [*dict.fromkeys(wishes.devices)] or [device]
    material = model_material(graph, devices=named, options=asked)
    if not options.between_layers:
        return material
    from slicewise.flows.partitioning.stage_files import between_layers

    return between_layers(material)


def _refuse_layers(options: PartitionOptions, name: str) -> None:
    if options.between_layers:
        raise UsageError(
            f"problem {name!r} holds numbers and no layers to cut between; give the model, or"
            " groups with together in a constraints file"
        )


def _refuse_predicting(asked: PredictOptions, name: str) -> None:
    """Raise `UsageError` for options that say how a model is predicted."""
    usual = PredictOptions()
    for field in ("precision", "runtime", "layout", "dims", "inputs", "batch_axes", "card"):
        if getattr(asked, field) != getattr(usual, field):
            raise UsageError(
                f"{field.replace('_', ' ')} says how a model is predicted; problem file {name!r}"
                " has its times already; leave it out"
            )


def _own_problem(problem: PipelineProblem) -> Material:
    """Return material that stands for a problem made elsewhere; `_case` hands it on as it is."""
    return Material(
        name=problem.name,
        source=problem.name,
        labels=problem.names,
        groups=tuple((node,) for node in range(problem.nodes)),
        names=problem.names,
        tensors=tuple(
            CutTensor(
                problem.names[each.producer], each.producer, each.consumers, each.size_bytes,
                each.transfer_ms,
            )
            for each in problem.transfers
        ),
        devices={kind.name: kind for kind in problem.kinds},
        memory_bytes=problem.memory_bytes,
        weight_bytes=problem.weight_bytes,
        problem=problem,
    )  # fmt: skip


def _case(material: Material, wishes: Wishes, stages: int) -> Case:
    from slicewise.flows.partitioning.pipeline_problem import assemble, check_fits

    own = material.problem
    if own is None:
        return assemble(material, wishes, stages=stages)
    if wishes != Wishes():
        raise UsageError(
            f"problem {own.name!r} carries its own constraints; change its fields in place of"
            " options"
        )
    problem = own if stages == own.stages else own.with_stages(stages)
    check_fits(problem)
    return Case(problem, material, tuple(problem.kinds[place].name for place in problem.places))


def _stages(material: Material, wishes: Wishes, asked: int | None) -> int:
    if asked is not None:
        return asked
    if material.problem is not None:
        return material.problem.stages
    if len(wishes.devices) > 1:
        return len(wishes.devices)
    if material.most_stages is not None:
        return material.most_stages
    raise UsageError(
        "the number of stages is missing; give --stages 4, or 2..16, or --devices one by one"
    )


def _solve_all(
    material: Material,
    wishes: Wishes,
    numbers: Sequence[int],
    options: PartitionOptions,
    progress: Callable[[str], None] | None,
) -> PartitionCurve:
    """Return a result for each number of stages. Ctrl-C in one ends the search of all.

    All problems are put together first: what cannot be is told before time is spent. Numbers of
    stages that no cut can keep are left out; `Infeasible`, of the largest, where all are.
    """
    lacking: dict[int, PartitionError] = {}
    cases = []
    for stages in numbers:
        try:
            cases.append(_case(material, wishes, stages))
        except Infeasible as err:
            lacking[stages] = err
    end = time.perf_counter() + options.time_limit_s
    kept: list[Case] = []
    made: list[Partition] = []
    is_interrupted = False
    for index, case in enumerate(cases):
        left_s = max(end - time.perf_counter(), 0.0) / (len(cases) - index)
        if made and (left_s == 0 or is_interrupted):
            lacking[case.problem.stages] = _not_reached(case, is_interrupted=is_interrupted)
            continue
        try:
            made.append(_solve(case, left_s, options, progress))
            is_interrupted = _is_interrupted(made[-1])
        except KeyboardInterrupt:
            if not made:
                raise
            is_interrupted = True
            lacking[case.problem.stages] = _not_reached(case, is_interrupted=True)
        except Infeasible as err:
            lacking[case.problem.stages] = err
        else:
            kept.append(case)
    if not made:
        raise lacking[max(lacking)]
    results = []
    for case, answer in zip(kept, joined(kept, made), strict=True):
        notes = unique_notes((*material.notes, *case.notes, *answer.notes))
        results.append(PartitionResult(case, answer, baselines(case.problem), notes))
    if options.strict:
        _refuse_notes(results)
    told = tuple((stages, str(lacking[stages])) for stages in sorted(lacking))
    return PartitionCurve(tuple(results), told)


def _not_reached(case: Case, *, is_interrupted: bool) -> PartitionError:
    why = "Ctrl-C" if is_interrupted else "the time limit"
    return PartitionError(f"{why} came before {case.problem.stages} stages were tried")


def _is_interrupted(partition: Partition) -> bool:
    return any(note.code == "search-interrupted" for note in partition.notes)


def _solve(
    case: Case,
    time_limit_s: float,
    options: PartitionOptions,
    progress: Callable[[str], None] | None,
) -> Partition:
    from slicewise.partition.portfolio import Progress, solve

    unit = "J" if case.problem.objective is Objective.ENERGY else "ms"

    def report(found: Progress) -> None:
        if progress is not None:
            progress(
                f"{case.problem.stages} stages: {found.value:.4g} {unit}, bound"
                f" {found.bound:.4g} ({found.method}, {found.seconds:.0f} s)"
            )

    found = solve(
        case.problem,
        time_limit_s=time_limit_s,
        seed=options.seed,
        workers=options.workers,
        method=options.method,
        report=report,
    )
    return checked(case.problem, compact(case.problem, found), with_bounds=options.verify)


def _refuse_notes(results: Sequence[PartitionResult]) -> None:
    notes = unique_notes(note for made in results for note in made.notes)
    if notes:
        listed = "; ".join(str(note) for note in notes)
        raise PartitionError(
            f"strict: {len(notes)} assumptions were made: {listed}; leave strict out to accept"
        )
