"""Opens a .pt2 file, or says what the file is instead.

The program is read by torch.export.load, without the bytes of its weights where the archive keeps
them apart; the last programs are kept for the next batch. Note that a .pt2 file may hold pickled
objects, which torch runs when it reads them: give only files that you trust.
"""

import functools
import io
import re
import zipfile
from pathlib import Path
from typing import Any

from slicewise.core.errors import ModelError
from slicewise.graph.frontends.torch.export import quiet, without_transforms

_SAVE = "save it with torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
# Members that tell what a zip file of torch is: part of a member's name -> what it says.
_KINDS = (
    ("code/__torch__", "a TorchScript file; it has no exported program; load the model in Python"),
    ("data.pkl", "a file of weights or pickled objects (torch.save), without a program; build the"
     " model in Python"),
)  # fmt: skip


def load_program(path: Path) -> Any:
    """Return the ExportedProgram in a file; `ModelError` if it is none or cannot be read."""
    label = f"model {str(path)!r}"
    if not path.exists():
        raise ModelError(f"there is no model file {str(path)!r}; give the path of a .pt2 file")
    if path.is_dir():
        raise ModelError(f"{label} is a folder; give the path of a .pt2 file")
    _refuse_other(path, label)
    status = path.stat()
    return _load(path, status.st_mtime_ns, status.st_size)


def _refuse_other(path: Path, label: str) -> None:
    """Raise `ModelError` if the file is no archive of an exported program."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as err:
        raise ModelError(
            f"{label} is not a .pt2 file or is damaged ({err}); a .pt2 file is the zip archive"
            f" that torch.export.save writes; {_SAVE}"
        ) from err
    if any("models/" in name or name.endswith("serialized_exported_program.json")
           for name in names):  # fmt: skip
        return
    for part, what in _KINDS:
        if any(part in name for name in names):
            raise ModelError(f"{label} is {what} and {_SAVE}")
    raise ModelError(f"{label} is a zip file without an exported program; {_SAVE}")


def _without_weights(path: Path) -> io.BytesIO:
    """Return the archive with empty weights: torch then makes zeros of the recorded shapes, whose
    memory the operating system provides only when it is touched."""
    stripped = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(stripped, "w") as copy:
        for member in archive.infolist():
            is_weight = re.search(r"/data/weights/weight_\d+$", member.filename)
            copy.writestr(member.filename, b"" if is_weight else archive.read(member))
    stripped.seek(0)
    return stripped


@functools.lru_cache(maxsize=2)
def _load(path: Path, modified_ns: int, size: int) -> Any:
    import torch

    try:
        with quiet():
            try:
                return without_transforms(torch.export.load(_without_weights(path)))
            except Exception:  # an archive kept in another way: all of it is read
                return without_transforms(torch.export.load(path))
    except Exception as err:
        line = " ".join(str(err).split("\n\n")[0].split())[:300].rstrip(". ")
        if "deserializing" in line:  # torch logs its reason, and raises only that there is one
            line = (
                "it was saved by another version, or has operators of a package that must be"
                " imported first"
            )
        raise ModelError(
            f"model {str(path)!r} cannot be read by torch {torch.__version__}:"
            f" {line or type(err).__name__}; save it again with this version of torch"
        ) from err
