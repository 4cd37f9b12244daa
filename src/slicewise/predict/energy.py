"""Energy of one inference from idle and dynamic power.

    energy = idle power x latency + (max - idle) x sum over nodes of activity x time

Activity of a node: how busy arithmetic and memory are during its time. NVIDIA's own tables show
that power x time at full board power is wrong by a factor of about two for matrix products
(kernel-level power of B200 and GB200, aiconfigurator collection), and that power grows with the
part of the device in use (V100: P = min(TDP, idle + f u dP), sharing notes).
"""

import math
from collections.abc import Sequence

from slicewise.core.cost import Estimate, NodeEstimate
from slicewise.core.device import Device
from slicewise.core.notes import Note

# Parts of the dynamic power that full arithmetic and full memory traffic draw. Both together
# reach the board limit. Our estimate from the V100 and B200 power rows; see ENERGY_SPREAD.
_COMPUTE_SHARE = 0.75
_MEMORY_SHARE = 0.45
# 90 % of per-kernel energies lie within this factor of a model of this form; unseen devices were
# 20 to 36 % off in the mean with fitted models, a constant fraction 45 to 70 %.
ENERGY_SPREAD = 1.7


ENERGY_NOTE = Note(
    "energy-estimated",
    "energy follows from idle power, power limit and activity; few energies are published, so the"
    " interval is a judgement, not an error quantile",
)


def estimate_energy(
    nodes: Sequence[NodeEstimate], host_ms: float, latency_ms: Estimate, device: Device
) -> Estimate:
    """Return joules for one inference of the batch, board power only, with a 90 % interval."""
    span_w = device.max_power_w - device.idle_power_w
    dynamic_mj = sum(span_w * _activity(node) * node.latency_ms for node in nodes)
    value = (device.idle_power_w * latency_ms.value + dynamic_mj) * 1e-3
    # The time's own interval and the power's are taken as independent: logs add in quadrature.
    low = value / _joint_spread(latency_ms.value / latency_ms.low)
    high = value * _joint_spread(latency_ms.high / latency_ms.value)
    return Estimate(value, low, high, source="idle and dynamic power")


def _activity(node: NodeEstimate) -> float:
    if node.latency_ms == 0:
        return 0.0
    compute = min(1.0, node.compute_ms / node.latency_ms)
    memory = min(1.0, node.memory_ms / node.latency_ms)
    return min(1.0, _COMPUTE_SHARE * compute + _MEMORY_SHARE * memory)


def _joint_spread(factor: float) -> float:
    return math.exp(math.hypot(math.log(max(factor, 1.0)), math.log(ENERGY_SPREAD)))
