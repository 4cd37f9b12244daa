"""What tuning is about: workloads, candidates, trials, and what came of them.

Types and their laws only. Engines (`tune/backends/`) propose and build candidates and run them;
`tune/run.py` decides who does what when; `store/tuned.py` keeps the best.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.graph import Graph
from slicewise.core.measurement import Job, Measurement, Subject
from slicewise.core.notes import Note
from slicewise.core.share import Share


class TrialOutcome(StrEnum):
    """What became of a candidate."""

    OK = "ok"
    BUILD_FAILED = "build failed"  # the compiler refused it
    CRASHED = "crashed"  # it ended the process that built or ran it
    TIMED_OUT = "timed out"
    REFUSED = "refused"  # it does not run here, or fails a gate: accuracy, memory
    WRONG = "wrong"  # it computes something else


@dataclass(frozen=True, slots=True)
class Workload:
    """A distinct operator of a model, or the model as a whole: kind with shapes.

    `key` names what is computed: equal keys, equal work, whatever the model; it holds neither
    weights' values nor names. `kin` is shared by workloads whose good configurations resemble
    each other (same operators and ranks, other sizes). `count` is how often the model has it,
    `weight_ms` the predicted latency of all of these on the share. `default_config` is what runs
    where nothing was tuned, '' where the engine has no such thing; it is the first candidate of
    the first round, so that the gain is against something measured in the same way. `candidates`
    is how many there are in all, None where they cannot be counted.

    >>> w = Workload("0f", "MatMul 1x128x256 256x256", ("MatMul",), count=4, weight_ms=2.0)
    >>> w.mean_ms
    0.5
    """

    key: str
    name: str
    op_types: tuple[str, ...]
    count: int = 1
    weight_ms: float = 0.0
    nodes: tuple[str, ...] = ()
    kin: str = ""
    default_config: str = ""
    candidates: int | None = None

    @property
    def mean_ms(self) -> float:
        """Predicted latency of one of them in ms."""
        return self.weight_ms / self.count


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the tuning that is handed to one client: `size` candidates for one workload.

    `number` counts the pieces of the run from 0, `round` those of the workload. `seed` is its
    own: the same piece gives the same candidates, whoever works on it, where the engine can.
    """

    number: int
    workload: str
    round: int
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate that is ready to be measured.

    `config` is its configuration as canonical text: equal text, equal candidate; it is all that is
    needed to build it again. `artifact` is what the server loads: bytes, so that a server on
    another machine can, or '' bytes where the configuration is enough.
    """

    workload: str
    config: str
    artifact: bytes = b""
    build_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration tried for one workload on one share.

    `latency_ms` is None where the outcome is not `ok`. `slowdown` is the part by which others
    were seen to disturb it (1 = nobody). `is_alone` marks the measurement at the end, with no
    tuner beside it; the winner is chosen by these. `at_s` is since the run began.
    """

    workload: str
    config: str
    outcome: TrialOutcome = TrialOutcome.OK
    latency_ms: Estimate | None = None
    samples_ms: tuple[float, ...] = ()
    error: str = ""
    piece: int = -1
    client: int = -1
    server: int = -1
    build_s: float = 0.0
    measure_s: float = 0.0
    at_s: float = 0.0
    is_alone: bool = False
    is_warm: bool = False  # came from the store, not from this search
    slowdown: float | None = None
    notes: tuple[Note, ...] = ()

    @property
    def is_ok(self) -> bool:
        """True where there is a latency."""
        return self.outcome is TrialOutcome.OK and self.latency_ms is not None


@dataclass(frozen=True, slots=True)
class SearchOrder:
    """An order to a client: make candidates for `piece`, knowing the workload's `known` trials.

    Candidates of `avoid` (configurations) have crashed a client and are not built again. `hints`
    are configurations that were best on workloads of the same kin, to be tried early where they
    apply; one that does not is left out. Where `rebuild` is given nothing is searched: exactly
    these configurations, known ones, are built once more (finalists whose artifact is gone).
    """

    piece: Piece
    known: tuple[Trial, ...] = ()
    avoid: frozenset[str] = frozenset()
    hints: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A client's answer: what it built, and the trials of what could not be built.

    `is_exhausted`: the engine knows no further candidate for this workload. On the way a client
    tells `Building`, so that a candidate that ends its process can be named.
    """

    piece: Piece
    built: tuple[Built, ...]
    failed: tuple[Trial, ...] = ()
    is_exhausted: bool = False
    search_s: float = 0.0
    build_s: float = 0.0
    notes: tuple[Note, ...] = ()

    @property
    def seconds(self) -> float:
        """Time that the client spent on it in s."""
        return self.search_s + self.build_s


@dataclass(frozen=True, slots=True)
class Building:
    """Told by a client before it builds a candidate, and by a server before it runs one."""

    workload: str
    config: str


@dataclass(frozen=True, slots=True)
class MeasureOrder:
    """An order to a server: run these. `is_alone`: the final measurement, with more samples."""

    built: tuple[Built, ...]
    piece: int = -1
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A server's answer: one trial for each candidate of the order, in its order."""

    trials: tuple[Trial, ...]
    measure_s: float = 0.0
    notes: tuple[Note, ...] = ()

    @property
    def seconds(self) -> float:
        """Time that the server spent on it in s."""
        return self.measure_s


