"""How a partition is asked for: the options, their checks, and the wishes that they come to."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import SupportsIndex

from slicewise.core.errors import UsageError
from slicewise.core.pipeline import Objective
from slicewise.flows.load import positive
from slicewise.flows.partitioning.wishes import MemoryWish, Wishes, parse_link
from slicewise.flows.predict import PredictOptions

_MOST_STAGES = 65_536


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How a partition is asked for. `wishes` are constraints beyond the common ones; `constraints`
    is a file with them (`slicewise.constraints/1`), over which all else here goes.

    `link` is '25GB/s' or '25GB/s:5us'; None the devices' own. `honour` names what counts of a
    problem file: 'colocate', 'limits'. `time_limit_s` is for all numbers of stages together.
    `between_layers` cuts only between the repeated layers of a model. `predict` says how a model
    is read and priced.

    >>> PartitionOptions(link="25GB/s", memory_limit_bytes=16e9).time_limit_s
    60.0
    """

    devices: Sequence[str] = ()
    any_order: bool = False
    link: str | None = None
    memory_limit_bytes: float | None = None
    constraints: str | PathLike[str] | None = None
    wishes: Wishes = field(default_factory=Wishes)
    objective: str | None = None
    limit_ms: float | None = None
    overlaps: bool = False
    hops: bool = False
    replicates: bool = False
    honour: Collection[str] = ()
    time_limit_s: float = 60.0
    seed: int = 0
    workers: int | None = None
    method: str = "auto"
    strict: bool = False
    verify: bool = False
    between_layers: bool = False
    predict: PredictOptions = field(default_factory=PredictOptions)


def wishes_of(options: PartitionOptions) -> Wishes:
    """Return the wishes of the options over those of the constraints file."""
    from slicewise.flows.partitioning.constraints_file import read_constraints

    _check_options(options)
    limit = options.memory_limit_bytes
    own = Wishes(
        devices=tuple(options.devices),
        any_order=options.any_order or None,
        links=() if options.link is None else (parse_link(options.link),),
        memory=MemoryWish(limit),
        overlaps=options.overlaps or None,
        hops=options.hops or None,
        replicates=options.replicates or None,
        objective=None if options.objective is None else Objective(options.objective),
        limit_ms=options.limit_ms,
    ).over(options.wishes)
    if options.constraints is None:
        return own
    return own.over(read_constraints(Path(options.constraints)))


def _check_options(options: PartitionOptions) -> None:
    from slicewise.flows.partitioning.workload_file import HONOURED

    if not 0 < options.time_limit_s < math.inf:
        raise UsageError(
            f"time limit {options.time_limit_s:g} s leaves no time to find a cut; give"
            " --time-limit 60"
        )
    if not 0 <= options.seed < 2**31:
        raise UsageError(f"seed {options.seed} is not between 0 and 2^31 - 1; write --seed 0")
    known = [each.value for each in Objective]
    if options.objective is not None and options.objective not in known:
        raise UsageError(
            f"objective {options.objective!r} is unknown; known are {', '.join(known)}"
        )
    for word in options.honour:
        if word not in HONOURED:
            raise UsageError(f"honour {word!r} is unknown; known are {', '.join(HONOURED)}")
    for what, value in (
        ("limit-ms", options.limit_ms), ("memory limit", options.memory_limit_bytes)
    ):  # fmt: skip
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{what} {value:g} is not a positive number; give one")
    if options.workers is not None:
        positive("workers", options.workers)


def stages_asked(value: SupportsIndex) -> int:
    """Return a number of stages; `UsageError` for one that cannot be."""
    try:
        count = positive("stages", value)
    except UsageError as err:
        raise UsageError(
            f"stages {value!r} is not a positive whole number; give 1, 2, 4, ..."
        ) from err
    if count > _MOST_STAGES:
        raise UsageError(f"stages {count} is over {_MOST_STAGES:,}; give fewer")
    return count


_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:\.\.\s*([0-9]{1,6}))?\s*")


def parse_stages(text: str) -> list[int]:
    """Return the numbers of stages that '4', '2..16' or '2,4,8' names, in rising order.

    >>> parse_stages("2..4"), parse_stages("8")
    ([2, 3, 4], [8])
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"stages {text!r} is no number of stages; write --stages 4, 2..16 or 2,4,8"
            )
        low = stages_asked(int(match[1]))
        high = stages_asked(int(match[2])) if match[2] else low
        if high < low:
            raise UsageError(f"stages {text!r} ends before it begins; write {high}..{low}")
        numbers.update(range(low, high + 1))
    if len(numbers) > 256:
        raise UsageError(f"stages {text!r} are {len(numbers)} numbers; give 256 at most")
    return sorted(numbers)
