"""Writing what a user asked for: whole or not at all."""

import os
import tempfile
from pathlib import Path

from slicewise.core.errors import UsageError


def check_writable(path: Path) -> None:
    """Raise `UsageError` if `path` cannot be written, before any work is done."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"output {str(path)!r} is a folder; give a file name inside it")
    if not folder.is_dir():
        raise UsageError(
            f"output {str(path)!r}: the folder {str(folder)!r} does not exist; make it"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"output {str(path)!r} cannot be written; choose another place")


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and rename it there, so that no half file is ever seen."""
    try:
        descriptor, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
        )
    except OSError as err:
        raise UsageError(f"output {str(path)!r} cannot be written: {err.strerror}") from err
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as err:
        raise UsageError(f"output {str(path)!r} cannot be written: {err.strerror}") from err
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
