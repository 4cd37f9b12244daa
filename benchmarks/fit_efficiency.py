"""Fit the efficiency tables of the roofline to open measurements, and print them.

    python -m benchmarks.fit_efficiency [--device-kind gpu|cpu] [--rounds 6]

Rows are those of permissive licences whose time is that of the model alone, sampled so that each
device x runtime x family weighs the same. The loss is the mean of |log(predicted / measured)| plus
a ridge towards the tables now in `predict/`; coordinate descent, deterministic. With `--folds` the
error on held-out families (official `family_fold`) is printed beside that on all.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.open_rows import BEYOND_THE_MODEL, Row, is_data_present, open_rows
from benchmarks.roofline_error import prepared
from benchmarks.tables import write_result
from slicewise.core.cost import Kind
from slicewise.core.device import Device
from slicewise.graph.launch import launch
from slicewise.hardware.catalogue import find_device
from slicewise.predict import efficiency
from slicewise.predict.kernels import KINDS, kernels_of, tabulate, unit_costs
from slicewise.predict.runtimes import RUNTIMES

Array = NDArray[np.float64]

# Not under a licence that allows fitting shipped constants: figures of AGPL pages.
EVALUATION_ONLY = frozenset({"ultralytics-docs", "ultralytics-yolov5-readme"})
TRUSTED = frozenset({"rtx-3090", "rtx-4090"})
# No open row has a recurrent layer or a matrix x vector product; all open CPUs have 14 cores.
FIXED = frozenset({"step_s", "parallel_loss", "matrix x vector compute", "matrix x vector memory"})
# Paddle Inference gives sub-graphs to TensorRT and keeps the rest: another runtime than the name.
STAND_INS = frozenset({"paddleclas-docs"})
PER_CELL = 12  # rows of one device x runtime x precision x family
RIDGE = 0.004
# Kinds whose kernels a runtime may have better or worse than eager PyTorch; the rest is rare.
OWN_KERNELS = (
    Kind.CONV, Kind.MATMUL, Kind.ATTENTION, Kind.NORM, Kind.SOFTMAX, Kind.REDUCTION, Kind.POOL,
    Kind.ELEMENTWISE, Kind.MOVEMENT,
)  # fmt: skip
STEPS = (0.5, 0.75, 0.9, 0.96, 1.04, 1.1, 1.35, 2.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """All kernels of all sampled rows, end to end; `row` is the row each belongs to."""

    row: NDArray[np.int64]
    kind: NDArray[np.int64]
    columns: Mapping[str, Array]
    measured_s: Array
    launch_s: Array  # of the device, by row
    host_s: Array
    units: Array
    weight: Array
    rows: list[Row]

    def only(self, chosen: NDArray[np.bool_]) -> "Sample":
        """Return the chosen rows, numbered anew."""
        its = chosen[self.row]
        return Sample(
            row=(np.cumsum(chosen) - 1)[self.row[its]],
            kind=self.kind[its],
            columns={name: column[its] for name, column in self.columns.items()},
            measured_s=self.measured_s[chosen],
            launch_s=self.launch_s[chosen],
            host_s=self.host_s[chosen],
            units=self.units[chosen],
            weight=self.weight[chosen],
            rows=[row for row, is_in in zip(self.rows, chosen, strict=True) if is_in],
        )

    @property
    def runtimes(self) -> list[str]:
        """The runtimes that occur, sorted."""
        return sorted({row.runtime for row in self.rows})


Parameters = dict[str, float]


def sampled(rows: Sequence[Row], device_kind: str) -> list[Row]:
    """Return at most PER_CELL rows of each cell, spread evenly over it."""
    cells: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    devices: dict[str, Device] = {}
    for row in rows:
        if not row.device_name or row.source in EVALUATION_ONLY or "/" in row.device_name:
            continue
        if BEYOND_THE_MODEL & set(row.flags):
            continue
        device = devices.setdefault(row.device_name, find_device(row.device_name))
        if device.kind == device_kind:
            cells[(row.device_name, row.runtime, row.precision, row.family)].append(row)
    picked = []
    for cell in cells.values():
        stride = max(1, len(cell) // PER_CELL)
        picked.extend(sorted(cell, key=lambda row: (row.model, row.size))[::stride][:PER_CELL])
    return picked


def gather(rows: Sequence[Row]) -> Sample:
    """Return the unit costs of every kernel of every row."""
    columns: dict[str, list[Array]] = defaultdict(list)
    kept: list[Row] = []
    kinds, owners = [], []
    devices = {row.device_name: find_device(row.device_name) for row in rows}
    for graph, work, precision, group in prepared(rows):
        for runtime in dict.fromkeys(row.runtime for row in group):
            made = list(kernels_of(launch(graph, work, runtime=runtime)))
            table = tabulate([each.kernel for each in made])
            repeats = np.array([each.repeats for each in made])
            for row in group:
                device = devices[row.device_name]
                if row.runtime != runtime or precision.compute not in device.peak_flop_per_s:
                    continue
                costs, _ = unit_costs(table, device)
                for name in ("steps", "matrix_s", "tile_loss", "vector_s", "direct_s",
                             "cached_s", "weight_s", "passes"):  # fmt: skip
                    columns[name].append(getattr(costs, name))
                columns["repeats"].append(repeats)
                kinds.append(costs.kind)
                owners.append(np.full(len(made), len(kept)))
                kept.append(row)
    cells: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in kept:
        cells[(row.device_name, row.runtime, row.family)] += 1
    weight = [cells[(row.device_name, row.runtime, row.family)] ** -0.5 for row in kept]
    return Sample(
        row=np.concatenate(owners),
        kind=np.concatenate(kinds),
        columns={name: np.concatenate(parts) for name, parts in columns.items()},
        measured_s=np.array([row.latency_ms * 1e-3 for row in kept]),
        launch_s=np.array([devices[row.device_name].launch_s for row in kept]),
        host_s=np.array([devices[row.device_name].host_s for row in kept]),
        units=np.array([devices[row.device_name].compute_units for row in kept], dtype=float),
        weight=np.array(weight) / np.mean(weight),
        rows=kept,
    )


def start(device_kind: str, runtimes: Sequence[str]) -> Parameters:
    """Return the tables now in `predict/`, flat."""
    rules = efficiency.RULES[device_kind]
    flat = {
        "direct compute": rules.direct[Kind.CONV].compute,
        "direct memory": rules.direct[Kind.CONV].memory,
        "matrix x vector compute": rules.direct[Kind.MATMUL].compute,
        "matrix x vector memory": rules.direct[Kind.MATMUL].memory,
        "kernel_s": rules.kernel_s,
        "step_s": rules.step_s,
        "parallel_loss": rules.parallel_loss,
        "kernel_per_unit_s": rules.kernel_per_unit_s,
    }
    for kind, row in rules.by_kind.items():
        flat[f"{kind} compute"] = row.compute
        flat[f"{kind} memory"] = row.memory
    for name in runtimes:
        flat[f"{name} launch"] = RUNTIMES[name].launch_factor
        if name != "torch-eager" and device_kind == "gpu":
            for kind in OWN_KERNELS:
                flat[f"{name} {kind} speed"] = RUNTIMES[name].gpu_speed.get(kind, 1.0)
    return flat


def predict_s(sample: Sample, flat: Parameters) -> Array:
    """Return seconds of every row; the same formula as `predict.kernels.kernel_times`."""
    column = sample.columns
    together = (1 / (1 + flat["parallel_loss"] * (sample.units - 1)))[sample.row]
    names = sample.runtimes
    which = np.array([names.index(row.runtime) for row in sample.rows])
    speeds = np.array([[flat.get(f"{n} {k} speed", 1.0) for k in KINDS] for n in names])
    speed = speeds[which[sample.row], sample.kind]
    compute_part, memory_part = (
        np.minimum(
            np.array([flat.get(f"{k} {what}", 1.0) for k in KINDS])[sample.kind] * speed, most
        )
        * together
        for what, most in (("compute", 1.0), ("memory", efficiency.MOST_MEMORY))
    )
    traffic = column["cached_s"] + column["weight_s"]
    compute = (column["matrix_s"] * column["tile_loss"] + column["vector_s"]) / compute_part
    kernel = np.maximum(compute, traffic / memory_part)
    for kind, name in ((Kind.CONV, "direct"), (Kind.MATMUL, "matrix x vector")):
        direct = np.maximum(
            column["direct_s"] / (flat[f"{name} compute"] * together),
            traffic * column["passes"] / (flat[f"{name} memory"] * together),
        )
        its = sample.kind == KINDS.index(kind)
        kernel = np.where(its, np.minimum(kernel, direct), kernel)
    kernel = kernel + flat["kernel_s"] + (flat["kernel_per_unit_s"] * sample.units)[sample.row]
    kernel = kernel + (column["steps"] - 1) * flat["step_s"]
    factor = np.array([flat[f"{name} launch"] for name in names])[which]
    kernel = np.maximum(kernel, (sample.launch_s * factor)[sample.row]) * column["repeats"]
    total = np.bincount(sample.row, weights=kernel, minlength=len(sample.measured_s))
    out: Array = total + sample.host_s
    return out


def errors(sample: Sample, flat: Parameters) -> Array:
    """Return |log(predicted / measured)| of every row."""
    out: Array = np.abs(np.log(predict_s(sample, flat) / sample.measured_s))
    return out


def bounds(name: str) -> tuple[float, float]:
    """Return the physical limits of a parameter."""
    if name == "kernel_s":
        return 5e-7, 4e-6
    if name == "kernel_per_unit_s":
        return 2e-7, 4e-6
    if name.endswith("launch"):
        return 0.1, 3.0
    if name.endswith("speed"):
        return 0.4, 2.5
    return (0.05, 1.0) if name.endswith("compute") else (0.15, 0.95)


def fit(
    sample: Sample,
    begin: Parameters,
    *,
    free: Sequence[str],
    chosen: NDArray[np.bool_],
    rounds: int,
) -> Parameters:
    """Return the parameters after coordinate descent in the free ones on the chosen rows."""
    flat = dict(begin)
    few = sample.only(chosen)

    def loss(candidate: Parameters) -> float:
        data = float(np.average(errors(few, candidate), weights=few.weight))
        ridge = sum(np.log(candidate[name] / begin[name]) ** 2 for name in free)
        return data + RIDGE * float(ridge) / len(free)

    best = loss(flat)
    for _ in range(rounds):
        before = best
        for name in free:
            low, high = bounds(name)
            for step in STEPS:
                value = min(high, max(low, flat[name] * step))
                candidate = {**flat, name: value}
                found = loss(candidate)
                if found < best - 1e-6:
                    best, flat = found, candidate
        if before - best < 1e-4:
            break
    return flat


def fit_all(
    sample: Sample,
    begin: Parameters,
    device_kind: str,
    *,
    chosen: NDArray[np.bool_],
    rounds: int,
) -> Parameters:
    """Return the tables fitted in two steps.

    First what kernels of each kind reach, on rows of eager frameworks on the cards whose data
    sheets hold (a power-limited card would teach its limit to all others); then, with that fixed,
    how quickly other runtimes launch and how good their kernels are. On CPUs there is one runtime.
    """
    flat = begin
    kinds = [
        name
        for name in flat
        if flat[name] and name not in FIXED and not name.endswith(("launch", "speed"))
    ]
    if device_kind == "cpu":
        return fit(sample, flat, free=kinds, chosen=chosen, rounds=rounds)
    trusted = np.array(
        [row.runtime == "torch-eager" and row.device_name in TRUSTED for row in sample.rows]
    )
    flat = fit(sample, flat, free=kinds, chosen=chosen & trusted, rounds=rounds)
    for runtime in sample.runtimes:
        if runtime != "torch-eager":
            its = np.array(
                [row.runtime == runtime and row.source not in STAND_INS for row in sample.rows]
            )
            free = [name for name in flat if name.startswith(runtime)]
            flat = fit(sample, flat, free=free, chosen=chosen & its, rounds=rounds)
    return flat


def lines(flat: Parameters) -> Iterator[str]:
    """Yield the parameters as they stand in `predict/`."""
    for kind in KINDS:
        if f"{kind} compute" in flat:
            compute, memory = flat[f"{kind} compute"], flat[f"{kind} memory"]
            yield f"    Kind.{kind.name}: Efficiency({compute:.2f}, {memory:.2f}),"
    for name, value in flat.items():
        if name.startswith("direct") or name.endswith(("launch", "speed", "kernel_s", "unit_s")):
            yield f"    {name}: {value:.3g}"


def told(name: str, found: Array) -> str:
    """Return one line of error figures, from logs to percent."""
    percent = np.expm1(found)
    return f"{name}: mean {np.mean(percent):.1%}, median {np.median(percent):.1%} ({len(found)})"


def main(arguments: Sequence[str]) -> int:
    """Fit one class of devices and print tables and errors, or write the table of folds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device-kind", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--folds", action="store_true", help="write the error with families held out"
    )
    asked = parser.parse_args(arguments)
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    sample = gather(sampled(open_rows(), asked.device_kind))
    everything = np.ones(len(sample.measured_s), dtype=bool)
    shipped = start(asked.device_kind, sample.runtimes)
    if asked.folds:
        write_folds(sample, asked.device_kind, asked.rounds, shipped)
        return 0
    flat = fit_all(sample, shipped, asked.device_kind, chosen=everything, rounds=asked.rounds)
    out = [told("shipped", errors(sample, shipped)), told("fitted", errors(sample, flat))]
    sys.stdout.write("\n".join([*out, *lines(flat)]) + "\n")
    return 0


