"""What comparing two measurements says. The type only; comparing is in `measure/compare.py`."""

from dataclasses import dataclass
from enum import StrEnum

from slicewise.core.cost import Estimate
from slicewise.core.notes import Note


class Verdict(StrEnum):
    """What is shown of the second measurement against the first."""

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no difference shown"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second measurement against the first.

    `ratio` is the second median over the first with its 90 % interval: below 1 is faster. The
    verdict is not `NONE` only where the interval leaves out 1. `method` says how the interval was
    made; `notes` what else differs between the two.
    """

    ratio: Estimate
    verdict: Verdict
    method: str
    notes: tuple[Note, ...] = ()
