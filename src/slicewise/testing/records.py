"""Hypothesis strategies of measurements, and one that tests agree on."""

from dataclasses import replace

from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.graph import Binding
from slicewise.core.measurement import (
    Environment,
    MeasuredMemory,
    Measurement,
    NodeTime,
    Outcome,
    Protocol,
)
from slicewise.core.notes import Note


def tiny_measurement(number: int = 0, *, samples: int = 5) -> Measurement:
    """Return a plausible measurement; each number has a model and figures of its own.

    >>> tiny_measurement(3).model, tiny_measurement(3) == tiny_measurement(3)
    ('net3', True)
    """
    latency_ms = 2.0 + number / 64
    times = tuple(latency_ms + i / 128 for i in range(-(samples // 2), samples - samples // 2))
    return Measurement(
        f"net{number}", f"models/net{number}.onnx", f"{number:064x}", "cpu", None, "onnxruntime",
        1 + number % 8, "fp32", 2,
        latency_ms=Estimate(latency_ms, latency_ms - 0.125, latency_ms + 0.125),
        samples_ms=times, memory=MeasuredMemory(2**27 + number, 2**26, "rss"),
        environment=Environment(
            "a processor", (0, 1), "Linux", "3.11.7", {"onnxruntime": "1.23"}, 2.1e9, 0.25, 1.0,
            0.0,
        ),
        binding=Binding(1 + number % 8), started_at="2026-11-30T08:00:00Z", seconds=1.5,
    )  # fmt: skip


def failed_measurement(number: int = 0, outcome: Outcome = Outcome.CRASHED) -> Measurement:
    """Return a measurement without a latency."""
    made = tiny_measurement(number, samples=0)
    return replace(made, outcome=outcome, error="the process died of signal 11", latency_ms=None)


# U+DC80 stands for a byte of a file name that is no UTF-8 (PEP 383).
_text = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\udc80\n\x01\x00'é"), max_size=8
)
_figure = st.floats(-1e150, 1e150)
_count = st.integers(0, 2**40)
_maybe = st.none() | _figure
_names = st.dictionaries(_text, _text, max_size=3)


def measurements() -> st.SearchStrategy[Measurement]:
    """Measurements of every shape that the types allow, likely or not."""
    estimate = st.builds(Estimate, _figure, _figure, _figure, _text)
    memory = st.builds(MeasuredMemory, _count, _count, _text, st.none() | _count)
    environment = st.builds(
        Environment,
        processor=_text,
        cores=st.lists(st.integers(0, 255), max_size=4).map(tuple),
        packages=_names,
        clock_hz=_maybe,
        load=_maybe,
        waited=_maybe,
        driver=_text,
    )
    binding = st.builds(
        Binding,
        st.none() | st.integers(1, 512),
        st.dictionaries(_text, st.integers(1, 2**31), max_size=2),
        st.dictionaries(_text, st.lists(st.integers(1, 512), max_size=4).map(tuple), max_size=2),
        st.dictionaries(_text, st.none() | st.integers(-4, 4), max_size=2),
        st.frozensets(_text, max_size=3),
    )
    return st.builds(
        Measurement,
        model=_text,
        location=_text,
        digest=_text,
        device=_text,
        slice=st.none() | _text,
        runtime=_text,
        batch=st.integers(1, 2**31),
        precision=_text,
        threads=st.integers(1, 512),
        device_digest=_text,
        mechanism=st.none() | _text,
        options=_names,
        outcome=st.sampled_from(Outcome),
        error=_text,
        latency_ms=st.none() | estimate,
        samples_ms=st.lists(_figure, max_size=5).map(tuple),
        runs_per_sample=st.integers(1, 100),
        energy_j=_maybe,
        memory=st.none() | memory,
        utilisation=_maybe,
        nodes=st.lists(st.builds(NodeTime, _text, _text, _figure, _figure), max_size=3).map(tuple),
        environment=environment,
        protocol=st.builds(Protocol, warmup_s=_figure, memory_limit_bytes=st.none() | _count),
        binding=binding,
        started_at=_text,
        seconds=_figure,
        notes=st.lists(st.builds(Note, _text, _text, _text), max_size=2).map(tuple),
    )
