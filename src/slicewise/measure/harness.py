"""Takes one measurement in this process: load, open, warm up, sample, meter, profile.

No process is bound, limited or isolated here: that is done by who calls, `measure/child.py` for
one. Here the job's share is only entered, where it is one of a context, verified and watched.
What it costs: two readings of a clock for each sample of at least 1 ms, and nothing inside a run.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from slicewise.core.errors import (
    MeasureError,
    ModelError,
    SlicewiseError,
    UsageError,
    tells_no_memory,
)
from slicewise.core.measurement import Environment, Job, Measurement, NodeTime, Outcome
from slicewise.core.notes import Note, unique_notes
from slicewise.measure import quiet
from slicewise.measure.inputs import make_values
from slicewise.measure.meters._base import Meter, MeterSet, Reading, Scope, meters_for
from slicewise.measure.meters.energy import WINDOW_S
from slicewise.measure.meters.memory import release_freed_memory
from slicewise.measure.meters.nvml import NvmlMissing, open_nvml
from slicewise.measure.runtimes._base import Runtime, Session, Setup, load_runtime
from slicewise.measure.sampling import Clock, Samples, Stopwatch, take_samples, warm_up
from slicewise.measure.shares._base import (
    entered_share,
    inner_device,
    verify_share,
    watch_share,
)
from slicewise.measure.statistics import summarise

Report = Callable[[str, Measurement], None]
_Figure = TypeVar("_Figure")

# The rest of the time limit is for what comes after the samples.
_SAMPLING_PART = 0.9
_PROFILE_S = 1.0
_PROFILE_RUNS = (3, 20)  # at least, at most


class _OutOfTime(Exception):
    """The time limit passed before there was a sample."""


def measure_here(
    job: Job,
    *,
    clock: Clock = time.perf_counter,
    runtime: Runtime | None = None,
    meters: Sequence[Meter] | None = None,
    notes: tuple[Note, ...] = (),
    patience_s: float = 0.0,
    report: Report | None = None,
) -> Measurement:
    """Return the measurement of `job`, taken in this process as it is bound now.

    `runtime` and `meters` replace those that the job's runtime and device mean; `clock` gives
    seconds. `notes` are those of the binding. For at most `patience_s` it is waited until the
    cores are ours. `report` is told each step as it begins, with the measurement so far.

    A failure is an outcome: `refused` where the runtime does not run the model or the model
    cannot be opened, or the process lacks the job's share (`MeasureError`, `ModelError`),
    `out of memory`, `timed out` without a single sample, `crashed` for any other error of the
    framework. `UsageError` and `DeviceError` are raised: no measurement can come of that job.
    """
    take = _Take(job, clock=clock, meters=meters, notes=notes, report=report)
    try:
        take.prepare(runtime, patience_s=patience_s)
        take.measure()
    except (MeasureError, ModelError) as err:
        take.fail(Outcome.REFUSED, str(err))
    except _OutOfTime as err:
        take.fail(Outcome.TIMED_OUT, str(err))
    except SlicewiseError:
        raise
    except Exception as err:
        text = f"{type(err).__name__}: {_one_line(str(err))}"
        out = isinstance(err, MemoryError) or tells_no_memory(text)
        take.fail(Outcome.OUT_OF_MEMORY if out else Outcome.CRASHED, text)
    finally:
        take.close()
    return take.so_far


def begin_measurement(job: Job, *, notes: tuple[Note, ...] = ()) -> Measurement:
    """Return what is known of a measurement before anything ran: its conditions."""
    subject = job.subject
    return Measurement(
        model=subject.name,
        location=subject.location,
        digest=subject.digest,
        device=job.device_name,
        slice=job.slice,
        runtime=job.runtime,
        batch=job.batch,
        precision=job.precision,
        threads=job.threads or 0,
        device_digest=job.device_digest,
        mechanism=job.share.mechanism.value if job.share else None,
        options=dict(job.options),
        protocol=job.protocol,
        binding=subject.binding,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        notes=unique_notes((*subject.notes, *notes)),
    )


@dataclass(slots=True)
class _Deadline:
    """When sampling has to end, on the clock of the measurement."""

    clock: Clock
    end: float

    def has_time(self) -> bool:
        return self.clock() < self.end


class _Take:
    """A measurement on its way; `so_far` is what there is of it."""

    def __init__(
        self,
        job: Job,
        *,
        clock: Clock,
        meters: Sequence[Meter] | None,
        notes: tuple[Note, ...],
        report: Report | None,
    ) -> None:
        self.job = job
        self._clock = clock
        self._cores = quiet.bound_cores()
        threads = job.threads or len(self._cores)
        self.so_far = replace(begin_measurement(job, notes=notes), threads=threads)
        if meters is None:
            meters = meters_for(Scope(inner_device(job), self._cores))
        self._meters = MeterSet(meters)
        self._report = report
        self._session: Session | None = None
        self._share = ExitStack()
        now = clock()
        self._deadline = _Deadline(clock, now + _SAMPLING_PART * job.protocol.time_limit_s)
        self._began = time.monotonic()

    def prepare(self, runtime: Runtime | None, *, patience_s: float) -> None:
        """Look whether the cores are ours, load the runtime, open the model."""
        job = self.job
        self._step("looking at the machine")
        self._deadline.end += patience_s
        share = quiet.wait_for_quiet(self._cores, patience_s=patience_s)
        environment = quiet.look_around(self._cores, share=share)
        self._step(f"loading {job.runtime}")
        chosen = runtime or load_runtime(job.runtime)
        _check_match(job, chosen)
        packages = dict(chosen.load())
        self._keep(environment=_with_gpu(replace(environment, packages=packages), job))
        self._meters.loaded()
        self._step("opening the model")
        values = make_values(job.subject.inputs, seed=job.seed)
        self._note(*self._share.enter_context(entered_share(job)))
        setup = Setup(inner_device(job), self.so_far.threads, job.precision, job.options)
        self._session = chosen.open(job.subject, values, setup)
        self._note(*self._session.notes, *verify_share(job))

    def measure(self) -> None:
        """Warm up, sample between the meters, then profile where the job asks for it."""
        session = self._session
        assert session is not None
        watch = Stopwatch(session.run, self._clock)
        gc.collect()
        release_freed_memory()
        self._step("warming up")
        with _collection_held_off():
            warm = warm_up(watch, self.job.protocol, has_time=self._deadline.has_time)
            self._note(*warm.notes)
            self._require_time(watch, "warming up")
            self._step("sampling")
            end_watch = watch_share(self.job)
            made, reading, runs, waited = self._sample(session, watch, warm.runs_per_sample)
            self._note(*end_watch())
        self._require_samples(made, watch)
        self._keep_samples(made)
        self._keep_reading(reading, runs=runs)
        self._keep_surroundings(waited)
        if self.job.profile:
            self._profile(session)

    def _sample(
        self, session: Session, watch: Stopwatch, runs_per_sample: int
    ) -> tuple[Samples, Reading, int, float | None]:
        """Return samples, what the meters saw meanwhile, over how many runs, and the waiting."""
        before, begin = quiet.run_delays(), time.perf_counter()
        self._meters.start()
        made = take_samples(
            watch,
            self.job.protocol,
            runs_per_sample=runs_per_sample,
            has_time=self._deadline.has_time,
        )
        seconds, after = time.perf_counter() - begin, quiet.run_delays()
        waited = quiet.waited_part(before, after, seconds=seconds, cores=len(self._cores))
        runs = made.runs + self._fill_window(session, made)
        return made, self._meters.stop(), runs, waited

    def _fill_window(self, session: Session, made: Samples) -> int:
        """Run on, unsampled, where the samples took less time than energy counters need; return
        the number of runs."""
        window_s = WINDOW_S["gpu" if self.job.device.startswith("gpu") else "cpu"]
        if not made.samples_ms or made.seconds >= window_s:
            return 0
        run_s = made.seconds / (len(made.samples_ms) * made.runs_per_sample)
        for done in range(runs := math.ceil((window_s - made.seconds) / run_s)):
            if not self._deadline.has_time():
                return done
            session.run()
        return runs

    def _require_time(self, watch: Stopwatch, step: str) -> None:
        if watch.is_stuck:
            raise _OutOfTime(
                "the clock did not advance over 20 runs, so none could be timed; "
                "it must advance; look at the system's clock source"
            )
        if not self._deadline.has_time():
            limit = self.job.protocol.time_limit_s
            raise _OutOfTime(
                f"no sample was taken: time ran out while {step}; time_limit_s={limit:g} must "
                "cover loading, opening and warming up; raise it or take a smaller batch"
            )

    def _require_samples(self, made: Samples, watch: Stopwatch) -> None:
        if not made.samples_ms:
            self._note(*made.notes)
            self._require_time(watch, "sampling")
            raise _OutOfTime("no sample was taken: the clock went back over each; try again")

    def _keep_samples(self, made: Samples) -> None:
        self._note(*made.notes)
        self._keep(
            latency_ms=summarise(made.samples_ms),
            samples_ms=tuple(made.samples_ms),
            runs_per_sample=made.runs_per_sample,
        )

    def _keep_reading(self, reading: Reading, *, runs: int) -> None:
        self._note(*reading.notes)
        joules = reading.energy_j
        if joules is not None and joules <= 0:
            text = "the energy counter did not tick during the sampling: give a larger budget_s"
            self._note(Note("energy-unmetered", text))
            joules = None
        if joules is not None and self.job.share is not None:
            text = "the counter counts the whole device, whatever the share"
            self._note(Note("energy-whole-device", text))
        self._keep(
            energy_j=None if joules is None else joules / runs,
            memory=reading.memory,
            utilisation=reading.utilisation,
        )

    def _keep_surroundings(self, waited: float | None) -> None:
        environment = replace(self.so_far.environment, waited=waited)
        if not self.job.device.startswith("gpu"):
            environment = replace(environment, clock_hz=quiet.clock_hz(self._cores))
        self._keep(environment=environment)
        share = environment.core_share
        if (share is not None and share < quiet.BUSY_SHARE) or (
            waited is not None and waited > quiet.BUSY_WAITED
        ):
            told = [] if share is None else [f"busy loops got {100 * share:.0f} % of the cores"]
            told += [] if waited is None else [f"runs waited {100 * waited:.0f} % of the time"]
            self._note(Note("machine-busy", "others used the cores: " + ", ".join(told)))

    def _profile(self, session: Session) -> None:
        assert self.so_far.latency_ms is not None
        run_s = max(1e-6, self.so_far.latency_ms.value / 1e3)
        least, most = _PROFILE_RUNS
        self._step("profiling")
        try:
            runs = min(most, max(least, round(_PROFILE_S / run_s)))
            nodes: tuple[NodeTime, ...] = session.profile(runs)
        except Exception as err:  # the samples are there; operators' times are an extra
            text = f"no times of operators: {type(err).__name__}: {_one_line(str(err))}"
            self._note(Note("profile-missing", text))
            return
        self._keep(nodes=nodes)

    def fail(self, outcome: Outcome, error: str) -> None:
        """Make it a measurement that failed."""
        self._keep(outcome=outcome, error=error)

    def close(self) -> None:
        """Free the session and state how long all took; an error on the way out is a Note."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except Exception as err:
                text = f"the session did not close: {type(err).__name__}: {_one_line(str(err))}"
                self._note(Note("close-failed", text))
        try:
            self._share.close()
        except Exception as err:  # the samples are there
            text = f"the share was not left: {type(err).__name__}: {_one_line(str(err))}"
            self._note(Note("close-failed", text))
        self._keep(seconds=time.monotonic() - self._began)

    def _step(self, name: str) -> None:
        if self._report is not None:
            self._report(name, replace(self.so_far, seconds=time.monotonic() - self._began))

    def _keep(self, **known: object) -> None:
        self.so_far = replace(self.so_far, **known)  # type: ignore[arg-type]

    def _note(self, *notes: Note) -> None:
        self.so_far = replace(self.so_far, notes=unique_notes((*self.so_far.notes, *notes)))


