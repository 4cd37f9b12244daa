"""What a user asks of the stages: devices, links, limits, which nodes stay together or lie where.

Types, and how names and patterns pick nodes. Read from a file by `constraints_file.py`, from
options by the command; turned into numbers by `pipeline_problem.py`.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from slicewise.core.device import Link
from slicewise.core.errors import UsageError
from slicewise.core.pipeline import FastMemory, Objective
from slicewise.core.plugins import did_you_mean
from slicewise.core.units import parse_bytes_per_s

LAST = -1  # of a pin: the last stage


@dataclass(frozen=True, slots=True)
class Selector:
    """Names nodes: a name, a pattern with * ? [..], or 're:' and a regular expression.

    `where` is the place in a file ('c.yaml, line 3: '), '' for what Python or an option gave.
    """

    text: str
    where: str = ""

    def pick(self, names: Sequence[str]) -> list[int]:
        """Return the indices of the nodes meant; `UsageError` with the nearest name if none is."""
        return [index for group in self.groups(names) for index in group]

    def groups(self, names: Sequence[str]) -> list[list[int]]:
        """Return the nodes meant in groups: of a regular expression with (..) in it one for each
        text that these catch, else one of all."""
        found: dict[tuple[str | None, ...], list[int]] = {}
        if self.text.startswith("re:"):
            pattern = self._pattern()
            for index, name in enumerate(names):
                match = pattern.search(name)
                if match is not None:
                    found.setdefault(match.groups(), []).append(index)
        else:
            picked = [index for index, name in enumerate(names) if name == self.text]
            if not picked and any(mark in self.text for mark in "*?["):
                matches = re.compile(fnmatch.translate(self.text)).match
                picked = [index for index, name in enumerate(names) if matches(name)]
            if picked:
                found[()] = picked
        if not found:
            raise UsageError(
                f"{self.where}no node is called, or matched by, {self.text!r}; give a name, a"
                f" pattern (layer1.*) or re:EXPRESSION{did_you_mean(self.text, names)}"
            )
        return list(found.values())

    def _pattern(self) -> "re.Pattern[str]":
        try:
            return re.compile(self.text.removeprefix("re:"))
        except re.error as err:
            raise UsageError(
                f"{self.where}{self.text!r} is no regular expression: {err}; mend it"
            ) from err


@dataclass(frozen=True, slots=True)
class MemoryWish:
    """Most bytes of a stage, and what of them is set aside (a KV cache, a batch in flight)."""

    limit_bytes: float | None = None
    reserve_bytes: float | None = None

    def over(self, other: "MemoryWish") -> "MemoryWish":
        """Return this wish, with what it leaves open taken from another."""
        return MemoryWish(
            other.limit_bytes if self.limit_bytes is None else self.limit_bytes,
            other.reserve_bytes if self.reserve_bytes is None else self.reserve_bytes,
        )


@dataclass(frozen=True, slots=True)
class Wishes:
    """All that is asked of stages; None and empty: nothing.

    `devices` are one for each stage, in order, or with `any_order` a stock to take from. `links`
    are one for all, or one fewer than stages. `forbidden` names a producer and a consumer whose
    tensor must not be cut; None for the consumer means all of them. `pins` give a stage, from 0,
    or `LAST`. `node_bytes` add to the memory of nodes. `link_w` is drawn while a stage sends or
    receives (energy only).
    """

    devices: tuple[str, ...] = ()
    any_order: bool | None = None
    links: tuple[Link, ...] = ()
    memory: MemoryWish = field(default_factory=MemoryWish)
    stage_memory: Mapping[int, MemoryWish] = field(default_factory=dict)
    device_memory: Mapping[str, MemoryWish] = field(default_factory=dict)
    node_bytes: tuple[tuple[Selector, float], ...] = ()
    fast_memory: FastMemory | None = None
    device_fast_memory: Mapping[str, FastMemory] = field(default_factory=dict)
    overlaps: bool | None = None
    hops: bool | None = None
    replicates: bool | None = None
    together: tuple[tuple[Selector, ...], ...] = ()
    forbidden: tuple[tuple[Selector, Selector | None], ...] = ()
    pins: tuple[tuple[Selector, int], ...] = ()
    objective: Objective | None = None
    limit_ms: float | None = None
    link_w: float | None = None

    def over(self, other: "Wishes") -> "Wishes":
        """Return these wishes, with what they leave open taken from others."""
        made: dict[str, Any] = {}
        for each in fields(Wishes):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "memory":
                made[each.name] = mine.over(theirs)
            elif mine is None or mine in ((), {}):
                made[each.name] = theirs
        return replace(self, **made)


_UNITS_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_TIME = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(s|ms|us|ns)\s*")


def parse_link(text: str) -> Link:
    """Return the link that a text gives: bandwidth of one direction, and latency if named.

    >>> parse_link("25GB/s:5us")
    Link(name='25GB/s:5us', bandwidth_bytes_per_s=25000000000.0, latency_s=5e-06)
    """
    rate, sign, latency = text.partition(":")
    try:
        bandwidth = parse_bytes_per_s(rate)
    except UsageError as err:
        raise UsageError(
            f"link {text!r}: {rate!r} is not a positive rate; write 25GB/s, or 25GB/s:5us with the"
            " latency"
        ) from err
    return Link(text, bandwidth, parse_seconds(latency, what=f"link {text!r}") if sign else 0.0)


def parse_seconds(text: str, *, what: str) -> float:
    """Return the seconds that a text such as '5us' names; `what` begins the error."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a time with its unit; write 5us or 0.1ms")
    return float(match[1]) / _UNITS_PER_S[match[2]]
