"""From the strings of a command line to typed values; one `UsageError` line for a mistake."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slicewise.core.errors import UsageError
from slicewise.core.graph import LARGEST_DIMENSION
from slicewise.core.measurement import Protocol
from slicewise.core.units import parse_bytes, parse_seconds


def split_list(values: Iterable[str]) -> list[str]:
    """Return the items of repeated and comma-separated options, in order.

    >>> split_list(["a,b", "c"])
    ['a', 'b', 'c']
    """
    return [
        item for value in values for item in (part.strip() for part in value.split(",")) if item
    ]


def parse_names(option: str, values: Sequence[str], example: str) -> list[str]:
    """Return the names of a repeated and comma-separated option; an empty one is a mistake.

    >>> parse_names("--device", ["t4, l4"], "t4")
    ['t4', 'l4']
    """
    if values and not split_list(values):
        raise UsageError(f"{option} is empty; name one, as in {option} {example}")
    return _items(option, values, f"{option} {example}")


def parse_batches(values: Iterable[str]) -> list[int | None]:
    """Return the batches asked; [None], the model's own, when none is.

    >>> parse_batches(["1,8", "32"])
    [1, 8, 32]
    """
    example = "--batch 1,8,32"
    items = _items("--batch", values, example)
    return [_positive("--batch", item, example) for item in items] or [None]


def parse_dims(values: Iterable[str]) -> Mapping[str, int]:
    """Return dimension by name from 'seq=128'."""
    dims: dict[str, int] = {}
    for item in _items("--dim", values, "--dim seq=128"):
        name, sign, size = item.rpartition("=")
        if not sign or not name.strip():
            raise UsageError(f"--dim {item!r} is not NAME=SIZE; write --dim seq=128")
        number = _positive("--dim", size, f"--dim {name.strip()}=128", whole=item)
        if dims.setdefault(name.strip(), number) != number:
            raise UsageError(f"--dim gives {name.strip()!r} twice: {dims[name.strip()]}, {number}")
    return dims


def parse_inputs(values: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """Return shape by input name from 'ids=1x128'; the name is '' where none is given."""
    texts = list(values)
    for text in texts:
        _refuse_comma_shape(text)
    shapes: dict[str, tuple[int, ...]] = {}
    for item in _items("--input", texts, "--input 1x3x224x224"):
        name, _, shape = item.rpartition("=")
        example = f"--input {name + '=' if name else ''}1x3x224x224"
        axes = tuple(
            _positive("--input", axis, example, whole=item) for axis in shape.lower().split("x")
        )
        if shapes.setdefault(name.strip(), axes) != axes:
            raise UsageError(f"--input gives {name.strip() or 'the input'!r} two shapes")
    return shapes


def _refuse_comma_shape(text: str) -> None:
    """Refuse 'x=1,3,224,224' and '[1, 3]': the comma stands between inputs, not sizes."""
    match = re.fullmatch(r"\s*(.*=)?\s*[\[(]?\s*(\d+(?:\s*,\s*\d+)+)\s*,?\s*[\])]?\s*", text)
    if match is not None:
        shape = "x".join(part.strip() for part in match[2].split(","))
        raise UsageError(
            f"--input {text!r}: sizes are joined by x, commas stand between inputs; write --input"
            f" {match[1] or ''}{shape}"
        )


def parse_batch_axes(values: Iterable[str]) -> Mapping[str, int | None]:
    """Return the batch axis by input name; '' is every input, None an input without a batch.

    >>> parse_batch_axes(["1"]), parse_batch_axes(["x=-2,mask=none"])
    ({'': 1}, {'x': -2, 'mask': None})
    """
    found: dict[str, int | None] = {}
    for item in _items("--batch-axis", values, "--batch-axis x=1"):
        name, sign, text = (part.strip() for part in item.rpartition("="))
        if (sign and not name) or not re.fullmatch(r"-?[0-9]{1,3}|none", text.lower()):
            raise UsageError(
                f"--batch-axis {item!r} is not [NAME=]AXIS; write --batch-axis 1, --batch-axis"
                " x=1, or --batch-axis x=none where x has no batch"
            )
        axis = None if text.lower() == "none" else int(text)
        if found.setdefault(name, axis) != axis:
            raise UsageError(
                f"--batch-axis gives {name or 'every input'!r} two axes,"
                f" {_axis_text(found[name])} and {_axis_text(axis)}; give one"
            )
    return found


def _axis_text(axis: int | None) -> str:
    return "none" if axis is None else str(axis)


def parse_protocol(
    budget_s: float | None,
    samples: int | None,
    time_limit_s: float | None,
    memory_limit: str | None,
) -> Protocol:
    """Return the protocol that the options ask for; `UsageError` for what cannot be."""
    usual = Protocol()
    for name, value in (("--budget", budget_s), ("--time-limit", time_limit_s)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} {value:g} is not a positive time; write {name} 10")
    if samples is not None and samples < 1:
        raise UsageError(
            f"--samples {samples} gives nothing to take a median of; write --samples 100"
        )
    most = samples or usual.max_samples
    limit_bytes = None if memory_limit is None else parse_bytes(memory_limit)
    if limit_bytes == 0:
        raise UsageError("--memory-limit 0 leaves no room for a model; write --memory-limit 8GiB")
    return Protocol(
        min_samples=min(usual.min_samples, most),
        max_samples=most,
        budget_s=budget_s or usual.budget_s,
        time_limit_s=time_limit_s or usual.time_limit_s,
        memory_limit_bytes=limit_bytes,
    )


def parse_budget(text: str) -> float:
    """Return the seconds of `--budget`: a number of them, or a time with units.

    >>> parse_budget("30m"), parse_budget("0.5")
    (1800.0, 0.5)
    """
    try:
        seconds = parse_seconds(text)
    except UsageError as err:
        raise UsageError(f"--budget: {err}") from err
    if not seconds > 0:
        raise UsageError(f"--budget {text} is not a positive time; write --budget 10, 90s or 30m")
    return seconds


def parse_shares(values: Iterable[str]) -> list[str]:
    """Return the shares of `--shares`, in order; what follows `cores:` without a name are cores.

    >>> parse_shares(["25,50%", "100"]), parse_shares(["cores:0,1,cores:0-3"])
    (['25', '50%', '100'], ['cores:0,1', 'cores:0-3'])
    """
    found: list[str] = []
    for value in values:
        begun = len(found)
        for item in _items("--shares", [value], "--shares 25,50,100"):
            goes_on = len(found) > begun and found[-1].lower().startswith("cores:")
            if goes_on and re.fullmatch(r"[0-9]+(\s*-\s*[0-9]+)?", item):
                found[-1] += f",{item}"
            else:
                found.append(item)
    return found


def parse_settings(values: Sequence[str], *, has_lists: bool = False) -> dict[str, str]:
    """Return settings of a runtime or engine by name from 'KEY=VALUE'.

    With `has_lists` what follows a comma and is no setting belongs to the value before it.

    >>> parse_settings(["spinning=0,arena=1"])
    {'spinning': '0', 'arena': '1'}
    >>> parse_settings(["batches=1,4,int8=off"], has_lists=True)
    {'batches': '1,4', 'int8': 'off'}
    """
    made: dict[str, str] = {}
    between = r",(?=[^,=]*=)" if has_lists else ","
    for item in (part.strip() for value in values for part in re.split(between, value)):
        name, sign, value = (text.strip() for text in item.partition("="))
        if not sign or not name or not value:
            raise UsageError(f"--option {item!r} is not KEY=VALUE; write --option spinning=0")
        if made.setdefault(name, value) != value:
            raise UsageError(f"--option gives {name!r} twice, {made[name]} and {value}; give one")
    return made


def store_path(store: Path | None) -> Path:
    """Return the file of the record store that `--store` names, or of the default one."""
    from slicewise.flows.records import default_store

    return default_store() if store is None else store


def _items(option: str, values: Iterable[str], example: str) -> list[str]:
    """Return the items of repeated and comma-separated options; an empty one is a mistake."""
    items = [part.strip() for value in values for part in value.split(",")]
    if not all(items):
        raise UsageError(
            f"{option} has an empty item (an unset shell variable?); write {example}, or leave"
            f" {option} out"
        )
    return items


def _positive(option: str, text: str, example: str, *, whole: str | None = None) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise UsageError(
            f"{option} {whole or text!r}: {digits!r} is not a positive whole number;"
            f" write {example}"
        )
    # the length first: Python refuses to read numbers of thousands of digits
    if len(digits.lstrip("0")) > 10 or int(digits) > LARGEST_DIMENSION:
        raise UsageError(
            f"{option} {whole or text!r}: {digits[:40]} is more than {LARGEST_DIMENSION}"
            f" (2^31 - 1), the most that a dimension can be; write {example}"
        )
    return int(digits)
