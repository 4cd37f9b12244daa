"""Made-up measurements: graphs of a few kernels, timed by the roofline and a hidden distortion."""

from collections.abc import Callable
from dataclasses import replace

from slicewise.core.cost import Kind, NodeWork, Prediction
from slicewise.core.device import Device
from slicewise.core.measurement import MeasuredMemory
from slicewise.core.precision import PRECISIONS
from slicewise.predict.calibrate import CalibrationCase
from slicewise.predict.roofline import predict_roofline
from slicewise.testing.predictors import as_graph, pointwise, product, tiny_gpu

FP32 = PRECISIONS["fp32"]
RUNTIME = "onnxruntime"


def convolution(size: int) -> NodeWork:
    return replace(product(size * 8, size, size * 9), kind=Kind.CONV, op_type="Conv", name="conv")


def softmax(elements: int) -> NodeWork:
    return replace(pointwise(elements), kind=Kind.SOFTMAX, op_type="Softmax", name="softmax")


def nodes_of(seed: int) -> tuple[NodeWork, ...]:
    """Return a small model: how much it holds of each kind follows from the seed."""
    grown = 1 + seed % 7
    return (
        *(convolution(256 * (1 + (seed + i) % 5)) for i in range(seed % 4)),
        *(product(512 * grown, 512, 512 * (1 + seed % 3)) for _ in range((seed * 5) % 4)),
        *(pointwise(4_000_000 * (1 + (seed * 3) % 5)) for _ in range(1 + (seed * 7) % 5)),
        *(softmax(3_000_000 * grown) for _ in range((seed * 11) % 3)),
    )


def case(
    seed: int,
    latency_ms: Callable[[Prediction], float],
    *,
    device: Device | None = None,
    family: str | None = None,
    memory: Callable[[Prediction], MeasuredMemory] | None = None,
    energy_j: Callable[[Prediction], float] | None = None,
    runtime: str = RUNTIME,
) -> CalibrationCase:
    """Return the measurement of model `seed`, given what the roofline says of it."""
    whole = device or tiny_gpu()
    graph, work = as_graph(nodes_of(seed), batch=1 + seed % 2)
    made = predict_roofline(graph, work, whole, precision=FP32, runtime=runtime)
    return CalibrationCase(
        graph=graph,
        work=work,
        device=whole,
        slice=None,
        runtime=runtime,
        precision=FP32,
        latency_ms=latency_ms(made),
        memory=None if memory is None else memory(made),
        energy_j=None if energy_j is None else energy_j(made),
        family=family or f"family{seed}",
    )


def distorted(factors: dict[Kind, float]) -> Callable[[Prediction], float]:
    """Return what a device takes whose kernels of some kinds are slower by a factor."""

    def latency_ms(made: Prediction) -> float:
        kernels = (node.latency_ms * factors.get(node.kind, 1.0) for node in made.nodes)
        return made.host_ms + sum(kernels)

    return latency_ms
