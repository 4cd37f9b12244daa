"""Jobs of the null runtime, clocks and runtimes that only count: for the tests of this folder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Estimate
from slicewise.core.measurement import (
    InputSpec,
    Job,
    Measurement,
    NodeTime,
    Outcome,
    Protocol,
    Subject,
)
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.measure.runtimes._base import Setup
from slicewise.measure.statistics import summarise

# Short, so that tests are: a handful of runs and samples.
QUICK = Protocol(
    warmup_runs=2, warmup_s=0.0, min_samples=5, max_samples=8, relative_width=10.0, budget_s=0.5
)


def make_job(
    protocol: Protocol = QUICK, *, batch: int = 2, profile: bool = False, **options: Any
) -> Job:
    subject = Subject(
        name="m",
        location="m.onnx",
        digest="0" * 64,
        inputs=(InputSpec("x", (batch, 3), DType.FP32),),
        form="onnx",
        open=dict,
    )
    return Job(subject, "null", batch, options=options, protocol=protocol, profile=profile)


def make_measurement(*samples_ms: float, **facts: Any) -> Measurement:
    value: Estimate | None = summarise(samples_ms) if samples_ms else None
    return Measurement(
        "m", "m.onnx", "0" * 64, "cpu", None, "null", 1, "fp32", 1,
        outcome=Outcome.OK if samples_ms else Outcome.CRASHED,
        latency_ms=value, samples_ms=samples_ms, **facts,
    )  # fmt: skip


class FakeClock:
    """A clock that only a run moves on, by what `step_s` says of its number."""

    def __init__(self, step_s: Callable[[int], float] = lambda _: 0.01) -> None:
        self.now_s = 100.0
        self.runs = 0
        self._step_s = step_s

    def __call__(self) -> float:
        return self.now_s

    def run(self) -> None:
        self.now_s += self._step_s(self.runs)
        self.runs += 1


class FakeSession:
    """Runs by moving a clock on."""

    notes: tuple[Note, ...] = (Note("op-unknown", "one of the session's own"),)

    def __init__(self, clock: FakeClock) -> None:
        self.run = clock.run
        self.closed = 0

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        return ()

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        return (NodeTime("n", "Add", 1.0, calls=float(runs)),)

    def close(self) -> None:
        self.closed += 1


class FakeRuntime:
    """Gives sessions of a clock; remembers what it was opened with."""

    name = "fake"
    forms = frozenset({"onnx"})
    devices = frozenset({"cpu"})

    def __init__(self, clock: FakeClock) -> None:
        self.session = FakeSession(clock)
        self.setups: list[Setup] = []
        self.values: tuple[NDArray[np.generic], ...] = ()

    def load(self) -> Mapping[str, str]:
        return {"fake": "1.0"}

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> FakeSession:
        self.setups.append(setup)
        self.values = tuple(values)
        return self.session
