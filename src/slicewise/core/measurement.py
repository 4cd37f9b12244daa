"""What is measured, how, and what came of it: the types that a measurement travels in.

Nothing is run here: `measure/` takes measurements, `store/` keeps them, `predict/calibrate.py`
learns from them. A measurement that failed is a measurement too, with its outcome.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slicewise.core.cost import Estimate
from slicewise.core.graph import Binding
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.core.share import Share


class Outcome(StrEnum):
    """What became of a measurement."""

    OK = "ok"
    REFUSED = "refused"  # the runtime does not run this model: an operator it lacks, say
    CRASHED = "crashed"  # the process died
    OUT_OF_MEMORY = "out of memory"  # of the device, or over the limit given
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input: shape, type, and which values make sense.

    Integers are drawn from `low` to `high - 1` (ids of a table of `high` rows); where the two are
    one apart all are `low` (a mask of ones). Floats are standard normal, booleans True.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    low: int = 0
    high: int = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """The model as a child process can open it.

    `form` is what `open` gives: 'onnx' (the path of a file) or 'torch' (a `torch.nn.Module` in
    evaluation mode, called with the inputs in order, or by name where `by_name`). `open` is
    picklable and is called in the child. `binding` is how the graph behind `digest` was bound, so
    that it can be read again from `location`.
    """

    name: str
    location: str
    digest: str
    inputs: tuple[InputSpec, ...]
    form: str
    open: Callable[[], object]
    by_name: bool = False
    binding: Binding = field(default_factory=Binding)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Protocol:
    """How samples are taken.

    Warm-up runs for at least `warmup_runs` and `warmup_s` and until the latest runs are no faster
    than those before. Then samples, until the 90 % interval of the median is narrower than
    `relative_width` of it (at least `min_samples`), or `max_samples`, or `budget_s` of sampling
    are used up (then at least 3). The whole child ends after `time_limit_s`;
    `memory_limit_bytes` bounds its resident memory.
    """

    warmup_runs: int = 3
    warmup_s: float = 0.3
    min_samples: int = 15
    max_samples: int = 500
    relative_width: float = 0.02
    budget_s: float = 5.0
    time_limit_s: float = 300.0
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement to take: a subject under conditions.

    `device` is 'cpu' or 'gpu:N'; `device_name` and `device_digest` say which device that is here.
    `threads` None: one for each core that the process is bound to. `slice` is the part of the
    device that `share` gives, as devices name it ('50%', '2g.20gb'), None for the whole.
    `options` are settings of the runtime. `profile` also times single operators, in runs of its
    own.
    """

    subject: Subject
    runtime: str
    batch: int
    precision: str = "fp32"
    device: str = "cpu"
    device_name: str = "cpu"
    device_digest: str = ""
    threads: int | None = None
    share: Share | None = None
    slice: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)
    profile: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Time of one operator inside a run, as the runtime's own profiler tells it: the mean of a
    run, `calls` of it in each run. `origin` is the runtime's name of it."""

    origin: str
    op_type: str
    latency_ms: float
    calls: float = 1.0


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Peak memory of the measured process in bytes.

    `peak_bytes` is the whole of it, `runtime_bytes` what was held once the runtime was loaded and
    no model yet. `source` says who told: 'rss', 'allocator+context', 'nvml'.
    """

    peak_bytes: int
    runtime_bytes: int
    source: str
    allocator_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The state of the machine that a measurement was taken in.

    `processor` is the model of CPU or GPU, `packages` the versions of what ran. `core_share` is
    the part of the time that busy loops on the bound cores got, 1 where the cores were ours;
    `waited` the part of the sampling time that threads of the run waited for a core.
    """

    processor: str = ""
    cores: tuple[int, ...] = ()
    system: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    clock_hz: float | None = None
    load: float | None = None
    core_share: float | None = None
    waited: float | None = None
    driver: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what a measurement must share with another to be comparable.

        Processor, driver and versions; neither load nor clocks. 64 hexadecimal digits.
        """
        told = (self.processor, self.driver, sorted(self.packages.items()))
        return hashlib.sha256(repr(told).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What running a model gave.

    `latency_ms` is the median of `samples_ms` with its 90 % interval, None where the outcome is
    not `ok`; a sample is the mean of `runs_per_sample` runs of the whole batch. `energy_j` is for
    one inference of the batch, None where no meter is. `slice` is as in a prediction: '50%',
    '2g.20gb', None on the whole device; `mechanism` how the process was held to it.

    >>> made = Measurement("m", "m.onnx", "0" * 64, "cpu", None, "onnxruntime", 1, "fp32", 2)
    >>> made.outcome.value, made.latency_ms
    ('ok', None)
    """

    model: str
    location: str
    digest: str
    device: str
    slice: str | None
    runtime: str
    batch: int
    precision: str
    threads: int
    device_digest: str = ""
    mechanism: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome = Outcome.OK
    error: str = ""
    latency_ms: Estimate | None = None
    samples_ms: tuple[float, ...] = ()
    runs_per_sample: int = 1
    energy_j: float | None = None
    memory: MeasuredMemory | None = None
    utilisation: float | None = None
    nodes: tuple[NodeTime, ...] = ()
    environment: Environment = field(default_factory=Environment)
    protocol: Protocol = field(default_factory=Protocol)
    binding: Binding = field(default_factory=Binding)
    started_at: str = ""  # UTC, ISO 8601
    seconds: float = 0.0  # spent on it in all
    notes: tuple[Note, ...] = ()

    @property
    def key(self) -> str:
        """SHA-256 of the conditions: measurements of one key are repeats of each other.

        Graph, device, slice, runtime, batch, precision, threads, options and environment.
        """
        told = (
            self.digest, self.device, self.device_digest, self.slice, self.mechanism,
            self.runtime, self.batch, self.precision, self.threads,
            sorted(self.options.items()), self.environment.digest,
        )  # fmt: skip
        return hashlib.sha256(repr(told).encode()).hexdigest()
