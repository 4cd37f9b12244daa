"""How search and memory grow with the graph: 1,000 to 20,000 nodes made by chance, 16 stages.

Each size runs in a process of its own, after one small problem that compiles or loads the kernels.
"""

import json
import random
import resource
import subprocess
import sys
import time

from benchmarks.tables import write_result
from slicewise.core.pipeline import PipelineProblem, StageDevice, Transfer
from slicewise.partition.portfolio import solve
from slicewise.partition.slicegraph.order import Orders
from slicewise.partition.slicegraph.slice_dp import Slicer

SIZES = (1_000, 1_250, 2_500, 5_000, 10_000, 20_000)
STAGES = 16
_LIMIT_S = 5.0


def main() -> None:
    """Measure every size and write the table."""
    rows = []
    for nodes in SIZES:
        command = [sys.executable, "-m", "benchmarks.partition_growth", str(nodes)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append(
            [
                f"{nodes:,}", f"{told['slice_ms']:.0f}", f"{told['first_s']:.2f}",
                f"{told['total_s']:.2f}", f"{told['gap']:.1%}", f"{told['memory_mib']:.0f}",
            ]
        )  # fmt: skip
        print(*rows[-1], flush=True)
    write_result(
        "partition_growth",
        title="Growth: from 1,000 to 20,000 nodes",
        command="python -m benchmarks.partition_growth",
        words=(
            f"Layered graphs made by chance, {STAGES} stages, transfers of up to 1 ms. One"
            " slicing of the given order (CPU ms); seconds until the first legal cut and until the"
            f" end, --time-limit {_LIMIT_S:g}; gap to the bound then; peak memory of the process."
        ),
        columns=("nodes", "one slicing ms", "first cut s", "end s", "gap", "memory MiB"),
        rows=rows,
    )


def layered(nodes: int, *, seed: int = 0) -> PipelineProblem:
    """Return a graph whose nodes read one to three of the forty before them."""
    chance = random.Random(seed)
    uses: list[set[int]] = [set() for _ in range(nodes)]
    for node in range(1, nodes):
        for _ in range(chance.choice((1, 1, 2, 3))):
            uses[max(0, node - 1 - int(chance.expovariate(0.2)) % 40)].add(node)
    work_ms = tuple(chance.choice((0.0, 0.2, 0.5, 1.0, 3.0)) for _ in range(nodes))
    transfers = tuple(
        Transfer(node, tuple(sorted(its)), chance.random()) for node, its in enumerate(uses) if its
    )
    names = tuple(f"n{node}" for node in range(nodes))
    device = StageDevice("device", work_ms)
    return PipelineProblem(f"layered-{nodes}", names, transfers, (device,), (0,) * STAGES)


def measure(nodes: int) -> dict[str, float]:
    """Return the figures of one size, in this process."""
    solve(layered(200), time_limit_s=1.0)
    problem = layered(nodes)
    slicer = Slicer(problem)
    order = Orders(problem, slicer.arrays).starts()[0]()
    began = time.process_time()
    slicer.slice(order)
    slice_ms = (time.process_time() - began) * 1e3
    first: list[float] = []
    made = solve(problem, time_limit_s=_LIMIT_S, report=lambda told: first.append(told.seconds))
    return {
        "slice_ms": slice_ms,
        "first_s": first[0],
        "total_s": made.seconds,
        "gap": made.gap,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
