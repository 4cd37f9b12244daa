"""What `tune` is told besides the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicewise.core.errors import UsageError

# Where neither a number of trials nor a time is given, an engine that searches goes on so long.
DEFAULT_SECONDS = 600.0
# Engines that try all there is where nobody bounds them: then more time brings nothing.
EXHAUSTIVE = frozenset({"serving"})
AUTO = "auto"
# The executor without processes: clients and servers are part of this one.
INLINE = "inline"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How a model is tuned. `share` is as for `measure` ('50', 'cores:0-1', 'mps:25',
    'green:25', 'mig:MIG-UUID'), 'auto' for the knee of the predicted latencies, None for the whole
    device. `clients` search and build, one core each (None: as many as there are cores);
    `servers` measure, each on a share of its own.

    `trials` and `seconds` bound the run, whichever comes first; with neither an engine whose
    space is small tries all of it, and another one goes on for 10 minutes. `is_resumed` goes on
    with the run of the same model, engine, share and seed; `is_fresh` takes nothing from the
    store. `accuracy_data` is a folder of `.npy` files or an `.npz` file, an array for each input,
    by which int8 is judged: below `least_agreement` it is refused. `artifact` is the folder that
    the result is written to. `candidates` is the number of each workload in a matrix.

    >>> TuneOptions(engine="serving", share="50", trials=20).least_agreement
    0.99
    """

    engine: str = "serving"
    share: str | None = None
    clients: int | None = None
    servers: int = 1
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    is_resumed: bool = False
    is_fresh: bool = False
    precision: str | None = None
    threads: int | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    accuracy_data: Path | None = None
    least_agreement: float = 0.99
    artifact: Path | None = None
    executor: str = "local"
    use_store: bool = True
    candidates: int = 24

    def __post_init__(self) -> None:
        for name in ("trials", "clients", "servers", "threads", "candidates"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise UsageError(f"{name}={given} is not a positive number; give 1, 2, ...")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed} is below 0; give 0, 1, 2, ...")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"a budget of {self.seconds:g} s leaves no time; give over 0")
        if not 0 <= self.least_agreement <= 1:
            raise UsageError(
                f"least_agreement={self.least_agreement:g} is no part of a whole; give 0 to 1"
            )
        if self.is_resumed and self.is_fresh:
            raise UsageError("resume goes on and fresh begins anew; give one of the two")


# What tells a folder that tuning wrote: code that runs, or, where an operator was left out or all
# is simulated, what was found.
_WRITTEN = ("run.py", "database_tuning_record.json", "simulated.json")


def is_tuned_folder(folder: Path) -> bool:
    """Return whether tuning wrote this folder, so that it may be replaced as a whole."""
    return any((folder / name).is_file() for name in _WRITTEN)
