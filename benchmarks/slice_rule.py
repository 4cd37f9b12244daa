"""The slice rule against open measurements under MIG and MPS.

    python -m benchmarks.slice_rule          # writes results/slice_rule.md and .json

Questions, kept apart. *Full*: every part from the latencies on the largest part (7g, 100 %)
alone, once with what is known of the model's copies, once without. *One slice*: the smallest part
measured as well. *Processes*: several equal ones in a slice, from the 7g latencies of one.
*Pairs*: the slow-down of two unlike neighbours. *Predictor*: the model predicted, its latency on
the largest part measured, or nothing measured. Needs the measured data.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from benchmarks.models import key_of, write
from benchmarks.open_rows import is_data_present
from benchmarks.sharing_rows import SOURCES, Pair, Subject, alone, crowded, pairs
from benchmarks.tables import write_result
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.device import Device
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict.measured import MeasuredCurve, MeasuredRow, measured_curve
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.sharing import neighbours
from slicewise.predict.slice import scale

FULL, FULL_ALONE = "full, copies known", "full"
ONE, ONE_ALONE = "one slice, copies known", "one slice"
CROWD, PAIRS = "processes", "pairs"
FROM_FULL, FROM_NOTHING = "predictor, full", "predictor"

# Source -> runtime, for those whose models a builder makes.
RUNTIMES = {"ParvaGPU": "torch-eager", "iGniter": "tensorrt"}
MODELS = {
    "bert": ("bert_large", 128), "densenet121": ("densenet121", 224),
    "densenet169": ("densenet169", 224), "densenet201": ("densenet201", 224),
    "inceptionv3": ("inception_v3", 299), "mobilenetv2": ("mobilenetv2_100", 224),
    "resnet101": ("resnet101", 224), "resnet152": ("resnet152", 224), "vgg19": ("vgg19", 224),
    "alexnet": ("alexnet", 224),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured figure beside the one that a question's rule gives."""

    question: str
    source: str
    family: str
    where: str
    measured: float
    told: Estimate

    @property
    def error(self) -> float:
        """Return (told - measured) / measured."""
        return self.told.value / self.measured - 1

    @property
    def is_within(self) -> bool:
        """Return True if the 90 % interval holds the measured figure."""
        return self.told.low <= self.measured <= self.told.high


def part_of(device: Device, name: str | None) -> Device:
    """Return the slice or share of `device` called `name`, None for the whole."""
    if name is None:
        return device
    return device.share(float(name[:-1])) if name.endswith("%") else device.slice(name)


def largest_of(source: str) -> str | None:
    """Return the name of the part that a rule starts from, as rows have it."""
    name = SOURCES[source].largest
    return None if name == "100%" else name


def curve_of(
    subject: Subject, rows: Sequence[MeasuredRow], *, knows_copies: bool
) -> MeasuredCurve:
    """Return what `rows` tell of a subject."""
    source = SOURCES[subject.source]
    return measured_curve(
        rows,
        find_device(source.device),
        model=subject.model,
        precision=source.precision,
        transfer_bytes_per_item=subject.transfer_bytes_per_item if knows_copies else None,
        transfer_bytes_per_s=source.transfer_bytes_per_s,
    )


def _split(
    source: str, rows: Sequence[MeasuredRow]
) -> tuple[list[MeasuredRow], list[MeasuredRow], str | None]:
    """Return the rows on the largest part, those on smaller ones at its batches, and the smallest
    part that is measured at more than one batch."""
    device, largest = find_device(SOURCES[source].device), largest_of(source)
    units = {row.slice: part_of(device, row.slice).compute_units for row in rows}
    full = [row for row in rows if row.slice == largest]
    batches = {row.batch for row in full}
    counts = {name: sum(row.slice == name for row in rows) for name in units}
    rest = [row for row in rows if units[row.slice] < units.get(largest, 0)]
    rest = [row for row in rest if row.batch in batches and counts[row.slice] > 1]
    smallest = min((row.slice for row in rest), key=lambda name: units[name], default=None)
    return full, rest, smallest


def from_measured() -> Iterator[Compared]:
    """Yield every smaller part from the largest one, and from it and the smallest."""
    for subject, rows in alone().items():
        full, rest, smallest = _split(subject.source, rows)
        if not full or not rest:
            continue
        knows = [True, False] if subject.transfer_bytes_per_item is not None else [False]
        for known in knows:
            curve = curve_of(subject, full, knows_copies=known)
            yield from _compared(FULL if known else FULL_ALONE, subject, curve, rest)
            on_smallest = [row for row in rows if row.slice == smallest]
            curve = curve_of(subject, [*full, *on_smallest], knows_copies=known)
            others = [row for row in rest if row.slice != smallest]
            yield from _compared(ONE if known else ONE_ALONE, subject, curve, others)


def from_crowds() -> Iterator[Compared]:
    """Yield several processes in every slice, from one process on 7g."""
    singles = alone()
    for subject, rows in crowded().items():
        full, _, _ = _split(subject.source, singles[subject])
        batches = {row.batch for row in full}
        curve = curve_of(subject, full, knows_copies=True)
        known = [row for row in rows if row.batch in batches]
        yield from _compared(CROWD, subject, curve, known)


def _compared(
    question: str, subject: Subject, curve: MeasuredCurve, rows: Sequence[MeasuredRow]
) -> Iterator[Compared]:
    for row in rows:
        told = curve.on(part_of(curve.device, row.slice), row.batch, row.processes).latency_ms
        where = f"on {row.slice}" if row.processes == 1 else f"{row.processes} processes"
        yield Compared(question, subject.source, subject.family, where, row.latency_ms, told)


