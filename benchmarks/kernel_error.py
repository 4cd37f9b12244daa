"""Errors of the network on kernels measured alone, on devices left out, and on sums of kernels.

    python -m benchmarks.kernel_error              # about 20 minutes of one core
    python -m benchmarks.kernel_error models gemm  # some of the tables only

Networks of `training/network.py`, and beside them those of `benchmarks/overlapping.py`, are
trained on kernel rows alone, seeds 0 and 1, their mean is judged:

- models: kernels of whole models (`model_kernels.csv`) and the models as sums of them, beside
  NeuSight's stored predictions; trained on NeuSight's other rows;
- conv: fp32 convolutions, one GPU left out, siblings of its chip too;
- gemm: bf16 products under TensorRT-LLM, one GPU left out.

Settings were chosen on rows that are not judged: for models on NeuSight's own test split after
training on its training split, for the others on the mean over the other devices left out. Parts
are kept in build/training/kernel_error, so that tables can be made again. Needs the measured data
($SLICEWISE_DATA) and torch.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.model_kernels import ModelCase, kernel_frame, model_cases
from benchmarks.overlapping import overlapping
from benchmarks.tables import markdown, write_result
from slicewise.core.device import Device
from slicewise.core.precision import DType
from slicewise.core.whole_file import whole_file
from slicewise.hardware.catalogue import find_device
from slicewise.predict.power import EXPONENT
from training.gather import joined
from training.graphs import WORK
from training.kernel_rows import WIDTH, read_rows, sample, samples_of
from training.network import Settings, fit, inputs_of, predict_us, vocabulary_of
from training.samples import Samples

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SEEDS = (0, 1)
MODELS = Settings(epochs=30, batch=512, forget=0.1, dropout=0.0)
CONV = Settings(epochs=30, batch=256, forget=1.0, huber=1.0, dropout=0.0)
GEMM = Settings(
    epochs=20, batch=512, learning_rate=1e-2, weight_decay=0.1, forget=1.0, dropout=0.0
)  # fmt: skip
METHODS = ("sum", "overlapping")

CONV_GPUS: Mapping[str, str] = {
    "p4": "p4", "p100-pcie-16gb": "p100", "t4": "t4", "v100-pcie-32gb": "v100",
}  # fmt: skip
"""GPU judged -> how the names of the cards begin that are left out."""

GEMM_GPUS = ("a100-sxm4-80gb", "l40s", "rtx-pro-6000-server", "h100-sxm5-80gb")
KERNELS_TITLE = "Kernels of models"
MODELS_TITLE = "Dense models at inference, whole"
CONV_TITLE = "fp32 convolutions, GPU left out"
GEMM_TITLE = "bf16 products, GPU left out"
GEMM_ROWS = 6_000  # of each GPU
# Rows of NeuSight by operator: training split; its test split is taken whole.
ROWS = {
    "bmm": 20_000,
    "linear_bias": 14_000,
    "layernorm": 5_000,
    "softmax": 5_000,
    "other": 12_000,
}

# Vector fp32 flop/s for each watt of the limit of the roomiest card of a generation, which holds
# its clock: as `predict/power.py` has for 16-bit rates (data sheets).
_FP32_PER_W = {
    "Pascal GP10": 11.3e12 / 250,  # GTX 1080 Ti
    "Turing": 14e12 / 250,  # V100 PCIe, the same process
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def sustained_card(name: str) -> Device:
    """Return a card with the fp32 rate that its power limit allows."""
    device = find_device(name)
    for architecture, reference in _FP32_PER_W.items():
        if device.architecture.startswith(architecture):
            rates = dict(device.peak_flop_per_s)
            per_w = rates[DType.FP32] / device.max_power_w
            rates[DType.FP32] *= min(1.0, (reference / per_w) ** EXPONENT)
            return replace(device, peak_flop_per_s=rates)
    return device


def predicted_us(
    samples: Samples, parts: Sequence[tuple[Mask, Mask]], settings: Settings, method: str, *,
    weights: Floats | None = None,
) -> list[Floats]:  # fmt: skip
    """Return for each part, trained on some and judged on others, the mean of the seeds' times."""
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    settings = replace(settings, members=len(SEEDS), seed=SEEDS[0])
    made = []
    for trained, judged in parts:
        with overlapping() if method == "overlapping" else nullcontext():
            networks = fit(inputs, np.flatnonzero(trained), vocabulary, settings, weights=weights)
        made.append(predict_us(networks, inputs, np.flatnonzero(judged)).mean(0))
    return made


