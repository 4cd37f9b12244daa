"""One measurement in this process: what the protocol asks for is done, whatever goes wrong."""

import gc
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import MeasureError, ModelError, UsageError
from slicewise.core.measurement import (
    Environment,
    InputSpec,
    Job,
    MeasuredMemory,
    Measurement,
    Outcome,
    Protocol,
)
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.core.share import Mechanism, Share
from slicewise.measure import harness, quiet
from slicewise.measure.harness import begin_measurement, measure_here
from slicewise.measure.meters._base import Reading
from slicewise.measure.meters.nvml import NvmlMissing
from slicewise.measure.sampling import Samples, Stopwatch, take_samples, warm_up
from slicewise.measure.statistics import is_narrow_enough, summarise
from tests.measure.jobs import QUICK, FakeClock, FakeRuntime, FakeSession, make_job


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores are ours: what this machine is busy with meanwhile does not matter here."""
    monkeypatch.setattr(quiet, "core_share", lambda cores: 1.0)
    monkeypatch.setattr(quiet, "run_delays", lambda: None)
    monkeypatch.setattr(quiet.wait_for_quiet, "__kwdefaults__", {
        **(quiet.wait_for_quiet.__kwdefaults__ or {}), "probe": lambda cores: 1.0,
    })  # fmt: skip


class FakeMeter:
    """Tells fixed figures; remembers in which order it was called, after how many runs."""

    def __init__(self, clock: FakeClock, reading: Reading) -> None:
        self.calls: list[tuple[str, int]] = []
        self._clock, self._reading = clock, reading

    def loaded(self) -> None:
        self.calls.append(("loaded", self._clock.runs))

    def start(self) -> None:
        self.calls.append(("start", self._clock.runs))

    def stop(self) -> Reading:
        self.calls.append(("stop", self._clock.runs))
        return self._reading


def _measure(
    clock: FakeClock | None = None,
    protocol: Protocol = QUICK,
    *,
    change: Callable[[Job], Job] = lambda job: job,
    reading: Reading | None = None,
) -> Measurement:
    clock = clock or FakeClock()
    return measure_here(
        change(make_job(protocol)),
        clock=clock,
        runtime=FakeRuntime(clock),
        meters=[] if reading is None else [FakeMeter(clock, reading)],
    )


def _sample(clock: FakeClock, protocol: Protocol) -> Samples:
    watch = Stopwatch(clock.run, clock)
    warm = warm_up(watch, protocol, has_time=lambda: True)
    return take_samples(
        watch, protocol, runs_per_sample=warm.runs_per_sample, has_time=lambda: True
    )


def _codes(made: Measurement) -> set[str]:
    return {note.code for note in made.notes}


PROTOCOLS = st.builds(
    Protocol,
    warmup_runs=st.integers(0, 5),
    warmup_s=st.floats(0, 0.2),
    min_samples=st.integers(0, 20),
    max_samples=st.integers(0, 40),
    relative_width=st.floats(0, 0.5),
    budget_s=st.floats(0, 2),
)
STEPS_S = st.lists(st.floats(1e-4, 0.2), min_size=1, max_size=30)


@given(PROTOCOLS, STEPS_S)
def test_a_runtime_that_runs_is_measured_within_its_protocol(
    protocol: Protocol, steps_s: list[float]
) -> None:
    made = _sample(FakeClock(lambda i: steps_s[i % len(steps_s)]), protocol)
    count, codes = len(made.samples_ms), {note.code for note in made.notes}
    assert 1 <= count <= max(1, protocol.max_samples)
    assert all(1e3 * min(steps_s) * 0.999 <= each for each in made.samples_ms)
    is_short = count < min(protocol.min_samples, protocol.max_samples)
    assert is_short == ("samples-few" in codes)
    is_narrow = is_narrow_enough(
        summarise(made.samples_ms), relative_width=protocol.relative_width
    )
    assert is_narrow != ("interval-wide" in codes)


def test_steady_runs_end_with_the_fewest_samples() -> None:
    made = _measure(protocol=replace(QUICK, min_samples=7, max_samples=400, relative_width=0.02))
    assert len(made.samples_ms) == 7
    assert made.latency_ms is not None
    assert made.latency_ms.value == pytest.approx(10.0)
    assert made.runs_per_sample == 1
    assert "interval-wide" not in _codes(made)


def test_scattered_runs_take_samples_until_the_budget_is_spent() -> None:
    protocol = replace(QUICK, relative_width=0.001, max_samples=10_000, budget_s=2.0)
    made = _measure(FakeClock(lambda i: 0.01 * (1 + i % 5)), protocol)
    assert sum(made.samples_ms) == pytest.approx(2000, rel=0.05)
    assert "interval-wide" in _codes(made)


def test_a_spent_budget_still_gives_three_samples() -> None:
    made = _measure(FakeClock(lambda _: 100.0), replace(QUICK, budget_s=1.0, time_limit_s=5000))
    assert len(made.samples_ms) == 3
    assert "samples-few" in _codes(made)


@given(st.floats(1e-6, 9e-4))
def test_samples_of_short_runs_last_a_millisecond(run_s: float) -> None:
    made = _sample(FakeClock(lambda _: run_s), QUICK)
    assert 0.99 <= made.runs_per_sample * run_s * 1e3 <= 2.0
    assert made.samples_ms[0] == pytest.approx(run_s * 1e3, rel=1e-3)


def test_warm_up_lasts_until_runs_no_longer_become_faster() -> None:
    protocol = Protocol(warmup_runs=2, warmup_s=0.0, budget_s=1e4)
    for falls in (0, 5, 20):
        clock = FakeClock(lambda i, falls=falls: 1.0 + max(0, falls - i))  # type: ignore[misc]
        warm_up(Stopwatch(clock.run, clock), protocol, has_time=lambda: True)
        assert clock.runs >= falls
        assert clock.runs <= 3 * falls + 3


def test_a_first_run_that_compiles_does_not_use_up_the_warm_up() -> None:
    clock = FakeClock(lambda i: 900.0 if i == 0 else 1.0 + max(0, 9 - i))
    protocol = Protocol(warmup_runs=2, warmup_s=0.0, budget_s=300)
    made = warm_up(Stopwatch(clock.run, clock), protocol, has_time=lambda: True)
    assert not made.notes
    assert clock.runs >= 9


def test_warm_up_that_never_settles_ends_and_is_noted() -> None:
    clock = FakeClock(lambda i: math.exp(-i / 20))
    protocol = Protocol(warmup_runs=2, warmup_s=0.0, budget_s=3.0)
    made = warm_up(Stopwatch(clock.run, clock), protocol, has_time=lambda: True)
    assert [note.code for note in made.notes] == ["warm-up-unsteady"]
    assert made.seconds < 5.5


def test_a_drift_during_the_samples_is_noted() -> None:
    clock = FakeClock(lambda i: 0.01 * (1 + i / 100))
    protocol = replace(QUICK, relative_width=0.0, max_samples=60, budget_s=60)
    made = take_samples(
        Stopwatch(clock.run, clock), protocol, runs_per_sample=1, has_time=lambda: True
    )
    assert "latency-drifted" in {note.code for note in made.notes}


def test_samples_over_which_the_clock_went_back_do_not_count() -> None:
    made = _measure(FakeClock(lambda i: -0.5 if i % 4 == 3 else 0.01))
    assert made.outcome is Outcome.OK
    assert all(sample == pytest.approx(10.0) for sample in made.samples_ms)
    assert "clock-backwards" in _codes(made)


@pytest.mark.parametrize("step_s", [0.0, -1.0])
def test_a_clock_that_never_advances_gives_no_measurement(step_s: float) -> None:
    made = _measure(FakeClock(lambda _: step_s))
    assert made.outcome is Outcome.TIMED_OUT
    assert "the clock did not advance" in made.error
    assert not made.samples_ms
    assert made.latency_ms is None


def test_without_time_for_one_sample_it_says_which_limit() -> None:
    made = _measure(FakeClock(lambda _: 100.0), replace(QUICK, time_limit_s=50))
    assert made.outcome is Outcome.TIMED_OUT
    assert "time ran out while warming up; time_limit_s=50" in made.error


def test_the_time_limit_keeps_the_samples_there_are() -> None:
    made = _measure(FakeClock(lambda _: 10.0), replace(QUICK, budget_s=900, time_limit_s=60))
    assert made.outcome is Outcome.OK
    assert 1 <= len(made.samples_ms) < 5
    assert "samples-few" in _codes(made)


# What is recorded.


def test_conditions_of_the_job_are_those_of_the_measurement() -> None:
    job = replace(
        make_job(work="3"), device_name="cpu-x", device_digest="d", precision="fp16", threads=3,
        share=Share(Mechanism.CORES, cores=quiet.bound_cores()), slice="50%",
    )  # fmt: skip
    clock = FakeClock()
    runtime = FakeRuntime(clock)
    made = measure_here(job, clock=clock, runtime=runtime, meters=[], notes=(Note("x", "y"),))
    assert (made.device, made.device_digest, made.slice, made.mechanism) == (
        "cpu-x", "d", "50%", "cores",
    )  # fmt: skip
    assert (made.threads, made.precision, made.batch, made.options) == (
        3,
        "fp16",
        2,
        {"work": "3"},
    )
    assert made.environment.packages == {"fake": "1.0"}
    assert made.environment.cores == quiet.bound_cores()
    assert _codes(made) >= {"x", "op-unknown"}
    (setup,) = runtime.setups
    assert (setup.threads, setup.precision, setup.options) == (3, "fp16", {"work": "3"})
    assert runtime.values[0].shape == (2, 3)
    assert runtime.session.closed == 1
    assert made.started_at.endswith("+00:00")


def test_threads_default_to_the_bound_cores() -> None:
    assert _measure().threads == len(quiet.bound_cores())


def test_meters_bracket_the_samples_and_energy_is_that_of_one_run() -> None:
    clock = FakeClock(lambda _: 0.05)
    meter = FakeMeter(clock, Reading(energy_j=40.0, memory=MeasuredMemory(9, 1, "rss")))
    made = measure_here(make_job(), clock=clock, runtime=FakeRuntime(clock), meters=[meter])
    (_, loaded), (_, start), (_, stop) = meter.calls
    assert [name for name, _ in meter.calls] == ["loaded", "start", "stop"]
    assert loaded == 0
    assert start >= QUICK.warmup_runs
    assert made.energy_j == pytest.approx(40.0 / (stop - start))
    assert made.memory == MeasuredMemory(9, 1, "rss")


def test_energy_is_metered_over_a_window_that_counters_can_resolve() -> None:
    clock = FakeClock(lambda _: 0.002)
    meter = FakeMeter(clock, Reading(energy_j=1.0))
    measure_here(make_job(), clock=clock, runtime=FakeRuntime(clock), meters=[meter])
    start, stop = meter.calls[1][1], meter.calls[2][1]
    assert (stop - start) * 0.002 >= 0.1 - 1e-9


def test_a_counter_that_did_not_tick_tells_no_energy() -> None:
    made = _measure(reading=Reading(energy_j=0.0))
    assert made.energy_j is None
    assert "energy-unmetered" in _codes(made)


def test_energy_of_a_share_is_said_to_be_that_of_the_whole_device() -> None:
    made = _measure(
        reading=Reading(energy_j=1.0),
        change=lambda job: replace(job, share=Share(Mechanism.CORES, cores=quiet.bound_cores())),
    )
    assert "energy-whole-device" in _codes(made)


@pytest.mark.parametrize(("share", "is_busy"), [(1.0, False), (0.5, True), (None, False)])
def test_cores_that_are_not_ours_are_noted(
    share: float | None, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "wait_for_quiet", lambda cores, **_: share)
    made = _measure()
    assert made.environment.core_share == share
    assert ("machine-busy" in _codes(made)) == is_busy


class _Silent:
    """A driver that tells a GPU's name and nothing else."""

    def name(self) -> str:
        return "a GPU"

    def driver(self) -> str:
        raise NvmlMissing("not told")

    clock_hz = driver


