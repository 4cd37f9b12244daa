"""A small kernel compiled and interpreted, to see that Triton works here before it is relied on.

Run in a process of its own: a compiler that crashes must not end the user's.
"""

import tempfile
from pathlib import Path

from slicewise.tune.backends.triton import launch
from slicewise.tune.backends.triton.operations import TOLERANCE, Operation
from slicewise.tune.backends.triton.plans import make_plan

_CONFIG = {"block_m": 16, "block_n": 16, "block_k": 16, "group": 1, "stages": 2, "warps": 1}
_CAPABILITY = 80  # every version that compiles at all compiles for 8.0


def main() -> None:
    """Raise what goes wrong."""
    op = Operation.make("matmul", "fp16", batch=1, m=20, n=24, k=40, bias=1, activation=1)
    plan = make_plan(op, _CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        launch.compile_plan(op, plan, capability=_CAPABILITY, cache=Path(folder))
    tensors = launch.make_tensors(op, device="cpu", seed=0)
    launch.bind_interpreted(op, plan, tensors)()
    off = launch.difference(op, launch.reference(op, tensors), tensors["out"])
    if off > TOLERANCE[op.precision]:
        raise SystemExit(f"a small product is off by {off:.3g} of its largest value")
