"""A share: the part of a device that a process is bound to, and how it is bound.

Types and their text only. Binding, and telling whether it took, is the business of
`measure/shares/`; what speed a share has is that of `predict/slice.py`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slicewise.core.errors import UsageError


class Mechanism(StrEnum):
    """How a process is held to its part of a device."""

    CORES = "cores"  # CPU affinity, and a cgroup where that is allowed
    MPS = "mps"  # CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of a client of the MPS daemon
    MIG = "mig"  # an existing MIG instance, by UUID
    GREEN = "green"  # a CUDA green context: a set of SMs inside one process


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a device. `cores` of a CPU are logical numbers; `percent` is that of the device's
    compute units, from over 0 to 100; `uuid` names a MIG instance.

    >>> Share(Mechanism.CORES, cores=(0, 1, 3)).text, Share(Mechanism.MPS, percent=25).text
    ('cores:0-1,3', 'mps:25%')
    """

    mechanism: Mechanism
    cores: tuple[int, ...] = ()
    percent: float = 100.0
    uuid: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise UsageError(
                f"share of {self.percent:g}% is impossible; give over 0 and at most 100"
            )

    @property
    def text(self) -> str:
        """What `Share.parse` reads: 'cores:0-1,3', 'mps:25%', 'mig:MIG-...', 'green:50%'."""
        if self.mechanism is Mechanism.CORES:
            return f"cores:{cores_text(self.cores)}"
        if self.mechanism is Mechanism.MIG:
            return f"mig:{self.uuid}"
        return f"{self.mechanism}:{self.percent:g}%"

    @staticmethod
    def parse(text: str) -> "Share":
        """Return the share that `text` names; `UsageError` if it names none.

        A bare percentage is not read here: which mechanism it means depends on the device.

        >>> Share.parse("cores:0,2-3").cores
        (0, 2, 3)
        """
        name, colon, rest = text.strip().partition(":")
        allowed = "cores:0-3, mps:25, green:25 or mig:MIG-UUID"
        if not colon or name.lower() not in tuple(Mechanism) or not rest.strip():
            raise UsageError(f"share {text!r} is none; write a percentage, {allowed}")
        mechanism = Mechanism(name.lower())
        if mechanism is Mechanism.CORES:
            return Share(mechanism, cores=_cores(rest, text))
        if mechanism is Mechanism.MIG:
            return Share(mechanism, uuid=rest.strip())
        match = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]+)?)\s*%?\s*", rest)
        if match is None:
            raise UsageError(f"share {text!r}: {rest!r} is no percentage; write {name}:25")
        return Share(mechanism, percent=float(match[1]))


def overlaps(a: Share, b: Share) -> bool:
    """True if two shares of one machine have a part of a device in common.

    Percentages of one GPU do where they sum to over 100: up to there its units can be divided.
    For more than two shares see `crowd`.

    >>> overlaps(Share.parse("cores:0-1"), Share.parse("cores:1-2"))
    True
    >>> overlaps(Share.parse("mps:50"), Share.parse("mps:50"))
    False
    """
    return bool(crowd((a, b)))


def crowd(shares: Sequence[Share]) -> str:
    """Return which limit these shares of one machine pass when all are in use at once, '' if none.

    No core and no MIG instance is in two of them, and what MPS and green contexts take of the GPU
    sums to 100 % at most. Shares of different GPUs are not told apart here: ask for each GPU.

    >>> crowd([Share.parse("mps:60"), Share.parse("green:50")])
    'mps:60% and green:50% are 110% of the device'
    """
    for i, share in enumerate(shares):
        for other in shares[:i]:
            if text := _common(other, share):
                return text
    parts = [share for share in shares if share.mechanism in _PERCENTAGES]
    total = sum(share.percent for share in parts)
    if len(parts) > 1 and total > 100 * (1 + _ROUNDING):
        return f"{_listed([share.text for share in parts])} are {total:g}% of the device"
    return ""


_PERCENTAGES = (Mechanism.MPS, Mechanism.GREEN)
_ROUNDING = 1e-9  # three times 33.3333333333 % and a little is the whole


def _common(a: Share, b: Share) -> str:
    """Return what two shares have in common but for percentages, '' if nothing."""
    shared = sorted(set(a.cores) & set(b.cores))
    if shared:
        return f"core {cores_text(shared)} is in {a.text} and in {b.text}"
    if a.mechanism is Mechanism.MIG and b.mechanism is Mechanism.MIG and a.uuid == b.uuid:
        return f"instance {a.uuid} is given twice"
    kinds = {a.mechanism, b.mechanism}
    if Mechanism.MIG in kinds and kinds & set(_PERCENTAGES):
        return f"{a.text} and {b.text} cannot both be: a device is divided in one way"
    return ""


def _listed(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _cores(rest: str, text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in rest.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"share {text!r}: {part!r} is no core or range; write cores:0-1,3")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def cores_text(cores: Sequence[int]) -> str:
    """Return core numbers in short, runs of them as ranges.

    >>> cores_text((0, 1, 3))
    '0-1,3'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
