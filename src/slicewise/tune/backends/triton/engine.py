"""The engine `triton`: finds for a model's operators the configuration of a Triton kernel that is
fastest on the share. It tunes operators; no model is run.

Clients compile for the device's compute capability, without touching the device, into a cache in
the run's folder; a server, in a process that is bound to its share, loads from there, checks the
result against torch and times it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slicewise.core.crew import Tell
from slicewise.core.errors import MissingDependency, TuningError, UsageError
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.processes import run_command
from slicewise.core.tuning import (
    Artifact,
    Building,
    Built,
    Prepared,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
    Tuned,
    TuneTask,
)
from slicewise.tune.backends.triton import launch
from slicewise.tune.backends.triton.artefact import write_artefact
from slicewise.tune.backends.triton.operations import BYTES, TOLERANCE, Operation
from slicewise.tune.backends.triton.plans import Config, make_plan, read_config, write_config
from slicewise.tune.backends.triton.reading import read_operations
from slicewise.tune.backends.triton.search import choose
from slicewise.tune.backends.triton.spaces import Target, default_config
from slicewise.tune.backends.triton.timing import Clock, CudaClock, clock_for, sample, summarise

_OPTIONS = ("precision", "capability")
_CACHE = "triton-cache"
_CHECK_S = 180.0
_CHECK = "from slicewise.tune.backends.triton.selfcheck import main; main()"
# Triton's first 8-bit capability with matrix units that its compiler still serves.
_LEAST_CAPABILITY = 75


@dataclass(frozen=True, slots=True)
class TritonProblem:
    """What clients and servers are made from: operations by the key of their workload, what is
    compiled for, and where. `is_interpreted`: no device, Triton's interpreter and a formula."""

    operations: Mapping[str, str]
    capability: int
    sms: int
    device_index: int
    cache: Path
    seed: int
    is_interpreted: bool = False

    @property
    def target(self) -> Target:
        """What is compiled for."""
        return Target(self.capability, self.sms)

    def operation(self, key: str) -> Operation:
        """Return the operation of a workload; `TuningError` if it is none of this problem."""
        if key not in self.operations:
            raise TuningError(f"workload {key[:12]!r} is none of this run's; prepare it anew")
        return Operation.parse(self.operations[key])


@dataclass(frozen=True, slots=True)
class TritonEngine:
    """The engine. `is_interpreted` is for tests without a GPU: kernels are run by Triton's
    interpreter for their results, and a formula stands in for the device's time."""

    is_interpreted: bool = False
    name: str = "triton"
    places: frozenset[str] = frozenset({"gpu"})
    piece_size: int = 16

    def check(self) -> tuple[Note, ...]:
        """Compile a kernel and interpret another in a process of its own.

        `MissingDependency` without torch or Triton; `TuningError` where that process fails.
        """
        triton_version()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CHECK], capture_output=True, text=True,
                timeout=_CHECK_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as err:
            raise TuningError(
                f"Triton did not compile a small kernel within {_CHECK_S:g} s; is the machine"
                " overloaded? try again, or another --engine"
            ) from err
        if done.returncode != 0:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            last = said[-1][:300] if said else f"exit status {done.returncode}"
            raise TuningError(
                f"Triton {triton_version()} does not compile a small kernel here: {last};"
                " install another version, or use another --engine"
            )
        return ()

    def prepare(self, task: TuneTask) -> Prepared:
        """Return the operators that kernels exist for, and what workers need to know.

        Options: `precision` (fp32, tf32, fp16, bf16; the task's unless given) and `capability`
        (as 90; asked of the driver unless given).
        """
        for name in task.options:
            if name not in _OPTIONS:
                known = ", ".join(_OPTIONS)
                hint = did_you_mean(name, _OPTIONS)
                raise UsageError(f"engine triton has no option {name!r}; it has {known}{hint}")
        precision = _precision(task.options.get("precision", task.precision))
        index = _device_index(task.place)
        capability = self._capability(task.options.get("capability"), index)
        reading = read_operations(task.graph, task.node_ms, precision)
        if not reading.workloads:
            raise TuningError(
                f"model {task.subject.name!r} has no operator that a Triton kernel exists for"
                " (products, convolutions, softmax, norms, attention); use another --engine"
            )
        problem = TritonProblem(
            operations={key: op.text for key, op in reading.operations.items()},
            capability=capability,
            sms=task.device.compute_units,
            device_index=index,
            cache=task.folder / _CACHE,
            seed=task.seed,
            is_interpreted=self.is_interpreted,
        )
        workloads = tuple(
            replace(
                each,
                default_config=write_config(
                    default_config(reading.operations[each.key], problem.target)
                ),
            )
            for each in reading.workloads
        )
        told = f"triton {triton_version()} sm_{capability}"
        return Prepared(self.name, told, workloads, problem, reading.notes)

    def _capability(self, asked: str | None, index: int) -> int:
        """Return the compute capability as a whole number, without making a CUDA context here."""
        if asked is None and self.is_interpreted:
            return 90
        text = _ask_capability(index) if asked is None else asked.replace(".", "")
        if not text.isdigit() or int(text) < _LEAST_CAPABILITY:
            what = "the driver tells" if asked is None else "option capability is"
            raise UsageError(
                f"{what} compute capability {asked or text or 'none'}; Triton compiles for 7.5 and"
                " later; give option capability=90 for 9.0"
            )
        return int(text)

    def client(self, problem: object) -> "TritonClient":
        """Return a client."""
        assert isinstance(problem, TritonProblem)
        return TritonClient(problem)

    def server(self, problem: object) -> "TritonServer":
        """Return a server; it runs on the current context and stream."""
        assert isinstance(problem, TritonProblem)
        return TritonServer(problem)

    def finish(self, task: TuneTask, prepared: Prepared, best: Mapping[str, Tuned]) -> Artifact:
        """Write a folder with the kernels, the best configurations and what runs them."""
        problem = prepared.problem
        assert isinstance(problem, TritonProblem)
        rows = []
        for workload in prepared.workloads:
            tuned = best.get(workload.key)
            rows.append(
                {
                    "name": workload.name,
                    "count": workload.count,
                    "operation": problem.operations[workload.key],
                    "config": workload.default_config if tuned is None else tuned.config,
                    "is_tuned": tuned is not None,
                    "latency_ms": None if tuned is None else tuned.latency_ms.value,
                }
            )
        path = write_artefact(
            task.folder / "tuned-kernels",
            rows,
            version=prepared.version,
            device=task.device.name,
            slice_name=task.slice,
        )
        tolerance = max(TOLERANCE[problem.operation(key).precision] for key in problem.operations)
        return Artifact(
            path=path,
            tolerance=tolerance,
            how_to_run=f"python {path / 'run.py'}",
            notes=(
                Note(
                    "operators-only",
                    "Triton kernels are tuned one by one; call them from your own program with"
                    f" the configurations in {path.name}/configs.json",
                ),
            ),
        )


