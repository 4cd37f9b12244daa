"""What a sweep consists of, and the work of one group of it.

A group is one model at one batch: its graph is read once, cast and counted once for each precision
and runtime, and predicted on all devices together. A portion is what a worker gets at once: a
group, or several of a model that is slow to read. Runs in workers, so everything here can be
pickled. No error leaves a group: it becomes the reason of the points that it concerns.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from slicewise._version import __version__
from slicewise.core.cost import Prediction
from slicewise.core.device import Device
from slicewise.core.errors import SlicewiseError
from slicewise.core.exploration import Cell, Failure, GroupOutcome
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.flows.cached_load import is_slow_to_read, package_versions
from slicewise.flows.load import load
from slicewise.flows.predict import (
    DEFAULT_PREDICTOR,
    PredictOptions,
    describe,
    predict_where_possible,
)

if TYPE_CHECKING:
    from slicewise.predict.correction import Card

Portion: TypeAlias = tuple[int, ...]  # indices of groups


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with every name resolved. `cards` are device cards by name of whole device."""

    models: tuple[str | Graph, ...]
    targets: tuple[Device, ...]
    batches: tuple[int | None, ...]
    precisions: tuple[str | None, ...]
    runtimes: tuple[str | None, ...]
    layouts: tuple[str, ...]
    dims: Mapping[str, int]
    inputs: Mapping[str, Sequence[int]]
    batch_axes: Mapping[str, int | None]
    cards: "Mapping[str, Card]" = field(default_factory=dict)
    predictor: str = DEFAULT_PREDICTOR

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(index of the model, index of the batch) of each group, in order."""
        return tuple(product(range(len(self.models)), range(len(self.batches))))

    @property
    def columns(self) -> tuple[tuple[str | None, str | None, str, Device], ...]:
        """(precision, runtime, layout, device) of each cell of a group, in order."""
        return tuple(product(self.precisions, self.runtimes, self.layouts, self.targets))

    @property
    def digest(self) -> str:
        """SHA-256 of what the results depend on: models, devices, options, version."""
        parts = [__version__, *map(_stamp, self.models), repr(replace(self, models=()))]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _stamp(model: str | Graph) -> str:
    """Return what changes when a model does: size and time of a file, versions behind a name."""
    if isinstance(model, Graph):
        return f"graph {model.digest} {model.binding!r}"
    try:
        told = os.stat(model)
    except (OSError, ValueError):
        return f"{model!r} {package_versions()}"
    return f"{model!r} {told.st_size} {told.st_mtime_ns}"


def portions_of(sweep: Sweep, todo: Sequence[int], *, workers: int) -> list[Portion]:
    """Return the groups to do in the portions that are handed out.

    Tracing a PyTorch model takes seconds, and one trace serves all batches in the process that
    has it: the batches of such a model stay together, in as many parts as keep all workers busy.
    """
    by_model: dict[int, list[int]] = {}
    for index in todo:
        by_model.setdefault(sweep.groups[index][0], []).append(index)
    slow = {i for i in by_model if workers > 1 and is_slow_to_read(sweep.models[i])}
    parts = -(-workers // len(slow)) if slow else 1
    portions: list[Portion] = []
    for i, indices in by_model.items():
        size = -(-len(indices) // parts) if i in slow else 1
        portions.extend(
            tuple(indices[start : start + size]) for start in range(0, len(indices), size)
        )
    # the long ones first, so that no worker is left alone with one at the end
    return sorted(portions, key=len, reverse=True)


def run_portion(sweep: Sweep, portion: Portion) -> tuple[GroupOutcome, ...]:
    """Return what becomes of every point of some groups."""
    return tuple(run_group(sweep, index) for index in portion)


def run_group(sweep: Sweep, index: int) -> GroupOutcome:
    """Return what becomes of every point of one group."""
    i, j = sweep.groups[index]
    dims = sweep.dims
    try:
        graph = load(
            sweep.models[i],
            batch=sweep.batches[j],
            dims=dims,
            inputs=sweep.inputs,
            batch_axes=sweep.batch_axes,
            optional_dims=frozenset(dims) if len(sweep.models) > 1 else frozenset(),
        )
        model = describe(graph)
    except Exception as err:
        return lost_group(sweep, index, err)
    made = [each for options in _asked(sweep) for each in _predict(graph, sweep, options)]
    numbers: dict[Note, int] = {}
    cells = tuple(_cell(each, numbers) for each in made)
    used = tuple(name for name in dims if name in graph.binding.dims)
    return GroupOutcome(index, model, cells, tuple(numbers), used)


def lost_group(sweep: Sweep, index: int, error: Exception) -> GroupOutcome:
    """Return a group whose points all have the same reason for not being."""
    cell = Cell(None, _failure(error))
    return GroupOutcome(index, None, (cell,) * len(sweep.columns))


def _asked(sweep: Sweep) -> Iterator[PredictOptions]:
    """Yield what the devices of a group are predicted with, in the order of the columns."""
    for precision, runtime, layout in product(sweep.precisions, sweep.runtimes, sweep.layouts):
        yield PredictOptions(
            precision=precision, runtime=runtime, layout=layout, predictor=sweep.predictor
        )


def _predict(
    graph: Graph, sweep: Sweep, options: PredictOptions
) -> Sequence[Prediction | Exception]:
    try:
        return predict_where_possible(graph, sweep.targets, options, cards=sweep.cards)
    except Exception as err:  # concerns the graph in this precision, so every device
        return [err] * len(sweep.targets)


def _cell(made: Prediction | Exception, numbers: dict[Note, int]) -> Cell:
    """Return a cell; its notes are numbered through the group, its nodes are left out."""
    if isinstance(made, Exception):
        return Cell(None, _failure(made))
    indices = tuple(numbers.setdefault(note, len(numbers)) for note in made.notes)
    return Cell(replace(made, nodes=(), notes=()), None, indices)


def _failure(error: Exception) -> Failure:
    if isinstance(error, SlicewiseError):
        return Failure(type(error).__name__, error.exit_code, str(error))
    # A fault of ours costs one model its rows, not a night's sweep; the row says what to report.
    told = f"unexpected {type(error).__name__}: {error}; please report it with the model"
    return Failure("SlicewiseError", SlicewiseError.exit_code, told)
