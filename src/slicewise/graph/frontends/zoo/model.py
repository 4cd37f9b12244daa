"""What a zoo gives: a module on the meta device and the inputs that it takes.

Zoo names are cut and option values read here, without any framework. Nothing is built or imported.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.plugins import did_you_mean


@dataclass(frozen=True, slots=True)
class ZooName:
    """A zoo name cut in its parts: `timm:resnet50?num_classes=10`."""

    zoo: str
    model: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The name as a whole."""
        options = "&".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.zoo}:{self.model}{'?' if options else ''}{options}"

    @property
    def label(self) -> str:
        """What messages call the model."""
        return f"model {self.location!r}"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input: its shape for one item, the batch in front, and the names of free axes.

    `symbols` names axes that `--dim` binds, by position; `dtype` is the name of a torch type. One
    that `may_be_left_out` is of a second modality: the model runs without it. Without `has_batch`
    the leading axis is of one item.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    symbols: Mapping[int, str] = field(default_factory=dict)
    may_be_left_out: bool = False
    has_batch: bool = True


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A `torch.nn.Module` without weights, and its inputs, given by name or in this order.

    `left_out` are arguments of another modality that no example can be made for. `hint` says how
    the size of the inputs is changed where the module was built for one.
    """

    module: object
    inputs: tuple[InputSpec, ...]
    by_name: bool = False
    left_out: tuple[str, ...] = ()
    hint: str = ""


class Zoo(Protocol):
    """A zoo: a module with these two functions."""

    def names(self) -> Iterable[str]:
        """Return every model of the zoo."""

    def build(self, name: ZooName) -> ZooModel:
        """Return the model without weights; `ModelError` or `UsageError` if it cannot be."""


def parse(location: str) -> ZooName:
    """Return the parts of a zoo name; `UsageError` if an option is not KEY=VALUE.

    >>> parse("transformers:llama?num_hidden_layers=2&head=Model").options["head"]
    'Model'
    """
    whole, question, query = location.partition("?")
    zoo, _, model = whole.partition(":")
    options: dict[str, str] = {}
    for part in query.split("&") if question else ():
        key, sign, value = (text.strip() for text in part.partition("="))
        if not key or not sign or not value:
            raise UsageError(
                f"model {location!r}: option {part!r} is not KEY=VALUE; write"
                f" {whole}?KEY=VALUE&KEY=VALUE, in quotes on a command line"
            )
        if options.setdefault(key, value) != value:
            raise UsageError(
                f"model {location!r} gives {key!r} twice, {options[key]} and {value}; give it once"
            )
    return ZooName(zoo.strip().lower(), model.strip(), options)


def literals(name: ZooName, *, refused: Iterable[str]) -> dict[str, object]:
    """Return the options as Python values; `UsageError` for those that concern weights."""
    for key in refused:
        if key in name.options:
            raise UsageError(
                f"{name.label}: option {key!r} concerns weights, which are never loaded; leave it"
                " out"
            )
    return {key: literal(value) for key, value in name.options.items()}


def refuse_unknown(name: ZooName, known: Iterable[str]) -> None:
    """Raise `ModelError` with the nearest names if the zoo has no such model."""
    names = list(known)
    if name.model in names:
        return
    near = did_you_mean(name.model, names)
    if not near and name.model:
        inside = sorted((n for n in names if name.model.casefold() in n.casefold()), key=len)
        near = f"; did you mean {', '.join(inside[:3])}?" if inside else ""
    raise ModelError(
        f"{name.zoo} has no model {name.model!r}; it has {len(names)}, such as"
        f" {', '.join(names[:: max(1, len(names) // 3)][:3])}{near}"
    )


def refuse_option(name: ZooName, key: str, known: Iterable[str]) -> UsageError:
    """Return the error for an option that the model does not have, the nearest named."""
    keys = sorted(set(known))
    near = did_you_mean(key, keys)
    listed = ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")
    return UsageError(
        f"{name.label} has no option {key!r}; it has {listed or 'none'}{near or '; leave it out'}"
    )


_WORDS = {"true": True, "false": False, "none": None, "null": None}


def literal(text: str) -> object:
    """Return the value that a text reads as: number, truth, None, list, or the text itself.

    >>> literal("8"), literal("1e-5"), literal("true"), literal("gelu"), literal("2,2,6")
    (8, 1e-05, True, 'gelu', (2, 2, 6))
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[\d.eE+\-_,x \[\]()]+", text):
        spelled = text.replace("x", ",") if re.fullmatch(r"\d+(x\d+)+", text) else text
        try:
            return ast.literal_eval(spelled)
        except (ValueError, SyntaxError):
            return text
    return text