class TritonClient:
    """Searches by the order alone and compiles."""

    def __init__(self, problem: TritonProblem) -> None:
        """Load nothing yet."""
        self._problem = problem

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        """Return the next candidates of the order's workload, compiled."""
        key = order.piece.workload
        op = self._problem.operation(key)
        began = time.perf_counter()
        chosen = choose(op, self._problem.target, order)
        search_s = time.perf_counter() - began
        built: list[Built] = []
        failed: list[Trial] = []
        for text in chosen.configs:
            tell(Building(key, text))
            start = time.perf_counter()
            outcome, error = self._build(op, text)
            spent = time.perf_counter() - start
            if outcome is TrialOutcome.OK:
                built.append(Built(key, text, build_s=spent))
            else:
                failed.append(Trial(key, text, outcome, error=error, build_s=spent))
        return Proposal(
            order.piece,
            tuple(built),
            tuple(failed),
            is_exhausted=chosen.is_last,
            search_s=search_s,
            build_s=time.perf_counter() - began - search_s,
        )

    def _build(self, op: Operation, text: str) -> tuple[TrialOutcome, str]:
        """Return what became of it; the compiled kernel is in the cache."""
        try:
            config = read_config(op.kind, text)
        except ValueError as err:
            return TrialOutcome.BUILD_FAILED, str(err)
        if self._problem.is_interpreted:
            return TrialOutcome.OK, ""
        limit = self._problem.target.shared_bytes
        try:
            compiled = _compile(self._problem, op, config)
        except Exception as err:  # whatever the compiler raises is a candidate that failed
            return TrialOutcome.BUILD_FAILED, _first_line(err)
        if compiled.metadata.shared > limit:
            told = f"it needs {compiled.metadata.shared} bytes of shared memory, {limit} exist"
            return TrialOutcome.REFUSED, told
        return TrialOutcome.OK, ""


