"""What workers are at, and when they are overdue. Ends nobody: that is the run's business."""

from dataclasses import dataclass

from slicewise.core.tuning import Built, SearchOrder
from slicewise.tune.records import RunSettings
from slicewise.tune.seating import Seat


@dataclass(slots=True)
class Searching:
    """A client at work: its order, and the candidate that it said it builds."""

    order: SearchOrder
    attempt: int
    began_s: float
    stopped_s: float  # of its seat, when it began
    config: str | None = None
    config_s: float = 0.0  # when it said so, in time of its own


@dataclass(frozen=True, slots=True)
class Batch:
    """Candidates that wait for a server."""

    built: tuple[Built, ...]
    piece: int
    client: int
    is_alone: bool = False
    attempt: int = 0


@dataclass(slots=True)
class Measuring:
    """A server at work: its batch, and the candidate that it said it runs."""

    batch: Batch
    began_s: float
    config: str | None = None
    config_s: float = 0.0


def due_s(seat: Seat, settings: RunSettings, *, now_s: float) -> float | None:
    """Return when the worker of a seat is overdue, on the crew's clock; None where it need not be
    watched: it has nothing to do, or it is held, and its time stands still."""
    work = seat.work
    if seat.held_by or seat.worker is None:
        return None
    if seat.is_starting:
        return seat.hired_s + settings.start_limit_s
    if isinstance(work, Searching):
        due = work.began_s - work.stopped_s + settings.piece_limit_s
        if work.config is not None:
            due = min(due, work.config_s + settings.candidate_limit_s)
        return due + seat.stopped_s(now_s)
    if isinstance(work, Measuring):
        if work.config is None:
            return work.began_s + settings.piece_limit_s
        return work.config_s + settings.candidate_limit_s
    return None
