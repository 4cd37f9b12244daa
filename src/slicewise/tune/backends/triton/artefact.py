"""What tuning leaves: a folder with the kernels, their configurations, and a program to run them.

It needs torch and Triton, not this package: the modules that it is made of are copied into it.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_PACKAGE = "tuned_kernels"
_COPIED = ("operations.py", "plans.py", "kernels.py", "launch.py")
_SCHEMA = "slicewise.triton-kernels/1"


def write_artefact(
    path: Path, rows: Sequence[Mapping[str, object]], *, version: str, device: str,
    slice_name: str | None,
) -> Path:  # fmt: skip
    """Write the folder, whole or not at all, in the place of one that is there; return it.

    A row has `name`, `count`, `operation` and `config` (texts), `is_tuned`, `latency_ms`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        package = made / _PACKAGE
        package.mkdir()
        (package / "__init__.py").write_text('"""Tuned Triton kernels."""\n')
        for name in _COPIED:
            text = (_HERE / name).read_text()
            (package / name).write_text(text.replace(__name__.rpartition(".")[0], _PACKAGE))
        shutil.copyfile(_HERE / "run_kernels.py", made / "run.py")
        text = (made / "run.py").read_text().replace(__name__.rpartition(".")[0], _PACKAGE)
        (made / "run.py").write_text(text)
        document = {
            "schema": _SCHEMA,
            "version": version,
            "device": device,
            "slice": slice_name,
            "workloads": list(rows),
        }
        (made / "configs.json").write_text(json.dumps(document, indent=1) + "\n")
        made.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / "was")
            os.replace(made, path)
            shutil.rmtree(old)
        else:
            os.replace(made, path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path
