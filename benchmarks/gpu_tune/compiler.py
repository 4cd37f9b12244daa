"""A process that compiles kernels into a cache, without touching the GPU."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_tune.process import own_output, serve, short
from slicewise.tune.backends.triton import launch
from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import make_plan, read_config
from slicewise.tune.backends.triton.spaces import Target


def answer(request: Mapping[str, Any], reply: Callable[[Mapping[str, Any]], None]) -> None:
    """Compile one kernel; an error is part of the answer."""
    begin = time.perf_counter()
    row: dict[str, Any] = {"error": "", "shared_bytes": None}
    try:
        op = Operation.parse(request["operation"])
        plan = make_plan(op, read_config(op.kind, request["config"]))
        capability = int(request["capability"])
        made = launch.compile_plan(op, plan, capability=capability, cache=Path(request["cache"]))
        row["shared_bytes"] = made.metadata.shared
        limit = Target(capability, 1).shared_bytes
        if made.metadata.shared > limit:
            row["error"] = f"it needs {made.metadata.shared} bytes of shared memory, not {limit}"
    except Exception as err:  # whatever the compiler raises: the candidate failed
        row["error"] = short(err)
    reply(row | {"seconds": round(time.perf_counter() - begin, 4)})


def main() -> int:
    """Answer requests until the input ends."""
    out = own_output()
    launch.load_kernels(interpreted=False)
    serve(answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
