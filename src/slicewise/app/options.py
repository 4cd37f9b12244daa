"""From the strings of a command line to typed values; one `UsageError` line for a mistake."""

from collections.abc import Iterable, Mapping

from slicewise.core.errors import UsageError


def split_list(values: Iterable[str]) -> list[str]:
    """Return the items of repeated and comma-separated options, in order.

    >>> split_list(["a,b", "c"])
    ['a', 'b', 'c']
    """
    return [
        item for value in values for item in (part.strip() for part in value.split(",")) if item
    ]


def parse_batches(values: Iterable[str]) -> list[int | None]:
    """Return the batches asked; [None], the model's own, when none is.

    >>> parse_batches(["1,8", "32"])
    [1, 8, 32]
    """
    items = split_list(values)
    return [_positive("--batch", item, "--batch 1,8,32") for item in items] or [None]


def parse_dims(values: Iterable[str]) -> Mapping[str, int]:
    """Return dimension by name from 'seq=128'."""
    dims: dict[str, int] = {}
    for item in split_list(values):
        name, sign, size = item.rpartition("=")
        if not sign or not name.strip():
            raise UsageError(f"--dim {item!r} is not NAME=SIZE; write --dim seq=128")
        number = _positive("--dim", size, f"--dim {name.strip()}=128", whole=item)
        if dims.setdefault(name.strip(), number) != number:
            raise UsageError(f"--dim gives {name.strip()!r} twice: {dims[name.strip()]}, {number}")
    return dims


def parse_inputs(values: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """Return shape by input name from 'ids=1x128'; the name is '' where none is given."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in split_list(values):
        name, _, shape = item.rpartition("=")
        example = f"--input {name + '=' if name else ''}1x3x224x224"
        axes = tuple(
            _positive("--input", axis, example, whole=item) for axis in shape.lower().split("x")
        )
        if shapes.setdefault(name.strip(), axes) != axes:
            raise UsageError(f"--input gives {name.strip() or 'the input'!r} two shapes")
    return shapes


def _positive(option: str, text: str, example: str, *, whole: str | None = None) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise UsageError(
            f"{option} {whole or text!r}: {digits!r} is not a positive whole number;"
            f" write {example}"
        )
    return int(digits)
