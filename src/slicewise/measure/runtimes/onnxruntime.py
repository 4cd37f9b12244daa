"""onnxruntime: runs an ONNX file on the CPU, or on a GPU where the provider for CUDA is there.

Inputs and outputs stay bound to the same memory from run to run. The file is run in the precision
that it has; nothing is converted. With the option `requests` one run is so many inferences at
once, each begun by a thread of its own on the same session.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, MissingDependency, UsageError, tells_no_memory
from slicewise.core.measurement import NodeTime, Subject
from slicewise.core.notes import Note
from slicewise.measure.runtimes._base import Runtime, Session, Setup
from slicewise.measure.runtimes.onnx_file import precisions_of
from slicewise.measure.runtimes.refusals import mapped
from slicewise.measure.runtimes.settings import (
    first_line,
    gpu_index,
    read_options,
    read_requests,
    refuse_precision,
    requests_note,
)

_NAME = "onnxruntime"
# The first value is what onnxruntime itself has as default.
_OPTIONS: Mapping[str, Sequence[str]] = {
    "spinning": ("1", "0"),
    "graph_level": ("all", "extended", "basic", "disable"),
    "execution": ("sequential", "parallel"),
    "arena": ("1", "0"),
    "requests": (),
}
_PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_NUMPY_TYPES: Mapping[str, type] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16,
    "tensor(int8)": np.int8, "tensor(uint64)": np.uint64, "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16, "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_,
}  # fmt: skip
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
# Runs of a profiling session that are not counted: memory is planned and caches are cold in them.
_UNCOUNTED = 2


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """The runtime `onnxruntime`."""

    name: str = _NAME
    forms: frozenset[str] = frozenset({"onnx"})
    devices: frozenset[str] = frozenset({"cpu", "gpu"})

    def load(self) -> Mapping[str, str]:
        """Import onnxruntime and return its version."""
        try:
            import onnxruntime
        except ImportError as err:
            raise MissingDependency("measuring ONNX files", package=_NAME, extra=None) from err
        return {_NAME: str(onnxruntime.__version__)}

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> Session:
        """Return a session on the file of `subject`; see the protocol."""
        self.load()
        options = read_options(_NAME, setup.options, allowed=_OPTIONS)
        gpu = gpu_index(setup.device)
        path = str(subject.open())
        _refuse_other_precision(path, setup.precision)
        requests = read_requests(_NAME, options, threads=setup.threads)
        with mapped(lambda err: _refuse(err, subject.name)):
            # those who ask work too, so that together they are as many threads as given
            opened = _Opened(path, options, setup.threads - requests + 1, gpu)
            session = opened.session()
            bound, notes = _bound(session, subject, values, gpu)
            others = [_bound(session, subject, values, gpu)[0] for _ in range(1, requests)]
            notes = (*notes, *requests_note(requests))
            return OnnxSession(subject, opened, session, bound, values, notes, _Others.of(others))


def session_settings(threads: int) -> Any:
    """Return the settings that all sessions begin with: `threads` work inside an operator, and
    what goes wrong is told by the error alone."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    # A number given, none chosen by onnxruntime: it then binds no thread to a core, and its
    # threads have the affinity of the process.
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    return settings


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a session is made from; a second one is made for profiling."""

    path: str
    options: Mapping[str, str]
    threads: int
    gpu: int | None

    def session(self, *, profile_prefix: str = "") -> Any:
        """Return an InferenceSession."""
        import onnxruntime

        settings = session_settings(self.threads)
        levels = onnxruntime.GraphOptimizationLevel
        settings.graph_optimization_level = {
            "all": levels.ORT_ENABLE_ALL,
            "extended": levels.ORT_ENABLE_EXTENDED,
            "basic": levels.ORT_ENABLE_BASIC,
            "disable": levels.ORT_DISABLE_ALL,
        }[self.options["graph_level"]]
        if self.options["execution"] == "parallel":
            settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            settings.inter_op_num_threads = self.threads
        settings.enable_cpu_mem_arena = self.options["arena"] == "1"
        spinning = self.options["spinning"]
        settings.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        settings.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        if profile_prefix:
            settings.enable_profiling = True
            settings.profile_file_prefix = profile_prefix
        return onnxruntime.InferenceSession(self.path, settings, providers=self._providers())

    def _providers(self) -> list[Any]:
        import onnxruntime

        if self.gpu is None:
            return ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise MissingDependency(
                "measuring with onnxruntime on a GPU", package="onnxruntime-gpu", extra=None
            )
        return [("CUDAExecutionProvider", {"device_id": self.gpu}), "CPUExecutionProvider"]


@dataclass(slots=True)
class OnnxSession:
    """An open ONNX file with its inputs and outputs bound."""

    subject: Subject
    _opened: _Opened
    _session: Any
    _bound: Any
    _values: Sequence[NDArray[np.generic]]
    notes: tuple[Note, ...] = field(default_factory=tuple)
    _others: "_Others | None" = None

    def run(self) -> None:
        """Run once, or as many times at once as there are requests; see the protocol."""
        try:
            waiting = [] if self._others is None else self._others.begin(self._session)
            self._bound.run(self._session)
            self._bound.binding.synchronize_outputs()
            for each in waiting:
                each.result()
        except Exception as err:
            _refuse(err, self.subject.name)

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        """Run once and return the outputs; see the protocol."""
        self.run()
        with mapped(lambda err: _refuse(err, self.subject.name)):
            made = [value.numpy() for value in self._bound.binding.get_outputs()]
        return tuple(each.astype(np.float32) if each.dtype.kind == "f" else each for each in made)

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        """Return the time of each kernel by onnxruntime's profiler, in a session of its own.

        A kernel made of several nodes has the name and type that onnxruntime gave it.
        `MeasureError` on a GPU, where the profiler times the launch and not the kernel.
        """
        if self._opened.gpu is not None:
            raise MeasureError(
                "the profiler of onnxruntime times launches and not kernels on a GPU; profile on"
                " the cpu, or with runtime torch-eager"
            )
        refusing = mapped(lambda err: _refuse(err, self.subject.name))
        with refusing, tempfile.TemporaryDirectory() as folder:
            session = self._opened.session(profile_prefix=str(Path(folder) / "profile"))
            bound, _ = _bound(session, self.subject, self._values, None, is_warm=False)
            for _ in range(_UNCOUNTED + runs):
                bound.run(session)
            events = json.loads(Path(session.end_profiling()).read_text())
        return _node_times(events, runs)

    def close(self) -> None:
        """Free the session; a second call does nothing."""
        if self._others is not None:
            self._others.pool.shutdown()
        self._bound = self._session = self._others = None


@dataclass(frozen=True, slots=True)
class _Others:
    """The requests beside the first, each with a binding and a thread of its own."""

    bindings: Sequence["_Bound"]
    pool: ThreadPoolExecutor

    @staticmethod
    def of(bindings: Sequence["_Bound"]) -> "_Others | None":
        """Return them; None where there is one request only."""
        if not bindings:
            return None
        return _Others(bindings, ThreadPoolExecutor(len(bindings), thread_name_prefix="request"))

    def begin(self, session: Any) -> list[Future[None]]:
        """Start a run of each; the interpreter's lock is let go while they run."""
        return [self.pool.submit(each.run, session) for each in self.bindings]