def write_folds(sample: Sample, device_kind: str, rounds: int, shipped: Parameters) -> None:
    """Fit from neutral tables on all rows, and without each family fold in turn; write the table.

    The shipped tables have seen every family, so the folds must not start from them.
    """
    blank = neutral(shipped)
    everything = np.ones(len(sample.measured_s), dtype=bool)
    folds = np.array([row.family_fold for row in sample.rows])
    seen = errors(sample, fit_all(sample, blank, device_kind, chosen=everything, rounds=rounds))
    held = np.empty(len(folds))
    for fold in sorted(set(folds.tolist())):
        flat = fit_all(sample, blank, device_kind, chosen=folds != fold, rounds=rounds)
        held[folds == fold] = errors(sample, flat)[folds == fold]
    rows = []
    for runtime in ("", *sample.runtimes):
        its = np.array([runtime in ("", row.runtime) for row in sample.rows])
        cells = [f"{np.mean(np.expm1(e[its])):.1%} / {np.median(np.expm1(e[its])):.1%}"
                 for e in (errors(sample, shipped), seen, held)]  # fmt: skip
        rows.append((runtime or "all", str(its.sum()), *cells))
    write_result(
        f"fit_efficiency_{device_kind}",
        title=f"Efficiency tables: families held out, {device_kind}",
        command=f"python -m benchmarks.fit_efficiency --device-kind {device_kind} --folds",
        words="Mean / median of max(p/m, m/p) - 1 over the sampled rows (each device x runtime x"
        " family weighs about the same, unlike in roofline_error). Held out: fitted from neutral"
        " tables without the row's family fold.",
        columns=("runtime", "rows", "shipped tables", "fitted on all", "families held out"),
        rows=rows,
    )


def neutral(flat: Parameters) -> Parameters:
    """Return tables that no row has taught."""
    known = {"compute": 0.6, "memory": 0.7, "speed": 1.0}
    return {name: known.get(name.rsplit(" ", 1)[-1], value) for name, value in flat.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
