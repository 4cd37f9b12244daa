"""OpenVINO: runs an ONNX file on the CPU with Intel's runtime (extra `tune`).

The latency hint is given, one stream unless asked otherwise; the number of threads is the job's.
With the option `requests` one run is so many inferences at once, on as many streams.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, MissingDependency, UsageError, tells_no_memory
from slicewise.core.measurement import NodeTime, Subject
from slicewise.core.notes import Note
from slicewise.measure.runtimes._base import Runtime, Session, Setup
from slicewise.measure.runtimes.refusals import mapped
from slicewise.measure.runtimes.settings import (
    first_line,
    gpu_index,
    read_options,
    read_requests,
    refuse_precision,
    requests_note,
)

_NAME = "openvino"
# `pinning` 0 leaves threads to the affinity of the process; 1 lets OpenVINO bind each to a core.
_OPTIONS: Mapping[str, Sequence[str]] = {
    "streams": (),
    "hint": ("LATENCY", "THROUGHPUT"),
    "pinning": ("0", "1"),
    "requests": (),
}
# Precisions and how OpenVINO calls the type that it computes in: of a quantised file, that of
# what is not quantised.
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}


@dataclass(frozen=True, slots=True)
class OpenVino:
    """The runtime `openvino`."""

    name: str = _NAME
    forms: frozenset[str] = frozenset({"onnx"})
    devices: frozenset[str] = frozenset({"cpu"})

    def load(self) -> Mapping[str, str]:
        """Import OpenVINO and return its version.

        It is kept from sending usage data, which nobody who measures has asked for, and whose
        process may outlive this one: without its package OpenVINO does without.
        """
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        try:
            import openvino  # type: ignore[import-not-found, unused-ignore]
        except ImportError as err:
            purpose = "measuring with OpenVINO"
            raise MissingDependency(purpose, package=_NAME, extra="tune") from err
        return {_NAME: str(openvino.__version__)}

    def open(
        self, subject: Subject, values: Sequence[NDArray[np.generic]], setup: Setup
    ) -> Session:
        """Return a session on the file of `subject`; see the protocol.

        Shapes of inputs are fixed to those of `values` before the model is compiled. bf16 and
        fp16 are what OpenVINO computes in where the processor can; the file stays as it is.
        """
        self.load()
        options = read_options(_NAME, setup.options, allowed=_OPTIONS)
        refuse_precision(_NAME, setup.precision, allowed=tuple(_PRECISIONS))
        if gpu_index(setup.device) is not None:
            raise UsageError(
                f"runtime {_NAME} runs on the cpu, not on {setup.device!r}; measure there with"
                " onnxruntime or torch-eager"
            )
        requests = read_requests(_NAME, options, threads=setup.threads)
        if requests > 1:
            options = {**options, "streams": options["streams"] or str(requests)}
        with mapped(lambda err: _refuse(err, subject.name)):
            made, notes = _compiled(subject, values, setup, options)
            others = [made.another() for _ in range(1, requests)]
            notes = (*notes, *requests_note(requests))
            session = OpenVinoSession(subject.name, made, notes, others)
            session.run()
        return session


def _compiled(
    subject: Subject,
    values: Sequence[NDArray[np.generic]],
    setup: Setup,
    options: Mapping[str, str],
) -> tuple["_Made", tuple[Note, ...]]:
    """Return an infer request with its inputs set, and notes."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(subject.open()))
    given = {spec.name: value for spec, value in zip(subject.inputs, values, strict=True)}
    own = {next(iter(port.get_names() & given.keys()), ""): port for port in model.inputs}
    if "" in own:
        raise MeasureError(
            f"model {subject.name!r} has an input {own[''].any_name!r} for which there is no"
            f" value; there are {', '.join(given) or 'none'}; load the model anew"
        )
    model.reshape({name: list(given[name].shape) for name in own})
    settings = {
        "PERFORMANCE_HINT": options["hint"],
        "INFERENCE_NUM_THREADS": setup.threads,
        "NUM_STREAMS": options["streams"] or "1",
        "ENABLE_CPU_PINNING": options["pinning"] == "1",
        "INFERENCE_PRECISION_HINT": _PRECISIONS[setup.precision],
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name, port in own.items():
        kind = port.get_element_type().to_dtype()
        request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(given[name], dtype=kind)))
    unused = ", ".join(name for name in given if name not in own)
    text = f"the ONNX file does not take {unused}, which no operator in it reads"
    notes = (Note("input-unused", text),) if unused else ()
    return _Made(core, model, settings, request), notes


@dataclass(slots=True)
class _Made:
    core: Any
    model: Any
    settings: Mapping[str, Any]
    request: Any

    def another(self) -> Any:
        """Return another request of the same compiled model, with the same inputs."""
        return self._with_inputs(self.request.get_compiled_model())

    def profiled(self) -> Any:
        """Return another request that counts the time of each operator."""
        settings = {**self.settings, "PERF_COUNT": True}
        return self._with_inputs(self.core.compile_model(self.model, "CPU", settings))

    def _with_inputs(self, compiled: Any) -> Any:
        request = compiled.create_infer_request()
        for i, _ in enumerate(self.model.inputs):
            request.set_input_tensor(i, self.request.get_input_tensor(i))
        return request


@dataclass(slots=True)
class OpenVinoSession:
    """A compiled model with its inputs set."""

    model: str
    _made: _Made | None
    notes: tuple[Note, ...]
    _others: Sequence[Any] = ()

    def run(self) -> None:
        """Run once, or as many times at once as there are requests; see the protocol."""
        try:
            for each in self._others:
                each.start_async()
            self._request.infer()
            for each in self._others:
                each.wait()
        except Exception as err:
            _refuse(err, self.model)

    @property
    def _request(self) -> Any:
        assert self._made is not None, "the session is closed"
        return self._made.request

    def outputs(self) -> tuple[NDArray[np.generic], ...]:
        """Run once and return the outputs; see the protocol."""
        self.run()
        made = [np.array(each.data) for each in self._request.output_tensors]
        return tuple(each.astype(np.float32) if each.dtype.kind == "f" else each for each in made)

    def profile(self, runs: int) -> tuple[NodeTime, ...]:
        """Return the mean time of each operator by OpenVINO's counters, in a model of its own.

        `origin` is OpenVINO's name of the node, which is that in the ONNX file where it is one.
        """
        assert self._made is not None, "the session is closed"
        total_ms: dict[tuple[str, str], float] = {}
        with mapped(lambda err: _refuse(err, self.model)):
            request = self._made.profiled()
            request.infer()
            for _ in range(runs):
                request.infer()
                for each in request.get_profiling_info():
                    key = (each.node_name, each.node_type)
                    spent_ms = each.real_time.total_seconds() * 1e3
                    total_ms[key] = total_ms.get(key, 0.0) + spent_ms
        return tuple(
            NodeTime(origin, kind, ms / runs) for (origin, kind), ms in total_ms.items() if ms > 0
        )

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        self._made, self._others = None, ()


# --- refusals


def _refuse(err: Exception, name: str) -> NoReturn:
    """Raise the error of ours that a foreign one stands for."""
    line = first_line(err)
    if isinstance(err, MemoryError) or tells_no_memory(str(err)):
        raise MemoryError(f"openvino ran out of memory on model {name!r}: {line}") from err
    raise MeasureError(
        f"openvino does not run model {name!r}: {line}; give a model that it runs, or another"
        " runtime"
    ) from err


RUNTIME: Runtime = OpenVino()
