"""The predictor against the tables of a GPU campaign, nothing fitted to them.

    python -m benchmarks.gpu_campaign_error [--device h200-sxm-141gb]

Reads results/gpu/models.csv and shares.csv (benchmarks/gpu_campaign/README.md) and writes
results/gpu_campaign_error.md and .json. Without them it says so and ends with 0.
"""

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks.tables import RESULTS, markdown, write_result
from slicewise.core.cost import Prediction
from slicewise.core.errors import SlicewiseError
from slicewise.flows.devices import device as find_device
from slicewise.flows.load import load
from slicewise.flows.predict import predict
from slicewise.predict.slice import scale

GPU = RESULTS / "gpu"
COLUMNS = ("rows", "models", "median", "MAPE", "p90", "bias")
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured row and the relative error of one predicted quantity."""

    row: Row
    quantity: str
    error: float


def read_rows(path: Path) -> list[Row]:
    """Return the rows that were measured; none where the file is absent. A last line that was
    torn by a kill has too few fields and is left out."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["outcome"] == "ok" and row["latency_ms"] and None not in row.values()
        ]


class Predictor:
    """Predictions on one device, each asked once; what cannot be predicted is kept as words."""

    def __init__(self, device_name: str) -> None:
        self.device = find_device(device_name)
        self.refused: dict[str, str] = {}
        self._made: dict[tuple[str, int, str, str], Prediction] = {}

    def predict(self, row: Row) -> Prediction | None:
        """Return the prediction for a row on the whole device, None where it is refused."""
        location = row["location"]
        if location in self.refused:
            return None
        key = (location, int(row["batch"]), row["precision"], row["runtime"])
        if key not in self._made:
            try:
                self._made[key] = predict(
                    load(location, batch=key[1]),
                    device=self.device,
                    precision=key[2],
                    runtime=key[3],
                )
            except SlicewiseError as err:
                self.refused[location] = str(err)
                return None
        return self._made[key]


def compare_models(rows: Sequence[Row], predictor: Predictor) -> Iterator[Compared]:
    """Yield latency, energy and memory of each row beside what is predicted."""
    for row in sorted(rows, key=lambda row: row["location"]):  # a model is read once
        made = predictor.predict(row)
        if made is None:
            continue
        for quantity, column, value in (
            ("latency", "latency_ms", made.latency_ms.value),
            ("energy", "energy_j", made.energy_j.value),
            ("memory", "memory_bytes", float(made.memory_bytes.value)),
        ):
            if row[column]:
                yield Compared(row, quantity, value / float(row[column]) - 1)


def compare_shares(rows: Sequence[Row], predictor: Predictor) -> Iterator[Compared]:
    """Yield the slice rule's error: from the measured whole device, and from nothing."""
    whole_ms = {
        (row["location"], row["batch"]): float(row["latency_ms"])
        for row in rows
        if float(row["share_percent"]) >= 100
    }
    for row in sorted(rows, key=lambda row: row["location"]):
        percent = _percent(row, predictor.device.compute_units)
        if float(row["share_percent"]) >= 100:
            continue
        made = predictor.predict(row)
        if made is None:
            continue
        on_part = scale(made, predictor.device.share(percent=percent)).latency_ms.value
        measured = float(row["latency_ms"])
        yield Compared(row, "from nothing", on_part / measured - 1)
        full = whole_ms.get((row["location"], row["batch"]))
        if full is not None:
            ratio = on_part / made.latency_ms.value
            yield Compared(row, "slice rule", full * ratio / measured - 1)


def _percent(row: Row, units: int) -> float:
    """Return the percentage that is floored to the very units of the row."""
    if not row["sms"]:
        return float(row["share_percent"])
    return min(100.0, 100 * (int(float(row["sms"])) + 0.5) / units)


def cells(group: Sequence[Compared]) -> tuple[str, ...]:
    """Return rows, models, median, mean and 90th percentile of the error, and median bias."""
    sizes = sorted(abs(each.error) for each in group)
    models = len({each.row["location"] for each in group})
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return (
        str(len(group)), str(models), f"{median(sizes):.1%}", f"{mean(sizes):.1%}", f"{p90:.1%}",
        f"{median(each.error for each in group):+.1%}",
    )  # fmt: skip


def table(compared: Sequence[Compared], what: Callable[[Compared], str]) -> list[tuple[str, ...]]:
    """Return a line for each quantity and group."""
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for each in compared:
        groups[(each.quantity, what(each))].append(each)
    return [(*key, *cells(group)) for key, group in sorted(groups.items())]


_BY: tuple[tuple[str, Callable[[Compared], str]], ...] = (
    ("runtime, precision", lambda each: f"{each.row['runtime']}, {each.row['precision']}"),
    ("batch", lambda each: f"{int(each.row['batch']):3d}"),
    ("family", lambda each: each.row["family"]),
)
_SHARES_BY: tuple[tuple[str, Callable[[Compared], str]], ...] = (
    ("share", lambda each: f"{each.row['mechanism']} {each.row['share_percent']} %"),
    ("batch", lambda each: f"{int(each.row['batch']):3d}"),
    ("model", lambda each: each.row["location"]),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and write the tables; 0 also where there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200-sxm-141gb", help="of the catalogue")
    asked = parser.parse_args(arguments)
    rows, share_rows = read_rows(GPU / "models.csv"), read_rows(GPU / "shares.csv")
    if not rows and not share_rows:
        sys.stderr.write(
            "no measurements of a GPU: models.csv and shares.csv are absent from"
            " benchmarks/results/gpu/; run benchmarks/gpu_campaign.sh on a machine with one and"
            " copy its files there\n"
        )
        return 0
    predictor = Predictor(asked.device)
    compared = list(compare_models(rows, predictor))
    shares = list(compare_shares(share_rows, predictor))
    more: list[str] = []
    for title, found, groups in (("", compared, _BY), ("Shares, by ", shares, _SHARES_BY)):
        for name, what in groups if found else ():
            head = f"{title}{name}" if title else f"By {name}"
            lines = markdown(("quantity", name, *COLUMNS), table(found, what))
            more += [f"## {head}", "", *lines, ""]
    refused = [f"- {name}: {text}" for name, text in sorted(predictor.refused.items())]
    more += ["## Not predicted", "", *(refused or ["nothing"])]
    write_result(
        "gpu_campaign_error",
        title="The predictor on a GPU campaign",
        command="python -m benchmarks.gpu_campaign_error",
        words=f"Relative errors on {asked.device} of {len(rows)} measured points and"
        f" {len(share_rows)} on shares; nothing is fitted to them. 'slice rule' is the measured"
        " whole device times the predicted slow-down, 'from nothing' the prediction itself.",
        columns=("quantity", "of", *COLUMNS),
        rows=table([*compared, *shares], lambda each: "all"),
        more="\n".join(more).strip(),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
