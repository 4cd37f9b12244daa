"""The language of the fusion tables: expressions, chains, parts. Types and parsing only.

An *expression* names a small tree by its root, `Mul(x, Sigmoid(x))`:

- A name with a capital is an operator; `Mul|Div` is either; `Cast?(x)` may be missing.
- Any other word is a value; the same word is the same value. Its first letter says which values
  it may be: `t` one that is computed; `c` a constant of one element, `b` a constant vector, `w`
  any constant: these may stand for different constants each time.
- `d=Sub(x, y)` names a result to use it again. Further inputs of a node are not looked at.
- Operands of `Add`, `Mul`, `Max`, `Min`, `Sum` match in either order.

A *chain* goes from a kernel to the only reader of its result, step by step:
`Conv > BatchNormalization? > Add(t)? > Relu|Clip?`. A step names operators, or expressions found
before it; in parentheses stands what the other operand must be. `Add* > LayerNormalization`: the
result behind a star may be read elsewhere too, and is written then.

Views stand in nobody's way: every rule looks through them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from slicewise.core.cost import Kind


@dataclass(frozen=True, slots=True)
class Value:
    """A word for a tensor. `bound` names the result of the `call` that stands behind it."""

    word: str
    call: "Call | None" = None


@dataclass(frozen=True, slots=True)
class Call:
    """Operators with what they read; an optional one may be missing."""

    ops: frozenset[str]
    operands: tuple["Value | Call", ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a chain. `other` is the word of the operand that is not the chain's own, '' if
    anything may be there; `is_kept`: the result behind may be read elsewhere too."""

    ops: frozenset[str]
    other: str = ""
    is_optional: bool = False
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """Nodes that stand for one operator, called `name` in chains, and what kernel they are."""

    name: str
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Free:
    """Operators that launch nothing in a runtime whose views have strides.

    `text` is an expression; a node for which it holds copies all the same if one of `unless`
    reads it, other views between. Looked at only where the source does not tell what shares
    storage. `same_size`: where as many elements come out as go in, whatever the source tells.
    """

    text: str
    unless: frozenset[str] = frozenset()
    same_size: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """Views that `reader` cannot take by their strides, whatever the source tells: it copies."""

    view: str
    reader: str


class Space(Enum):
    """What the loops of a kernel run over."""

    RESULT = "every element of the result"
    DATA = "every element of the first input"


@dataclass(frozen=True, slots=True)
class Part:
    """Operators that a runtime generates loops for, and how they join with others.

    `takes`: may run in the loops of what it reads; `gives`: what reads it may run in its loops.
    Loops join where they run over as many elements, or where the reader works on the reduced
    result; with `any_size` whatever the sizes of what is read. `most_inputs`: with more inputs,
    nothing that reads it joins. `name` is a Kind, or operators between bars, which go before their
    kind.
    """

    name: str
    space: Space = Space.RESULT
    takes: bool = True
    gives: bool = True
    any_size: bool = False
    most_inputs: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Table:
    """What one runtime does to a graph, in the order it is tried.

    `undoes_exporters`: the expressions only put together what exporters write out, so they say
    nothing of a source that has the operators that the program called. `shares_reads`: loops over
    as many elements that read the same tensor become one kernel though none reads the other.
    """

    free: tuple[Free, ...] = ()
    copied: tuple[Copied, ...] = ()
    expressions: tuple[Expression, ...] = ()
    chains: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    undoes_exporters: bool = False
    shares_reads: bool = False


_TOKEN = re.compile(r"\s*([A-Za-z_][\w.]*(?:\|[A-Za-z_][\w.]*)*|[(),=?*])")


@cache
def expression(text: str) -> Call:
    """Return the tree that `text` describes; `ValueError` if it is none.

    >>> expression("Mul(x, Sigmoid(x))").operands[0].word
    'x'
    """
    tokens = _tokens(text)
    found, rest = _term(tokens, text)
    if rest or not isinstance(found, Call):
        raise ValueError(f"expression {text!r} is not one operator with its operands")
    return found


@cache
def chain(text: str) -> tuple[Step, ...]:
    """Return the steps of a chain; `ValueError` if one cannot be read.

    >>> [step.is_optional for step in chain("Conv > BatchNormalization? > Relu")]
    [False, True, False]
    """
    return tuple(_step(part, text) for part in text.split(">"))


def _step(part: str, text: str) -> Step:
    match = re.fullmatch(r"\s*([\w|.]+)(?:\((\w*)\))?(\??)(\*?)\s*", part)
    if match is None:
        raise ValueError(f"step {part!r} of chain {text!r} is not Names(word)?*")
    return Step(frozenset(match[1].split("|")), match[2] or "", bool(match[3]), bool(match[4]))


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"expression {text!r} has no meaning from {text[place:]!r} on")
        tokens.append(match[1])
        place = match.end()
    return tokens


def _term(tokens: Sequence[str], text: str) -> tuple[Value | Call, Sequence[str]]:
    """Return the first term of `tokens` and what stands behind it."""
    word, rest = tokens[0], tokens[1:]
    if rest and rest[0] == "=":
        call, rest = _term(rest[1:], text)
        if not isinstance(call, Call):
            raise ValueError(f"expression {text!r} names {word!r} something that is no operator")
        return Value(word, call), rest
    if not word[0].isupper():
        return Value(word), rest
    is_optional = bool(rest) and rest[0] == "?"
    rest = rest[1:] if is_optional else rest
    operands: list[Value | Call] = []
    if rest and rest[0] == "(":
        rest = rest[1:]
        while rest and rest[0] != ")":
            operand, rest = _term(rest, text)
            operands.append(operand)
            rest = rest[1:] if rest and rest[0] == "," else rest
        if not rest:
            raise ValueError(f"expression {text!r} misses a closing parenthesis")
        rest = rest[1:]
    return Call(frozenset(word.split("|")), tuple(operands), is_optional), rest
