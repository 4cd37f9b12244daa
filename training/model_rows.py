"""Published latencies of whole models as rows to train on and to judge by; nothing is fitted here.

`timm_rows` are timm's results files on the graphs of `training/graphs`; `other_rows` are small
batches of other sources on the builders of `benchmarks/models`. Only rows whose source states a
permissive licence come through. Needs the measured data ($SLICEWISE_DATA).
"""

import csv
import gzip
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from benchmarks.open_rows import Row, data_folder, open_rows
from benchmarks.row_names import DEVICES
from training.graphs import REPARAMETERISED, Kept

_RUNTIMES = {"pytorch-eager": "torch-eager", "pytorch-dynamo": "torch-compile"}
_PRECISIONS = {"amp": "amp", "amp_bf16": "amp", "bf16": "bf16", "fp32": "fp32"}
# PyTorch's release from which timm's files were run with merged branches.
MERGED_FROM = (2, 9)
# Rows of these may be trained on: MIT, BSD, Apache-2.0. Others (AGPL) are for evaluation.
_PERMISSIVE = re.compile(r"(?<!A)\b(apache|mit|bsd)", re.IGNORECASE)
# A row whose parameters are off by more is of another graph than today's name.
PARAMETER_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One measurement. `key` names its graph: of `training/graphs`, or 'NAME@SIZE' of a builder
    where `source` is not timm's. `file` groups rows of one campaign. Folds are the official ones.
    """

    source: str
    file: str
    model_name: str
    key: str
    device: str
    runtime: str
    precision: str
    layout: str
    version: tuple[int, ...]
    batch: int
    latency_s: float
    family_fold: int
    model_fold: int
    group: str
    gmacs: float
    macts: float
    params_m: float
    flags: tuple[str, ...] = ()
    is_trainable: bool = True


def timm_rows() -> list[ModelRow]:
    """Return the rows of timm's files, in the order of the data, with a graph or without."""
    folds = _folds("timm-results")
    return [
        _timm_row(raw, folds[raw["model_name"], raw["input_shape"]])
        for raw in _raw()
        if raw["source"] == "timm-results"
    ]


def _timm_row(raw: Mapping[str, str], fold: Mapping[str, str]) -> ModelRow:
    version = _version(raw["notes"], "torch")
    _, height, width = raw["input_shape"].split("x")
    name = raw["model_name"].partition(".")[0]
    return ModelRow(
        source=raw["source"],
        file=raw["source_file"].rpartition("/")[2].removeprefix("benchmark-infer-")[:-4],
        model_name=raw["model_name"],
        key=f"{name}@{height}x{width}",
        device=DEVICES[raw["device"]][0],
        runtime=_RUNTIMES[raw["runtime"]],
        precision=_PRECISIONS[raw["precision"]],
        layout=raw["memory_format"],
        version=version,
        batch=int(float(raw["batch"])),
        latency_s=float(raw["latency_ms"]) / 1e3,
        family_fold=int(fold["family_fold"]),
        model_fold=int(fold["model_fold"]),
        group=fold["group"],
        gmacs=float(raw["gmacs"] or 0),
        macts=float(raw["macts"] or 0),
        params_m=float(raw["params_m"] or 0),
        flags=("bf16-autocast",) if raw["precision"] == "amp_bf16" else (),
    )


def graph_keys(row: ModelRow, known: frozenset[str]) -> str | None:
    """Return the key of the graph that was run: merged branches from PyTorch 2.9 on."""
    merged = row.key + REPARAMETERISED
    if row.version >= MERGED_FROM and merged in known:
        return merged
    return row.key if row.key in known else None


def is_that_graph(row: ModelRow, kept: Kept) -> bool:
    """False where the parameters say that the name meant another graph when it was measured."""
    if not row.params_m:
        return True
    return abs(kept.parameters / 1e6 - row.params_m) <= PARAMETER_TOLERANCE * (row.params_m + 1)


def other_rows() -> list[ModelRow]:
    """Return the rows of other sources whose device is in the catalogue, whole cards only."""
    licences = _licences()
    return [
        _other_row(row, licences[row.source])
        for row in open_rows()
        if row.source != "timm-results" and row.device_name and "/" not in row.device_name
    ]


def _other_row(row: Row, licence: str) -> ModelRow:
    product = {"tensorrt": "TensorRT", "onnxruntime": "onnxruntime"}.get(row.runtime, "torch")
    return ModelRow(
        source=row.source,
        file=f"{row.source}-{row.device_name}-{row.published_runtime}-{row.precision}",
        model_name=row.model_name,
        key=row.key,
        device=row.device_name,
        runtime=row.runtime,
        precision=row.precision,
        layout=row.layout if row.layout in ("nchw", "nhwc") else "nchw",
        version=_version(f"{row.published_runtime} {row.notes}", product),
        batch=row.batch_size,
        latency_s=row.latency_ms / 1e3,
        family_fold=row.family_fold,
        model_fold=row.model_fold,
        group=row.family,
        gmacs=row.gmacs or 0.0,
        macts=0.0,
        params_m=row.params_m or 0.0,
        flags=row.flags,
        is_trainable=bool(_PERMISSIVE.search(licence)) and "AGPL" not in licence,
    )


def _version(text: str, product: str) -> tuple[int, ...]:
    found = re.search(rf"{product}[ -]v?(\d+)\.(\d+)", text, re.IGNORECASE)
    return (int(found[1]), int(found[2])) if found else ()


@cache
def _licences() -> Mapping[str, str]:
    return {raw["source"]: raw["license"] for raw in _raw()}


def _raw() -> Iterator[Mapping[str, str]]:
    path = data_folder() / "model_level" / "open.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _folds(source: str) -> Mapping[tuple[str, str], Mapping[str, str]]:
    path = data_folder() / "model_level" / "folds.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (raw["model_name"], raw["input_shape"]): raw
            for raw in csv.DictReader(file)
            if raw["source"] == source
        }
