"""The open measured rows whose model a builder makes, in the words of this package.

`open_rows()` reads the published measurements (`model_level/open.csv.gz` of the data folder, with
its official folds) and returns one `Row` for each that can be compared with a prediction;
`excluded()` says which rule left out how many of the others, so that nothing is skipped in
silence. No prediction is made here.
"""

import argparse
import csv
import gzip
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from benchmarks.models import builders, key_of
from benchmarks.row_names import (
    DEVICES,
    bert_name,
    deberta_name,
    examples_name,
    mlperf_name,
    openmmlab_name,
    paddle_name,
    sentence_name,
    timm_name,
    torch7_name,
    torchvision_name,
    ultralytics_name,
)

Raw: TypeAlias = Mapping[str, str]

FLAGS: Mapping[str, str] = {
    "host-copy": "the copy of the batch to the device is inside the measured time",
    "data-pipeline": "the example's data loading may be inside the measured time",
    "end-to-end": "client and network of an inference server are inside the measured time",
    "training-mode": "forward pass with batch statistics",
    "stand-in-runtime": "measured in a framework that has no name here; the nearest one is given",
    "server": "engine run by an inference server, server compute time only",
    "plugins": "engine with hand-written fused attention",
    "tf32-possible": "fp32 on a device whose framework default may be TF32",
    "bf16-autocast": "autocast to bfloat16",
    "precision-assumed": "precision not in the source, taken from its usual practice",
    "variant-assumed": "the source names the family only; its usual member is taken",
    "size-assumed": "image size not in the row; the size that the source's page gives",
    "form-factor-assumed": "the source names the card without its form factor",
    "tensorflow-padding": "SAME padding, written as Pad nodes",
    "real-images": "mean over images of a data set",
}
"""What a flag of a row means."""

