"""Exports a PyTorch module to an ONNX file, in a process of its own, and keeps it for next time.

One file serves every batch where the module allows that; this is checked by running the file at
another batch than it was traced with and comparing with the module. A file appears whole or not
at all. The parent process imports no framework.
"""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import slicewise
from slicewise.core.errors import MeasureError, tells_no_memory
from slicewise.core.measurement import InputSpec
from slicewise.core.notes import Note

_FILE, _TOLD = "model.onnx", "told.json"
_OPSET = 18  # the first that both exporters write
_TRACED_BATCH, _CHECKED_BATCH = 2, 3
# How far the file may be from the module, as a part of the largest output.
_TOLERANCE = {"fp32": 1e-2, "fp16": 0.1, "bf16": 0.3}
# An exporter rounds many times where a nudge does once.
_AMPLIFIED = 100.0
_STALE_S = 3600.0  # what a killed process left is older than an export takes
_CODE = """\
import sys
sys.path.insert(0, sys.argv[1])
from slicewise.graph.frontends.torch.to_onnx import serve
serve(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Export:
    """What is to be exported. `open` returns the module; it is picklable.

    `inputs` are of the batch `batch`, which stands on `batch_axes` of them by name. `identity` is
    what else the file depends on: the model's name or digest, its binding, versions of packages.
    """

    label: str
    open: Callable[[], object]
    inputs: tuple[InputSpec, ...]
    by_name: bool
    batch: int
    batch_axes: Mapping[str, int]
    precision: str
    identity: tuple[str, ...]

    def of_batch(self, batch: int) -> "Export":
        """Return the same with inputs of another batch."""
        return replace(
            self, batch=batch, inputs=tuple(self._resized(spec, batch) for spec in self.inputs)
        )

    def _resized(self, spec: InputSpec, batch: int) -> InputSpec:
        axis = self.batch_axes.get(spec.name)
        if axis is None:
            return spec
        return replace(spec, shape=(*spec.shape[:axis], batch, *spec.shape[axis + 1 :]))

    @property
    def digest(self) -> str:
        """SHA-256 of what the file depends on, the batch left out; 32 hexadecimal digits."""
        one = self.of_batch(1)
        told = (_OPSET, one.inputs, self.by_name, sorted(self.batch_axes.items()), self.precision)
        return hashlib.sha256(repr((told, self.identity)).encode()).hexdigest()[:32]


def to_onnx(export: Export, folder: Path) -> tuple[str, tuple[Note, ...]]:
    """Return the path of an ONNX file of the module, made in `folder` unless it is there already.

    `MeasureError` if no exporter takes the module, or the folder cannot be written.
    """
    fixed = folder / f"{export.digest}-b{export.batch}"
    refused = fixed.with_suffix(".refused")
    if refused.exists():
        raise MeasureError(refused.read_text())
    for place in (folder / export.digest, fixed):
        if (place / _TOLD).exists():
            return _kept(place)
    is_fixed = any(folder.glob(f"{export.digest}-b*"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=".tmp"))
    except OSError as err:
        raise MeasureError(
            f"{export.label} cannot be exported to {str(folder)!r}: {err.strerror}; free space or"
            " set SLICEWISE_HOME to a folder that can be written"
        ) from err
    try:
        _run_apart(export, made, is_fixed=is_fixed, refused=refused)
        told = json.loads((made / _TOLD).read_text())
        place = folder / export.digest if told["is_dynamic"] else fixed
        with contextlib.suppress(OSError):  # another process was quicker: its file is as good
            os.rename(made, place)
        return _kept(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _kept(place: Path) -> tuple[str, tuple[Note, ...]]:
    told = json.loads((place / _TOLD).read_text())
    return str(place / _FILE), tuple(Note(code, text) for code, text in told["notes"])


def _remove_stale(folder: Path) -> None:
    for entry in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if entry.stat().st_mtime < time.time() - _STALE_S:
                shutil.rmtree(entry, ignore_errors=True)


def _run_apart(export: Export, made: Path, *, is_fixed: bool, refused: Path) -> None:
    """Export in a fresh interpreter into the folder `made`.

    That no exporter takes the module is kept in the file `refused`: trying takes minutes, and the
    digest changes with the versions that could change the answer.
    """
    room = str(Path(slicewise.__file__).parents[1])
    (made / "task").write_bytes(pickle.dumps((export, is_fixed)))
    done = subprocess.run(
        [sys.executable, "-c", _CODE, room, str(made)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    (made / "task").unlink()
    if (made / "error").exists():
        text = (
            f"{export.label} cannot be exported to ONNX: {(made / 'error').read_text()}; measure"
            " it with runtime torch-eager, or give an .onnx file"
        )
        (made / "text").write_text(text)
        with contextlib.suppress(OSError):  # then it is tried again next time
            os.replace(made / "text", refused)
        raise MeasureError(text)
    if done.returncode or not (made / _TOLD).exists():
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]
        raise MeasureError(
            f"{export.label} cannot be exported to ONNX: the exporting process ended with"
            f" {done.returncode} ({last}); measure it with runtime torch-eager"
        )


# --- in the other process


def serve(place: str) -> None:
    """Export what the task in the folder `place` asks; write the file, and what to tell of it."""
    made = Path(place)
    export, is_fixed = pickle.loads((made / "task").read_bytes())
    try:
        told = _exported(export, made, is_fixed=is_fixed)
    except MemoryError:
        raise  # the machine's, not the model's: not to be remembered
    except Exception as err:  # exporters raise all kinds; the parent tells the user
        (made / "error").write_text(f"{type(err).__name__}: {_one_line(err)}")
        return
    (made / _TOLD).write_text(json.dumps(told))


def _exported(export: Export, made: Path, *, is_fixed: bool) -> dict[str, Any]:
    """Return what to tell of the file that the first exporter made that works.

    All batches are tried before one alone, the sturdier exporter before the other.
    """
    import torch

    module: Any = export.open()
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(export.precision)
    module = module if dtype is None else module.to(dtype)
    failed: list[str] = []
    ways = [(is_dynamic, name) for is_dynamic in (True, False) for name in _EXPORTERS]
    for is_dynamic, name in ways:
        if is_dynamic and (is_fixed or not export.batch_axes):
            continue
        traced = export.of_batch(_TRACED_BATCH) if is_dynamic else export
        try:
            _EXPORTERS[name](module, traced, made / _FILE, is_dynamic)
            checked = traced.of_batch(_CHECKED_BATCH) if is_dynamic else export
            notes = _check(module, checked, made)
        except Exception as err:
            if isinstance(err, MemoryError) or tells_no_memory(str(err)):
                raise MemoryError(_one_line(err)) from err
            failed.append(f"{name}, {'any batch' if is_dynamic else 'one batch'}:"
                          f" {type(err).__name__}: {_one_line(err)}")  # fmt: skip
            for entry in made.glob(f"{_FILE}*"):
                entry.unlink()
            continue
        text = f"exported by torch.onnx ({name}, opset {_OPSET}) with random weights"
        if export.batch_axes and not is_dynamic:
            text += f" for batch {export.batch} alone"
        if failed:
            text += f", after {'; '.join(failed)}"
        return {"is_dynamic": is_dynamic, "notes": [("exported-to-onnx", text), *notes]}
    raise RuntimeError("; ".join(failed))


def _by_trace(module: Any, export: Export, path: Path, is_dynamic: bool) -> None:
    """Export by running the module and recording what it does (TorchScript)."""
    import torch

    args, kwargs = _call(export)
    axes = {name: {axis: "batch"} for name, axis in export.batch_axes.items()}
    # keywords lose their names on this way where a decorator wraps `forward`
    called = _positional(module, tuple(kwargs)) if export.by_name else module
    with _quiet():
        torch.onnx.export(
            called, args or tuple(kwargs.values()), str(path), dynamo=False, opset_version=_OPSET,
            input_names=[spec.name for spec in export.inputs],
            dynamic_axes=axes if is_dynamic else None,
        )  # fmt: skip


def _positional(module: Any, names: tuple[str, ...]) -> Any:
    """Return a module that gives its inputs to `module` under these names."""
    import torch

    class Positional(torch.nn.Module):  # type: ignore[misc]  # torch is not typed
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *values: Any) -> Any:
            made = self.inner(**dict(zip(names, values, strict=True)))
            return made.to_tuple() if hasattr(made, "to_tuple") else made

    made = Positional()
    made.training = False  # the module itself is in evaluation mode
    return made


def _by_program(module: Any, export: Export, path: Path, is_dynamic: bool) -> None:
    """Export by way of torch.export."""
    import torch

    args, kwargs = _call(export)
    batch = torch.export.Dim("batch")
    dims = {
        spec.name: {export.batch_axes[spec.name]: batch}
        if spec.name in export.batch_axes
        else None
        for spec in export.inputs
    }
    shapes: Any = dims if export.by_name else tuple(dims.values())
    with _quiet():
        torch.onnx.export(
            module, args, str(path), kwargs=kwargs, dynamo=True, opset_version=_OPSET,
            input_names=[spec.name for spec in export.inputs], verbose=False,
            dynamic_shapes=shapes if is_dynamic else None,
        )  # fmt: skip


_EXPORTERS: Mapping[str, Callable[[Any, Export, Path, bool], None]] = {
    "trace": _by_trace,
    "program": _by_program,
}


def _call(export: Export) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = {spec.name: _tensor(spec, export.precision) for spec in export.inputs}
    return ((), named) if export.by_name else (tuple(named.values()), {})


def _tensor(spec: InputSpec, precision: str) -> Any:
    """Return a valid value: what the measuring room gives is of the same kind."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if spec.dtype.is_float:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
        return torch.randn(spec.shape, generator=generator).to(dtype)
    kind = getattr(torch, spec.dtype.value)
    if kind is torch.bool:
        return torch.ones(spec.shape, dtype=kind)
    return torch.randint(spec.low, spec.high, spec.shape, dtype=kind, generator=generator)