@pytest.mark.parametrize(("nvml", "processor"), [(_Silent(), "a GPU"), (None, "")])
def test_a_gpu_is_told_as_far_as_its_driver_does_and_never_by_the_processor(
    nvml: object, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "open_nvml", lambda gpu: nvml)
    job = replace(make_job(), device="gpu:0")
    found = measure_here(job, meters=()).environment
    assert (found.processor, found.driver, found.clock_hz) == (processor, "", None)


def test_threads_that_waited_for_a_core_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "waited_part", lambda *_, **__: 0.2)
    made = _measure()
    assert made.environment.waited == 0.2
    assert "machine-busy" in _codes(made)


def test_operators_are_timed_only_where_the_job_asks() -> None:
    assert not _measure().nodes
    (node,) = _measure(change=lambda job: replace(job, profile=True)).nodes
    assert node.origin == "n"
    assert 3 <= node.calls <= 20


def test_each_step_is_reported_with_what_is_known() -> None:
    told: list[tuple[str, Measurement]] = []
    clock = FakeClock()
    measure_here(
        make_job(profile=True), clock=clock, runtime=FakeRuntime(clock), meters=[],
        report=lambda step, so_far: told.append((step, so_far)),
    )  # fmt: skip
    assert [step for step, _ in told] == [
        "looking at the machine", "loading null", "opening the model", "warming up", "sampling",
        "profiling",
    ]  # fmt: skip
    assert told[2][1].environment.packages == {"fake": "1.0"}
    assert told[-1][1].samples_ms
    assert not told[0][1].environment.packages
    assert told[0][1].environment == Environment()


