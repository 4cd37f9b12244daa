"""`explore`: the product of models, devices, batches, precisions, runtimes and layouts.

A point that cannot be is a row with its reason; nothing stops the sweep. The work goes through an
`Executor` in groups (`flows/sweep.py`), and what is finished is kept in a journal.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import SupportsIndex, TypeVar

from slicewise.core.conditions import RuntimeChoice, layout_named, runtime_choice
from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.document import ModelInfo
from slicewise.core.errors import ModelError, StoreError, UsageError
from slicewise.core.executor import Executor
from slicewise.core.exploration import (
    Exploration,
    ExploredPoint,
    GroupOutcome,
    Objective,
    Standing,
)
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.precision import Precision
from slicewise.flows.load import ModelLike, positive
from slicewise.flows.pareto import costs_of, front_of
from slicewise.flows.predict import (
    DEFAULT_PREDICTOR,
    DeviceLike,
    cards_of,
    target_named,
    told_apart,
)
from slicewise.flows.sweep import Portion, Sweep, lost_group, portions_of, run_portion

_Named = TypeVar("_Named")


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """What is swept besides models, devices and batches, and what the front trades.

    None in `precisions` is the model's own, in `runtimes` that of its format; a runtime may have a
    version, as in 'torch-eager@2.4'. `layouts` are the memory formats of images. `objectives` are
    latency, throughput, energy and memory, or some of them. Points over `latency_limit_ms` or
    `memory_limit_bytes` stay out of the front; `per_model` makes one front for each model. `card`
    is the path of a device card, 'none' for none; None takes what `calibrate` kept; `predictor` is
    that of `PredictOptions`.

    >>> options = ExploreOptions(precisions=["fp32", "fp16"], objectives=["latency", "memory"])
    >>> found = explore([model], devices=["t4"], options=options)
    >>> [point.precision for point in found.front]
    ['fp16']
    """

    precisions: Sequence[str | None] = (None,)
    runtimes: Sequence[str | None] = (None,)
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    objectives: Sequence[str] = tuple(Objective)
    latency_limit_ms: float | None = None
    memory_limit_bytes: int | None = None
    per_model: bool = False
    card: str | None = None
    layouts: Sequence[str] = ("nchw",)
    predictor: str = DEFAULT_PREDICTOR


@dataclass(frozen=True, slots=True)
class Record:
    """Where a sweep is recorded while it runs: a journal that the same call goes on from.

    `fresh` drops a journal that is there. `resumed` is told the points that were done before and
    the points in all. The file stays until `discard` removes it.
    """

    path: Path
    fresh: bool = False
    resumed: Callable[[int, int], None] | None = None

    def discard(self) -> None:
        """Remove the journal: the result is safe elsewhere."""
        self.path.unlink(missing_ok=True)


def explore(
    models: Sequence[ModelLike],
    *,
    devices: Sequence[DeviceLike | None],
    batches: Sequence[SupportsIndex | None] = (None,),
    options: ExploreOptions | None = None,
    executor: Executor | None = None,
    record: Record | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exploration:
    """Return every combination predicted, or the reason why it cannot be, and the Pareto front.

    What is named twice counts once. `executor` None works in this process; another is made by
    `slicewise.execute`. `progress` is told the points done and the points in all. A name that
    nobody knows (device, precision, runtime, layout) raises before any work, as does a list of
    models none of which can be read; `StoreError` if the record is of another sweep.

    >>> found = explore([model], devices=["t4", "a100-sxm4-80gb/2g.20gb"], batches=[1, 64])
    >>> [f"{point.device} {point.batch}" for point in found.points]
    ['t4 1', 'a100-sxm4-80gb 1', 't4 64', 'a100-sxm4-80gb 64']
    >>> 1 <= len(found.front) <= 4
    True
    """
    asked = options or ExploreOptions()
    _check(models, devices, batches, asked)
    objectives = _objectives(asked)
    sweep = _resolve(models, devices, batches, asked)
    outcomes = _run(sweep, executor or _inline(), record, progress)
    infos = _told_apart(sweep, outcomes)
    points = _points(sweep, outcomes, infos)
    return Exploration(
        models=tuple(info for info in infos if info is not None),
        points=_judged(points, objectives, asked),
        objectives=objectives,
        latency_limit_ms=asked.latency_limit_ms,
        memory_limit_bytes=asked.memory_limit_bytes,
        per_model=asked.per_model,
        notes=_unused_dims(sweep, outcomes),
    )


def _inline() -> Executor:
    from slicewise.execute._base import choose_executor

    return choose_executor(1)


def _check(models: object, devices: object, batches: object, asked: ExploreOptions) -> None:
    """Raise `UsageError` for what a type checker would refuse, and for limits that are none."""
    for name, values in (
        ("models", models), ("devices", devices), ("batches", batches),
        ("precisions", asked.precisions), ("runtimes", asked.runtimes),
        ("layouts", asked.layouts), ("objectives", asked.objectives),
    ):  # fmt: skip
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"{name} {values!r}: explore needs a list with at least one of them")
    for name, values in (("precision", asked.precisions), ("runtime", asked.runtimes)):
        for value in values:
            if not isinstance(value, str | None):
                raise UsageError(f"{name} {value!r} is a {type(value).__name__}; give its name")
    for name, limit in (
        ("latency_limit_ms", asked.latency_limit_ms),
        ("memory_limit_bytes", asked.memory_limit_bytes),
    ):
        if limit is not None and not 0 < limit < math.inf:
            raise UsageError(f"{name}={limit!r} is not a positive number; leave it out for none")


def _objectives(asked: ExploreOptions) -> tuple[Objective, ...]:
    for name in asked.objectives:
        if name not in tuple(Objective):
            raise UsageError(
                f"objective {name!r} is unknown; a front trades {', '.join(Objective)}"
                f"{did_you_mean(name, tuple(Objective))}"
            )
    return tuple(Objective(name) for name in dict.fromkeys(asked.objectives))


def _resolve(
    models: Sequence[ModelLike],
    devices: Sequence[DeviceLike | None],
    batches: Sequence[SupportsIndex | None],
    asked: ExploreOptions,
) -> Sweep:
    """Return the sweep with every name looked up; the mistakes that concern all of it raise."""
    from slicewise.predict._base import load_predictor
    from slicewise.predict.runtimes import runtime_named

    for precision in asked.precisions:
        if precision is not None:
            Precision.named(precision)
    load_predictor(asked.predictor)
    runtimes = [None if each is None else runtime_choice(each) for each in asked.runtimes]
    for choice in runtimes:
        if choice is not None:
            runtime_named(choice.name)
    named = _once_each([each if isinstance(each, Graph) else _location(each) for each in models])
    _refuse_if_none_can_be_read(named)
    targets = _told_apart_by_name([target_named(device) for device in devices])
    return Sweep(
        models=named,
        targets=targets,
        batches=_once([None if batch is None else positive("batch", batch) for batch in batches]),
        precisions=_once(asked.precisions),
        runtimes=_once([None if choice is None else str(choice) for choice in runtimes]),
        layouts=_once([layout_named(layout) for layout in asked.layouts]),
        dims=dict(asked.dims),
        inputs=dict(asked.inputs),
        batch_axes=dict(asked.batch_axes),
        cards=cards_of([target.whole for target in targets], asked.card),
        predictor=asked.predictor,
    )


def _once(values: Sequence[_Named]) -> tuple[_Named, ...]:
    return tuple(dict.fromkeys(values))


def _once_each(models: Sequence[str | Graph]) -> tuple[str | Graph, ...]:
    """Return the models in order; a file that is named in two ways counts once."""
    found: dict[str | Graph, str | Graph] = {}
    for model in models:
        if isinstance(model, str) and os.path.isfile(model):
            found.setdefault(os.path.realpath(model), model)
        else:
            found.setdefault(model, model)
    return tuple(found.values())


def _told_apart_by_name(targets: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices, each once; `UsageError` for two of one name, as their rows would be."""
    found: dict[str, Device] = {}
    for target in targets:
        if found.setdefault(target.name, target) != target:
            raise UsageError(
                f"two devices with other figures are both called {target.name!r}; rows could not"
                " tell them apart; give one of the files another name"
            )
    return tuple(found.values())


