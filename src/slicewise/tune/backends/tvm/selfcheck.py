"""Whether TVM works here: one tiny kernel searched, built and run, in a process of its own.

A pair of versions that does not fit ends the process that makes a `TuneContext`; the user's run
must not be that process. What passed once is remembered by versions and machine.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slicewise.core.errors import TuningError

_LIMIT_S = 180.0
_LAST_LINES = 3
_PASSED = "slicewise-tvm-works"


def make_sure(versions: Mapping[str, str]) -> None:
    """Return once the check has passed, now or earlier; `TuningError` where it fails."""
    mark = _mark(versions)
    if mark is not None and mark.exists():
        return
    _run(versions)
    if mark is not None:
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            return  # a folder that cannot be written: the check runs again next time


def _run(versions: Mapping[str, str]) -> None:
    told = " with ".join(f"{name} {number}" for name, number in versions.items())
    cure = "pip install 'slicewise[tvm]', and a C++ compiler (g++ or clang++)"
    try:
        made = subprocess.run(
            [sys.executable, "-m", __name__],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise TuningError(
            f"{told} did not tune a tiny kernel within {_LIMIT_S:g} s, where seconds are usual;"
            f" {cure}"
        ) from err
    if made.returncode == 0 and _PASSED in made.stdout:
        return
    last = " / ".join(made.stderr.strip().splitlines()[-_LAST_LINES:]) or "nothing was said"
    how = f"signal {-made.returncode}" if made.returncode < 0 else f"status {made.returncode}"
    raise TuningError(
        f"{told} does not tune a tiny kernel here: a test process ended with {how}: {last}; {cure}"
    )


def _mark(versions: Mapping[str, str]) -> Path | None:
    """Return the file that says that the check has passed; None for a user without a home."""
    given = os.environ.get("SLICEWISE_HOME") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:
        return None
    told = (*versions.values(), platform.python_version(), platform.node(), platform.machine())
    return folder / "slicewise-checks" / ("tvm-" + "-".join(told))


def _check() -> None:
    """Search, build and run a product of 16 x 16 numbers."""
    import tempfile

    import numpy as np

    from slicewise.tune.backends.tvm.build import build_library, open_library
    from slicewise.tune.backends.tvm.imports import import_tvm_alone

    tvm = import_tvm_alone()
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    size = 16
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    context = ms.TuneContext(
        mod=module, target=target, space_generator="post-order-apply", num_threads=1
    )
    schedule = context.generate_design_space()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        build_library(schedule.mod, target, path)
        kernel = open_library(path)
        x = np.arange(size * size, dtype=np.float32).reshape(size, size)
        out = tvm.runtime.tensor(np.zeros_like(x))
        kernel["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(x), out)
        if not np.allclose(out.numpy(), x @ x):
            raise TuningError("a product of 16 x 16 numbers came out wrong")
    print(_PASSED)


if __name__ == "__main__":
    _check()
