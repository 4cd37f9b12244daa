"""Calibrate on half of the families, predict the other half, and write what came of it.

    python -m benchmarks.cpu_zoo [--store FILE]

Reads the records of the campaign `cpu-zoo`. Families are halved at random five times, and both
halves calibrate once: each figure is over ten fits, none of which saw the family it is told of.
"""

import argparse
import csv
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import RESULTS, markdown, write_result
from slicewise.core.cost import Prediction
from slicewise.core.measurement import Measurement
from slicewise.flows.calibrate import cases_of, families
from slicewise.flows.campaign_spec import read_spec
from slicewise.flows.measure import is_usable, target_here
from slicewise.flows.records import default_store
from slicewise.predict.calibrate import CalibrationCase, fit_card
from slicewise.predict.roofline import predict_roofline_on
from slicewise.store.records import RecordStore

SPEC = Path(__file__).parent / "spec.yaml"
HALVINGS = 5
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """One measured case and its predictions, in ms and bytes, without and with a card."""

    case: CalibrationCase
    model: str
    before: Prediction
    after: Prediction

    def latency_error(self, made: Prediction) -> float:
        """Relative error of a predicted latency."""
        return abs(made.latency_ms.value - self.case.latency_ms) / self.case.latency_ms

    def memory_error(self, made: Prediction) -> float:
        """Relative error of a predicted peak of memory."""
        assert self.case.memory is not None
        peak = self.case.memory.peak_bytes
        return abs(made.memory_bytes.value - peak) / peak

    @property
    def is_inside(self) -> bool:
        """True where the measured latency lies in the interval that the card gives."""
        return self.after.latency_ms.low <= self.case.latency_ms <= self.after.latency_ms.high


def main() -> None:
    """Read the campaign, judge, and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=None)
    store = parser.parse_args().store or default_store()
    spec = read_spec(SPEC)
    table = {model.location: model.family for model in spec.models}
    target = target_here("cpu")
    with RecordStore(store, read_only=True) as records:
        found = [record.measurement for record in records.find(campaign=spec.name)]
    usable = [each for each in found if is_usable(each)]
    cases, notes = cases_of(usable, target.device, family_of=families(table), progress=print)
    for note in notes:
        print(f"{note.code}: {note.text}")
    write_rows(usable, table)
    judged: list[Judged] = []
    for halving in range(HALVINGS):
        for chosen in halves(sorted({case.family for case in cases}), seed=halving):
            judged += judge(cases, chosen)
            print(f"halving {halving + 1}: {len(judged)} predictions")
    report(judged, found)


def halves(names: Sequence[str], *, seed: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the families in two halves, at random."""
    order = list(names)
    random.Random(seed).shuffle(order)
    middle = len(order) // 2
    return frozenset(order[:middle]), frozenset(order[middle:])


def judge(cases: Sequence[CalibrationCase], chosen: frozenset[str]) -> list[Judged]:
    """Calibrate on the cases of the chosen families and predict all others."""
    target = target_here("cpu")
    card = fit_card([case for case in cases if case.family in chosen], device=target.device)
    judged = []
    for case in cases:
        if case.family in chosen:
            continue
        its = card if case.slice is None else card.of_part(case.slice)
        before, after = (
            predict_roofline_on(
                case.graph,
                case.work,
                [case.device],
                precision=case.precision,
                runtime=case.runtime,
                cards=cards,
            )[0]
            for cards in ({}, {case.device.name: its})
        )
        judged.append(Judged(case, case.graph.name, before, after))
    return judged


