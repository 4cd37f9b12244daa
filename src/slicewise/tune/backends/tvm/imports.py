"""TVM, imported without what tuning for a CPU does not need, and what is known of its versions.

Two parts of an import are dear and of no use here (two cores of a server processor, TVM 0.27):

- `tvm.s_tir.tensor_intrin` describes the matrix instructions of every target when it is imported,
  30 CPU-seconds, of which those of this processor take 0.3 s. Every `TuneContext` asks for it. A
  stand-in package of the same name brings in those of this processor; others stay importable.
- `tvm_ffi` imports torch where it is installed: 2.6 s become 0.9 s in a process that needs none.
"""

import importlib
import importlib.util
import os
import platform
import sys
import types
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slicewise.core.errors import MissingDependency, TuningError

_INTRINSICS = "tvm.s_tir.tensor_intrin"
# Machine, as `platform` calls it -> module of its instructions.
_OF_MACHINE = {
    "x86_64": "x86", "amd64": "x86", "aarch64": "arm_cpu", "arm64": "arm_cpu",
    "riscv64": "riscv_cpu",
}  # fmt: skip
# What was seen to work together; apache-tvm-ffi 0.1.15 ends the process when a TuneContext with a
# space generator is made, and the metadata of apache-tvm 0.27 allows it.
_TVM = (0, 27)
_FFI_BELOW = (0, 1, 15)
_CURE = "pip install 'slicewise[tvm]', which has versions that work together"


def import_tvm() -> Any:
    """Return the package tvm with the instructions of this processor alone.

    `MissingDependency` where it is not installed.
    """
    try:
        import tvm
    except ImportError as err:
        raise MissingDependency(
            "tuning with engine tvm", package="apache-tvm", extra="tvm"
        ) from err
    if _INTRINSICS not in sys.modules:
        stand_in = types.ModuleType(_INTRINSICS)
        stand_in.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        stand_in.__package__ = _INTRINSICS
        sys.modules[_INTRINSICS] = stand_in
        tvm.s_tir.tensor_intrin = stand_in
        if own := _OF_MACHINE.get(platform.machine().lower()):
            importlib.import_module(f"{_INTRINSICS}.{own}")
    return tvm


def import_tvm_alone() -> Any:
    """Return the package tvm, in a process that has no use for torch: a client's or a server's.

    Where torch is imported already nothing changes.
    """
    is_hidden = "torch" not in sys.modules and "tvm_ffi" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # `import torch` then fails
    try:
        return import_tvm()
    finally:
        if is_hidden:
            del sys.modules["torch"]


def set_threads(threads: int) -> None:
    """Let kernels run on `threads` threads that keep the affinity of the process.

    TVM reads these when its first parallel kernel runs; left alone it binds its threads to cores
    of its own choice.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    os.environ["TVM_BIND_THREADS"] = "0"


def installed() -> Mapping[str, str]:
    """Return the versions of what the engine needs; `MissingDependency` names what is absent.

    Nothing is imported.
    """
    found = {}
    for package in ("apache-tvm", "apache-tvm-ffi"):
        try:
            found[package] = version(package)
        except PackageNotFoundError as err:
            raise MissingDependency(
                "tuning with engine tvm", package=package, extra="tvm"
            ) from err
    if importlib.util.find_spec("xgboost") is None:  # of xgboost or xgboost-cpu
        raise MissingDependency("tuning with engine tvm", package="xgboost", extra="tvm")
    return found


def refuse_versions(found: Mapping[str, str]) -> None:
    """Raise `TuningError` where versions are not those that work together."""
    tvm, ffi = found["apache-tvm"], found["apache-tvm-ffi"]
    if _numbers(tvm)[:2] != _TVM:
        raise TuningError(
            f"engine tvm does not know apache-tvm {tvm}; it works with 0.27; {_CURE}"
        )
    if _numbers(ffi)[:3] >= _FFI_BELOW:
        raise TuningError(
            f"apache-tvm {tvm} crashes beside apache-tvm-ffi {ffi}; it works with one below"
            f" 0.1.15; {_CURE}"
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Return (0, 1, 14) for '0.1.14.post1'."""
    found = []
    for part in text.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)
