"""Makes `results/gpu_tune.md` of the files that `gpu_tune.sh` left.

python -m benchmarks.gpu_tune_tables [FOLDER]      (results/gpu_tune unless given)
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables import RESULTS, markdown, write_result
from slicewise.core.cost import Estimate
from slicewise.core.tuning import Matrix, Workload, workload_key
from slicewise.tune.matrix import matrix_of, total_of

FOLDER = RESULTS / "gpu_tune"
COMMAND = "python -m benchmarks.gpu_tune_tables"
KNEE = 1.1  # within this factor of the latency on the most SMs
SEED = 0
Row = Mapping[str, Any]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; a last one that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def sweep_of(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return kernel -> SMs -> configuration -> samples in ms, the two visits interleaved."""
    visits: dict[tuple[str, str, str], list[list[float]]] = {}
    for row in rows:
        if row["phase"] == "sweep" and not row["error"]:
            key = (row["kernel"], str(row["sms"]), row["config"])
            visits.setdefault(key, []).append(list(row["samples_ms"]))
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (kernel, sms, config), taken in visits.items():
        samples = _halves(taken[0], taken[1]) if len(taken) > 1 else taken[0]
        found.setdefault(kernel, {}).setdefault(sms, {})[config] = samples
    return found


def _halves(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the samples of two visits so that even places, which choose, and odd places, which
    judge, each hold some of both."""
    order: list[float] = []
    for i in range(0, min(len(first), len(second)) - 1, 2):
        order += [first[i], second[i], second[i + 1], first[i + 1]]
    return order


def matrices_of(
    sweep: Mapping[str, Mapping[str, Mapping[str, list[float]]]], shares: Sequence[str]
) -> dict[str, Matrix]:
    """Return the matrix of each kernel that ran on every number of SMs."""
    made = {}
    for kernel, by_sms in sweep.items():
        if any(sms not in by_sms for sms in shares):
            continue
        if not any(all(c in by_sms[sms] for sms in shares) for c in by_sms[shares[0]]):
            continue
        workload = Workload(workload_key("gpu_tune", kernel), kernel, ("Triton",))
        made[kernel] = matrix_of(workload, by_sms, shares, seed=SEED)
    return made


def matrix_table(matrix: Matrix) -> list[str]:
    """Return the penalties as a table: rows tuned at, columns run at."""
    cells = {(cell.tuned_at, cell.run_at): cell for cell in matrix.cells}
    rows = [
        [f"**{tuned}**", *(_interval(cells[tuned, run].penalty) for run in matrix.shares)]
        for tuned in matrix.shares
    ]
    return markdown(["tuned at \\ run at", *matrix.shares], rows)


def _interval(found: Estimate) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def knee_rows(
    sweep: Mapping[str, Mapping[str, Mapping[str, list[float]]]], shares: Sequence[str]
) -> list[list[str]]:
    """Return for each kernel its best latency by SMs, the knee, and how many configurations are
    best somewhere."""
    rows = []
    for kernel, by_sms in sorted(sweep.items()):
        best: dict[str, tuple[float, str]] = {}
        for sms in shares:
            found = [(median(s), c) for c, s in by_sms.get(sms, {}).items() if s]
            if found:
                best[sms] = min(found)
        if len(best) < len(shares):
            continue
        least = best[shares[-1]][0]
        knee = next(sms for sms in shares if best[sms][0] <= KNEE * least)
        rows.append(
            [kernel, *(f"{best[sms][0]:.4g}" for sms in shares), knee,
             str(len({config for _, config in best.values()})),
             str(len(by_sms[shares[0]]))]
        )  # fmt: skip
    return rows


def tuner_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Return the runs: wall time against that of one tuner with 4 processes, and winners."""
    runs = [row for row in rows if row["phase"] == "run"]
    judged = ratios_of(rows)
    made = []
    first = next((run for run in runs if (run["tuners"], run["clients"]) == (1, 4)), None)
    for run in runs:
        name = f"{run['tuners']}/{run['clients']}"
        part = run["wall_s"] / first["wall_s"] if first else float("nan")
        worst = sorted(judged.get(name, {}).values())
        made.append(
            [str(run["tuners"]), str(run["clients"]), str(run["done"]), str(run["failed"]),
             f"{run['wall_s']:.1f}", f"{part:.2f}", f"{run['compile_s']:.1f}",
             f"{sum(run['measure_s']):.1f}", f"{max(run['measure_s'], default=0.0):.1f}",
             f"{median(worst):.3f}" if worst else "-", f"{worst[-1]:.3f}" if worst else "-",
             f"{sum(r <= 1.05 for r in worst)} of {len(worst)}" if worst else "-",
             "yes" if run["is_whole"] else "no"]
        )  # fmt: skip
    return made


def ratios_of(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return run -> kernel -> latency of its winner over that of the winner chosen alone, both
    measured alone afterwards."""
    samples: dict[tuple[str, str], list[float]] = {}
    chosen: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["phase"] != "judge" or row["error"]:
            continue
        samples.setdefault((row["kernel"], row["config"]), []).extend(row["samples_ms"])
        for run in row["chosen_by"]:
            chosen[run, row["kernel"]] = row["config"]
    found: dict[str, dict[str, float]] = {}
    for (run, kernel), config in chosen.items():
        alone = chosen.get(("1/4", kernel))
        if alone is not None:
            ratio = median(samples[kernel, config]) / median(samples[kernel, alone])
            found.setdefault(run, {})[kernel] = ratio
    return found


def write(folder: Path) -> None:
    """Write the page; `SystemExit` where the files are not there."""
    if not (folder / "env.json").exists():
        raise SystemExit(f"no results in {folder}: run benchmarks/gpu_tune.sh on a GPU first")
    environment = json.loads((folder / "env.json").read_text())
    rows = read_lines(folder / "sweep.jsonl")
    tuners = read_lines(folder / "tuners.jsonl")
    sweep = sweep_of(rows)
    counts = {str(row["sms"]): row["sms"] for row in rows if row["phase"] == "sweep"}
    shares = sorted(counts, key=lambda each: counts[each])
    more: list[str] = []
    if shares and (made := matrices_of(sweep, shares)):
        of_model = {workload_key("gpu_tune", row["kernel"]): row["count"] for row in rows}
        total = total_of(list(made.values()), of_model, shares)
        more += ["## Tuned at x, run at y: all kernels", "", _MATRIX_WORDS, "",
                 *matrix_table(total), ""]  # fmt: skip
        for kernel, matrix in made.items():
            more += [f"### {kernel}", "", *matrix_table(matrix), ""]
    if shares:
        best = [f"best ms at {sms} SMs" for sms in shares]
        head = ["kernel", *best, "knee", "different winners", "configurations"]
        more += ["## Knees", "", f"The fewest SMs within {KNEE:g} times the latency on the most.",
                 "", *markdown(head, knee_rows(sweep, shares)), ""]  # fmt: skip
    told = environment["device"]
    words = (
        f"{told.get('device', 'no GPU')}, {told['sms']} SMs, torch {told['torch']}, triton"
        f" {told['triton']}; shares by {environment['mechanism']}; {environment['started_at']}."
        f" Each tuner measures on {environment['lane_sms']} SMs. Winners are compared with those"
        " of one tuner alone, all measured alone afterwards."
    )
    if environment["asked_device"] != "cuda":
        words = f"**A run without a GPU: times are a formula's.** {words}"
    write_result(
        "gpu_tune",
        title="Tuning on parts of a GPU",
        command=COMMAND,
        words=words,
        columns=_TUNER_HEAD,
        rows=tuner_rows(tuners),
        more="\n".join(more).rstrip(),
    )


_TUNER_HEAD = (
    "tuners", "compiling processes", "measured", "failed", "wall s", "of one tuner's",
    "compile s, all", "measure s, all", "measure s, longest lane", "winner / chosen alone, median",
    "largest", "within 5 %", "whole",
)  # fmt: skip
_MATRIX_WORDS = (
    "Latency of what is best at x, run at y, over that of what is best at y: 1 is no loss. One"
    " fixed set of candidates, so no search noise; chosen on half of the samples, judged on the"
    " other; 90 % intervals in brackets."
)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
