"""What an engine is and which ones there are. `slicewise.testing.engines` checks the laws.

An engine takes a model apart into workloads, makes the two kinds of worker that tune them, and
puts the best together. It schedules nothing, starts no process of the run (the crew does) and
keeps no record.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from slicewise.core.crew import Tell
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note
from slicewise.core.plugins import PluginTable
from slicewise.core.tuning import (
    Artifact,
    Built,
    Prepared,
    Proposal,
    SearchOrder,
    Trial,
    Tuned,
    TuneTask,
)

# Samples of a candidate among others, and of the finalists that are measured alone.
QUICK = Sampling(
    warmup_runs=1, warmup_s=0.02, min_samples=5, max_samples=50, budget_s=0.3, time_limit_s=60.0
)
CAREFUL = Sampling(
    warmup_runs=3, warmup_s=0.1, min_samples=15, max_samples=200, budget_s=2.0, time_limit_s=120.0
)


class Client(Protocol):
    """Searches and builds, in a process of its own on cores of its own."""

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        """Return at most `order.piece.size` candidates that are not among the known or avoided.

        `Building` is told before each build, so that one which ends this process can be named;
        one that the compiler refuses is a failed trial of the proposal. Any client can take any
        piece: what it needs to know of earlier rounds is `order.known`; more that it remembers
        itself may make it quicker, not other. With `order.rebuild` it builds just those, in
        order, and searches nothing. In round 0 a workload's `default_config` comes first.
        """


class Server(Protocol):
    """Runs candidates on the share that its process is bound to."""

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        """Return a trial for each, in order; `Building` is told before each.

        A candidate that cannot run or computes something else is a trial with that outcome.
        """


class Engine(Protocol):
    """A way of tuning."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    @property
    def places(self) -> frozenset[str]:
        """The kinds of device that it tunes for: 'cpu', 'gpu'."""

    @property
    def piece_size(self) -> int:
        """How many candidates a piece has unless told otherwise."""

    @property
    def is_apart(self) -> bool:
        """True if its server measures in processes that it starts and that are bound to the share
        by themselves (`TuneTask.measure`); then the server's own process is not."""

    def check(self) -> tuple[Note, ...]:
        """Return what is to be known of the engine here, once it has shown that it works.

        `MissingDependency` names the extra; `TuningError` where a self-check in a process of its
        own fails (a compiler that crashes must not do so in the user's run).
        """

    def prepare(self, task: TuneTask) -> Prepared:
        """Return the workloads and the problem. An operator that it cannot take is a Note with
        its name, and the others go on; `TuningError` where none is left, `UsageError` for an
        option that it does not know."""

    def client(self, problem: object) -> Client:
        """Return a client, in the client's process."""

    def server(self, problem: object) -> Server:
        """Return a server, in a process that is bound to its share already."""

    def finish(self, task: TuneTask, prepared: Prepared, best: Mapping[str, Tuned]) -> Artifact:
        """Write the artefact into the task's folder, atomically, from the best configuration of
        each workload (a workload without one keeps the engine's default), and return it."""


ENGINES = PluginTable(
    what="tuning engine",
    rows={
        "serving": "slicewise.tune.backends.serving:ENGINE",
        "tvm": "slicewise.tune.backends.tvm:ENGINE",
        "triton": "slicewise.tune.backends.triton:ENGINE",
    },
)
# Tunes no real model: loaded by its name, and named to nobody who asks what there is.
_UNLISTED = PluginTable(
    what="tuning engine",
    rows={"simulated": "slicewise.tune.backends.simulated:ENGINE"},
)


def load_engine(name: str) -> Engine:
    """Return the engine called `name`; `UsageError` lists the known ones."""
    return cast(Engine, (_UNLISTED if name in _UNLISTED else ENGINES).load(name))
