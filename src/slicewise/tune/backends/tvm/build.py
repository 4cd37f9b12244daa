"""From a scheduled module to a library that can be loaded, and back."""

from pathlib import Path
from typing import Any


def build_library(module: Any, target: Any, path: Path) -> None:
    """Compile a scheduled module for `target` and write it as a shared library.

    What TVM's own builder does, in this process. Foreign errors come out as they are.
    """
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    from tvm.tirx import build

    plain = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    build(plain, target=target).export_library(str(path))


def open_library(path: Path) -> Any:
    """Return the module of a library. The file may go afterwards, and no other may come in its
    place while this process lives: the system tells libraries apart by file."""
    from tvm.runtime import load_module

    return load_module(str(path))


def first_line(err: BaseException) -> str:
    """Return what an error of TVM says, without the places in its source."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    told = next((line for line in lines if not line.startswith(("File ", "Traceback"))), "")
    return f"{type(err).__name__}: {told}" if told else type(err).__name__
