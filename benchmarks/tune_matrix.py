"""Tuned at one share, run at another: real models on the cores of this machine.

    python -m benchmarks.tune_matrix [--engine serving] [--candidates N] [--models a,b] [--smoke]

One fixed set of settings (or, with `--engine tvm`, of kernels) is measured at every share, all in
turn, twice. What is tuned at a share is chosen on one half of its samples and judged on the
other half. The machine should be quiet; how quiet it was is part of the table.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks.tables import RESULTS, markdown
from slicewise.core.tuning import Matrix, MatrixCell
from slicewise.flows.tune_matrix import tune_matrix
from slicewise.flows.tuning.options import TuneOptions
from slicewise.flows.tuning.result import MatrixResult
from slicewise.measure.quiet import bound_cores, core_share

_LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
MODELS = {
    "resnet18": "timm:resnet18",
    "mobilenetv3_small": "timm:mobilenetv3_small_100",
    "squeezenet": str(_LIGHT / "light_squeezenet.onnx"),
    "vit_tiny": "timm:vit_tiny_patch16_224",
}
NAME = "tune_matrix"


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a model's matrix, as it is kept in JSON."""

    model: str
    engine: str
    tuned_at: str
    run_at: str
    config: str
    latency_ms: float
    penalty: float
    low: float
    high: float
    is_best: bool


def rows_of(model: str, made: MatrixResult, matrix: Matrix) -> list[Row]:
    """Return the cells of a matrix; a penalty that may be 1 or more counts as best on its
    diagonal."""
    return [
        Row(
            model, made.engine, cell.tuned_at, cell.run_at, cell.config, cell.latency_ms.value,
            cell.penalty.value, cell.penalty.low, cell.penalty.high, _holds(cell),
        )
        for cell in matrix.cells
    ]  # fmt: skip


def _holds(cell: MatrixCell) -> bool:
    """True unless tuning elsewhere is shown to be better than tuning here."""
    return cell.penalty.high >= 1.0


def _shares() -> list[str]:
    count = len(bound_cores())
    numbers = sorted({max(1, count // 2), count})
    return [f"{100 * number / count:.6g}" for number in numbers]


def _said(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def main() -> None:
    """Measure the matrices and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="serving")
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="one model, two settings, no table")
    asked = parser.parse_args()
    names = asked.models.split(",")[: 1 if asked.smoke else None]
    options = TuneOptions(
        engine=asked.engine, candidates=2 if asked.smoke else asked.candidates, is_fresh=True
    )
    rows: list[Row] = []
    shown: list[list[str]] = []
    for name in names:
        sys.stderr.write(f"{name}\n")
        quiet = core_share(bound_cores(), duration_s=0.5)
        made = tune_matrix(
            MODELS[name],
            shares=_shares(),
            device="cpu",
            options=options,
            rounds=1 if asked.smoke else asked.rounds,
            progress=_said,
        )
        found = rows_of(name, made, made.total)
        rows.extend(found)
        shown.extend(_line(name, row, made, quiet) for row in found)
    if asked.smoke:
        print("\n".join(markdown(_COLUMNS, shown)))
        return
    _write(asked.engine, rows, shown)


_COLUMNS = (
    "model", "engine", "tuned at", "run at", "latency ms", "penalty (90 % interval)", "diagonal",
    "candidates", "cores ours before",
)  # fmt: skip


def _line(name: str, row: Row, made: MatrixResult, quiet: float | None) -> list[str]:
    is_own = row.tuned_at == row.run_at
    penalty = "1" if is_own else f"{row.penalty:.3f} ({row.low:.3f} to {row.high:.3f})"
    if is_own:
        verdict = "is it"
    elif row.low > 1.0:
        verdict = "better"
    else:
        verdict = "within noise" if row.is_best else "WORSE"
    return [
        name, row.engine, row.tuned_at, row.run_at, f"{row.latency_ms:.3g}", penalty, verdict,
        str(made.candidates), "unknown" if quiet is None else f"{100 * quiet:.0f} %",
    ]  # fmt: skip


def _write(engine: str, rows: list[Row], shown: list[list[str]]) -> None:
    """Write the tables of this engine beside those of others that are there already."""
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text()) if path.exists() else {"tables": {}}
    known["tables"][engine] = {"shown": shown, "rows": [asdict(row) for row in rows]}
    RESULTS.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(known, indent=1) + "\n")
    os.replace(part, path)
    lines = [
        "# Tuned at one share, run at another",
        "",
        "Made by `python -m benchmarks.tune_matrix` (settings of runtimes) and `... --engine tvm`"
        " (kernels). One fixed set of candidates, each measured at every share, all in turn; what"
        " is tuned at a share is chosen on one half of its samples and judged on the other. A"
        " penalty is the latency over that of what was tuned where it runs; its interval is by the"
        " bootstrap over samples. `better`: the diagonal is, beyond noise.",
        "",
    ]
    for name, table in known["tables"].items():
        off = [row for row in table["rows"] if row["tuned_at"] != row["run_at"]]
        good = sum(row["is_best"] for row in off)
        lines += [f"## {name}", "", *markdown(_COLUMNS, table["shown"]), ""]
        lines += [
            f"The diagonal is best, or nothing else is shown, in {good} of {len(off)} pairs;"
            f" beyond noise in {sum(row['low'] > 1.0 for row in off)}. Largest penalty:"
            f" {max(row['penalty'] for row in off):.2f}.",
            "",
        ]
    (RESULTS / f"{NAME}.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
