"""Files that appear whole or not at all, whoever writes them and whatever kills the writer.

The new content is written beside the old and renamed over it. What is in a file is no concern
here.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from slicewise.core.errors import UsageError


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that a user asked for, as `whole_file` does; `UsageError` if it cannot be."""
    try:
        with whole_file(path) as file:
            yield file
    except OSError as err:
        raise UsageError(
            f"output {str(path)!r} cannot be written: {err.strerror or err}; choose another place"
        ) from err


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that appears at `path` when all is written and on the disk, or not at all.

    A link is followed, a file keeps its permissions. What is no regular file (a pipe, a device) is
    written to directly, never replaced. `OSError` if it cannot be written.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    with _replacement(target, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode)) as file:
        yield file


@contextmanager
def _replacement(target: Path, mode: int) -> Iterator[BinaryIO]:
    descriptor, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"
    )
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=2**20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder to `target`, which is there whole or as it was before at every moment but
    that between two renames. What is at `target` is replaced. `OSError` if it cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        shutil.copytree(source, made / "new")
        if target.exists():
            target.rename(made / "old")
        (made / "new").rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
