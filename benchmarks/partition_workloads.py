"""Every open workload at every k: value, bound, gap, and what others reach on the same graphs.

Rows are kept as they come in `--rows FILE`, so that a run that was cut off goes on. Peers' values
come from the measured data, those of the same problem only (no colocation, no limits).
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.open_rows import data_folder
from benchmarks.tables import markdown, write_result
from slicewise.core.pipeline import OPTIMAL_GAP, Partition
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.wishes import Wishes
from slicewise.flows.partitioning.workload_file import read_workload
from slicewise.partition.portfolio import Progress, solve
from slicewise.partition.rechecks import RECHECKS
from slicewise.partition.verify import verify

STAGES = (2, 4, 8, 16, 32, 64)
HARD = ("pd-nasnetalarge", "hf-t5-large", "hf-llama-8b-prefill")
_EARLY_S = 5.0
# Words of a peer's note that mean another problem than ours.
_OTHER_PROBLEM = ("with the file's colocation", "own limits", "not comparable", "quotient: False")

Row = dict[str, Any]


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=Path("partition-rows.jsonl"))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--graphs", nargs="*")
    parser.add_argument("--stages", type=int, nargs="*", default=STAGES)
    asked = parser.parse_args()
    folder = data_folder() / "partition"
    done = {(row["graph"], row["k"]): row for row in _read(asked.rows)}
    best, peers = _best_known(folder), _peers(folder)
    for path in sorted((folder / "workloads" / "open").glob("*.json")):
        if asked.graphs and path.stem not in asked.graphs:
            continue
        for stages in asked.stages:
            if (path.stem, stages) in done:
                continue
            row = _run(path, stages, time_limit_s=asked.time_limit)
            done[path.stem, stages] = row
            with asked.rows.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)
    rows = [done[key] for key in sorted(done)]
    for row in rows:
        key = (row["graph"], row["k"])
        row["best_known"], row["peer"] = best.get(key), peers.get(key)
    _write(rows)


def _run(path: Path, stages: int, *, time_limit_s: float) -> Row:
    """Solve one case, verify the answer, and say what was known after five seconds."""
    problem = assemble(read_workload(path), Wishes(), stages=stages).problem
    early = math.inf

    def watch(progress: Progress) -> None:
        nonlocal early
        if progress.seconds <= _EARLY_S:
            early = progress.value

    found: Partition = solve(problem, time_limit_s=time_limit_s, seed=0, report=watch)
    notes = verify(problem, found, rechecks=RECHECKS)
    tightest = max(found.bounds, key=lambda bound: bound.value)
    return {
        "graph": path.stem,
        "nodes": problem.nodes,
        "k": stages,
        "value": found.value,
        "bound": found.bound,
        "gap": found.gap,
        "method": found.method,
        "bound_by": tightest.method,
        "trust": str(tightest.trust),
        "after_5_s": early,
        "seconds": round(found.seconds, 2),
        "notes": [note.code for note in notes],
    }


def _read(path: Path) -> Iterable[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _best_known(folder: Path) -> Mapping[tuple[str, int], float]:
    """Return the best value of the prototype by graph and k."""
    found: dict[tuple[str, int], float] = {}
    with (folder / "prototype_open.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            told = [row[name] for name in ("exact_value", "local_search_value") if row[name]]
            if told:
                found[row["instance"], int(row["k"])] = min(map(float, told))
    return found


def _peers(folder: Path) -> Mapping[tuple[str, int], tuple[float, str]]:
    """Return the best peer's value and name by graph and k."""
    found: dict[tuple[str, int], tuple[float, str]] = {}
    with (folder / "peers_open.csv").open(newline="") as rows:
        for row in csv.DictReader(rows):
            told, note = row["objective_value"], row["note"]
            if not told or not row["k"].isdigit() or any(w in note for w in _OTHER_PROBLEM):
                continue
            if row["method"].startswith("piper"):
                continue  # its own objective
            key = (row["instance"], int(row["k"]))
            found[key] = min(found.get(key, (math.inf, "")), (float(told), row["method"]))
    return found


def _write(rows: list[Row]) -> None:
    columns = (
        "graph", "nodes", "k", "value ms", "bound ms", "gap", "found by", "bound by", "trust",
        "after 5 s", "against best known", "against best peer", "s",
    )  # fmt: skip
    table = [
        [
            row["graph"], str(row["nodes"]), str(row["k"]), f"{row['value']:.6g}",
            f"{row['bound']:.6g}", f"{row['gap']:.2%}" if row["gap"] > OPTIMAL_GAP else "optimal",
            row["method"], row["bound_by"], row["trust"], _ratio(row["after_5_s"], row["value"]),
            _ratio(row["value"], row["best_known"]),
            _ratio(row["value"], row["peer"][0] if row["peer"] else None), f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    proven = sum(row["gap"] <= OPTIMAL_GAP for row in rows)
    write_result(
        "partition_workloads",
        title="Pipeline stages of the open workloads: value, bound, gap",
        command="python -m benchmarks.partition_workloads",
        words=(
            f"{len(rows)} cases (graph, k), {proven} proven optimal ({proven / len(rows):.0%}; gap"
            f" at most {OPTIMAL_GAP:g}), 60 s and 2 cores each at most. Every answer was verified"
            " in exact arithmetic. A ratio of 1 is equal, below 1 better than theirs; after 5 s"
            " against the end. Best known: the prototype's exact or local search value in the data"
            " set; peers: dp.cpp and the rules of thumb on the same problem."
        ),
        columns=columns,
        rows=table,
        more="\n".join(_by_k(rows)),
    )


def _ratio(ours: float, theirs: float | None) -> str:
    if theirs is None or not theirs or math.isinf(ours):
        return "-"
    return f"{ours / theirs:.4f}"


def _by_k(rows: list[Row]) -> list[str]:
    """Geometric means of bound / value, all graphs and the hard ones."""
    table = []
    for k in sorted({row["k"] for row in rows}):
        its = [row for row in rows if row["k"] == k]
        hard = {row["graph"]: row["gap"] for row in its if row["graph"] in HARD}
        mean = statistics.geometric_mean([row["bound"] / row["value"] for row in its])
        proven = sum(row["gap"] <= OPTIMAL_GAP for row in its)
        gaps = [f"{hard[name]:.2%}" if name in hard else "-" for name in HARD]
        table.append([str(k), f"{proven} of {len(its)}", f"{mean:.4f}", *gaps])
    head = ("k", "proven", "geometric mean of bound/value", *(f"gap {name}" for name in HARD))
    return ["## By number of stages", "", *markdown(head, table)]


if __name__ == "__main__":
    main()
