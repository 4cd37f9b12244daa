"""The slice rule: from a prediction on the whole card to one on a slice or share of it.

The only place that knows how a part of a device slows a model down.

    T = H + [ L^p + (t s^e + W s)^p ]^(1/p)
    s = [ c / f^2 + (1 - c) / g^(2 k) ]^(1/2)

H what no part changes (copies, host work before and after), L the time the host takes to launch
everything, hidden behind the device's work or hiding it, W the work at the rate of a full card, t
what under-filled last waves of kernels add; f and g the fractions of the compute units and of the
bandwidth. c is the share of s that follows the compute units: the rest follows what parts of a
card have in common or by memory slice: memory, second-level cache, and the clock that a full card
cannot hold. So a model that launches bind loses nothing on a slice, one that fills the card slows
by s, and 3g and 4g (equal bandwidth) differ by less than their units.

A prediction tells the saturation u = W / (T1 - H) of the whole card; L and t follow from it. The
time never falls under the roofline of the part, which also counts the weights that u leaves out.
Constants: fitted to ParvaGPU (MIT), 265 rows of nine models on slices of an A100, each slice from
the 7g latencies, and with little weight to MISO (MIT); rounded on the plateau that
`benchmarks/results/slice_constants.md` shows. Errors of every open source:
`benchmarks/results/slice_rule.md`. `predict/sweep.py` fits L, t, W to measured latencies, with the
same formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Estimate, NodeEstimate, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.notes import unique_notes
from slicewise.core.precision import DType, Precision
from slicewise.core.units import snap_ms
from slicewise.predict.memory import memory_notes

Real = TypeVar("Real", float, NDArray[np.float64])

KNEE_SHARPNESS = 10.0  # p
# c of work that fills the matrix units of a card with the balance below, and of a whole model
# whose operators nobody knows: a mixture with work that memory binds.
COMPUTE_SHARE = 0.8
MODEL_COMPUTE_SHARE = 0.62
# flop/s for each byte/s of the card that the constants were fitted on: A100 80GB in TF32, 156e12 /
# 2.04e12 (data sheet). A card that computes less for each byte has the more of its work in the
# units; one that computes more has the larger tiles to feed them, and is taken to be as balanced.
REFERENCE_BALANCE = 76.5
BANDWIDTH_EXPONENT = 1.06  # k: a part's smaller cache sends more to memory
# An operator's bytes count this much against its arithmetic when its own c is told: its kernels
# seldom draw all bandwidth of a full card.
BYTES_WEIGHT = 0.25
# t over L, and e: part-filled last waves take as long on few units as on many.
TAIL_SHARE = 0.32
TAIL_EXPONENT = 0.15
# 90 % of the open slice measurements lie within this factor of the rule with the predictor's own
# saturation (benchmarks/results/slice_rule.md); a slice whose figures are themselves estimated is
# taken as wider.
RULE_SPREAD = 1.2
ESTIMATED_SPREAD = 1.4


@dataclass(frozen=True, slots=True)
class Busy:
    """What a whole card does between the host's parts of one inference, in ms.

    `launch_ms` until all is launched, `tail_ms` of part-filled waves, `work_ms` at the rate of a
    full card: L, t and W of the rule.
    """

    launch_ms: float
    tail_ms: float
    work_ms: float

    def on(self, slow: float) -> float:
        """Return the busy time on a part that slows full work `slow` times.

        >>> round(Busy(launch_ms=12.0, tail_ms=3.0, work_ms=2.0).on(6.0), 1)
        16.0
        """
        tail_ms = self.tail_ms * math.pow(slow, TAIL_EXPONENT)
        return joined(self.launch_ms, tail_ms + self.work_ms * slow)

    @staticmethod
    def of(busy_ms: float, saturation: float) -> "Busy":
        """Return what takes `busy_ms` on the whole card, of which full work `saturation`.

        Tails are `TAIL_SHARE` of the launches, both of them together the rest. Bisection: the
        time grows with the launches.
        """
        work_ms = busy_ms * min(1.0, saturation)
        low, high = 0.0, busy_ms
        for _ in range(60):
            launch_ms = (low + high) / 2
            if joined(launch_ms, TAIL_SHARE * launch_ms + work_ms) < busy_ms:
                low = launch_ms
            else:
                high = launch_ms
        return Busy(low, TAIL_SHARE * low, work_ms)


def joined(a: Real, b: Real) -> Real:
    """Return (a^p + b^p)^(1/p): the longer of two times that hide each other, and a little more
    where they are alike.

    >>> joined(3.0, 1.0), round(joined(1.0, 1.0), 3)
    (3.0000..., 1.072)
    """
    total: Real = (a**KNEE_SHARPNESS + b**KNEE_SHARPNESS) ** (1 / KNEE_SHARPNESS)
    return total


def saturated_slowdown(compute: Real, bandwidth: Real, compute_share: float) -> Real:
    """Return s: by how much work that fills a card slows on fractions of its units and bandwidth.

    >>> saturated_slowdown(1.0, 1.0, 0.6), round(saturated_slowdown(0.5, 1.0, 0.6), 2)
    (1.0, 1.67)
    """
    units = compute_share * compute**-2
    shared = (1 - compute_share) * bandwidth ** (-2 * BANDWIDTH_EXPONENT)
    slow: Real = (units + shared) ** 0.5
    return slow


def compute_share(device: Device, dtype: DType | None, *, reference: float) -> float:
    """Return c on `device` for arithmetic in `dtype`, where it is `reference` on the card that it
    was fitted on. `dtype` None is what frameworks take for fp32: TF32 where the device has it.

    The rest of c grows with the flops that the card has for each byte.
    """
    whole = device.whole
    if dtype is None:
        dtype = DType.TF32 if DType.TF32 in whole.peak_flop_per_s else DType.FP32
    rate = whole.matrix_flop_per_s(dtype)
    if rate is None:
        return reference
    balance = min(1.0, rate / whole.memory_bandwidth_bytes_per_s / REFERENCE_BALANCE)
    return reference / (reference + (1 - reference) * balance)


def fractions_of(part: Device) -> tuple[float, float]:
    """Return the fractions of its device's units and bandwidth that `part` has, 1 and 1 for the
    whole."""
    whole = part.whole
    return (
        part.compute_units / whole.compute_units,
        part.memory_bandwidth_bytes_per_s / whole.memory_bandwidth_bytes_per_s,
    )


def scale(prediction: Prediction, part: Device) -> Prediction:
    """Return the prediction on `part`, a slice or share of the device that it was made for.

    Laws: a part with more units and bandwidth is never slower; node latencies plus the host term
    still add up exactly. `DeviceError` if `part` is no part of that device.
    """
    whole = part.parent
    if whole is None or whole.name != prediction.device or prediction.slice is not None:
        raise DeviceError(f"{part.name} is not a part of {prediction.device}; cannot scale to it")
    compute, bandwidth = fractions_of(part)
    share = share_of(prediction, whole)
    ratio = slowdown(prediction, compute, bandwidth, compute_share=share)
    slow, _ = _slow(prediction.nodes, compute, bandwidth, share)
    return stretched(
        prediction,
        part,
        ratio=ratio,
        spread=_spread(prediction, part),
        saturation=min(1.0, prediction.saturation * slow / ratio),
        source=f"{prediction.latency_ms.source}, slice rule",
    )


def share_of(prediction: Prediction, device: Device) -> float:
    """Return c of the arithmetic of a prediction's operators on `device`."""
    try:
        dtype = Precision.predicted(prediction.precision).compute
    except ValueError:  # a measured model: nobody told
        dtype = None
    return compute_share(device, dtype, reference=COMPUTE_SHARE)


