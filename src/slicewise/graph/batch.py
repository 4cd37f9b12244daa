"""Finds which axes of a model's inputs are the batch.

The user's word counts first, then what recurrent operators say, then guesses from names, ranks
and sizes, written down in one place; they choose no size and change no model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from slicewise.graph.batch_readers import is_read_per_item, recurrent_batch_axes
from slicewise.graph.dimensions import Input, free_symbols, parts_of


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """Where the batch stands.

    `symbols` are free dimensions that are the batch, wherever they stand. `axes` gives the axis
    of each input that has the batch, `fixed` its size where the model has a number there.
    `certain` are inputs whose axis is no guess. `kept` are inputs of one axis that have the size
    of the batch and yet are not taken for it.
    """

    symbols: frozenset[str]
    axes: Mapping[str, int]
    fixed: Mapping[str, int]
    certain: frozenset[str] = field(default_factory=frozenset)
    kept: tuple[str, ...] = ()

    @property
    def own_size(self) -> int:
        """The batch that the model was made with; a free one counts as 1."""
        told = (size for name, size in self.fixed.items() if name in self.certain)
        guessed = (
            1 if self.axes.keys() - self.fixed.keys() else max(self.fixed.values(), default=1)
        )
        return next(told, guessed)


def find_batch_axes(
    inputs: Sequence[Input], model: onnx.ModelProto, told: Mapping[str, int | None]
) -> BatchAxes:
    """Return the batch axes of a model's inputs as declared.

    `told` is the user's word: the axis, or None for an input without a batch. A recurrent
    operator's is the next. Else a free leading axis is the batch unless its name says otherwise
    ('seq_length', 'num_boxes'), it also stands elsewhere than in front, or only inputs of one
    axis have it. A fixed leading 1 of an input with two or more axes is the batch; a larger
    number is if all such inputs share it; then an input of that one axis is, too, unless its
    name or what reads it says that it holds one number.
    """
    known = {**_recurrent_axes(inputs, model), **told}
    symbols = _batch_symbols(inputs, known, told)
    axes = {each.name: _symbol_axis(each, symbols) for each in inputs}
    axes |= {name: axis for name, axis in known.items() if name in axes}
    found = {name: axis for name, axis in axes.items() if axis is not None}
    fixed = _sizes(inputs, found)
    guessed = _fixed_leading([e for e in inputs if e.name not in known], found, fixed)
    found |= dict.fromkeys(guessed, 0)
    fixed |= guessed
    alone = _alone(inputs, known, found, fixed)
    joined = {name: size for name, size in alone.items() if _is_per_item(name, model)}
    return BatchAxes(
        symbols,
        axes={each.name: {**found, **dict.fromkeys(joined, 0)}[each.name]
              for each in inputs if each.name in found or each.name in joined},
        fixed={**fixed, **joined},
        certain=frozenset(name for name, axis in known.items() if axis is not None),
        kept=tuple(name for name in alone if name not in joined),
    )  # fmt: skip


def _recurrent_axes(inputs: Sequence[Input], model: onnx.ModelProto) -> Mapping[str, int]:
    """Return what recurrent operators say, but where a name contradicts them."""
    found = recurrent_batch_axes(model)
    agreed: dict[str, int] = {}
    for each in inputs:
        axis, axes = found.get(each.name), each.axes or ()
        if axis is None or axis >= len(axes):
            continue
        others = (other.symbol for k, other in enumerate(axes) if k != axis)
        if not any(map(_names_batch, others)) and not _names_other(axes[axis].symbol):
            agreed[each.name] = axis
    return agreed


def _batch_symbols(
    inputs: Sequence[Input], known: Mapping[str, int | None], told: Mapping[str, int | None]
) -> frozenset[str]:
    free = free_symbols(inputs)
    # an axis that the user says is another than the batch, against one that is known to be it
    denied = {
        axis.symbol
        for each in inputs
        if each.name in told
        for k, axis in enumerate(each.axes or ())
        if k != told[each.name]
    }
    claimed = {
        each.axes[axis].symbol
        for each in inputs
        if each.axes and (axis := known.get(each.name)) is not None
    }
    candidates = [each for each in inputs if each.name not in known and len(each.axes or ()) >= 2]
    behind = {axis.symbol for each in inputs for axis in (each.axes or ())[1:]}
    in_front = {each.axes[0].symbol for each in candidates if each.axes} - behind
    second = {e.axes[1].symbol for e in candidates if e.axes and _names_other(e.axes[0].symbol)}
    return frozenset(
        symbol
        for symbol in free
        if not parts_of(symbol, free)
        and (symbol in claimed or symbol not in denied)
        # a dimension called batch is the batch wherever it stands: [2, batch, heads, past, size]
        and (
            symbol in claimed
            or _names_batch(symbol)
            or (symbol in in_front and not _names_other(symbol))
            or (symbol in second and symbol.lower() in _BATCH_LETTERS)
        )
    )


def _symbol_axis(each: Input, symbols: frozenset[str]) -> int | None:
    axes = enumerate(each.axes or ())
    return next((k for k, axis in axes if axis.value is None and axis.symbol in symbols), None)


def _sizes(inputs: Sequence[Input], found: Mapping[str, int]) -> dict[str, int]:
    """Return the batch axes that have a number in the model."""
    sizes = {each.name: each.axes[found[each.name]].value
             for each in inputs if each.axes and each.name in found}  # fmt: skip
    return {name: size for name, size in sizes.items() if size is not None}


def _fixed_leading(
    candidates: Sequence[Input], found: Mapping[str, int], fixed: Mapping[str, int]
) -> dict[str, int]:
    """Return the inputs whose fixed leading axis is the batch, with its size."""
    leading = {
        each.name: each.axes[0].value
        for each in candidates
        if each.axes and len(each.axes) >= 2 and each.name not in found
    }
    free = {None for name in found if name not in fixed}
    sizes = {*leading.values(), *fixed.values(), *free}
    allowed = set(fixed.values()) or (sizes if len(sizes) == 1 else {1})
    return {name: size for name, size in leading.items() if size is not None and size in allowed}


def _alone(
    inputs: Sequence[Input],
    known: Mapping[str, int | None],
    found: Mapping[str, int],
    fixed: Mapping[str, int],
) -> Mapping[str, int]:
    """Return inputs of one fixed axis that all other inputs lead with, all of them fixed."""
    wide = [each.name for each in inputs if each.axes is None or len(each.axes) >= 2]
    sizes = {fixed.get(name) if found.get(name) == 0 else None for name in wide}
    lone = {
        each.name: each.axes[0].value
        for each in inputs
        if each.axes and len(each.axes) == 1 and each.name not in known
    }
    if len(sizes) != 1 or None in sizes:
        return {}
    return {name: size for name, size in lone.items() if size is not None and size in sizes}


def _is_per_item(name: str, model: onnx.ModelProto) -> bool:
    return not any(
        word.startswith(_ONE_NUMBER_BEGINNINGS) for word in _words(name)
    ) and is_read_per_item(name, model)


# --- what names say

# Beginnings and endings of words that name a free leading axis which is not the batch, and words
# that do so on their own.
_OTHER_BEGINNINGS = (
    "seq", "len", "time", "tok", "past", "height", "width", "num", "point", "box", "frame",
    "step", "roi", "anchor", "node", "edge", "word", "char", "class", "chan", "patch", "hidden",
)  # fmt: skip
_OTHER_ENDINGS = ("length", "len", "seq", "tokens")
_OTHER_WORDS = frozenset({"h", "w", "t", "s", "l"})
_BATCH_WORDS = frozenset({"bs", "bsz"})
_BATCH_LETTERS = frozenset({"n", "b"})  # behind a leading axis named like a sequence

# Beginnings of words in the name of an input that holds one number for the whole batch.
_ONE_NUMBER_BEGINNINGS = ("pos", "cache", "past", "rate", "scale", "thresh", "temperature", "top")


def _names_batch(symbol: str) -> bool:
    return any(w.startswith("batch") or w in _BATCH_WORDS for w in _words(symbol))


def _names_other(symbol: str) -> bool:
    return any(
        word in _OTHER_WORDS or word.startswith(_OTHER_BEGINNINGS) or word.endswith(_OTHER_ENDINGS)
        for word in _words(symbol)
    )


def _words(symbol: str) -> list[str]:
    """Return the words of a name, lower case; none of a made-up one ('s0', 'points.0').

    >>> _words("pastSeqLen"), _words("batch_size"), _words("s77")
    (['past', 'seq', 'len'], ['batch', 'size'], [])
    """
    if re.fullmatch(r"[a-zA-Z]\d+|.*\.\d+", symbol):
        return []
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", symbol)
    return [word for word in re.split(r"[^a-z]+", spaced.lower()) if word]
