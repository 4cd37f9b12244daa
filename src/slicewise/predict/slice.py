"""The slice rule: from a prediction on the whole card to one on a slice or share of it.

The only place that knows how a part of a device slows a model down.

    T = H + (T1 - H) [(1 + (u s)^p) / (1 + u^p)]^(1/p)

T1 latency on the whole card, H its host part, u the saturation, s the slow-down of saturated work
(1/f for arithmetic on the fraction f of the compute units, 1/g for bytes on the fraction g of
the bandwidth). Below the knee the slice costs nothing, above it latency grows with s. The time
never falls under the roofline of the slice, which also counts the weights that u leaves out.
Form, p and the exponent of s: fitted to open MIG and MPS measurements (sharing notes, section 6:
p 4.8 to 5.5, exponent 0.96 to 0.98, whatever the source).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slicewise.core.cost import Estimate, NodeEstimate, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import unique_notes
from slicewise.core.units import snap_ms
from slicewise.predict.memory import memory_notes

KNEE_SHARPNESS = 5.0
SLOWDOWN_EXPONENT = 0.97
# 90 % of the open slice measurements lie within this factor of the rule with the predictor's own
# saturation (benchmarks/results/slice_rule.md: ParvaGPU MIG, p90 of the absolute error 30.4 %);
# a slice whose figures are themselves estimated is taken as wider.
RULE_SPREAD = 1.35
ESTIMATED_SPREAD = 1.5


@dataclass(frozen=True, slots=True)
class _Fractions:
    compute: float
    bandwidth: float


def scale(prediction: Prediction, part: Device) -> Prediction:
    """Return the prediction on `part`, a slice or share of the device that it was made for.

    Laws: a part with more units and bandwidth is never slower; node latencies plus the host term
    still add up exactly. `DeviceError` if `part` is no part of that device.
    """
    whole = part.parent
    if whole is None or whole.name != prediction.device or prediction.slice is not None:
        raise DeviceError(f"{part.name} is not a part of {prediction.device}; cannot scale to it")
    fractions = _Fractions(
        part.compute_units / whole.compute_units,
        part.memory_bandwidth_bytes_per_s / whole.memory_bandwidth_bytes_per_s,
    )
    ratio = slowdown(prediction, fractions.compute, fractions.bandwidth)
    nodes = tuple(_scale_node(node, ratio, fractions) for node in prediction.nodes)
    value_ms = prediction.host_ms + sum(node.latency_ms for node in nodes)
    latency_ms = _interval(prediction, value_ms, part)
    busy_ms = value_ms - prediction.host_ms
    whole_busy_ms = prediction.latency_ms.value - prediction.host_ms
    return replace(
        prediction,
        slice=part.slice_name,
        latency_ms=latency_ms,
        throughput_per_s=prediction.batch / value_ms * 1e3,
        energy_j=_energy(prediction, latency_ms, part),
        compute_utilisation=min(
            1.0,
            prediction.compute_utilisation
            * prediction.latency_ms.value
            / value_ms
            / fractions.compute,
        ),
        saturation=_saturation(prediction, fractions, busy_ms, whole_busy_ms),
        nodes=nodes,
        notes=unique_notes(
            (
                *(note for note in prediction.notes if note.code != "memory-exceeded"),
                *part.notes,
                *memory_notes(prediction.memory_bytes, part),
            )
        ),
    )


def slowdown(prediction: Prediction, compute: float, bandwidth: float) -> float:
    """Return (T - H) / (T1 - H) on the fractions `compute` and `bandwidth` of the device, >= 1."""
    busy_ms = prediction.latency_ms.value - prediction.host_ms
    if busy_ms <= 0:
        return 1.0
    whole_ms = _roofline_ms(prediction.nodes, 1.0, 1.0)
    part_ms = _roofline_ms(prediction.nodes, compute, bandwidth)
    saturated = (part_ms / whole_ms if whole_ms > 0 else 1.0 / compute) ** SLOWDOWN_EXPONENT
    u, p = prediction.saturation, KNEE_SHARPNESS
    rule: float = ((1 + (u * saturated) ** p) / (1 + u**p)) ** (1 / p)
    return max(1.0, rule, part_ms / busy_ms)


def _roofline_ms(nodes: Sequence[NodeEstimate], compute: float, bandwidth: float) -> float:
    return sum(max(node.compute_ms / compute, node.memory_ms / bandwidth) for node in nodes)


def _scale_node(node: NodeEstimate, ratio: float, fractions: _Fractions) -> NodeEstimate:
    compute_ms = node.compute_ms / fractions.compute
    memory_ms = node.memory_ms / fractions.bandwidth
    latency_ms = snap_ms(node.latency_ms * ratio)
    limit = node.limit
    if limit != "none":
        filled = max(compute_ms, memory_ms) >= 0.5 * latency_ms
        limit = ("compute" if compute_ms >= memory_ms else "memory") if filled else "launch"
    return replace(
        node, latency_ms=latency_ms, compute_ms=compute_ms, memory_ms=memory_ms, limit=limit
    )


def _saturation(
    prediction: Prediction, fractions: _Fractions, busy_ms: float, whole_busy_ms: float
) -> float:
    """Saturated work takes 1/f on the part; the part's own latency divides it."""
    ideal_ms = prediction.saturation * whole_busy_ms
    whole_ms = _roofline_ms(prediction.nodes, 1.0, 1.0)
    part_ms = _roofline_ms(prediction.nodes, fractions.compute, fractions.bandwidth)
    factor = part_ms / whole_ms if whole_ms > 0 else 1.0 / fractions.compute
    return min(1.0, ideal_ms * factor / busy_ms) if busy_ms > 0 else 0.0


def _interval(prediction: Prediction, value_ms: float, part: Device) -> Estimate:
    whole = prediction.latency_ms
    estimated = any(note.code == "slice-estimated" for note in part.notes)
    spread = math.log(ESTIMATED_SPREAD if estimated else RULE_SPREAD)
    # The card's interval and the rule's are independent: logs add in quadrature.
    low = math.exp(math.hypot(math.log(whole.value / whole.low), spread))
    high = math.exp(math.hypot(math.log(whole.high / whole.value), spread))
    return Estimate(value_ms, value_ms / low, value_ms * high, f"{whole.source}, slice rule")


def _energy(prediction: Prediction, latency_ms: Estimate, part: Device) -> Estimate:
    """Dynamic energy follows the work and stays; the part is charged its units' idle power."""
    whole = part.whole
    idle_j = whole.idle_power_w * prediction.latency_ms.value * 1e-3
    dynamic_j = max(0.0, prediction.energy_j.value - idle_j)
    idle_w = whole.idle_power_w * part.compute_units / whole.compute_units
    value = dynamic_j + idle_w * latency_ms.value * 1e-3
    low = prediction.energy_j.low / prediction.energy_j.value
    high = prediction.energy_j.high / prediction.energy_j.value
    return Estimate(value, value * low, value * high, prediction.energy_j.source)
