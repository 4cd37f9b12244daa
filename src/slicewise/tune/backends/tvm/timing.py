"""Candidates run and timed, and what they compute compared with the untuned operator's."""

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Estimate
from slicewise.core.crew import Tell
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.tuning import Building, Built, Trial, TrialOutcome
from slicewise.tune.backends.tvm.build import build_library, first_line, open_library
from slicewise.tune.backends.tvm.imports import import_tvm_alone, set_threads
from slicewise.tune.backends.tvm.problem import TvmProblem
from slicewise.tune.backends.tvm.trace import DEFAULT_CONFIG, schedule_of

# A sample is the mean of as many runs as fill this: the clock and the call cost microseconds.
SAMPLE_S = 0.01
_MOST_RUNS = 100_000
# Greatest difference from the untuned operator, relative to its largest result. Sums are taken in
# another order: of some thousand terms that is below 1e-4 in fp32.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-6}
_ENTRY = "main"
_Array = NDArray[Any]


@dataclass(slots=True)
class _Arguments:
    """The arguments of an operator, the same for all of its candidates, and what it makes of them.

    `expected` holds the results of the untuned operator by their place among the arguments.
    """

    tensors: list[Any]
    expected: dict[int, _Array] = field(default_factory=dict)


@dataclass(slots=True)
class TvmServer:
    """Runs candidates; see the protocol.

    An operator's arguments are allocated once, and it is run untuned once to know its results.
    """

    problem: TvmProblem
    _arguments: dict[str, _Arguments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_threads(self.problem.threads)
        import_tvm_alone()

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        """Return a trial for each candidate, in order; see the protocol."""
        trials = []
        for each in built:
            tell(Building(each.workload, each.config))
            trials.append(self._measure(each, sampling))
        return tuple(trials)

    def _measure(self, built: Built, sampling: Sampling) -> Trial:
        start = time.perf_counter()
        samples: tuple[float, ...] = ()
        outcome, error = TrialOutcome.OK, ""
        try:
            library = self._open(built)
            arguments, once_s = self._prepared(built, library)
            if once_s is None:
                once_s, error = _compare(library, arguments)
            if error:
                outcome = TrialOutcome.WRONG
            else:
                samples = sample_ms(library, arguments.tensors, sampling, once_s=once_s)
        except Exception as err:  # of TVM: it does not load, or refuses its arguments
            outcome, error = TrialOutcome.REFUSED, first_line(err)
        return Trial(
            built.workload,
            built.config,
            outcome,
            summarise(samples) if samples else None,
            samples_ms=samples,
            error=error,
            build_s=built.build_s,
            measure_s=time.perf_counter() - start,
        )

    def _open(self, built: Built) -> Any:
        """Return the library of a candidate, built here if only its configuration came."""
        # a folder of its own: the system takes a second library of the same name for the first
        with tempfile.TemporaryDirectory(prefix="slicewise-tvm-") as folder:
            path = Path(folder) / "kernel.so"
            if built.artifact:
                path.write_bytes(built.artifact)
            else:
                schedule = schedule_of(self.problem.load_module(built.workload), built.config)
                build_library(schedule.mod, self.problem.make_target(), path)
            return open_library(path)

    def _prepared(self, built: Built, library: Any) -> tuple[_Arguments, float | None]:
        """Return the arguments of an operator, made and run untuned on first use.

        The second is the time of that run in s where it was one of `library`.
        """
        found = self._arguments.get(built.workload)
        if found is not None:
            return found, None
        found = _Arguments(_allocate(self.problem.load_module(built.workload)))
        before = [tensor.numpy() for tensor in found.tensors]
        is_default = built.config == DEFAULT_CONFIG
        untuned = library if is_default else self._open(Built(built.workload, DEFAULT_CONFIG))
        once_s = _run(untuned, found.tensors)
        for place, tensor in enumerate(found.tensors):
            after = tensor.numpy()
            if not np.array_equal(before[place], after, equal_nan=after.dtype.kind == "f"):
                found.expected[place] = after
        self._arguments[built.workload] = found
        return found, once_s if is_default else None


def _run(library: Any, tensors: Sequence[Any]) -> float:
    """Run once and return the time in s."""
    start = time.perf_counter()
    library[_ENTRY](*tensors)
    return time.perf_counter() - start


def _compare(library: Any, arguments: _Arguments) -> tuple[float, str]:
    """Run once; return the time in s and how results differ from the untuned operator's, '' if
    they do not."""
    for place, expected in arguments.expected.items():
        arguments.tensors[place].copyfrom(_unlike(expected))
    once_s = _run(library, arguments.tensors)
    for place, expected in arguments.expected.items():
        difference = relative_difference(expected, arguments.tensors[place].numpy())
        allowed = _TOLERANCE.get(str(expected.dtype), 0.0)
        if not difference <= allowed:
            error = (
                f"result {place} differs from the untuned operator's by {difference:.2g} of its"
                f" largest value; {allowed:g} is allowed"
            )
            return once_s, error
    return once_s, ""


def _allocate(module: Any) -> list[Any]:
    """Return tensors for the arguments of a module, filled by a fixed seed.

    Floats from 0.5 to 1.5, so that roots and quotients of them are finite; whole numbers 0 or 1,
    which are places in any table.
    """
    from tvm.runtime import tensor
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    draw = np.random.default_rng(0)
    made = []
    for info in ArgInfo.from_entry_func(module):
        shape, kind = tuple(int(size) for size in info.shape), str(info.dtype)
        values: _Array = draw.uniform(0.5, 1.5, shape)
        if not kind.startswith(("float", "bfloat")):
            values = draw.integers(0, 2, shape)
        if kind == "bfloat16":
            import ml_dtypes

            made.append(tensor(values.astype(ml_dtypes.bfloat16)))
        else:
            made.append(tensor(values.astype(kind)))
    return made


def _unlike(expected: _Array) -> _Array:
    """Return values that are not the expected ones, to lie where the results will."""
    if expected.dtype == np.bool_:
        return np.logical_not(expected)
    return (expected + np.ones((), expected.dtype)).astype(expected.dtype)


def relative_difference(expected: _Array, found: _Array) -> float:
    """Return the greatest difference relative to the largest expected magnitude; infinite where
    what is not finite differs.

    >>> relative_difference(np.array([1.0, 4.0]), np.array([1.0, 3.0]))
    0.25
    """
    one, other = expected.astype(np.float64), found.astype(np.float64)
    is_finite = np.isfinite(one)
    if not np.array_equal(is_finite, np.isfinite(other)):
        return math.inf
    largest = float(np.max(np.abs(one), initial=0.0, where=is_finite))
    greatest = float(np.max(np.abs(one - other), initial=0.0, where=is_finite))
    return greatest / largest if largest > 0 else (math.inf if greatest > 0 else 0.0)


def sample_ms(
    library: Any, tensors: Sequence[Any], sampling: Sampling, *, once_s: float
) -> tuple[float, ...]:
    """Return latencies in ms, each the mean of runs that fill `SAMPLE_S` together.

    As `sampling` says; `once_s` is the time of the run before, the first to warm up. Runs of
    microseconds are timed by TVM's own loop (`time_evaluator`), which runs once more before each
    row of samples. MetaSchedule itself takes one mean of at least 0.1 s.
    """
    once_s = _warmed_up(library, tensors, sampling, once_s)
    number = min(_MOST_RUNS, max(1, math.ceil(SAMPLE_S / max(once_s, 1e-9))))
    least = min(sampling.min_samples, max(3, int(sampling.budget_s / (once_s * number))))
    samples: list[float] = []
    end = time.perf_counter() + sampling.budget_s
    missing = least
    while missing > 0:
        samples += [each * 1e3 for each in _row(library, tensors, number, missing)]
        if time.perf_counter() >= end or _is_narrow(samples, sampling.relative_width):
            break
        missing = min(least, sampling.max_samples - len(samples))
    return tuple(samples)


def _row(library: Any, tensors: Sequence[Any], number: int, repeat: int) -> Sequence[float]:
    """Return `repeat` times in s, each the mean of `number` runs."""
    if number == 1:
        return [_run(library, tensors) for _ in range(repeat)]
    from tvm.runtime import cpu

    timed = library.time_evaluator(_ENTRY, cpu(), number=number, repeat=repeat)
    return [float(seconds) for seconds in timed(*tensors).results]


def _warmed_up(library: Any, tensors: Sequence[Any], sampling: Sampling, once_s: float) -> float:
    """Run until warm and return the time of the last run in s; `once_s` is that of the first."""
    runs, spent_s, last_s = 1, once_s, once_s
    while runs < sampling.warmup_runs or spent_s < min(sampling.warmup_s, sampling.budget_s):
        last_s = _run(library, tensors)
        runs, spent_s = runs + 1, spent_s + last_s
    return last_s


def _is_narrow(samples: Sequence[float], relative_width: float) -> bool:
    estimate = summarise(samples)
    return estimate.high - estimate.low <= relative_width * estimate.value


def summarise(samples: Sequence[float]) -> Estimate:
    """Return the median of `samples` with its 90 % interval by order statistics.

    The ranks are those of the normal approximation of the binomial, n/2 -+ 1.645 sqrt(n)/2 (David
    and Nagaraja, Order Statistics, 3rd ed., sec. 7.1); with few samples the least and greatest.

    >>> summarise([1.0, 1.2, 1.1])
    Estimate(value=1.1, low=1.0, high=1.2, source='measured')
    """
    row = sorted(samples)
    count = len(row)
    rank = max(0, math.floor(count / 2 - 1.645 * math.sqrt(count) / 2))
    return Estimate(
        statistics.median(row), low=row[rank], high=row[count - 1 - rank], source="measured"
    )
