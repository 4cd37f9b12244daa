"""What each lower bound is worth alone: bound / best value by graph, the paper's first, then ours.

The relaxations of the paper (combinatorial, bottleneck MIP, guess the bottleneck block) are solved
by HiGHS, those of ours by CP-SAT or by dynamic programs; each has the same time. Needs highspy.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.open_rows import data_folder
from benchmarks.tables import write_result
from slicewise.core.errors import SlicewiseError
from slicewise.core.pipeline import Bound, PipelineProblem
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.wishes import Wishes
from slicewise.flows.partitioning.workload_file import read_workload
from slicewise.partition.bounds import combinatorial_bounds
from slicewise.partition.contract import contract
from slicewise.partition.lattice.coarse import coarse_bound
from slicewise.partition.lattice.lattice_dp import solve_lattice
from slicewise.partition.portfolio import solve
from slicewise.partition.solvers.relaxations import Relaxation, relax
from slicewise.partition.solvers.superblocks import superblock_bounds
from slicewise.partition.solvers.windows import window_bound

GRAPHS = (
    "pd-vgg16", "pd-resnet50", "dnnp-op-bert12", "hf-bert-large", "tv-densenet201", "tv-vit_b_16",
    "hf-llama-8b-prefill", "hf-t5-large", "pd-nasnetalarge",
)  # fmt: skip
STAGES = 16

# From the problem, the best value and the time to the bound in ms; 0: none in that time.
Method = Callable[[PipelineProblem, float, float], float]


def main() -> None:
    """Try every method on every graph and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=5.0)
    limit_s = parser.parse_args().time_limit
    rows, ratios = [], []
    for name in GRAPHS:
        path = data_folder() / "partition" / "workloads" / "open" / f"{name}.json"
        ratios.append(_ratios(path, limit_s))
        rows.append([name, *(f"{ratio:.4f}" if ratio else "-" for ratio in ratios[-1])])
        print(*rows[-1], flush=True)
    means = [_mean(column) for column in zip(*ratios, strict=True)]
    rows.append(["geometric mean", *means])
    write_result(
        "partition_bounds",
        title=f"Lower bounds one by one, {STAGES} stages: bound / best value found",
        command="python -m benchmarks.partition_bounds",
        words=(
            f"{limit_s:g} s for each method and graph, joined nodes, two threads. 1 is a proof; -:"
            " no bound in that time. The paper names 0.4598 for its combinatorial bound and 0.9452"
            " for its best at 16 stages, on other graphs. The mean is of the graphs with a bound."
        ),
        columns=("graph", *METHODS),
        rows=rows,
    )


def _ratios(path: Path, limit_s: float) -> list[float]:
    problem = contract(assemble(read_workload(path), Wishes(), stages=STAGES).problem).problem
    value = solve(problem, time_limit_s=2 * limit_s).value
    made = []
    for method in METHODS.values():
        try:
            made.append(method(problem, value, limit_s) / value)
        except SlicewiseError as err:
            print(path.stem, err)
            made.append(0.0)
    return made


def _mean(ratios: Sequence[float]) -> str:
    known = [ratio for ratio in ratios if ratio > 0]
    return f"{statistics.geometric_mean(known):.4f} ({len(known)})" if known else "-"


def _best(bounds: Sequence[Bound | None], method: str = "") -> float:
    return max((b.value for b in bounds if b is not None and method in b.method), default=0.0)


def _relaxed(kind: Relaxation) -> Method:
    return lambda problem, _, limit_s: relax(problem, kind, time_limit_s=limit_s)


def _superblocks(name: str) -> Method:
    def bound(problem: PipelineProblem, value: float, limit_s: float) -> float:
        found = superblock_bounds(problem, incumbent_ms=value, time_limit_s=limit_s)
        return _best(found, name)

    return bound


def _windows(problem: PipelineProblem, value: float, limit_s: float) -> float:
    return _best([window_bound(problem, incumbent_ms=value, time_limit_s=limit_s).bound])


def _coarse(problem: PipelineProblem, value: float, limit_s: float) -> float:
    end = time.monotonic() + limit_s
    return _best([coarse_bound(problem, incumbent=value, deadline=lambda: time.monotonic() > end)])


def _lattice(problem: PipelineProblem, value: float, limit_s: float) -> float:
    end = time.monotonic() + limit_s
    found = solve_lattice(problem, incumbent=value, deadline=lambda: time.monotonic() > end)
    return _best([found.bound])


METHODS: dict[str, Method] = {
    "combinatorial": lambda problem, *_: _best(combinatorial_bounds(problem)),
    "bottleneck LP": _relaxed(Relaxation.BOTTLENECK_LP),
    "bottleneck MIP": _relaxed(Relaxation.BOTTLENECK),
    "guess MIP": _relaxed(Relaxation.GUESS),
    "exact MIP": _relaxed(Relaxation.EXACT),
    "bottleneck stage (CP-SAT)": _superblocks("bottleneck-stage"),
    "superblocks (CP-SAT)": _superblocks("superblock"),
    "prefix windows": _windows,
    "coarse lattice": _coarse,
    "lattice": _lattice,
}

if __name__ == "__main__":
    main()