def _check(module: Any, export: Export, made: Path) -> list[tuple[str, str]]:
    """Raise unless the file gives what the module gives, at the batch of `export`.

    A deep product of random weights can amplify rounding until values say nothing: where the
    module answers an input that differs in its last digits as differently, that is noted.
    """
    import onnxruntime
    import torch

    args, kwargs = _call(export)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(made / _FILE), settings, providers=["CPUExecutionProvider"]
    )
    named = kwargs or {s.name: v for s, v in zip(export.inputs, args, strict=True)}
    wanted = _outputs(module, args, kwargs)
    if export.precision == "bf16":
        return []  # numpy has no such type to give it in; that it loads is what is checked
    known = {each.name for each in session.get_inputs()}
    got = session.run(None, {n: v.numpy() for n, v in named.items() if n in known})
    far = _apart([torch.from_numpy(each) for each in got], wanted)
    if far <= _TOLERANCE[export.precision]:
        return []
    nudged = _outputs(
        module, [_nudged(v) for v in args], {n: _nudged(v) for n, v in kwargs.items()}
    )
    own = _apart(nudged, wanted)
    if own * _AMPLIFIED < far:
        raise ValueError(f"gives other values: {far:.3g} of the largest apart")
    text = f"outputs are {far:.2g} of the largest apart; rounding alone moves them by {own:.2g}"
    return [("export-unchecked", text)]