@dataclass(frozen=True, slots=True)
class AccuracyData:
    """Real inputs by which int8 and other changes of numerics are judged.

    `inputs` maps each input's name to an array file (.npy), its first axis the samples.
    `least_agreement` is the gate, from 0 to 1.
    """

    inputs: Mapping[str, Path]
    least_agreement: float = 0.99
    source: str = ""


@dataclass(frozen=True, slots=True)
class TuneTask:
    """What an engine is asked to tune: a model on a share of a device.

    `device` is the share as a device (with its parent), `share` how a process is bound to it,
    `slice` its name as in a measurement (None: the whole). `threads` are those of the share.
    `node_ms` is the predicted latency of each node there. `folder` is the run's own. `measure`
    takes a measurement in a process of its own that is bound to the job's share, `outputs` runs a
    job once there and returns its outputs, arrays with floats as float32, and may give it other
    inputs by name (files of arrays). `precision` is that of the subject. `subject_at` gives the
    same model at another batch, None where it has one batch only.
    """

    subject: Subject
    graph: Graph
    place: str  # 'cpu' or 'gpu:N'
    device: Device
    threads: int
    folder: Path
    measure: Callable[[Job], Measurement]
    outputs: Callable[..., Sequence[object]] | None = None
    share: Share | None = None
    slice: str | None = None
    node_ms: Mapping[str, float] = field(default_factory=dict)
    accuracy: AccuracyData | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    precision: str = "fp32"
    subject_at: Callable[[int], Subject] | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task as an engine took it up.

    `problem` is picklable: it is what clients and servers are made from, in their own processes.
    `version` names engine and compiler: what was tuned by another one is not taken from the store.
    """

    engine: str
    version: str
    workloads: tuple[Workload, ...]
    problem: object
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """What tuning leaves: a file or folder that runs, and how it is run and compared.

    `before` and `after` are the jobs that measure the model untuned and tuned; None where the
    engine tunes operators that no runtime of ours runs as a whole. `tolerance` is the greatest
    difference of outputs that counts as equal, relative to the largest output. `agreement` is that
    with the untuned model on real data, from 0 to 1, where numerics were changed on purpose and
    outputs cannot be equal; None where they were not. `before_items` and `after_items` are the
    samples that one run of each job gives: where these differ the time for a sample is compared,
    since the aim is throughput.
    """

    path: Path
    before: Job | None = None
    after: Job | None = None
    tolerance: float = 1e-3
    how_to_run: str = ""
    notes: tuple[Note, ...] = ()
    agreement: float | None = None
    before_items: int = 1
    after_items: int = 1


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of a run went, in s. Search and build are summed over the clients, measuring
    over the servers. `busy_share` is the part of wall x servers that they measured."""

    search_s: float = 0.0
    build_s: float = 0.0
    measure_s: float = 0.0
    wall_s: float = 0.0
    servers: int = 1
    clients: int = 1

    @property
    def busy_share(self) -> float:
        """Part of the time that the measuring share was in use."""
        return self.measure_s / (self.wall_s * self.servers) if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a run goes on: until `trials` candidates are tried, or `seconds` have passed, or
    nothing is left to try. None: no such limit; at least one is given."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best configuration that is known for a workload on a share."""

    workload: Workload
    config: str
    latency_ms: Estimate
    trials: int = 0
    default_ms: float | None = None  # of the engine's default configuration, where it has one
    is_from_store: bool = False


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """Tuned at `tuned_at`, run at `run_at`: latency there, relative to what is tuned there.

    `penalty` is latency / latency of the configuration tuned at `run_at`: 1 on the diagonal, with
    a 90 % interval; `config` the configuration chosen at `tuned_at`.
    """

    tuned_at: str
    run_at: str
    config: str
    latency_ms: Estimate
    penalty: Estimate


@dataclass(frozen=True, slots=True)
class Matrix:
    """Tuned-at-x, run-at-y of one workload (or of their sum, `key` then is '')."""

    key: str
    name: str
    shares: tuple[str, ...]
    cells: tuple[MatrixCell, ...]


def workload_key(*parts: object) -> str:
    """Return the key of a workload: 64 hexadecimal digits over its describing parts.

    >>> workload_key("MatMul", (1, 2)) == workload_key("MatMul", (1, 2))
    True
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the least latency: among those measured alone if there are any.

    Ties go to the first; None where none has a latency.
    """
    good = [trial for trial in trials if trial.is_ok]
    alone = [trial for trial in good if trial.is_alone]
    return min(
        alone or good, key=lambda trial: trial.latency_ms.value if trial.latency_ms else 0.0,
        default=None,
    )  # fmt: skip


class TuningStopped(KeyboardInterrupt):
    """Ctrl-C ended a run of which `trials` are kept in `journal`: resuming it goes on."""

    def __init__(self, trials: int, journal: Path) -> None:
        super().__init__(f"stopped; {trials} trials are kept in {journal}")
        self.trials, self.journal = trials, journal
