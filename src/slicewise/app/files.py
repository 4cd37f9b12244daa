"""Writing what a user asked for: whole or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

from slicewise.core.errors import UsageError
from slicewise.core.whole_file import output_file

_LOOKED_AT = 65_536


def check_outputs(paths: Iterable[Path | None], *, inputs: Iterable[str] = ()) -> None:
    """Check each path that is given as `check_writable` does; no two may be the same file.

    They will hold text: a file that is there and holds none is something else, and stays.
    """
    given = [path for path in paths if path is not None]
    read = list(inputs)
    for i, path in enumerate(given):
        check_writable(path, inputs=read)
        if resolved(path).is_file() and _holds_no_text(path):
            raise UsageError(
                f"output {str(path)!r} is there and holds no text, as weights do not; give another"
                " file name, or remove it first"
            )
        if any(resolved(path) == resolved(other) for other in given[:i]):
            raise UsageError(
                f"output {str(path)!r} is asked for twice; give each document its own file"
            )


def check_writable(path: Path, *, inputs: Iterable[str] = ()) -> None:
    """Raise `UsageError` if `path` cannot be written, or is one of the files being read."""
    if str(path) == "-":
        raise UsageError(
            "output '-' is no file; give a file name, /dev/stdout, or --json for the document on"
            " stdout"
        )
    target = resolved(path)
    if target.is_symlink():
        raise UsageError(f"output {str(path)!r} is a link to itself; choose another place")
    if target.is_dir():
        raise UsageError(f"output {str(path)!r} is a folder; give a file name inside it")
    for name in inputs:
        if resolved(Path(name)) == target:
            raise UsageError(f"output {str(path)!r} is read as input; give another file name")
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(
            f"output {str(path)!r}: the folder {str(folder)!r} does not exist; make it"
        )
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise UsageError(f"output {str(path)!r} cannot be written; choose another place")


def check_apart(folder: Path, *, model: str, outputs: Iterable[Path | None]) -> None:
    """Raise `UsageError` if a folder that is to be replaced holds the model or an output."""
    for what, path in (("the model", Path(model)), *(("output", out) for out in outputs)):
        if path is not None and resolved(path).is_relative_to(resolved(folder)):
            raise UsageError(
                f"folder {str(folder)!r} is written anew and would lose {what} {str(path)!r};"
                " give another folder"
            )


def _holds_no_text(path: Path) -> bool:
    """True for a file with zero bytes near its beginning: none that slicewise writes as text."""
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(_LOOKED_AT)
    except OSError:
        return False  # what cannot be read is judged when it is written


def resolved(path: Path) -> Path:
    """Return the file behind a path, links followed; a link that leads nowhere stays a link."""
    return Path(os.path.realpath(path))


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a file that a user asked for, whole or not at all."""
    with output_file(path) as file:
        file.write(content)