def error_percent(predicted: Floats, measured: Floats) -> Floats:
    """Return relative errors."""
    return np.abs(predicted / measured - 1) * 100


def told(errors: Floats) -> str:
    """Return mean and median as in the tables."""
    return f"{errors.mean():.1f} / {np.median(errors):.1f}" if len(errors) else "-"


# -- kernels of models, and models as sums of them


def neusight_rows() -> pd.DataFrame:
    """Return NeuSight's rows of NVIDIA's cards but convolutions: part of its training split, all
    of its test split."""
    rows = read_rows(("gemm", "elementwise", "norm_softmax"))
    rows = rows[(rows["source"] == "NeuSight") & ~rows["device"].str.startswith("mi")]
    rows = rows.assign(sort=rows["op"].where(rows["op"].isin(list(ROWS)), "other"))
    parts = []
    for sort, count in ROWS.items():
        its = rows[rows["sort"] == sort]
        test = its[its["split"] == "test"]
        parts += [sample(its[its["split"] == "train"], count, 0), sample(test, count, 0)]
    return pd.concat(parts, ignore_index=True)


def balanced(rows: pd.DataFrame) -> Floats:
    """Return weights: of operators, splits and devices, the rarer count for more a row."""
    key = rows["sort"] + rows["split"] + rows["device"]
    weight = 1 / np.sqrt(key.map(key.value_counts()).to_numpy(dtype=np.float64))
    return np.asarray(weight / weight.mean())