def model_share_of(prediction: Prediction, device: Device) -> float:
    """Return the c of a whole model: it slows as its operators do on a quarter of the units."""
    if not prediction.nodes:
        return compute_share(device, None, reference=MODEL_COMPUTE_SHARE)
    slow, _ = _slow(prediction.nodes, 0.25, 1.0, share_of(prediction, device))
    return (slow**2 - 1) / (0.25**-2 - 1)


def slowdown(
    prediction: Prediction,
    compute: float,
    bandwidth: float,
    *,
    compute_share: float = COMPUTE_SHARE,
) -> float:
    """Return (T - H) / (T1 - H) on the fractions `compute` and `bandwidth` of the device, >= 1."""
    busy_ms = prediction.latency_ms.value - prediction.host_ms
    if busy_ms <= 0:
        return 1.0
    slow, roofline_ms = _slow(prediction.nodes, compute, bandwidth, compute_share)
    rule = Busy.of(busy_ms, prediction.saturation).on(slow) / busy_ms
    whole_ms = Busy.of(busy_ms, prediction.saturation).on(1.0) / busy_ms
    return max(1.0, rule / whole_ms, roofline_ms / busy_ms)


def stretched(
    prediction: Prediction,
    part: Device,
    *,
    ratio: float,
    spread: tuple[float, float],
    saturation: float,
    source: str,
) -> Prediction:
    """Return a whole card's prediction with its busy time `ratio` times as long, on `part`.

    `spread` are the factors from the latency down to the end of its interval and up to the other.
    """
    compute, bandwidth = fractions_of(part)
    nodes = tuple(_scale_node(node, ratio, compute, bandwidth) for node in prediction.nodes)
    host_ms, whole_ms = prediction.host_ms, prediction.latency_ms.value
    busy_ms = sum(node.latency_ms for node in nodes) if nodes else (whole_ms - host_ms) * ratio
    value_ms = host_ms + busy_ms
    latency_ms = Estimate(value_ms, value_ms / spread[0], value_ms * spread[1], source)
    faster = whole_ms / value_ms
    return replace(
        prediction,
        slice=part.slice_name,
        latency_ms=latency_ms,
        throughput_per_s=prediction.batch / value_ms * 1e3,
        energy_j=_energy(prediction, latency_ms, part),
        compute_utilisation=min(1.0, prediction.compute_utilisation * faster / compute),
        saturation=saturation,
        nodes=nodes,
        notes=unique_notes(
            (
                *(note for note in prediction.notes if note.code != "memory-exceeded"),
                *part.notes,
                *memory_notes(prediction.memory_bytes, part),
            )
        ),
    )


