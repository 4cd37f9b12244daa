"""The roofline against every open measurement whose model a builder makes, published as it is.

    python -m benchmarks.roofline_error            # writes results/roofline_error.md and .json
    python -m benchmarks.roofline_error --bands    # also prints the rows of predict/domain.py

Needs the measured data ($SLICEWISE_DATA). Errors are |predicted / measured - 1|; `bias` is the
median of predicted / measured - 1. Groups with few rows stay. "Fusion off" prices every
node as a kernel of its own, with the same efficiencies.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from benchmarks.models import key_of, write
from benchmarks.open_rows import BEYOND_THE_MODEL, Row, is_data_present, open_rows
from benchmarks.tables import markdown, write_result
from slicewise.core.cost import GraphWork, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.graph import Graph
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict.domain import FULL_SATURATION
from slicewise.predict.roofline import predict_roofline_on
from slicewise.predict.slice import scale


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured row beside its prediction, and that with every node a kernel of its own."""

    row: Row
    predicted_ms: float
    saturation: float
    device_kind: str
    unfused_ms: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.row.latency_ms / self.predicted_ms

    @property
    def load(self) -> str:
        """The load group that `predict/domain.py` uses."""
        return "full" if self.saturation >= FULL_SATURATION else "small"


def prepared(rows: Sequence[Row]) -> Iterator[tuple[Graph, GraphWork, Precision, list[Row]]]:
    """Yield each graph once with the rows measured on it, bound, cast and counted."""

    def what(row: Row) -> tuple[str, int, int, str]:
        return row.model, row.size, row.batch_size, row.precision

    for (model, size, batch_size, name), group in groupby(sorted(rows, key=what), key=what):
        precision = Precision.named(name)
        graph = cast(load(write(key_of(model, size)), batch=batch_size), precision)
        yield graph, count_work(graph, compute=precision.compute), precision, list(group)


def compare(rows: Sequence[Row]) -> tuple[list[Compared], dict[str, int]]:
    """Return every row with its prediction, and how many devices or precisions refused."""
    compared: list[Compared] = []
    refused: dict[str, int] = defaultdict(int)
    devices = {row.device_name: find_device(row.device_name) for row in rows if row.device_name}
    for graph, work, precision, group in prepared(rows):
        able = []
        for row in group:
            if not row.device_name:
                refused[f"no data sheet: {row.device}"] += 1
                continue
            try:
                devices[row.device_name].whole.peak_for(precision)
            except DeviceError as err:
                refused[str(err)] += 1
                continue
            able.append(row)
        for runtime in dict.fromkeys(row.runtime for row in able):
            its = [row for row in able if row.runtime == runtime]
            names = list(dict.fromkeys(row.device_name for row in its))
            parts = [devices[name] for name in names]
            fused = launch(graph, work, runtime=runtime)
            on, off = (
                dict(zip(names, _predict(graph, each, parts, precision, runtime), strict=True))
                for each in (fused, work)
            )
            compared += [
                Compared(
                    row, on[row.device_name].latency_ms.value, on[row.device_name].saturation,
                    devices[row.device_name].kind, off[row.device_name].latency_ms.value,
                )
                for row in its
            ]  # fmt: skip
    return compared, dict(refused)


def _predict(
    graph: Graph, work: GraphWork, parts: Sequence[Device], precision: Precision, runtime: str
) -> list[Prediction]:
    """Return the predictions on devices and slices; a slice goes through its whole device."""
    wholes = [part.whole for part in parts]
    made = predict_roofline_on(graph, work, wholes, precision=precision, runtime=runtime)
    return [
        each if part.parent is None else scale(each, part)
        for each, part in zip(made, parts, strict=True)
    ]


def error_cells(group: Sequence[Compared]) -> tuple[str, ...]:
    """Return rows, models, MAPE, median, p90, bias, part within 20 %."""
    errors = sorted(abs(1 / each.ratio - 1) for each in group)
    bias = median(1 / each.ratio - 1 for each in group)
    within = sum(error <= 0.2 for error in errors) / len(errors)
    return (
        str(len(group)),
        str(len({(each.row.model, each.row.size) for each in group})),
        f"{sum(errors) / len(errors):.1%}",
        f"{median(errors):.1%}",
        f"{errors[math.ceil(0.9 * len(errors)) - 1]:.1%}",
        f"{bias:+.1%}",
        f"{within:.0%}",
    )


