"""Kernels of a graph as columns that follow the batch, so that one trace serves every row.

Bytes, multiply-adds and sizes of kernels are linear in the batch: they are counted at two batches
by the product's own code and drawn out to the others. Kernels alike in everything are one row
with a count.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slicewise.core.graph import Graph
from slicewise.core.precision import Precision
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.predict.context import context_of
from slicewise.predict.kernels import KernelTable, Row, kernels_of, tabulate

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Kernels of one graph under one runtime and precision.

    `context` [kernels, contexts]; `count`: how often each runs; `low` and `high` the table at
    batches `batches`.
    """

    context: Array
    count: Array
    batches: tuple[int, int]
    low: KernelTable
    high: KernelTable

    def at(self, batch: int) -> KernelTable:
        """Return the kernels at a batch."""
        part = (batch - self.batches[0]) / (self.batches[1] - self.batches[0])

        def drawn(one: Array, two: Array) -> Array:
            return np.maximum(one + (two - one) * part, 0.0)

        low, high = self.low, self.high
        shapes = np.maximum(np.rint(drawn(self.low.shapes, self.high.shapes)), 1.0)
        return replace(
            low,
            steps=drawn(low.steps, high.steps),
            macs=drawn(low.macs, high.macs),
            flops=drawn(low.flops, high.flops),
            activation_bytes=drawn(low.activation_bytes, high.activation_bytes),
            weight_bytes=drawn(low.weight_bytes, high.weight_bytes),
            write_bytes=drawn(low.write_bytes, high.write_bytes),
            shapes=shapes,
        )


def table_of(
    graphs: tuple[Graph, Graph], *, precision: Precision, runtime: str, layout: str = "nchw"
) -> BatchTable | None:
    """Return the kernels of one model, given at two batches; None where these are not alike."""
    low_rows, context = _rows(graphs[0], precision, runtime, layout)
    high_rows, _ = _rows(graphs[1], precision, runtime, layout)
    batches = (graphs[0].batch_size, graphs[1].batch_size)
    if [row.kernel.op_type for row in low_rows] != [row.kernel.op_type for row in high_rows]:
        return None
    context = np.round(context, 5).astype(np.float32)
    seen: dict[bytes, int] = {}
    first: list[int] = []
    count: list[float] = []
    for i, (one, two) in enumerate(zip(low_rows, high_rows, strict=True)):
        key = repr((_key(one), _key(two))).encode() + context[i].tobytes()
        if key not in seen:
            seen[key] = len(first)
            first.append(i)
            count.append(0.0)
        count[seen[key]] += one.repeats
    low, high = (tabulate([rows[i].kernel for i in first]) for rows in (low_rows, high_rows))
    return BatchTable(context[first], np.array(count), batches, low, high)


def _rows(
    graph: Graph, precision: Precision, runtime: str, layout: str
) -> tuple[list[Row], Array]:
    ready = cast(graph, precision)
    work = launch(ready, count_work(ready, precision.compute), runtime=runtime)
    rows = list(kernels_of(work))
    return rows, context_of(ready, rows, layout=layout)


def _key(row: Row) -> tuple[object, ...]:
    kernel = row.kernel
    return (kernel.kind, kernel.dtype, kernel.work, kernel.contraction, kernel.steps, row.repeats)