def _outputs(module: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that the module gives."""
    import torch
    from torch.utils import _pytree as pytree

    with torch.inference_mode():
        made = module(*args, **kwargs)
    made = made.to_tuple() if hasattr(made, "to_tuple") else made
    return [each for each in pytree.tree_flatten(made)[0] if isinstance(each, torch.Tensor)]


def _nudged(value: Any) -> Any:
    """Return a tensor whose numbers differ in their last digits; whole numbers are as they are."""
    if not value.is_floating_point():
        return value
    import torch

    signs = torch.randn(value.shape, generator=torch.Generator().manual_seed(2)).sign()
    return value * (1 + 4 * torch.finfo(value.dtype).eps * signs.to(value.dtype))


def _apart(some: Any, others: Any) -> float:
    """Return the largest difference as a part of the largest number; `ValueError` for a shape."""
    worst = 0.0
    for one, other in zip(some, others, strict=False):
        if one.shape != other.shape:
            raise ValueError(f"gives shape {tuple(one.shape)} for {tuple(other.shape)}")
        if not other.numel():
            continue
        size = max(float(other.float().abs().max()), 1e-6)
        far = float((one.float() - other.float()).abs().max()) / size
        worst = max(worst, far if far == far else float("inf"))
    return worst


@contextlib.contextmanager
def _quiet() -> Any:
    import torch

    from slicewise.graph.frontends.torch.export import quiet

    with quiet(), torch.no_grad():
        yield


def _one_line(err: Exception) -> str:
    lines = (" ".join(line.split()) for line in str(err).splitlines())
    return next(filter(None, lines), "")[:200].rstrip(". ")