BEYOND_THE_MODEL = frozenset({"host-copy", "data-pipeline", "end-to-end", "training-mode"})
"""Flags of rows whose time is not that of the inference graph alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published measurement. `runtime` and `precision` are words of this package;
    `device_name` is '' where the catalogue has no data sheet. Folds are the official ones.
    """

    source: str
    family: str
    family_fold: int
    model_fold: int
    model_name: str
    model: str  # name of the builder
    size: int  # image side or sequence length
    batch_size: int
    precision: str
    runtime: str
    published_runtime: str
    layout: str  # nchw, nhwc or '' (not stated)
    device: str
    device_name: str
    latency_ms: float
    params_m: float | None
    gmacs: float | None
    flags: tuple[str, ...]
    notes: str

    @property
    def key(self) -> str:
        """What `benchmarks.models.build` takes."""
        return key_of(self.model, self.size)

    @property
    def is_model_only(self) -> bool:
        """True where the time is that of the inference graph alone."""
        return not BEYOND_THE_MODEL & set(self.flags)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Rows of one source that one rule left out."""

    source: str
    rule: str
    rows: int
    models: int
    example: str


@dataclass(frozen=True, slots=True)
class Source:
    """How to read one source. A name or runtime that is not found excludes the row."""

    name: Callable[[str], str | None]
    runtimes: Mapping[str, tuple[str, tuple[str, ...]]]
    flags: tuple[str, ...] = ()
    size: int | None = None  # of rows that do not give it


_EAGER = ("torch-eager", ())
_COMPILED = ("torch-compile", ())
_TENSORRT = ("tensorrt", ())
_ONNXRUNTIME = ("onnxruntime", ())
_STAND_IN = ("stand-in-runtime",)

SOURCES: Mapping[str, Source] = {
    "timm-results": Source(timm_name, {"pytorch-eager": _EAGER, "pytorch-dynamo": _COMPILED}),
    "ryujaehun-pytorch-gpu-benchmark": Source(
        torchvision_name, {"pytorch-eager": _EAGER}, ("host-copy",)
    ),
    "torch2trt-readme": Source(torchvision_name, {"pytorch-eager": _EAGER, "tensorrt": _TENSORRT}),
    "jcjohnson-cnn-benchmarks": Source(
        torch7_name,
        {"torch7-cudnn": ("torch-eager", _STAND_IN)},
        ("training-mode",),
    ),
    "nvidia-deeplearningexamples": Source(
        examples_name,
        {
            "pytorch-eager": ("torch-eager", ("data-pipeline",)),
            "tf1": ("torch-eager", (*_STAND_IN, "data-pipeline")),
            "tf1-xla": ("torch-compile", (*_STAND_IN, "data-pipeline")),
            "mxnet": ("torch-eager", (*_STAND_IN, "data-pipeline")),
            "triton-tensorrt": ("tensorrt", ("server", "end-to-end")),
        },
        size=224,
    ),
    "nvidia-tensorrt-demo-bert": Source(
        bert_name, {"tensorrt-plugins": ("tensorrt", ("plugins",))}
    ),
    "nvidia-tensorrt-demo-deberta": Source(
        deberta_name,
        {
            "pytorch-eager": _EAGER,
            "tensorrt": _TENSORRT,
            "tensorrt-plugin": ("tensorrt", ("plugins",)),
        },
    ),
    "migprofiler-mig": Source(sentence_name, {"pytorch-eager": _EAGER}),
    "mmdeploy-benchmark": Source(
        openmmlab_name, {"tensorrt": _TENSORRT}, ("variant-assumed", "real-images")
    ),
    "mlperf-inference-v3.0-closed": Source(
        mlperf_name, {"": _TENSORRT}, ("precision-assumed",), size=224
    ),
    "paddleclas-docs": Source(
        paddle_name,
        {"paddle-inference-trt": _TENSORRT},
        size=224,
    ),
    "ultralytics-yolov5-readme": Source(
        ultralytics_name,
        {"pytorch-eager": _EAGER, "tensorrt": _TENSORRT, "onnxruntime-cpu": _ONNXRUNTIME},
        ("real-images",),
    ),
    "ultralytics-docs": Source(
        ultralytics_name,
        {"tensorrt": _TENSORRT, "onnxruntime-cpu": _ONNXRUNTIME},
        ("real-images",),
    ),
}
"""Sources that measure latency of models that can be built here."""

OTHER_SOURCES: Mapping[str, str] = {
    "deit-readme": "batch and precision are not in the source",
    "intel-neural-compressor-validated": "throughput of 14 parallel instances, not a latency",
    "ml-energy-leaderboard-v2": "generative model served token by token",
    "ml-energy-leaderboard-v3": "generative model served token by token",
    "ml-energy-legacy-v1": "generative model served token by token",
    "paddledetection-docs": "no builder for these detectors",
}
"""Sources left out whole, and why."""

_PRECISIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fp32": ("fp32", ()),
    "tf32": ("tf32", ()),
    "fp16": ("fp16", ()),
    "bf16": ("bf16", ()),
    "amp": ("amp", ()),
    "amp_bf16": ("amp", ("bf16-autocast",)),
    "int8": ("int8", ()),
    "fp32 (TF32 defaults of the torch build)": ("fp32", ("tf32-possible",)),
    "fp16 (export default half, assumed)": ("fp16", ("precision-assumed",)),
}
_TF32_DEVICES = (
    "a100",
    "a30",
    "a40",
    "a2",
    "h100",
    "rtx-3",
    "rtx-4",
    "rtx-pro",
    "jetson-agx-orin",
)

# The six files of torch 2.9.1 were run re-parameterised: these families then have another graph.
_REPARAMETERISED = (
    "mobileone", "repvgg", "repvit", "fastvit", "levit", "repghost", "efficientvit_m", "shvit",
    "tiny_vit",
)  # fmt: skip

# Image sizes that the source's page gives beside the table.
_PAGE_SIZES = {"Fix_ResNeXt101_32x48d_wsl": 320, "Fix_ResNet50_vd_ssld": 320}

# Other graphs under the same name: seen by parameters or multiply-adds that differ.
_UNLIKE: Mapping[tuple[str, str], str] = {
    ("paddleclas-docs", "SE_ResNeXt50_vd_32x4d"): "published multiply-adds are of another graph",
    ("paddleclas-docs", "GoogLeNet"): "published image size contradicts the multiply-adds",
    ("paddleclas-docs", "CSPDarkNet53"): "published image size contradicts the multiply-adds",
    ("paddleclas-docs", "ResNeSt101"): "published image size contradicts the multiply-adds",
    ("paddleclas-docs", "RegNetX_32GF"): "published parameters are of another graph",
    ("paddleclas-docs", "RepVGG_B3"): "published figures are of the unmerged graph",
    ("paddleclas-docs", "RepVGG_B3g4"): "published figures are of the unmerged graph",
}


class _LeftOut(Exception):
    """Raised while reading a row that a rule leaves out."""


def data_folder() -> Path:
    """Return the folder of the measured data: $SLICEWISE_DATA, else ../shared/data."""
    given = os.environ.get("SLICEWISE_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


def is_data_present() -> bool:
    """True where the measured rows can be read."""
    return (data_folder() / "model_level" / "open.csv.gz").is_file()


def open_rows() -> tuple[Row, ...]:
    """Return every open row that a builder covers, in the order of the file."""
    return _read()[0]


def excluded() -> tuple[Exclusion, ...]:
    """Return what was left out, by source and rule, the largest first."""
    return _read()[1]


@cache
def _read() -> tuple[tuple[Row, ...], tuple[Exclusion, ...]]:
    rows: list[Row] = []
    left: dict[tuple[str, str], list[str]] = {}
    folds = _folds()
    for raw in _raw_rows():
        try:
            rows.append(_row(raw, folds))
        except _LeftOut as rule:
            left.setdefault((raw["source"], str(rule)), []).append(raw["model_name"])
    exclusions = [
        Exclusion(source, rule, len(names), len(set(names)), names[0])
        for (source, rule), names in left.items()
    ]
    return tuple(rows), tuple(sorted(exclusions, key=lambda e: (-e.rows, e.source, e.rule)))


def _raw_rows() -> Iterator[Raw]:
    path = data_folder() / "model_level" / "open.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _folds() -> Mapping[tuple[str, str, str], Raw]:
    path = data_folder() / "model_level" / "folds.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (raw["source"], raw["model_name"], raw["input_shape"]): raw
            for raw in csv.DictReader(file)
        }


def _row(raw: Raw, folds: Mapping[tuple[str, str, str], Raw]) -> Row:
    """Return the row in our words; `_LeftOut` with the rule that excludes it."""
    name = raw["source"]
    if name in OTHER_SOURCES:
        raise _LeftOut(OTHER_SOURCES[name])
    source = SOURCES[name]
    model = _model(raw, source)
    runtime, runtime_flags = _runtime(raw, source)
    precision, precision_flags = _precision(raw)
    size, size_flags = _size(raw, source)
    device_name, device_flags = _device(raw["device"])
    if not raw["batch"] or not raw["latency_ms"]:
        raise _LeftOut("no batch or no latency in the source")
    is_wide = precision == "fp32" and runtime.startswith("torch")
    flags = (
        *source.flags,
        *runtime_flags,
        *precision_flags,
        *size_flags,
        *device_flags,
        *(("tf32-possible",) if is_wide and device_name.startswith(_TF32_DEVICES) else ()),
        *(("tensorflow-padding",) if model.startswith("tf_") else ()),
    )
    fold = folds[name, raw["model_name"], raw["input_shape"]]
    return Row(
        source=name,
        family=fold["group"],
        family_fold=int(fold["family_fold"]),
        model_fold=int(fold["model_fold"]),
        model_name=raw["model_name"],
        model=model,
        size=size,
        batch_size=int(float(raw["batch"])),
        precision=precision,
        runtime=runtime,
        published_runtime=raw["runtime"],
        layout=raw["memory_format"],
        device=raw["device"],
        device_name=device_name,
        latency_ms=float(raw["latency_ms"]),
        params_m=float(raw["params_m"]) if raw["params_m"] else None,
        gmacs=float(raw["gmacs"]) if raw["gmacs"] else None,
        flags=tuple(dict.fromkeys(flags)),
        notes=raw["notes"],
    )


def _model(raw: Raw, source: Source) -> str:
    name = raw["model_name"]
    model = source.name(name)
    if model is None:
        raise _LeftOut("no builder for the architecture")
    if "pt291" in raw["source_file"] and name.startswith(_REPARAMETERISED):
        model = f"{model}_deploy"
        if model not in builders():
            raise _LeftOut("run re-parameterised: another graph than the name's")
    if (raw["source"], name) in _UNLIKE:
        raise _LeftOut(_UNLIKE[raw["source"], name])
    return model


def _runtime(raw: Raw, source: Source) -> tuple[str, tuple[str, ...]]:
    published = raw["runtime"]
    if raw["source"].startswith("mlperf"):  # the column holds versions
        if not published.partition(", ")[2].startswith("TensorRT") and "TensorRT" not in published:
            raise _LeftOut("runtime that is not modelled")
        return source.runtimes[""]
    if published not in source.runtimes:
        raise _LeftOut("runtime that is not modelled")
    return source.runtimes[published]


def _precision(raw: Raw) -> tuple[str, tuple[str, ...]]:
    if raw["source"].startswith("mlperf"):
        # closed-division ResNet-50 engines of this vendor are int8 throughout
        return "int8", ()
    if raw["precision"] == "fp32/tf32":  # engines and frameworks of that release choose TF32
        return ("tf32" if "A100" in raw["device"] else "fp32"), ()
    if raw["precision"] not in _PRECISIONS:
        raise _LeftOut("precision unknown or not modelled")
    return _PRECISIONS[raw["precision"]]


def _size(raw: Raw, source: Source) -> tuple[int, tuple[str, ...]]:
    shape = raw["input_shape"]
    match = re.match(r"3x(\d+)x(\d+)", shape) or re.match(r"seq=(\d+)()$", shape)
    if match and match[2] in ("", match[1]):
        return int(match[1]), ("size-assumed",) if "assumed" in shape else ()
    if shape or source.size is None:
        raise _LeftOut("input shape unknown or not square")
    named = re.search(r"_(\d{3})$", raw["model_name"])
    size = int(named[1]) if named else _PAGE_SIZES.get(raw["model_name"], source.size)
    return size, ("size-assumed",)


def _device(device: str) -> tuple[str, tuple[str, ...]]:
    name, is_assumed = DEVICES.get(device, ("", False))
    return name, ("form-factor-assumed",) if is_assumed else ()


def main() -> None:
    """Print how many rows, models and families there are, and what was left out."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rows = open_rows()
    models, families = {row.model for row in rows}, {row.family for row in rows}
    print(
        f"{len(rows)} rows, {len({row.key for row in rows})} models at a size,"
        f" {len(models)} architectures, {len(families)} families"
    )
    counts = Counter((row.source, row.device_name or row.device, row.runtime) for row in rows)
    for (source, device, runtime), count in sorted(counts.items()):
        print(f"{count:6} {source:36} {device:30} {runtime}")
    print("left out:")
    for exclusion in excluded():
        print(
            f"{exclusion.rows:6} {exclusion.source:36} {exclusion.rule}"
            f" ({exclusion.models} models, such as {exclusion.example})"
        )


if __name__ == "__main__":
    main()