# --- inputs and outputs


@dataclass(frozen=True, slots=True)
class _Bound:
    """A binding of inputs and outputs. `fresh` are outputs that get new memory in each run."""

    binding: Any
    fresh: Sequence[str]
    place: str
    number: int

    def run(self, session: Any) -> None:
        """Run once."""
        if self.fresh:
            # else the memory of the run before stays bound, and its shape is checked
            self.binding.clear_binding_outputs()
            for name in self.fresh:
                self.binding.bind_output(name, self.place, self.number)
        session.run_with_iobinding(self.binding)


def _bound(
    session: Any,
    subject: Subject,
    values: Sequence[NDArray[np.generic]],
    gpu: int | None,
    *,
    is_warm: bool = True,
) -> tuple[_Bound, tuple[Note, ...]]:
    """Return the binding of inputs and outputs.

    `is_warm`: run once, so that the outputs go to the memory of that run from then on.
    """
    given = {spec.name: value for spec, value in zip(subject.inputs, values, strict=True)}
    binding = session.io_binding()
    place, number = ("cpu", 0) if gpu is None else ("cuda", gpu)
    for declared in session.get_inputs():
        if declared.name not in given:
            raise MeasureError(
                f"model {subject.name!r} has an input {declared.name!r} for which there is no"
                f" value; there are {', '.join(given) or 'none'}; load the model anew"
            )
        binding.bind_ortvalue_input(
            declared.name, _ort_value(given.pop(declared.name), declared.type, place, number)
        )
    outputs = session.get_outputs()
    for declared in outputs:
        binding.bind_output(declared.name, place, number)
    fresh = tuple(each.name for each in outputs)
    if is_warm:
        session.run_with_iobinding(binding)
        made = binding.get_outputs()
        # memory that is bound has to be of the declared shape, which some files get wrong
        if all(_is_declared(v, each.shape) for v, each in zip(made, outputs, strict=True)):
            binding.clear_binding_outputs()
            for declared, value in zip(outputs, made, strict=True):
                binding.bind_ortvalue_output(declared.name, value)
            fresh = ()
    unused = ", ".join(given)
    text = f"the ONNX file does not take {unused}, which no operator in it reads"
    bound = _Bound(binding, fresh, place, number)
    return bound, (Note("input-unused", text),) if unused else ()