def _check_match(job: Job, runtime: Runtime) -> None:
    kind = job.device.partition(":")[0]
    if kind not in runtime.devices:
        raise UsageError(
            f"runtime {runtime.name} does not run on device {job.device!r}; it runs on "
            f"{', '.join(sorted(runtime.devices))}; choose another"
        )
    if job.subject.form not in runtime.forms:
        raise UsageError(
            f"runtime {runtime.name} does not take {job.subject.name!r}, which comes as "
            f"{job.subject.form}; it takes {', '.join(sorted(runtime.forms))}; choose another"
        )


def _with_gpu(environment: Environment, job: Job) -> Environment:
    """Return the environment with the GPU's name, driver and clock where a GPU is measured.

    What its driver does not tell is left empty: the processor's own would be of another device.
    """
    if not job.device.startswith("gpu"):
        return environment
    nvml = open_nvml(Scope(inner_device(job)).gpu)
    if nvml is None:
        return replace(environment, processor="")
    return replace(
        environment,
        processor=_told(nvml.name) or "",
        driver=_told(nvml.driver) or "",
        clock_hz=_told(nvml.clock_hz),
    )


def _told(ask: Callable[[], _Figure]) -> _Figure | None:
    try:
        return ask()
    except NvmlMissing:
        return None


@contextmanager
def _collection_held_off() -> Iterator[None]:
    """Keep Python's garbage collector from running meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
