"""A folder of files to apply: it appears whole or not at all, and never over someone else's."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slicewise.core.errors import UsageError


def check_new(directory: Path) -> None:
    """Raise `UsageError` unless a folder can be made at `directory` and nothing is lost."""
    target = Path(os.path.realpath(directory))
    if target.is_symlink() or not target.parent.is_dir():
        raise UsageError(
            f"folder {str(directory)!r} cannot be made: {str(target.parent)!r} is no folder; make"
            " it, or choose another place"
        )
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UsageError(f"{str(directory)!r} is a file; give a folder for the files of --emit")
    if any(target.iterdir()):
        raise UsageError(
            f"folder {str(directory)!r} holds files already; give a new or empty folder"
        )


def write_files(files: Mapping[str, str], directory: Path) -> None:
    """Write files, by their paths inside, into a new folder, all of them or none."""
    check_new(directory)
    target = Path(os.path.realpath(directory))
    try:
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
        try:
            for name, text in files.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            made.chmod(0o777 & ~_umask())
            os.replace(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as err:
        raise UsageError(
            f"folder {str(directory)!r} cannot be written: {err.strerror or err}; choose another"
            " place"
        ) from err


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
