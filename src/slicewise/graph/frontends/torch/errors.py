"""Says in one line why torch.export refused a module: what, what was given, what to do.

Only messages are made here; nothing is traced and nothing is guessed about the model.
"""

import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicewise.core.errors import ModelError

# The older exporter of ONNX runs the module and writes down what it does for these very values;
# off the meta device, a number read from a tensor can stay a symbol.
_OFFER = (
    "give a file of torch.onnx.export(model, inputs, 'model.onnx', dynamo=False), which holds for"
    " the path that its example inputs take, or, if only the meta device is in the way, the result"
    " of torch.export.export(model, inputs, strict=False) on tensors that have values"
)
# Parts of messages or names of exceptions that tell a branch, or a size, that depends on values.
_DEPENDS_ON_DATA = (
    "GuardOnDataDependentSymNode", "Could not guard on data-dependent", "data-dependent",
    "cannot be called on meta tensors", "Tensor.item()", "PendingUnbackedSymbolNotFound",
    "Cannot copy out of meta tensor", "UnbackedSymInt", "ints,but got FakeTensor",
)  # fmt: skip
_OURS = str(Path(__file__).parent)
_STDLIB = sysconfig.get_paths()["stdlib"]


def export_error(
    err: BaseException,
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    label: str,
) -> ModelError:
    """Return the error to raise for what torch.export raised."""
    text = f"{type(err).__name__}: {err}"
    if found := re.search(r"Unsupported input type <class '([^']+)'>", text):
        return _of_unknown_class(label, "is given", found[1])
    if found := re.search(r"Found <class '([^']+)'> in output", text):
        return _of_unknown_class(label, "returns", found[1])
    if "no fake impl" in text or "register_fake" in text or "UnsupportedOperatorException" in text:
        return _without_kernel(text, label)
    if isinstance(err, RecursionError):
        return ModelError(
            f"{label} nests its modules deeper than Python's limit of {sys.getrecursionlimit()}"
            " calls lets torch.export follow; call sys.setrecursionlimit(10_000) first"
        )
    if any(word in text for word in _DEPENDS_ON_DATA):
        return ModelError(
            f"{label} decides by the values of a tensor{_place(err, text)}: torch.export traces"
            f" shapes, not values; use torch.cond or torch.where there, or {_OFFER}"
        )
    if isinstance(err, TypeError | RuntimeError | ValueError | IndexError | AssertionError):
        return ModelError(
            f"{label} cannot be called with {given_text(module, args, kwargs)}:"
            f" {_last_line(err)}{_place(err, text)}; its forward is"
            f" forward{_signature(module)}; give example inputs that fit it"
        )
    return ModelError(
        f"{label} cannot be exported: {_last_line(err)}{_place(err, text)}; {_OFFER}"
    )


def batch_error(
    err: BaseException,
    batch: int,
    own: int,
    axes: Mapping[str, int | None],
    *,
    label: str,
) -> ModelError:
    """Return the error to raise where a module takes its example inputs, but no other batch."""
    named = ", ".join(f"{name!r}: {axis}" for name, axis in axes.items())
    return ModelError(
        f"{label} takes its example inputs, of batch {own}, but not batch {batch}:"
        f" {_last_line(err)}{_place(err, str(err))}; leave the batch at {own}, give example inputs"
        f" of batch {batch} that fit, or say which axis is the batch where"
        f" batch_axes={{{named}}} is not right (None: there is none)"
    )


def _of_unknown_class(label: str, does: str, name: str) -> ModelError:
    short = name.rpartition(".")[2]
    return ModelError(
        f"{label} {does} a {name}, which torch.export does not look into; register it with"
        f" torch.export.register_dataclass({short}), or use a dictionary or tuple of tensors"
    )


def _without_kernel(text: str, label: str) -> ModelError:
    match = re.search(r"\b(\w+)(?:::|\.)(\w+)(?:\.\w+)?\b(?=[^\n]*(?:fake|meta))", text)
    match = match or re.search(r"(\w+)::(\w+)", text)
    match = match or re.search(r"\b(\w+)\.(\w+)\.\w+$", text.partition("\n")[0])
    name = f"{match[1]}::{match[2]}" if match else "a custom operator"
    return ModelError(
        f"{label} calls {name}, for which torch knows no shapes; a custom operator needs a fake"
        f" kernel: register one with @torch.library.register_fake('{name}')"
    )


def _last_line(err: BaseException) -> str:
    """Return what torch said, in one line: the message up to its first empty line."""
    text = str(err).strip()
    paragraph = re.split(r"\n\s*\n", text)[0] if text else type(err).__name__
    line = " ".join(paragraph.split())
    if isinstance(err, KeyError | AttributeError | AssertionError | NotImplementedError):
        line = f"{type(err).__name__}: {line}" if text else line
    return line[:300].rstrip(".;: ") or type(err).__name__


def _place(err: BaseException, text: str) -> str:
    """Return ' (file:line)' of the innermost line of the model's own code, '' if unknown."""
    stack = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    frames = [(f.filename, str(f.lineno), f.name) for e in _chain(err)
              for f in traceback.extract_tb(e.__traceback__)]  # fmt: skip
    plain = [[frame for frame in found if not _is_of_torch(frame[0])] for found in (stack, frames)]
    # where none of the model's own lines is in between: the layer of torch that it happened in
    layers = [[frame for frame in found if re.search(r"/torch/(ao/)?nn/|/torch/ao/", frame[0])
               and frame[2] == "forward"] for found in (stack, frames)]  # fmt: skip
    for own in (*plain, *layers):
        called = [frame for frame in own if frame[2] not in ("export", "_export")]
        if called:
            path, line, function = called[-1]
            short = "/".join(Path(path).parts[-2:])
            return f" ({short}:{line}, in {function})"
    return ""


def _chain(err: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = err
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


def _is_of_torch(path: str) -> bool:
    """True for the frames of torch, of the standard library and of this folder."""
    import torch

    is_stdlib = path.startswith(_STDLIB) and "site-packages" not in Path(path).parts
    return "<" in path or is_stdlib or path.startswith((_OURS, str(Path(torch.__file__).parent)))


def given_text(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return example inputs as text: shapes and types of tensors, other values as they are."""
    parts = [_value_text(value) for value in args]
    parts += [f"{name}={_value_text(value)}" for name, value in kwargs.items()]
    return f"inputs ({', '.join(parts)})"


def _value_text(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        sizes = "x".join(map(str, value.shape)) or "scalar"
        return f"{sizes} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value[:4]))}{', ...' if len(value) > 4 else ''}]"
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _signature(module: Any) -> str:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    parts = []
    for each in parameters:
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
        default = "" if each.default is each.empty else f"={each.default!r}"
        parts.append(f"{star}{each.name}{default if len(default) < 20 else '=...'}")
    shown = parts if len(parts) <= 8 else [*parts[:8], "..."]
    return f"({', '.join(shown)})"
