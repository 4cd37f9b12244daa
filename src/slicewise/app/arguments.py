"""Arguments and options that several commands share: same option, same name everywhere."""

from pathlib import Path
from typing import Annotated

import typer

from slicewise.app.options import parse_budget

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="Model files (.onnx, .pt2) or zoo names, as in timm:resnet50."
    ),
]
OneModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Model file (.onnx, .pt2) or zoo name, as in timm:resnet50."
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="D[,D...]",
        help="Devices, slices (a100-sxm4-80gb/2g.20gb), shares (NAME@50%), files (./mine.toml),"
        " cpu, gpu:0. Default: this machine.",
    ),
]
Batches = Annotated[
    list[str] | None,
    typer.Option(
        "--batch", metavar="N[,N...]", help="Batch sizes. Default: the model's own, or 1."
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="fp32, tf32, fp16, bf16, amp, int8, fp8 or nvfp4. Default: the model's own."
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        help="torch-eager, torch-compile, onnxruntime or tensorrt, with a version as in"
        " tensorrt@8.4, or without. Default: onnxruntime for ONNX models, torch-eager for"
        " PyTorch; the newest version."
    ),
]
LayoutOption = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="nchw|nhwc",
        help="Memory format of images: nchw, or nhwc (channels last).",
    ),
]
PredictorOption = Annotated[
    str,
    typer.Option(
        "--predictor",
        metavar="learned|roofline",
        help="learned: trained networks wherever they cover the case; roofline: formulas alone.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]SHAPE",
        help="Whole shape of an input, as in 1x3x224x224; no name is needed if there is one.",
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a free dimension, as in seq=128."),
]
BatchAxes = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-axis",
        metavar="[NAME=]AXIS",
        help="Axis of an input that is the batch, where it is not the leading one; or none.",
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show the heaviest operators and what limits them.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Turn notes into one error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Also write the JSON document here."),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write one self-contained page: answer, charts, notes, every node.",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Also write the predicted timeline (Perfetto, Chrome)."
    ),
]
CardOption = Annotated[
    str | None,
    typer.Option(
        "--card",
        metavar="FILE|none",
        help="Device card to predict with, or none. Default: what calibrate kept.",
    ),
]

# --- of commands that measure, and of those that read what was measured

Here = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="cpu|gpu:N", help="Device of this machine. Default: GPU 0, or the CPU."
    ),
]
MeasuredRuntime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        help="onnxruntime, torch-eager, torch-compile or openvino. Default: onnxruntime for ONNX"
        " models, torch-eager for PyTorch.",
    ),
]
MeasuredPrecision = Annotated[
    str | None,
    typer.Option("--precision", help="fp32, tf32, fp16, bf16 or amp. Default: the model's own."),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", help="Threads inside an operator. Default: one for each core."),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="S",
        help="Part of the device: 50 (percent), cores:0-1, mps:25, green:25, mig:UUID.",
    ),
]
RuntimeOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Setting of the runtime, as in spinning=0."
    ),
]
# One meaning wherever it stands, the longest time of what a command spends time on; and one text.
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        parser=parse_budget,
        help="Most time of sampling: seconds, or as in 30s, 5m. Default: 5.",
    ),
]
Samples = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Most samples. Default: 500.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="End of one measurement, whatever it does."
        " Default: 300."
    ),
]  # fmt: skip
MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Most resident memory, as in 8GiB."),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="FILE", help="Record store. Default: $SLICEWISE_HOME/records.sqlite."
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep/--no-keep", help="Keep what is measured in the record store.")
]
