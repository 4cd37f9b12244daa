"""Rows as arrays: the context of every kernel once, its costs for each row.

A sample is a row of `model_rows` (a graph at a batch on a device) or a kernel measured alone. The
kernels of all samples lie one behind the other; kernels of a graph that are alike are one entry
with a count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import write
from slicewise.core.device import Device
from slicewise.core.graph import Graph
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.hardware.catalogue import find_device
from slicewise.predict.basis import BASIS, basis_of
from slicewise.predict.context import CONTEXT
from slicewise.predict.kernels import unit_costs
from training.graphs import BATCHES, Kept
from training.model_rows import ModelRow, graph_keys, is_that_graph
from training.tables import BatchTable, table_of

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class Samples:
    """All that training needs.

    `contexts` [distinct, len(CONTEXT)]; for each kernel entry `context` its number there, `basis`
    [entries, len(BASIS)] its costs in microseconds and `count` how often it runs; sample i has
    entries `starts[i]` to `starts[i + 1]`. `rows` are what they are samples of.
    """

    rows: list[ModelRow]
    contexts: Floats
    context: Integers
    basis: Floats
    count: Floats
    starts: Integers
    left_out: Mapping[str, int] = field(default_factory=dict)

    def column(self, get: Callable[[ModelRow], object]) -> NDArray[np.object_]:
        """Return something of every row."""
        made = np.empty(len(self.rows), dtype=object)
        made[:] = [get(row) for row in self.rows]
        return made

    @property
    def measured_s(self) -> NDArray[np.float64]:
        """The latency of each sample."""
        return np.array([row.latency_s for row in self.rows])


class Gatherer:
    """Takes samples one by one and numbers the contexts that they share."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        self._contexts: list[Floats] = []
        self._parts: list[tuple[Integers, Floats, Floats]] = []
        self._rows: list[ModelRow] = []
        self.left_out: dict[str, int] = defaultdict(int)

    def numbers(self, contexts: NDArray[np.float64]) -> Integers:
        """Return the number of each context."""
        found = []
        for context in contexts.astype(np.float32):
            key = context.tobytes()
            if key not in self._number:
                self._number[key] = len(self._contexts)
                self._contexts.append(context)
            found.append(self._number[key])
        return np.array(found, dtype=np.int64)

    def add(self, row: ModelRow, numbers: Integers, basis: Floats, count: Floats) -> None:
        """Take one sample."""
        self._rows.append(row)
        self._parts.append((numbers, basis, count))

    def gathered(self) -> Samples:
        """Return all of them."""
        lengths = [len(part[0]) for part in self._parts]
        return Samples(
            self._rows,
            np.array(self._contexts, dtype=np.float32).reshape(-1, len(CONTEXT)),
            np.concatenate([part[0] for part in self._parts]),
            np.concatenate([part[1] for part in self._parts]).reshape(-1, len(BASIS)),
            np.concatenate([part[2] for part in self._parts]),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            dict(self.left_out),
        )


def add_timm(gatherer: Gatherer, rows: Sequence[ModelRow], models: Iterable[Kept]) -> None:
    """Take the rows of timm's files whose graph is kept."""
    kept = {str(model.key): model for model in models}
    known = frozenset(kept)
    by_key: dict[str, list[ModelRow]] = defaultdict(list)
    for row in rows:
        key = graph_keys(row, known)
        if key is None:
            gatherer.left_out["no graph"] += 1
        elif not is_that_graph(row, kept[key]):
            gatherer.left_out["name means another graph today"] += 1
        else:
            by_key[key].append(row)
    for key, group in by_key.items():
        _add_model(gatherer, kept[key].graphs, group)


def add_others(gatherer: Gatherer, rows: Sequence[ModelRow]) -> None:
    """Take the rows of the other sources, on the graphs of the builders."""
    by_key: dict[str, list[ModelRow]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    for key, group in by_key.items():
        path = write(key)
        low, high = (load(path, batch=batch) for batch in BATCHES)
        _add_model(gatherer, (low, high), group)


def _add_model(gatherer: Gatherer, graphs: tuple[Graph, Graph], rows: Sequence[ModelRow]) -> None:
    cases: dict[tuple[str, str, str], list[ModelRow]] = defaultdict(list)
    for row in rows:
        cases[row.runtime, row.precision, row.layout].append(row)
    for (runtime, precision, layout), group in cases.items():
        table = table_of(
            graphs, precision=Precision.predicted(precision), runtime=runtime, layout=layout
        )
        if table is None:
            gatherer.left_out["kernels do not follow the batch"] += len(group)
            continue
        numbers = gatherer.numbers(table.context)
        costs: dict[tuple[str, int], Floats] = {}
        for row in group:
            case = row.device, row.batch
            if case not in costs:
                costs[case] = basis_us(table, row.batch, find_device(row.device))
            gatherer.add(row, numbers, costs[case], table.count.astype(np.float32))


def basis_us(table: BatchTable, batch: int, device: Device) -> Floats:
    """Return the costs of a model's kernels in microseconds."""
    kernels = table.at(batch)
    costs, _ = unit_costs(kernels, device)
    return (basis_of(kernels, costs, device) * 1e6).astype(np.float32)
