"""How long a launch takes: on a CUDA device by events, or by a formula where there is none.

The formula stands in for a device in tests and in simulated runs; it is no prediction for users.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from slicewise.core.cost import Estimate
from slicewise.core.measurement import Protocol as Sampling
from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import Config, count_programs
from slicewise.tune.backends.triton.spaces import WARP

_Z = 1.6449  # two-sided 90 % quantile of the normal distribution
# Where torch does not tell it: that of the largest device so far (B200, 126 MB).
_CACHE_BYTES = 128 << 20
_CHUNK = 5  # samples that are queued before the device is waited for


class Clock(Protocol):
    """Times single launches."""

    def take(self, launch: Callable[[], None], count: int) -> list[float]:
        """Return the latency of `count` launches in ms, each with a cold cache."""


def sample(launch: Callable[[], None], clock: Clock, sampling: Sampling) -> list[float]:
    """Return samples in ms: after a warm-up, until the interval of the median is narrow enough,
    or as many or as long as `sampling` allows."""
    spent_ms = sum(clock.take(launch, max(1, sampling.warmup_runs)))
    while spent_ms < 1e3 * sampling.warmup_s:
        spent_ms += max(1e-2, sum(clock.take(launch, _CHUNK)))
    samples: list[float] = []
    while len(samples) < max(3, sampling.max_samples):
        samples += clock.take(launch, min(_CHUNK, max(3, sampling.max_samples) - len(samples)))
        if len(samples) >= sampling.min_samples:
            made = summarise(samples)
            if made.high - made.low <= sampling.relative_width * made.value:
                break
        if sum(samples) >= 1e3 * sampling.budget_s and len(samples) >= 3:
            break
    return samples


def summarise(samples_ms: list[float]) -> Estimate:
    """Return the median with its 90 % interval by order statistics.

    Ranks by the normal limit of the binomial distribution (David and Nagaraja, Order Statistics,
    3rd ed., sec. 7.1); under 8 samples the least and the greatest.

    >>> summarise([1.0, 3.0, 2.0])
    Estimate(value=2.0, low=1.0, high=3.0, source='measured')
    """
    ordered, count = sorted(samples_ms), len(samples_ms)
    rank = max(1, math.floor((count - _Z * math.sqrt(count)) / 2))
    return Estimate(
        median(ordered), low=ordered[rank - 1], high=ordered[count - rank], source="measured"
    )


class CudaClock:
    """Events around each launch, in the current context and stream.

    Before each the second-level cache is overwritten: in a model other operators run in between.
    That write also keeps the device busy while the host submits, so that no gap is timed.
    """

    def __init__(self) -> None:
        """Take memory for overwriting the cache of the current device."""
        import torch

        self._torch = torch
        told = torch.cuda.get_device_properties(torch.cuda.current_device())
        cache = getattr(told, "L2_cache_size", 0) or _CACHE_BYTES
        self._over = torch.empty(2 * cache, dtype=torch.int8, device="cuda")

    def take(self, launch: Callable[[], None], count: int) -> list[float]:
        """Return the latency of `count` launches in ms, each with a cold cache."""
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        for first, last in pairs:
            self._over.zero_()
            first.record()
            launch()
            last.record()
        pairs[-1][1].synchronize()
        return [float(first.elapsed_time(last)) for first, last in pairs]


@dataclass(slots=True)
class FormulaClock:
    """A device that is a formula: programs in waves over `sms` SMs, each bound by arithmetic or
    by bytes; small tiles, few warps and a short pipeline use less of both.

    Samples scatter by a hundredth, the same way for the same configuration.
    """

    op: Operation
    config: Config
    sms: int
    taken: int = field(default=0)

    def take(self, launch: Callable[[], None], count: int) -> list[float]:
        """Return `count` latencies in ms; nothing is launched."""
        base = formula_ms(self.op, self.config, sms=self.sms)
        text = f"{self.op.text} {sorted(self.config.items())}"
        found = []
        for _ in range(count):
            digest = hashlib.sha256(f"{text} {self.taken}".encode()).digest()
            self.taken += 1
            found.append(base * (1 + 0.01 * (digest[0] / 255)))
        return found


# Rates of one SM of the device that the formula imagines: about an H100's, tf32 at half of bf16.
_FLOP_PER_S: Mapping[str, float] = {"fp32": 5e11, "tf32": 3.7e12, "fp16": 7.5e12, "bf16": 7.5e12}
_BYTES_PER_S = 4e10  # of one SM, while the memory itself gives up to 100 SMs' worth
_MEMORY_SMS = 100
_LAUNCH_MS = 2e-3


def formula_ms(op: Operation, config: Config, *, sms: int) -> float:
    """Return the latency of the imagined device in ms. More SMs are never slower."""
    programs = count_programs(op, config)
    threads = config["warps"] * WARP
    values = config.get("block_m", config.get("block_q", config.get("block_r", 1)))
    values *= config.get("block_n", config.get("block_kv", config.get("block_c", 1)))
    # work of padded tiles counts, as the device does it
    tile_flops, tile_bytes = _tile(op, config, programs)
    grain = values / threads  # results a thread: too few hide nothing, too many spill
    fill = math.exp(-0.15 * math.log2(max(grain, 0.25) / 16) ** 2)
    depth = 1 - 0.3 / config["stages"]
    waves = math.ceil(programs / sms)
    compute_s = waves * tile_flops / (_FLOP_PER_S[op.precision] * fill * depth)
    memory_s = waves * tile_bytes / (_BYTES_PER_S * depth * min(1.0, threads / 128))
    floor_s = op.moved_bytes / (_BYTES_PER_S * min(sms, _MEMORY_SMS))
    return _LAUNCH_MS + 1e3 * max(compute_s, memory_s, floor_s)


def _tile(op: Operation, config: Config, programs: int) -> tuple[float, float]:
    """Return operations and bytes of one program."""
    if op.kind in ("matmul", "conv"):
        k = op["k"] if op.kind == "matmul" else op["c"] * op["kh"] * op["kw"]
        rows, columns = config["block_m"], config["block_n"]
        k = -(-k // config["block_k"]) * config["block_k"]
        moved = (rows + columns) * k + rows * columns
        return 2.0 * rows * columns * k, float(moved * op.bytes_each)
    return op.flops / programs, op.moved_bytes / programs


def clock_for(op: Operation, config: Config, *, sms: int, cuda: Any) -> Clock:
    """Return the device's clock, or the formula's where `cuda` is None."""
    clock: Clock = FormulaClock(op, config, sms) if cuda is None else cuda
    return clock
