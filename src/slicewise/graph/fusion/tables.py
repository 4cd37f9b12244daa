"""The table of each runtime by name."""

from functools import cache
from importlib import import_module

from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean
from slicewise.graph.fusion.pattern import Table

MODULES = {
    "torch-eager": "torch_eager",
    "torch-compile": "torch_compile",
    "onnxruntime": "onnxruntime",
    "tensorrt": "tensorrt",
}


@cache
def table_of(runtime: str) -> Table:
    """Return what `runtime` fuses; `UsageError` lists the runtimes that have a table."""
    if runtime not in MODULES:
        raise UsageError(
            f"runtime {runtime!r} is unknown; known are {', '.join(MODULES)}"
            f"{did_you_mean(runtime, MODULES)}"
        )
    table: Table = import_module(f"slicewise.graph.fusion.{MODULES[runtime]}").TABLE
    return table