def _is_declared(value: Any, shape: Sequence[int | str | None] | None) -> bool:
    """True for a tensor whose shape is that of the file, where the file tells it."""
    if not value.is_tensor():
        return False
    found = value.shape()
    if shape is None:
        return True
    return len(found) == len(shape) and all(
        not isinstance(wanted, int) or wanted == size
        for size, wanted in zip(found, shape, strict=True)
    )


def _ort_value(value: NDArray[np.generic], kind: str, place: str, number: int) -> Any:
    """Return the value in the type that the file declares, on the device."""
    from onnxruntime import OrtValue

    if kind == "tensor(bfloat16)":
        bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
        halves = (bits >> 16).astype(np.uint16)
        return OrtValue.ortvalue_from_numpy_with_onnx_type(halves, _BFLOAT16)
    if kind not in _NUMPY_TYPES:
        raise MeasureError(
            f"an input of type {kind} cannot be given; tensors of numbers and truths can; change"
            " the model's input"
        )
    array: NDArray[np.generic] = np.asarray(value, _NUMPY_TYPES[kind], order="C")
    return OrtValue.ortvalue_from_numpy(array, place, number)


# --- profile


def _node_times(events: Sequence[Mapping[str, Any]], runs: int) -> tuple[NodeTime, ...]:
    """Return the mean times of the kernels over the counted runs, in order of the first run."""
    total_us: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls: defaultdict[tuple[str, str], int] = defaultdict(int)
    over = 0
    for event in events:
        if event.get("name") == "model_run":
            over += 1
        is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if over < _UNCOUNTED or not is_kernel:
            continue
        key = (event["name"].removesuffix("_kernel_time"), event["args"].get("op_name", ""))
        total_us[key] += event["dur"]
        calls[key] += 1
    return tuple(
        NodeTime(origin, kind, us / 1e3 / runs, calls[origin, kind] / runs)
        for (origin, kind), us in total_us.items()
    )


# --- refusals


def _refuse_other_precision(path: str, precision: str) -> None:
    refuse_precision(_NAME, precision, allowed=_PRECISIONS)
    own = precisions_of(path)
    if own and precision not in own:
        raise UsageError(
            f"onnxruntime runs a file in the precision that it has: {path!r} is in"
            f" {' and '.join(sorted(own))}, asked is {precision}; convert the file, as with"
            " onnxruntime.transformers.float16 or onnxruntime.quantization, or leave precision out"
        )


def _refuse(err: Exception, name: str) -> NoReturn:
    """Raise the error of ours that a foreign one stands for."""
    line = first_line(err)
    if isinstance(err, MemoryError) or tells_no_memory(str(err)):
        raise MemoryError(f"onnxruntime ran out of memory on model {name!r}: {line}") from err
    # "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ..."
    said = line.split(" : ", 3)[-1] if line.startswith("[ONNXRuntimeError]") else line
    raise MeasureError(
        f"onnxruntime does not run model {name!r}: {said}; give a model that it runs, or another"
        " runtime"
    ) from err


RUNTIME: Runtime = OnnxRuntime()