def test_the_garbage_collector_rests_meanwhile_and_works_again_after() -> None:
    seen: list[bool] = []
    clock = FakeClock()

    def run() -> None:
        seen.append(gc.isenabled())
        clock.run()

    runtime = FakeRuntime(clock)
    runtime.session.run = run
    measure_here(make_job(), clock=clock, runtime=runtime, meters=[])
    assert not any(seen)
    assert gc.isenabled()


def test_a_share_that_the_process_does_not_have_is_no_measurement() -> None:
    made = _measure(
        change=lambda job: replace(job, share=Share(Mechanism.CORES, cores=(8190,)), slice="1%")
    )
    assert made.outcome is Outcome.REFUSED
    assert "does not hold" in made.error


# What goes wrong.


def _failing(error: BaseException, place: str = "run") -> Measurement:
    clock = FakeClock()
    runtime = FakeRuntime(clock)

    def fail(*_: object) -> None:
        raise error

    owner = runtime if place in ("load", "open") else runtime.session
    setattr(owner, place, fail)
    made = measure_here(make_job(profile=True), clock=clock, runtime=runtime, meters=[])
    if place not in ("load", "open"):
        assert runtime.session.closed == 1 or place == "close"
    return made


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize("place", ["load", "open", "run"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MeasureError("no kernel for Foo"), Outcome.REFUSED),
        (ModelError("no such file"), Outcome.REFUSED),
        (MemoryError(), Outcome.OUT_OF_MEMORY),
        (OutOfMemoryError("CUDA"), Outcome.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Outcome.OUT_OF_MEMORY),
        (RuntimeError("bad\n  shape"), Outcome.CRASHED),
    ],
)
def test_a_failure_is_an_outcome_and_its_text_one_line(
    place: str, error: Exception, outcome: Outcome
) -> None:
    made = _failing(error, place)
    assert made.outcome is outcome
    assert made.error
    assert "\n" not in made.error
    assert made.latency_ms is None
    assert made.digest == "0" * 64


