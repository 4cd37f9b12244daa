"""The slice rule against open measurements under MIG and MPS: no slice is measured beforehand.

    python -m benchmarks.slice_rule          # writes results/slice_rule.md and .json

Two questions, kept apart. *From the full device*: the measured latency on the largest part (7g, or
100 %) times the predicted slow-down: the error of the rule with the predictor's own saturation.
*From nothing*: the predicted latency on the part itself. Needs the measured data.
"""

import csv
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.models import key_of, write
from benchmarks.open_rows import data_folder, is_data_present
from benchmarks.tables import write_result
from slicewise.core.cost import Prediction
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict.roofline import predict_roofline
from slicewise.predict.slice import scale

# Source -> (device, separator before the part's name, precision, runtime, the largest part).
SOURCES = {
    "ParvaGPU": ("a100-sxm4-80gb", "/", "tf32", "torch-eager", "7g.80gb"),
    "iGniter": ("v100-sxm2-16gb", "@", "fp32", "tensorrt", "100%"),
}
MODELS = {
    "bert": ("bert_large", 128), "densenet121": ("densenet121", 224),
    "densenet169": ("densenet169", 224), "densenet201": ("densenet201", 224),
    "inceptionv3": ("inception_v3", 299), "mobilenetv2": ("mobilenetv2_100", 224),
    "resnet101": ("resnet101", 224), "resnet152": ("resnet152", 224), "vgg19": ("vgg19", 224),
    "alexnet": ("alexnet", 224),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """One model alone on one part of one device."""

    source: str
    model: str
    batch_size: int
    part: str
    latency_ms: float


def measured() -> Iterator[Measured]:
    """Yield the open rows of one process without neighbours whose model a builder makes."""
    with gzip.open(data_folder() / "sharing" / "slices_open.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            alone = row["n_processes"] == "1" and not row["co_runners"]
            if row["source"] in SOURCES and alone and row["model"] in MODELS:
                if row["kind"] != "table":
                    continue
                latency_ms = float(row["latency_ms"])
                yield Measured(
                    row["source"], row["model"], int(row["batch"]), row["slice"], latency_ms
                )


def on_whole_device(source: str, model: str, batch_size: int) -> Prediction:
    """Return the prediction on the source's whole device."""
    name, _, precision_name, runtime, _ = SOURCES[source]
    precision = Precision.named(precision_name)
    graph = cast(load(write(key_of(*MODELS[model])), batch=batch_size), precision)
    work = count_work(graph, compute=precision.compute)
    return predict_roofline(graph, work, find_device(name), precision=precision, runtime=runtime)


def compare() -> list[tuple[Measured, float, float]]:
    """Return (row, relative error from the full device, relative error from nothing)."""
    groups: dict[tuple[str, str, int], list[Measured]] = defaultdict(list)
    for row in measured():
        groups[(row.source, row.model, row.batch_size)].append(row)
    found = []
    for (source, model, batch_size), rows in sorted(groups.items()):
        name, separator, _, _, largest = SOURCES[source]
        full = [row.latency_ms for row in rows if row.part == largest]
        if not full:
            continue
        whole = on_whole_device(source, model, batch_size)
        on_largest = scale(whole, find_device(f"{name}{separator}{largest}")).latency_ms.value
        for row in rows:
            if row.part == largest:
                continue
            part = find_device(f"{name}{separator}{row.part}")
            on_part = scale(whole, part).latency_ms.value
            from_full = full[0] * on_part / on_largest / row.latency_ms - 1
            found.append((row, from_full, on_part / row.latency_ms - 1))
    return found


def cells(errors: list[float]) -> tuple[str, ...]:
    """Return median, mean, p90 of the absolute error and the median bias."""
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return (
        f"{median(sizes):.1%}", f"{mean(sizes):.1%}", f"{p90:.1%}", f"{median(errors):+.1%}",
    )  # fmt: skip


def main() -> int:
    """Compare and write the table."""
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    found = compare()
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row, from_full, from_nothing in found:
        for key in (row.model, f"on {row.part}", "all", *_without_bert(row)):
            groups[(row.source, key)].append((from_full, from_nothing))
    rows = [
        (*key, str(len(pairs)), *cells([a for a, _ in pairs]), *cells([b for _, b in pairs]))
        for key, pairs in sorted(groups.items())
    ]
    write_result(
        "slice_rule",
        title="Slice rule on open measurements",
        command="python -m benchmarks.slice_rule",
        words="Errors in latency of a part: from the measured full device, and from nothing.",
        columns=(
            "source", "what", "rows", "median", "mean", "p90", "bias",
            "from nothing: median", "mean ", "p90 ", "bias ",
        ),
        rows=rows,
    )  # fmt: skip
    return 0


def _without_bert(row: Measured) -> tuple[str, ...]:
    return () if row.model == "bert" else ("all without bert",)


if __name__ == "__main__":
    sys.exit(main())