class TritonServer:
    """Runs candidates in the current CUDA context, on the current stream."""

    def __init__(self, problem: TritonProblem) -> None:
        """Take nothing of the device yet."""
        self._problem = problem
        self._cuda: Clock | None = None
        self._held: tuple[str, dict[str, Any], Any] | None = None

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        """Return a trial for each candidate."""
        trials: list[Trial] = []
        for each in built:
            tell(Building(each.workload, each.config))
            start = time.perf_counter()
            trial = self._measure(each, sampling)
            spent = time.perf_counter() - start
            trials.append(replace(trial, build_s=each.build_s, measure_s=spent))
        return tuple(trials)

    def _measure(self, built: Built, sampling: Sampling) -> Trial:
        failed = Trial(built.workload, built.config, TrialOutcome.REFUSED)
        op = self._problem.operation(built.workload)
        try:
            config = read_config(op.kind, built.config)
            with self._device():
                tensors, expected = self._tensors(built.workload, op)
                start = self._bind(op, config, tensors)
                tensors["out"].fill_(float("nan"))
                start()
                off = launch.difference(op, expected, tensors["out"])
                if off > TOLERANCE[op.precision]:
                    told = f"it is off by {off:.3g} of the largest output"
                    return replace(failed, outcome=TrialOutcome.WRONG, error=told)
                clock = clock_for(op, config, sms=self._problem.sms, cuda=self._cuda)
                samples = sample(start, clock, sampling)
        except Exception as err:  # of the driver, torch or Triton: it does not run here
            if _is_fatal(err):
                # every later call would fail as well: a new process takes what is left
                raise SystemExit(f"the CUDA context is lost: {_first_line(err)}") from err
            return replace(failed, error=_first_line(err))
        return replace(
            failed,
            outcome=TrialOutcome.OK,
            latency_ms=summarise(samples),
            samples_ms=tuple(samples),
        )

    @contextmanager
    def _device(self) -> Iterator[None]:
        if self._problem.is_interpreted:
            yield
            return
        import torch

        # a process that is bound by MPS or to a MIG instance sees one device only
        index = min(self._problem.device_index, torch.cuda.device_count() - 1)
        with torch.cuda.device(index):
            if self._cuda is None:
                self._cuda = CudaClock()
            yield

    def _tensors(self, key: str, op: Operation) -> tuple[dict[str, Any], Any]:
        """Return inputs and the expected output; those of one workload are kept."""
        if self._held is None or self._held[0] != key:
            self._held = None  # memory of the one before is free for this one
            where = "cpu" if self._problem.is_interpreted else "cuda"
            tensors = launch.make_tensors(op, device=where, seed=self._problem.seed)
            self._held = key, tensors, launch.reference(op, tensors)
        return self._held[1], self._held[2]

    def _bind(self, op: Operation, config: Config, tensors: Mapping[str, Any]) -> Any:
        plan = make_plan(op, config)
        if self._problem.is_interpreted:
            return launch.bind_interpreted(op, plan, tensors)
        compiled = _compile(self._problem, op, config)
        return launch.bind_compiled(compiled, plan, tensors)


def _compile(problem: TritonProblem, op: Operation, config: Config) -> Any:
    plan = make_plan(op, config)
    return launch.compile_plan(op, plan, capability=problem.capability, cache=problem.cache)


def triton_version() -> str:
    """Return the version of Triton; `MissingDependency` without it or torch."""
    for package in ("torch", "triton"):
        try:
            found = version(package)
        except PackageNotFoundError as err:
            raise MissingDependency("engine triton", package=package, extra="triton") from err
    return found


def _precision(name: str) -> str | None:
    """Return what kernels are tuned in; None: what each tensor of the model is stored in."""
    if name == "fp32":
        return None
    # products are what is tuned, and autocast runs them in fp16
    found = "fp16" if name == "amp" else name
    if found not in BYTES:
        known = ", ".join((*BYTES, "amp"))
        raise UsageError(f"engine triton has no kernels in precision {name!r}; it has {known}")
    return found


def _device_index(place: str) -> int:
    kind, _, number = place.partition(":")
    if kind != "gpu" or not number.isdigit():
        raise UsageError(f"engine triton tunes for a GPU, not for {place!r}; use --device gpu:0")
    return int(number)


def _ask_capability(index: int) -> str:
    told = run_command(
        ["nvidia-smi", f"--id={index}", "--query-gpu=compute_cap", "--format=csv,noheader"]
    )
    return told.strip().replace(".", "")


def _first_line(err: BaseException) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return f"{type(err).__name__}: {lines[0] if lines else 'no text'}"[:300]


def _is_fatal(err: BaseException) -> bool:
    """True if the CUDA context is lost with this error: the process must be replaced."""
    told = str(err).lower()
    return any(word in told for word in _FATAL)


# Errors after which every call in the context fails (CUDA driver API, CUresult).
_FATAL = (
    "illegal memory access", "illegal instruction", "launch failure", "misaligned address",
    "hardware stack error", "illegal address", "device-side assert", "launch timed out",
)  # fmt: skip

ENGINE = TritonEngine()
