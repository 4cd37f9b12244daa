"""What slicewise's own roofline says of the rows: nothing learned here."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slicewise.core.precision import Precision
from slicewise.hardware.catalogue import find_device
from slicewise.predict import efficiency
from slicewise.predict.kernels import kernel_times, unit_costs
from slicewise.predict.runtimes import runtime_named
from training.graphs import Kept
from training.model_rows import ModelRow
from training.tables import BatchTable, table_of


def roofline_s(
    rows: Sequence[ModelRow], keys: Sequence[str], models: Iterable[Kept]
) -> NDArray[np.float64]:
    """Return the predicted seconds of each row, whose graph has the key beside it. About 0.3 s a
    model."""
    made = np.full(len(rows), np.nan)
    cases: dict[str, dict[tuple[str, str, str], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for i, (row, key) in enumerate(zip(rows, keys, strict=True)):
        cases[key][row.runtime, row.precision, row.layout].append(i)
    for model in models:
        for (runtime, precision, layout), its in cases[str(model.key)].items():
            table = table_of(
                model.graphs, precision=Precision.predicted(precision), runtime=runtime,
                layout=layout,
            )  # fmt: skip
            if table is not None:
                made[its] = [_seconds(table, rows[i]) for i in its]
    return made


def _seconds(table: BatchTable, row: ModelRow) -> float:
    device, runtime = find_device(row.device), runtime_named(row.runtime)
    costs, _ = unit_costs(table.at(row.batch), device)
    times = kernel_times(costs, efficiency.RULES[device.kind], runtime, device)
    return float(times.launched_s @ table.count) + device.host_s * runtime.host_factor