def of_models(kernels: Samples, cases: Sequence[ModelCase]) -> Samples:
    """Return whole models as samples: the kernels of each with their counts."""
    lengths = [len(case.kernels) for case in cases]
    which = np.concatenate([case.kernels for case in cases])
    rows = [
        replace(
            kernels.rows[case.kernels[0]], model_name=case.model, key=f"{case.model} {case.batch}",
            batch=case.batch, latency_s=case.measured_ms * 1e-3,
        )
        for case in cases
    ]  # fmt: skip
    return Samples(
        rows, kernels.contexts, kernels.context[which], kernels.basis[which],
        np.concatenate([case.counts for case in cases]).astype(np.float32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )  # fmt: skip


def models() -> list[Table]:
    """Return the tables of kernels of models and of models."""
    rows, frame = neusight_rows(), kernel_frame()
    cases = model_cases(frame)
    kernels = samples_of(frame, device_of=sustained_card)
    learned = samples_of(rows, device_of=sustained_card)
    whole = joined([learned, kernels, of_models(kernels, cases)])
    trained = np.arange(len(whole.rows)) < len(rows)
    weights = np.concatenate([balanced(rows), np.ones(len(frame) + len(cases))])
    made = {
        method: predicted_us(whole, [(trained, ~trained)], MODELS, method, weights=weights)[0]
        for method in METHODS
    }
    of_kernels = {method: us[: len(frame)] * 1e-6 for method, us in made.items()}
    of_cases = {method: us[len(frame) :] * 1e-3 for method, us in made.items()}
    return [
        _kernel_table(rows, frame, of_kernels), _device_table(frame, of_kernels),
        _model_table(frame, cases, of_kernels, of_cases),
    ]  # fmt: skip


_KEY = ["device", "op", *(f"size_{i}" for i in range(WIDTH))]
_OPS: Mapping[str, str] = {
    "bmm": "BMM", "linear_bias": "linear", "layernorm": "layer norm", "softmax": "softmax",
}  # fmt: skip


def _sort(frame: pd.DataFrame) -> NDArray[np.object_]:
    return np.array([_OPS.get(op, "elementwise") for op in frame["op"]], dtype=object)


def _again(rows: pd.DataFrame, frame: pd.DataFrame) -> Floats:
    """Return NeuSight's other measurement of the same shape on the same card, nan for none."""
    first = rows.groupby(_KEY)["latency_s"].min()
    found = first.reindex(pd.MultiIndex.from_frame(frame[_KEY]))
    return np.asarray(found.to_numpy(dtype=np.float64))


def _kernel_table(rows: pd.DataFrame, frame: pd.DataFrame, made: Mapping[str, Floats]) -> Table:
    measured = frame["latency_s"].to_numpy()
    again, sort = _again(rows, frame), _sort(frame)
    seen = ~np.isnan(again)
    table = []
    for name in (*_OPS.values(), "elementwise"):
        its = sort == name
        both = its & seen
        cells = [name, str(its.sum())]
        for predicted in (*made.values(), frame["neusight_s"].to_numpy(),
                          frame["roofline_s"].to_numpy()):  # fmt: skip
            cells.append(told(error_percent(predicted, measured)[its]))
        cells += [str(both.sum()), told(error_percent(again, measured)[both])]
        cells += [told(error_percent(made[METHODS[-1]], measured)[which])
                  for which in (both, its & ~seen)]  # fmt: skip
        table.append(cells)
    columns = (
        "operator", "rows", *METHODS, "NeuSight", "roofline", "rows measured again",
        "second measurement", f"{METHODS[-1]} there", f"{METHODS[-1]} elsewhere",
    )  # fmt: skip
    return Table(KERNELS_TITLE, columns, table)


def _device_table(frame: pd.DataFrame, made: Mapping[str, Floats]) -> Table:
    measured, sort = frame["latency_s"].to_numpy(), _sort(frame)
    devices = sorted(set(frame["device"]))
    ours = error_percent(made[METHODS[-1]], measured)
    theirs = error_percent(frame["neusight_s"].to_numpy(), measured)
    table = []
    for name in _OPS.values():
        for who, errors in ((METHODS[-1], ours), ("NeuSight", theirs)):
            its = [errors[(sort == name) & (frame["device"] == device)] for device in devices]
            table.append([name, who, *(told(each) for each in its)])
    return Table("The same by device", ("operator", "who", *devices), table)


def _model_table(
    frame: pd.DataFrame, cases: Sequence[ModelCase], of_kernels: Mapping[str, Floats],
    of_cases: Mapping[str, Floats],
) -> Table:  # fmt: skip
    measured = np.array([case.measured_ms for case in cases])
    device = np.array([case.device for case in cases])

    def summed(of_kernel: Floats) -> Floats:
        return np.array([of_kernel[c.kernels] @ c.counts * 1e3 for c in cases])

    who = {f"{name}, one host call": made for name, made in of_cases.items()}
    who |= {f"{name}, plain sum of kernels": summed(made) for name, made in of_kernels.items()}
    who["NeuSight"] = np.array([case.neusight_ms for case in cases])
    who["sum of measured operators"] = np.array([case.operators_ms for case in cases])
    who["sum of measured kernels"] = summed(frame["latency_s"].to_numpy())
    devices = sorted(set(device))
    odd = device == "a100-pcie-40gb"
    table = []
    for name, made in who.items():
        errors = error_percent(made, measured)
        cells = [name, told(errors), told(errors[~odd])]
        table.append([*cells, *(told(errors[device == each]) for each in devices)])
    columns = ("how", "all", "without A100 40 GB", *devices)
    return Table(MODELS_TITLE, columns, table)


# -- one GPU left out


def conv() -> list[Table]:
    """Return the table of convolutions on GPUs left out."""
    rows = read_rows(("conv",))
    is_other = rows["device"].str.startswith(("xeon", "mi25", "vega"))
    rows = rows[(rows["dtype"] == "fp32") & ~is_other].reset_index(drop=True)
    is_judged = (rows["source"] == "NeuSight").to_numpy()
    parts = [
        (~rows["device"].str.startswith(start).to_numpy(), (rows["device"] == gpu) & is_judged)
        for gpu, start in CONV_GPUS.items()
    ]
    table = []
    for name, device_of in (("data sheet", find_device), ("power-limited", sustained_card)):
        samples = samples_of(rows, device_of=device_of)
        for method in METHODS:
            table.append([method, name, *_left_out(samples, parts, CONV, method)])
    return [Table(CONV_TITLE, ("network", "fp32 rate", *CONV_GPUS, "mean"),
                  table)]  # fmt: skip


def gemm() -> list[Table]:
    """Return the table of 16-bit products on GPUs left out."""
    rows = read_rows(("gemm",))
    rows = rows[(rows["framework"] == "trtllm") & (rows["dtype"] == "bfloat16")]
    rows = pd.concat([sample(its, GEMM_ROWS, 0) for _, its in rows.groupby("device")],
                     ignore_index=True)  # fmt: skip
    samples = samples_of(rows)
    judged = [(rows["device"] == gpu).to_numpy() for gpu in GEMM_GPUS]
    parts = [(~each, each) for each in judged]
    table = [[method, *_left_out(samples, parts, GEMM, method)] for method in METHODS]
    return [Table(GEMM_TITLE, ("network", *GEMM_GPUS, "mean"), table)]


def _left_out(
    samples: Samples, parts: Sequence[tuple[Mask, Mask]], settings: Settings, method: str
) -> list[str]:
    """Return the errors of each part, and their mean."""
    made = predicted_us(samples, parts, settings, method)
    errors = [
        error_percent(each, samples.measured_s[judged] * 1e6)
        for each, (_, judged) in zip(made, parts, strict=True)
    ]
    means = np.array([(each.mean(), np.median(each)) for each in errors]).mean(axis=0)
    return [*(told(each) for each in errors), f"{means[0]:.1f} / {means[1]:.1f}"]


# -- parts and tables

Place = tuple[str, str]  # the row and the column of a table


def _of_kernel(name: str) -> list[Place]:
    return [(name, column) for column in (*METHODS, "NeuSight", "second measurement")]


_GOALS: Sequence[tuple[str, str, str, Sequence[Place]]] = (
    *((f"kernels of models: {name}", "12", KERNELS_TITLE, _of_kernel(name))
      for name in _OPS.values()),
    ("fp32 convolutions, one of 4 GPUs left out", "12", CONV_TITLE,
     [*((f"{method} power-limited", "mean") for method in METHODS), ("", ""), ("", "")]),
    *((f"bf16 products, {gpu} left out", goal, GEMM_TITLE,
       [*((method, gpu) for method in METHODS), ("", ""), ("", "")])
      for gpu, goal in zip(GEMM_GPUS, ("15", "15", "-", "-"), strict=True)),
    *((f"dense models at inference, {place}", "7", MODELS_TITLE,
       [*((f"{method}, one host call", place) for method in METHODS), ("NeuSight", place),
        ("sum of measured operators", place)])
      for place in ("all", "without A100 40 GB")),
)  # fmt: skip

PARTS: Mapping[str, Callable[[], list[Table]]] = {"models": models, "conv": conv, "gemm": gemm}
_WORDS = (
    "Mean / median absolute error in percent, open NVIDIA rows; seeds 0 and 1, their mean judged."
    " `sum` is the network of `training/network.py`, `overlapping` that of"
    " `benchmarks/overlapping.py`. NeuSight: its stored predictions. 'Second measurement' is"
    " NeuSight's own measurement of the same shape on the same card in its other files: what a"
    " perfect predictor trained on those would be off by. 'One host call': the launches and the"
    " host term of the whole model once, as `predict` has it."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the parts asked for, and the tables from all that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    folder = WORK.parent / "kernel_error"
    folder.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        started = time.perf_counter()
        tables = PARTS[part]()
        with whole_file(folder / f"{part}.json") as file:
            file.write(json.dumps([asdict(table) for table in tables]).encode())
        sys.stderr.write(f"{part}: {time.perf_counter() - started:.0f} s\n")
    found = [folder / f"{part}.json" for part in PARTS]
    tables = [
        Table(**table) for path in found if path.exists() for table in json.loads(path.read_text())
    ]
    _write(tables)
    return 0


def _write(tables: Sequence[Table]) -> None:
    cells = {
        (table.title, row[0] if table.title != CONV_TITLE else " ".join(row[:2]), column): cell
        for table in tables for row in table.rows
        for column, cell in zip(table.columns, row, strict=True)
    }  # fmt: skip
    rows = [
        [what, goal, *(cells.get((title, *place), "-") for place in places)]
        for what, goal, title, places in _GOALS
    ]
    pages = [
        "\n".join([f"## {table.title}", "", *markdown(table.columns, table.rows)])
        for table in tables
    ]
    write_result(
        "kernel_error", title="Errors on kernels", command="python -m benchmarks.kernel_error",
        words=_WORDS, columns=("what", "goal", *METHODS, "NeuSight", "measured again"),
        rows=rows, more="\n\n".join(pages),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
