"""Roofline and fusion on timm's own modules: 200 of them, stratified, against all published files.

    python -m benchmarks.timm_roofline          # writes results/timm_roofline.md and .json

Models come through the PyTorch front-end, not from the builders that efficiencies were fitted
with. Needs the measured data ($SLICEWISE_DATA) and timm. Rows: timm's results files
(huggingface/pytorch-image-models, results/benchmark-infer-*.csv, Apache-2.0). `off` prices one
kernel for each operator, at the same efficiencies.
"""

import csv
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.open_rows import data_folder, is_data_present
from benchmarks.row_names import DEVICES
from benchmarks.tables import markdown, write_result
from slicewise.core.errors import ModelError, SlicewiseError
from slicewise.core.graph import Graph
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.graph.frontends import zoo
from slicewise.graph.frontends.zoo import timm as zoo_timm
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.hardware.catalogue import find_device
from slicewise.predict.roofline import predict_roofline

MODELS = 200
_RUNTIMES = {"pytorch-eager": "torch-eager", "pytorch-dynamo": "torch-compile"}
_PRECISIONS = {"amp": "amp", "amp_bf16": "amp", "bf16": "bf16", "fp32": "fp32"}


@dataclass(frozen=True, slots=True)
class Key:
    """A module of timm, one of its architectures, and the image it was measured on."""

    module: str
    name: str
    shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of one results file."""

    file: str
    device: str
    runtime: str
    precision: str
    batch_size: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A row beside what is predicted with fusion and without."""

    key: Key
    row: Measured
    on_ms: float
    off_ms: float


def measured_rows() -> Mapping[Key, list[Measured]]:
    """Return the rows of timm's results files by model and image."""
    found: dict[Key, list[Measured]] = defaultdict(list)
    with gzip.open(data_folder() / "model_level" / "open.csv.gz", "rt", newline="") as file:
        for raw in csv.DictReader(file):
            if raw["source"] != "timm-results":
                continue
            channels, height, width = map(int, raw["input_shape"].split("x"))
            module = raw["model_family"].partition("/")[0]
            name = raw["model_name"].partition(".")[0]
            key = Key(module, name, (channels, height, width))
            found[key].append(
                Measured(
                    raw["source_file"].rpartition("/")[2].removeprefix("benchmark-infer-"),
                    DEVICES[raw["device"]][0],
                    _RUNTIMES[raw["runtime"]],
                    _PRECISIONS[raw["precision"]],
                    int(float(raw["batch"])),
                    float(raw["latency_ms"]),
                )
            )
    return found


def stratified(keys: Iterable[Key], count: int) -> list[Key]:
    """Return `count` keys: at least one of each module, the rest by the module's size, evenly
    spaced in the order of names. No randomness."""
    by_module: dict[str, list[Key]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: (key.module, key.name, key.shape)):
        by_module[key.module].append(key)
    total = sum(map(len, by_module.values()))
    quota = dict.fromkeys(by_module, 1)
    share = {m: len(group) * count / total for m, group in by_module.items()}
    while sum(quota.values()) < count:
        open_ones = [m for m in by_module if quota[m] < len(by_module[m])]
        quota[max(open_ones, key=lambda m: (share[m] - quota[m], m))] += 1
    return [
        group[int((i + 0.5) * len(group) / quota[module])]
        for module, group in by_module.items()
        for i in range(quota[module])
    ]


def graph_of(key: Key) -> Graph:
    """Return the module's graph at its measured image; built for that size where it must be."""
    _, height, width = key.shape
    own = load(f"timm:{key.name}")
    if own.tensors[own.inputs[0]].shape == (1, *key.shape):
        return own
    try:
        return load(f"timm:{key.name}?img_size=({height},{width})")
    except SlicewiseError:
        return load(f"timm:{key.name}", inputs={"": (1, *key.shape)})


def compare(key: Key, rows: Sequence[Measured]) -> Iterator[Compared]:
    """Yield every row of one model with its predictions."""
    graph = graph_of(key)

    def case(row: Measured) -> tuple[int, str]:
        return row.batch_size, row.precision

    for batch_size, precision_name in sorted({case(row) for row in rows}):
        precision = Precision.named(precision_name)
        ready = cast(load(graph, batch=batch_size), precision)
        work = count_work(ready, compute=precision.compute)
        for row in rows:
            if case(row) != (batch_size, precision_name):
                continue
            device = find_device(row.device)
            on, off = (
                predict_roofline(ready, each, device, precision=precision, runtime=row.runtime)
                for each in (launch(ready, work, runtime=row.runtime), work)
            )
            yield Compared(key, row, on.latency_ms.value, off.latency_ms.value)


def _cells(group: Sequence[Compared]) -> tuple[str, ...]:
    def cells(predicted: Callable[[Compared], float]) -> tuple[str, ...]:
        ratios = [predicted(each) / each.row.latency_ms - 1 for each in group]
        errors = sorted(map(abs, ratios))
        return (
            f"{sum(errors) / len(errors):.1%}",
            f"{median(errors):.1%}",
            f"{errors[math.ceil(0.9 * len(errors)) - 1]:.1%}",
            f"{median(ratios):+.1%}",
        )

    on, off = cells(lambda each: each.on_ms), cells(lambda each: each.off_ms)
    models = len({each.key for each in group})
    return (str(len(group)), str(models), *on, *off)


COLUMNS = (
    "rows", "models", "on: MAPE", "median", "p90", "bias", "off: MAPE", "median", "p90", "bias",
)  # fmt: skip


def _table(
    compared: Sequence[Compared], heads: tuple[str, ...], what: Callable[[Compared], str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    groups: dict[str, list[Compared]] = defaultdict(list)
    for each in compared:
        groups[what(each)].append(each)
    lines = [(name, *_cells(group)) for name, group in sorted(groups.items())]
    return (*heads, *COLUMNS), lines


def main() -> int:
    """Compare and write the tables."""
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    zoo.import_torchvision()  # timm asks for it
    rows = {key: group for key, group in measured_rows().items() if zoo_timm.is_known(key.name)}
    compared: list[Compared] = []
    refused: list[str] = []
    for i, key in enumerate(stratified(rows, MODELS)):
        sys.stderr.write(f"{i + 1}/{MODELS} {key.name} {key.shape[1]}\n")
        try:
            compared.extend(compare(key, rows[key]))
        except ModelError as err:
            refused.append(f"- {key.name} at {key.shape[1]}: {err}")
    columns, lines = _table(compared, ("results file",), lambda each: each.row.file)
    more: list[str] = []
    for title, head, what in (
        ("By runtime and device", "runtime, device", lambda e: f"{e.row.runtime}, {e.row.device}"),
        ("By module", "module", lambda each: each.key.module),
    ):
        more += ["", f"## {title}", "", *markdown(*_table(compared, (head,), what))]
    more += ["", "## Not read", "", *(refused or ["nothing"])]
    whole = _cells(compared)
    write_result(
        "timm_roofline",
        title="Roofline on 200 timm models, fusion on and off",
        command="python -m benchmarks.timm_roofline",
        words=f"{whole[0]} rows of {whole[1]} (model, image) pairs in"
        f" {len({each.row.file for each in compared})} files. With fusion MAPE {whole[2]}, median"
        f" {whole[3]}; one kernel for each operator MAPE {whole[6]}, median {whole[7]}.",
        columns=columns,
        rows=lines,
        more="\n".join(more).strip(),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
