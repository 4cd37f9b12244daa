"""A folder that appears whole or not at all, and never in the place of someone else's files.

What is in it is no concern here, beyond that a folder whose files are all named by its own
`stages.json`, or that holds split points alone, is ours and may be replaced.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slicewise.core.errors import SlicewiseError, UsageError
from slicewise.partition.split.manifest import MANIFEST, POINTS, read_manifest


@contextmanager
def whole_folder(directory: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `directory` when all went well.

    `UsageError` if `directory` is there and not ours, or cannot be made.
    """
    target = Path(os.path.realpath(directory))
    check_replaceable(directory)
    try:
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    except OSError as err:
        raise _cannot(directory, err) from err
    try:
        yield made
        made.chmod(0o777 & ~_umask())
        check_replaceable(directory)
        _put(made, target, directory)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check_replaceable(directory: Path) -> None:
    """Raise `UsageError` unless a folder can be written at `directory` and nothing is lost."""
    target = Path(os.path.realpath(directory))
    if target.is_symlink() or not target.parent.is_dir():
        raise UsageError(
            f"folder {str(directory)!r} cannot be made: {str(target.parent)!r} is no folder; make"
            " it, or choose another place"
        )
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UsageError(f"{str(directory)!r} is a file; give a folder for the stages")
    present = sorted(entry.name for entry in target.iterdir())
    if present in ([], [POINTS]):
        return
    foreign = present
    if MANIFEST in present:
        with contextlib.suppress(SlicewiseError):
            own = read_manifest(target).names
            foreign = [name for name in present if name not in own]
    if foreign:
        raise UsageError(
            f"folder {str(directory)!r} holds {foreign[0]!r}, which is not of stages written"
            " before; give a new or empty folder"
        )


def _put(made: Path, target: Path, directory: Path) -> None:
    """Rename the new folder over the old one; the old one is back if that fails."""
    try:
        if not target.exists() or not any(target.iterdir()):
            os.replace(made, target)
            return
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
        try:
            os.replace(target, aside)
        except OSError:
            aside.rmdir()
            raise
        try:
            os.replace(made, target)
        except BaseException:
            os.replace(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as err:
        raise _cannot(directory, err) from err


def _cannot(directory: Path, err: OSError) -> UsageError:
    return UsageError(
        f"folder {str(directory)!r} cannot be written: {err.strerror or err}; choose another place"
    )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