def _location(model: object) -> str:
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"a model of type {type(model).__name__} cannot be swept; give the path of a file, a"
            " zoo name, or a graph, as slicewise.load(module, example_inputs=x) returns"
        )
    return fspath(model)


def _refuse_if_none_can_be_read(models: Sequence[str | Graph]) -> None:
    """Raise what is wrong with the first model if none is there or of a kind that can be read."""
    from slicewise.graph.frontends._base import format_of

    first: ModelError | UsageError | None = None
    for model in models:
        if isinstance(model, Graph):
            return
        try:
            format_of(model)
        except (ModelError, UsageError) as err:
            first = first or err
        else:
            return
    assert first is not None
    raise first


def _run(
    sweep: Sweep,
    executor: Executor,
    record: Record | None,
    progress: Callable[[int, int], None] | None,
) -> list[GroupOutcome]:
    """Return the outcome of every group in order; what a journal holds is not done again."""
    from slicewise.store.journal import Journal

    size, count = len(sweep.columns), len(sweep.groups)
    done: dict[int, GroupOutcome] = {}

    def tell() -> None:
        if progress is not None:
            progress(len(done) * size, count * size)

    with (
        nullcontext()
        if record is None
        else closing(
            Journal(record.path, GroupOutcome, digest=sweep.digest, fresh=record.fresh)
        ) as journal
    ):
        if journal is not None and record is not None:
            for outcome in journal.entries:
                _refuse_misfit(sweep, outcome, record.path)
                done[outcome.index] = outcome
            if done and record.resumed is not None:
                record.resumed(len(done) * size, count * size)
        todo = [index for index in range(count) if index not in done]
        portions = portions_of(sweep, todo, workers=executor.workers)
        while portions:
            again: list[Portion] = []
            for each in executor.as_completed(partial(run_portion, sweep), portions):
                portion = portions[each.index]
                if each.error is None:
                    done.update((outcome.index, outcome) for outcome in each.result())
                    if journal is not None:
                        for outcome in each.result():
                            journal.append(outcome)
                elif len(portion) > 1:
                    again.extend((index,) for index in portion)  # to see which of them it was
                else:
                    # not recorded: what killed a worker once need not do so the next time
                    done[portion[0]] = lost_group(sweep, portion[0], each.error)
                tell()
            portions = again
    return [done[index] for index in range(count)]