# A group with fewer rows gives no band: its runtime borrows one.
LEAST_ROWS = 30
COLUMNS = ("rows", "models", "MAPE", "median", "p90", "bias", "within 20 %")


def table_by(
    compared: Sequence[Compared],
    heads: tuple[str, ...],
    what: Callable[[Compared], tuple[str, ...]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and one line for each group."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for each in compared:
        groups[what(each)].append(each)
    lines = [(*key, *error_cells(group)) for key, group in sorted(groups.items())]
    return (*heads, *COLUMNS), lines


def fusion_table(compared: Sequence[Compared]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return MAPE and median with fusion on and off for each kind of device and runtime."""
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for each in compared:
        groups["all", ""].append(each)
        groups[each.device_kind, each.row.runtime].append(each)
    columns = ("kind", "runtime", "rows", "MAPE on", "median on", "bias on", "MAPE off",
               "median off", "bias off")  # fmt: skip
    lines = []
    for key, group in sorted(groups.items()):
        off = [replace(each, predicted_ms=each.unfused_ms) for each in group]
        cells = [error_cells(its) for its in (group, off)]
        lines.append((*key, str(len(group)), *(c for its in cells for c in (*its[2:4], its[5]))))
    return columns, lines


def quantile(values: Sequence[float], part: float) -> float:
    """Return the quantile of sorted values, linear between ranks."""
    place = part * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def bands(compared: Sequence[Compared]) -> list[str]:
    """Return the rows of `ERROR_BANDS`: 5 % and 95 % quantiles of measured over predicted."""
    groups: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for each in compared:
        groups[(each.device_kind, each.row.runtime, each.load)].append(each)
    lines = []
    for key, group in sorted(groups.items()):
        if len(group) < LEAST_ROWS:
            continue
        ratios = sorted(each.ratio for each in group)
        families = len({each.row.family for each in group})
        low, high = quantile(ratios, 0.05), quantile(ratios, 0.95)
        lines.append(f"    {key!r}: ErrorBand({low:.2f}, {high:.2f}, {len(ratios)}, {families}),")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Compare, write the tables, and print the bands where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bands", action="store_true", help="print the rows of predict/domain.py")
    asked = parser.parse_args(arguments)
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    compared, refused = compare(open_rows())
    inference = [each for each in compared if not BEYOND_THE_MODEL & set(each.row.flags)]
    sections = [
        ("Fusion on and off (rows whose time is that of the model alone)",
         fusion_table(inference)),
        ("By source and runtime", table_by(
            compared, ("source", "runtime"), lambda each: (each.row.source, each.row.runtime))),
        ("By device, runtime and precision (rows whose time is that of the model alone)", table_by(
            inference, ("device", "runtime", "precision"),
            lambda each: (each.row.device_name, each.row.runtime, each.row.precision))),
        ("By family, GPU", table_by(
            [each for each in inference if each.device_kind == "gpu"], ("family",),
            lambda each: (each.row.family,))),
        ("By load, the groups of the intervals", table_by(
            inference, ("kind", "runtime", "load"),
            lambda each: (each.device_kind, each.row.runtime, each.load))),
        ("By batch, GPU", table_by(
            [each for each in inference if each.device_kind == "gpu"], ("batch",),
            lambda each: (_batch_band(each.row.batch_size),))),
    ]  # fmt: skip
    more = []
    for title, (columns, lines) in sections[1:]:
        more += ["", f"## {title}", "", *markdown(columns, lines)]
    more += ["", "## Not predicted", ""]
    more += [f"- {count} rows: {why}" for why, count in sorted(refused.items())] or ["nothing"]
    columns, lines = sections[0][1]
    write_result(
        "roofline_error",
        title="Roofline error on open measurements",
        command="python -m benchmarks.roofline_error",
        words=f"{len(compared)} rows; all {len(inference)} rows of the model alone:"
        f" MAPE {error_cells(inference)[2]}, median {error_cells(inference)[3]}.",
        columns=columns,
        rows=lines,
        more="\n".join(more).strip(),
    )
    if asked.bands:
        sys.stdout.write("\n".join(bands(inference)) + "\n")
    return 0


def _batch_band(batch_size: int) -> str:
    for top in (1, 8, 32, 128):
        if batch_size <= top:
            return f"<= {top:03d}"
    return "> 128"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