@pytest.mark.parametrize("error", [UsageError("no such option"), KeyboardInterrupt()])
def test_mistakes_of_the_user_and_interrupts_are_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        _failing(error)
    assert gc.isenabled()


def test_failing_to_profile_or_to_close_is_a_note() -> None:
    made = _failing(MeasureError("no profiler"), "profile")
    assert (made.outcome, _codes(made) >= {"profile-missing"}) == (Outcome.OK, True)
    made = _failing(RuntimeError("busy"), "close")
    assert (made.outcome, _codes(made) >= {"close-failed"}) == (Outcome.OK, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "gpu:0"}, "does not run on device 'gpu:0'; it runs on cpu"),
        ({"form": "torch"}, "comes as torch; it takes onnx"),
        ({"runtime": "onnxruntim"}, "did you mean onnxruntime"),
    ],
)
def test_a_job_that_the_runtime_cannot_take_is_refused(
    change: dict[str, str], message: str
) -> None:
    job, clock = make_job(), FakeClock()
    if "form" in change:
        job = replace(job, subject=replace(job.subject, **change))  # type: ignore[arg-type]
    else:
        job = replace(job, **change)  # type: ignore[arg-type]
    runtime = None if "runtime" in change else FakeRuntime(clock)
    with pytest.raises(UsageError, match=message):
        measure_here(job, clock=clock, runtime=runtime, meters=[])


def test_inputs_without_values_are_refused_as_an_outcome() -> None:
    job = make_job()
    job = replace(job, subject=replace(job.subject, inputs=(InputSpec("s", (1,), DType.STRING),)))
    made = measure_here(job, meters=[])
    assert made.outcome is Outcome.REFUSED
    assert "input 's' is of type string" in made.error


# For real.


def test_the_null_runtime_is_measured_with_a_real_clock() -> None:
    made = measure_here(make_job(profile=False))
    assert made.outcome is Outcome.OK
    assert made.latency_ms is not None
    assert made.latency_ms.value > 0
    assert made.memory is not None
    assert made.memory.peak_bytes >= made.memory.runtime_bytes > 0
    assert made.utilisation is not None
    assert made.seconds > 0


def test_the_harness_reads_the_clock_twice_for_a_sample() -> None:
    reads = 0
    clock = FakeClock(lambda _: 2e-5)

    def counting() -> float:
        nonlocal reads
        reads += 1
        return clock()

    protocol = replace(QUICK, min_samples=40, max_samples=40)
    made = take_samples(
        Stopwatch(clock.run, counting), protocol, runs_per_sample=50, has_time=lambda: True
    )
    assert len(made.samples_ms) == 40
    assert reads == 80
    assert made.runs == 40 * 50


def test_a_measurement_that_begins_has_only_conditions() -> None:
    made = begin_measurement(make_job())
    assert made.model == "m"
    assert not made.samples_ms
    assert made.environment == Environment()
    assert FakeSession.notes[0] not in made.notes