def _refuse_misfit(sweep: Sweep, outcome: GroupOutcome, journal: Path) -> None:
    """Raise `StoreError` for an entry of a journal that cannot be one of this sweep."""
    fits = 0 <= outcome.index < len(sweep.groups) and len(outcome.cells) == len(sweep.columns)
    places = (place for cell in outcome.cells for place in cell.note_indices)
    if not fits or any(not 0 <= place < len(outcome.notes) for place in places):
        raise StoreError(
            f"{str(journal)!r} is damaged: its entry {outcome.index} is of no group of this sweep;"
            " give --fresh to begin anew"
        )


def _told_apart(sweep: Sweep, outcomes: Sequence[GroupOutcome]) -> list[ModelInfo | None]:
    """Return what each model is, None for one that could not be read at any batch."""
    per_model = len(sweep.batches)
    infos: list[ModelInfo | None] = []
    for i in range(len(sweep.models)):
        its = outcomes[i * per_model : (i + 1) * per_model]
        info = next((each.model for each in its if each.model is not None), None)
        known = [each for each in infos if each is not None]
        infos.append(None if info is None else told_apart(info, known))
    return infos


def _points(
    sweep: Sweep, outcomes: Sequence[GroupOutcome], infos: Sequence[ModelInfo | None]
) -> list[ExploredPoint]:
    points = []
    for (i, j), outcome in zip(sweep.groups, outcomes, strict=True):
        model, info = sweep.models[i], infos[i]
        location = model.name if isinstance(model, Graph) else model
        name, source = (location, location) if info is None else (info.name, info.source)
        for column, cell in zip(sweep.columns, outcome.cells, strict=True):
            precision, runtime, layout, target = column
            choice = None if runtime is None else runtime_choice(runtime)
            made = cell.prediction
            if made is not None:
                notes = tuple(outcome.notes[k] for k in cell.note_indices)
                made = replace(made, model=name, notes=notes)
            points.append(
                ExploredPoint(
                    model=name,
                    source=source,
                    device=target.whole.name,
                    slice=target.slice_name,
                    batch=sweep.batches[j] if made is None else made.batch,
                    precision=precision if made is None else made.precision,
                    runtime=_name(choice) if made is None else made.runtime,
                    standing=_before_rivals(made, target),
                    prediction=made,
                    failure=cell.failure,
                    layout=layout,
                    runtime_version=None if choice is None else choice.version,
                )
            )
    return points


def _name(choice: RuntimeChoice | None) -> str | None:
    return None if choice is None else choice.name


def _before_rivals(made: Prediction | None, target: Device) -> Standing:
    """Return where a point stands by itself: DOMINATED until it is held against the others."""
    if made is None:
        return Standing.IMPOSSIBLE
    over = made.memory_bytes.value > target.memory_bytes
    return Standing.UNFIT if over else Standing.DOMINATED


def _judged(
    points: Sequence[ExploredPoint], objectives: Sequence[Objective], asked: ExploreOptions
) -> tuple[ExploredPoint, ...]:
    """Return the points with their standing: the front is made of those that are allowed on it."""
    standing = [_standing(point, asked) for point in points]
    rivals: dict[str, list[int]] = {}
    for i, point in enumerate(points):
        if standing[i] is Standing.DOMINATED:
            rivals.setdefault(point.source if asked.per_model else "", []).append(i)
    for its in rivals.values():
        made = [points[i].prediction for i in its]
        for k in front_of([costs_of(each, objectives) for each in made if each is not None]):
            standing[its[k]] = Standing.FRONT
    return tuple(
        replace(point, standing=told) for point, told in zip(points, standing, strict=True)
    )


def _standing(point: ExploredPoint, asked: ExploreOptions) -> Standing:
    """Return where a point stands within the limits that were asked."""
    made = point.prediction
    if made is None or point.standing is Standing.UNFIT:
        return point.standing
    limit_ms, limit_bytes = asked.latency_limit_ms, asked.memory_limit_bytes
    if (limit_ms is not None and made.latency_ms.value > limit_ms) or (
        limit_bytes is not None and made.memory_bytes.value > limit_bytes
    ):
        return Standing.OVER_LIMIT
    return Standing.DOMINATED


def _unused_dims(sweep: Sweep, outcomes: Sequence[GroupOutcome]) -> tuple[Note, ...]:
    """Say which `dims` changed nothing. One model alone refuses them when it is read."""
    read = [outcome for outcome in outcomes if outcome.model is not None]
    unused = set(sweep.dims) - {name for outcome in read for name in outcome.dims}
    if not read:
        return ()
    return tuple(
        Note("dim-unused", f"no model has a free dimension {name!r}; it changed nothing")
        for name in sorted(unused)
    )
