"""What a run of tuning is told, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.core.crew import MakeHandler
from slicewise.core.notes import Note
from slicewise.core.tuning import Budget, Phases, Trial, Tuned


@dataclass(frozen=True, slots=True)
class Seats:
    """Where workers sit: a maker for each client and each server.

    `holds` names for a server the clients that sit on its own cores: they are stopped while it
    measures. `devices` is the device of each server, by number (none given: all on one); servers
    of one device do not measure finalists at the same time. The resources are those that a
    cluster gives each worker.
    """

    clients: tuple[MakeHandler, ...]
    servers: tuple[MakeHandler, ...]
    holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    client_resources: Mapping[str, float] | None = None
    server_resources: Mapping[str, float] | None = None

    def device_of(self, server: int) -> int:
        """Return the device that a server measures on."""
        return self.devices[server] if self.devices else 0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run goes.

    `piece_size` candidates make a piece, `finalists` of each workload are measured again alone.
    No client gets a new piece while `backlog` proposals wait for each server and what is under
    way keeps the servers busy: more would be searched with older knowledge and gains no time
    (`benchmarks/results/tune_scaling.md`). A piece over `piece_limit_s`, a candidate over
    `candidate_limit_s` or a start over `start_limit_s` ends its worker. A piece that loses its
    client, and a candidate that loses its server without being named, are tried `attempts` times.
    A seat that loses `losses` workers in a row stays empty.
    `is_retuned` tunes what the store knows already too. Time in s.
    """

    budget: Budget = field(default_factory=Budget)
    piece_size: int = 8
    finalists: int = 3
    seed: int = 0
    backlog: int = 2
    piece_limit_s: float = 900.0
    candidate_limit_s: float = 180.0
    start_limit_s: float = 300.0
    attempts: int = 2
    losses: int = 5
    is_retuned: bool = False


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """What became of a piece: `size` candidates built by `client`, and the time they took in s.

    `held_s` is the time that the client was stopped meanwhile. `measure_s` is 0 until all were
    measured.
    """

    number: int
    workload: str
    size: int
    client: int
    search_s: float
    build_s: float
    measure_s: float = 0.0
    began_s: float = 0.0
    ended_s: float = 0.0
    held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The state of a run after `trials` trials, `at_s` seconds after it began.

    `total_ms` is the sum over the workloads of count x best latency so far; workloads without a
    latency yet count with the predicted one. `is_alone`: finalists were measured.
    """

    at_s: float
    trials: int
    total_ms: float
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run found. `trials` holds the known ones it began with, too; `best` is by workload.

    `client_start_s` and `server_start_s` are the mean times until a worker was ready.
    """

    trials: tuple[Trial, ...]
    best: Mapping[str, Tuned]
    phases: Phases
    curve: tuple[CurvePoint, ...]
    pieces: tuple[PieceRecord, ...] = ()
    client_start_s: float = 0.0
    server_start_s: float = 0.0
    notes: tuple[Note, ...] = ()
