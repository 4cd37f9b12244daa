"""Runs tuned kernels on random inputs, compares them with torch and prints their latency.

    python run.py [NUMBER ...]

Without numbers all workloads of configs.json. With a GPU that CUDA sees they are compiled for it;
without one Triton's interpreter runs them on the CPU, slowly and without a latency. From Python:

    from tuned_kernels import launch, operations, plans
    op = operations.Operation.parse(row["operation"])
    plan = plans.make_plan(op, plans.read_config(op.kind, row["config"]))
    tensors = {...}  # inputs and 'out' by the names and shapes of op.shapes, contiguous
    compiled = launch.compile_plan(op, plan, capability=90, cache=None)
    launch.bind_compiled(compiled, plan, tensors)()
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from slicewise.tune.backends.triton import launch
from slicewise.tune.backends.triton.operations import TOLERANCE, Operation
from slicewise.tune.backends.triton.plans import make_plan, read_config

_RUNS = 20


def run(row: Mapping[str, Any], *, seed: int = 0) -> tuple[Any, Any, Callable[[], None]]:
    """Return what torch computes, what the kernel computes, and what launches it again."""
    import torch

    op = Operation.parse(row["operation"])
    plan = make_plan(op, read_config(op.kind, row["config"]))
    has_gpu = torch.cuda.is_available()
    tensors = launch.make_tensors(op, device="cuda" if has_gpu else "cpu", seed=seed)
    if has_gpu:
        major, minor = torch.cuda.get_device_capability()
        compiled = launch.compile_plan(op, plan, capability=10 * major + minor, cache=None)
        start = launch.bind_compiled(compiled, plan, tensors)
    else:
        start = launch.bind_interpreted(op, plan, tensors)
    start()
    return launch.reference(op, tensors), tensors["out"], start


def latency_ms(start: Callable[[], None]) -> float:
    """Return the median time of a launch between two events in ms, the caches warm."""
    import torch

    found = []
    for _ in range(_RUNS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        start()
        last.record()
        torch.cuda.synchronize()
        found.append(float(first.elapsed_time(last)))
    return median(found)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if all that was run is right."""
    import torch

    document = json.loads((Path(__file__).parent / "configs.json").read_text())
    rows = document["workloads"]
    wrong = 0
    for number in [int(each) for each in arguments] or range(len(rows)):
        row = rows[number]
        expected, found, start = run(row)
        op = Operation.parse(row["operation"])
        off = launch.difference(op, expected, found)
        is_right = off <= TOLERANCE[op.precision]
        wrong += not is_right
        told = f"{latency_ms(start):.4g} ms" if torch.cuda.is_available() else "interpreted"
        verdict = "equal" if is_right else "WRONG"
        sys.stdout.write(f"{number}: {row['name']}: {told}, {verdict} ({off:.1e} off)\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
