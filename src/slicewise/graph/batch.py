"""Finds which axes of a model's inputs are the batch.

The rules are guesses from names, ranks and readers, written down in one place; they choose no
size and change no model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from slicewise.graph.dimensions import Input, free_symbols, parts_of


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """Where the batch stands.

    `symbols` are free dimensions that are the batch, wherever they stand. `free` and `fixed` are
    the inputs whose leading axis it is; `fixed` with the size that the model gives it.
    """

    symbols: frozenset[str]
    free: frozenset[str]
    fixed: Mapping[str, int]

    @property
    def members(self) -> frozenset[str]:
        """Inputs whose leading axis is the batch."""
        return self.free | frozenset(self.fixed)

    @property
    def own_size(self) -> int:
        """The batch that the model was made with; a free one counts as 1."""
        return 1 if self.free else next(iter(self.fixed.values()), 1)


def find_batch_axes(inputs: Sequence[Input], model: onnx.ModelProto) -> BatchAxes:
    """Return the batch axes of a model's inputs as declared.

    A free leading axis is the batch unless its name says otherwise ('seq_length', 'num_boxes'),
    it also stands elsewhere than in front, or only inputs of one axis have it. A fixed leading 1
    of an input with two or more axes is the batch; a larger number is if all such inputs share it.
    """
    elsewhere = _not_batch_first(model)
    candidates = [each for each in inputs if each.axes and each.name not in elsewhere]
    symbols = _batch_symbols(inputs, candidates)
    free = {
        each.name
        for each in candidates
        if each.axes and each.axes[0].value is None and each.axes[0].symbol in symbols
    }
    return BatchAxes(symbols, frozenset(free), _fixed_leading(candidates))


def _batch_symbols(inputs: Sequence[Input], candidates: Sequence[Input]) -> frozenset[str]:
    free = free_symbols(inputs)
    behind = {axis.symbol for each in inputs for axis in (each.axes or ())[1:]}
    in_front = {
        each.axes[0].symbol
        for each in candidates
        if each.axes and len(each.axes) >= 2 and each.axes[0].value is None
    }
    return frozenset(
        symbol
        for symbol in free
        if not parts_of(symbol, free)
        # a dimension called batch is the batch wherever it stands: [2, batch, heads, past, size]
        and (
            _names_batch(symbol)
            or (symbol in in_front and symbol not in behind and not _names_other(symbol))
        )
    )


def _fixed_leading(candidates: Sequence[Input]) -> Mapping[str, int]:
    leading = {
        each.name: each.axes[0].value for each in candidates if each.axes and len(each.axes) >= 2
    }
    shared = len(set(leading.values())) == 1
    return {
        name: size for name, size in leading.items() if size is not None and (shared or size == 1)
    }


# Recurrent operators with layout 0 put the sequence (X) or the directions (initial states) first
# (ONNX operator specification: RNN, GRU, LSTM).
_RECURRENT_SLOTS = {"LSTM": (0, 5, 6), "GRU": (0, 5), "RNN": (0, 5)}


def _not_batch_first(model: onnx.ModelProto) -> frozenset[str]:
    """Return values that a recurrent operator reads with another axis in front."""
    return frozenset(
        node.input[slot]
        for node in model.graph.node
        if node.op_type in _RECURRENT_SLOTS
        and not any(a.name == "layout" and a.i == 1 for a in node.attribute)
        for slot in _RECURRENT_SLOTS[node.op_type]
        if slot < len(node.input)
    )


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