def _slow(
    nodes: Sequence[NodeEstimate], compute: float, bandwidth: float, share: float
) -> tuple[float, float]:
    """Return s of all operators together, and the roofline of the part: their full work there."""
    whole_ms = part_ms = 0.0
    for node in nodes:
        most_ms = max(node.compute_ms, node.memory_ms)
        if most_ms > 0:
            units = (node.compute_ms / most_ms) ** 2
            moved = (BYTES_WEIGHT * node.memory_ms / most_ms) ** 2
            its = share * units / (units + moved)
            whole_ms += most_ms
            part_ms += most_ms * saturated_slowdown(compute, bandwidth, its)
    if whole_ms == 0:
        return saturated_slowdown(compute, bandwidth, share), 0.0
    return part_ms / whole_ms, part_ms


def _scale_node(
    node: NodeEstimate, ratio: float, compute: float, bandwidth: float
) -> NodeEstimate:
    compute_ms = node.compute_ms / compute
    memory_ms = node.memory_ms / bandwidth
    latency_ms = snap_ms(node.latency_ms * ratio)
    limit = node.limit
    if limit != "none":
        filled = max(compute_ms, memory_ms) >= 0.5 * latency_ms
        limit = ("compute" if compute_ms >= memory_ms else "memory") if filled else "launch"
    return replace(
        node, latency_ms=latency_ms, compute_ms=compute_ms, memory_ms=memory_ms, limit=limit
    )


def _spread(prediction: Prediction, part: Device) -> tuple[float, float]:
    """The card's interval and the rule's are independent: logs add in quadrature."""
    whole = prediction.latency_ms
    estimated = any(note.code == "slice-estimated" for note in part.notes)
    spread = math.log(ESTIMATED_SPREAD if estimated else RULE_SPREAD)
    return (
        math.exp(math.hypot(math.log(whole.value / whole.low), spread)),
        math.exp(math.hypot(math.log(whole.high / whole.value), spread)),
    )


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