def from_pairs() -> Iterator[Compared]:
    """Yield the slow-downs of neighbours, each from its latency alone on its own share."""
    curves: dict[tuple[str, str], MeasuredCurve] = {}
    for subject, rows in alone().items():
        if subject.source in ("iGniter", "Gpulet-0909wlgur"):
            key = (subject.source, subject.model)
            curves[key] = curve_of(subject, rows, knows_copies=True)
    for pair in pairs():
        key = (pair.source, pair.neighbour)
        if key in curves:  # some neighbours were never measured alone
            yield _pair(pair, curves[pair.source, pair.model], curves[key])


def _pair(pair: Pair, mine: MeasuredCurve, other: MeasuredCurve) -> Compared:
    own = mine.on(part_of(mine.device, pair.part), pair.batch)
    beside = other.on(part_of(other.device, pair.neighbour_part), pair.neighbour_batch)
    told, _ = neighbours(own, beside, "mps")
    slowed = pair.latency_ms / own.latency_ms.value
    return Compared(PAIRS, pair.source, pair.model, f"on {pair.part}", slowed, told)


def on_whole_device(source: str, model: str, batch_size: int) -> Prediction:
    """Return the prediction on the source's whole device."""
    precision = Precision.named(SOURCES[source].precision)
    graph = cast(load(write(key_of(*MODELS[model])), batch=batch_size), precision)
    work = count_work(graph, compute=precision.compute)
    device = find_device(SOURCES[source].device)
    return predict_roofline(graph, work, device, precision=precision, runtime=RUNTIMES[source])


def from_predictor() -> Iterator[Compared]:
    """Yield every smaller part from a prediction on the whole device."""
    for subject, rows in alone().items():
        source = subject.source
        if source not in RUNTIMES or subject.model not in MODELS:
            continue
        full, rest, _ = _split(source, rows)
        device = find_device(SOURCES[source].device)
        transfer_bytes = subject.transfer_bytes_per_item
        assert transfer_bytes is not None
        for batch in sorted({row.batch for row in rest}):
            whole = on_whole_device(source, subject.model, batch)
            largest = scale(whole, part_of(device, largest_of(source))).latency_ms.value
            known_ms = next(row.latency_ms for row in full if row.batch == batch)
            copies_ms = batch * transfer_bytes / SOURCES[source].transfer_bytes_per_s * 1e3
            copies_ms = min(copies_ms, 0.7 * known_ms)
            for row in rest:
                if row.batch == batch:
                    told = scale(whole, part_of(device, row.slice)).latency_ms
                    factor = (known_ms - copies_ms) / largest
                    moved = _moved(told, factor, copies_ms)
                    where = f"on {row.slice}"
                    its = (source, subject.family, where, row.latency_ms)
                    yield Compared(FROM_FULL, *its, moved)
                    yield Compared(FROM_NOTHING, *its, told)


def _moved(told: Estimate, factor: float, copies_ms: float) -> Estimate:
    ends = (copies_ms + factor * each for each in (told.value, told.low, told.high))
    value, low, high = ends
    return Estimate(value, low, high, told.source)


def rows_of(found: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the table: each question and source as a whole, by family, by part."""
    groups: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for each in found:
        names = ["all", each.family, each.where]
        if each.source == "ParvaGPU" and each.family != "bert":
            names.append("all without bert")
        for name in names:
            groups[each.question, each.source, name].append(each)
    order = [FULL, FULL_ALONE, ONE, ONE_ALONE, CROWD, PAIRS, FROM_FULL, FROM_NOTHING]
    rank: Mapping[str, int] = {question: place for place, question in enumerate(order)}
    return [
        (*key, str(len(its)), *cells(its))
        for key, its in sorted(
            groups.items(),
            key=lambda item: (
                rank[item[0][0]],
                item[0][1],
                not item[0][2].startswith("all"),
                item[0][2],
            ),
        )
    ]


def cells(found: Sequence[Compared]) -> tuple[str, ...]:
    """Return median, mean, p90 of the absolute error, the median bias, and how often the 90 %
    interval holds."""
    sizes = [abs(each.error) for each in found]
    return (
        f"{median(sizes):.1%}", f"{mean(sizes):.1%}", f"{float(np.percentile(sizes, 90)):.1%}",
        f"{median(each.error for each in found):+.1%}",
        f"{mean(each.is_within for each in found):.0%}",
    )  # fmt: skip


def main() -> int:
    """Compare and write the table."""
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    found = [*from_measured(), *from_crowds(), *from_pairs(), *from_predictor()]
    write_result(
        "slice_rule",
        title="Slice rule on open measurements",
        command="python -m benchmarks.slice_rule",
        words=(
            "Errors in the latency of a part (pairs: in the slow-down by a neighbour). *Full*:"
            " from the latencies on the largest part alone (7g; 100 %; of iGniter 80 %, of INFless"
            " 50 %, the largest measured at all batches). *One slice*: the smallest part measured"
            " too. *Copies known*: what an item moves over the link is told. *Processes*: 2 to 5"
            " equal ones in a slice, from one process on 7g. *Predictor, full*: the predicted"
            " slow-down on the measured latency of the largest part; *predictor*: nothing"
            " measured. Constants were fitted to ParvaGPU and, with little weight, MISO; how wide"
            " their priors are was settled with the others in view (slice_constants.md: it matters"
            " little)."
        ),
        columns=(
            "question", "source", "what", "rows", "median", "mean", "p90", "bias", "in interval",
        ),
        rows=rows_of(found),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