def report(judged: Sequence[Judged], found: Sequence[Measurement]) -> None:
    """Write the table by runtime, threads and batch, and those by family and batch below it."""
    columns = (
        "runtime", "threads", "batch", "cases", "median before", "MAPE before", "median after",
        "MAPE after", "in the 90 % interval", "memory median before", "memory median after",
    )  # fmt: skip
    groups: dict[tuple[str, str, str], list[Judged]] = defaultdict(list)
    for each in judged:
        threads = "1" if each.case.slice else "2"
        batch = str(each.case.graph.batch_size)
        for key in (
            ("all", "1, 2", "1, 8"),
            (each.case.runtime, "1, 2", "1, 8"),
            (each.case.runtime, threads, batch),
        ):
            groups[key].append(each)
    rows = [[*key, *_cells(its)] for key, its in sorted(groups.items())]
    models = {each.location for each in found}
    outcomes = Counter(str(each.outcome) for each in found)
    processor = next(each.environment.processor for each in found if each.environment.processor)
    write_result(
        "cpu_zoo",
        title="Calibration on this machine's CPU, judged on families never measured",
        command="python -m benchmarks.cpu_zoo",
        words=(
            f"{len(models)} models of {len({each.case.family for each in judged})} families from"
            f" timm, torchvision and transformers with random weights, fp32, on 2 cores of an"
            f" {processor}: {len(found)} measurements,"
            f" {', '.join(f'{count} {name}' for name, count in sorted(outcomes.items()))}."
            " Half of the families calibrate, the other half is predicted; five random"
            " halvings, both ways. Errors are relative to the measured median; memory is the peak"
            " of the process. The measurements are in [cpu_zoo.csv](cpu_zoo.csv)."
        ),
        columns=columns,
        rows=rows,
        more="\n".join(_by_family(judged)),
    )


def _cells(judged: Sequence[Judged]) -> list[str]:
    before = [each.latency_error(each.before) for each in judged]
    after = [each.latency_error(each.after) for each in judged]
    metered = [each for each in judged if each.case.memory is not None]
    memory = [
        [each.memory_error(getattr(each, side)) for each in metered]
        for side in ("before", "after")
    ]
    return [
        str(
            len({(e.model, e.case.graph.batch_size, e.case.runtime, e.case.slice) for e in judged})
        ),
        _percent(statistics.median(before)),
        _percent(statistics.fmean(before)),
        _percent(statistics.median(after)),
        _percent(statistics.fmean(after)),
        f"{sum(each.is_inside for each in judged) / len(judged):.0%}",
        *(_percent(statistics.median(side)) if side else "-" for side in memory),
    ]


def _by_family(judged: Sequence[Judged]) -> list[str]:
    """Return the table by family, the worst first."""

    def told(groups: dict[str, list[Judged]], head: str) -> Iterable[str]:
        rows = []
        for name, its in groups.items():
            bias = statistics.median(
                each.after.latency_ms.value / each.case.latency_ms - 1 for each in its
            )
            after = [each.latency_error(each.after) for each in its]
            before = statistics.median(each.latency_error(each.before) for each in its)
            figures = (before, statistics.median(after), statistics.fmean(after))
            rows.append((statistics.fmean(after), [name, *map(_percent, figures), f"{bias:+.1%}"]))
        columns = (head, "median before", "median after", "MAPE after", "bias after")
        return markdown(columns, [row for _, row in sorted(rows, reverse=True)])

    groups: dict[str, list[Judged]] = defaultdict(list)
    for each in judged:
        groups[each.case.family].append(each)
    return ["## By family", "", *told(groups, "family")]


def _percent(part: float) -> str:
    return f"{part:.1%}"


def write_rows(measurements: Sequence[Measurement], table: dict[str, str]) -> None:
    """Write the measurements themselves, one a line."""
    with (RESULTS / "cpu_zoo.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model", "family", "runtime", "threads", "batch", "latency_ms", "low_ms", "high_ms",
             "samples", "memory_bytes", "runtime_bytes", "core_share", "waited"]
        )  # fmt: skip
        for each in sorted(
            measurements, key=lambda m: (m.location, m.runtime, m.threads, m.batch)
        ):
            assert each.latency_ms is not None
            memory, around = each.memory, each.environment
            writer.writerow(
                [
                    each.location,
                    table.get(each.location, ""),
                    each.runtime,
                    each.threads,
                    each.batch,
                    *(f"{ms:.5g}" for ms in (
                        each.latency_ms.value, each.latency_ms.low, each.latency_ms.high
                    )),
                    len(each.samples_ms),
                    "" if memory is None else memory.peak_bytes,
                    "" if memory is None else memory.runtime_bytes,
                    "" if around.core_share is None else f"{around.core_share:.3f}",
                    "" if around.waited is None else f"{around.waited:.3f}",
                ]
            )  # fmt: skip


if __name__ == "__main__":
    main()
