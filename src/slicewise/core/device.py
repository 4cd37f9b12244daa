"""Accelerators, their slices and shares. A slice is a device: it has a parent and true figures.

No file is read here (the catalogue does that) and no speed is predicted here.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slicewise.core.errors import DeviceError
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.precision import DType, Precision
from slicewise.core.units import format_capacity

# What one GPU compute unit can read from the second-level cache in a clock: 64 B for an SM of V100
# and A100 (NVIDIA A100 white paper, L2 bandwidth); taken for all.
UNIT_BYTES_PER_CLOCK = 64


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """A kind of MIG slice that a device offers.

    `memory_bytes` is usable memory, not the name's. `starts` are the legal first memory slots and
    `size` the number of slots taken; `memory_slices` is its part of bandwidth and cache.

    >>> import slicewise
    >>> profile = slicewise.device("a100-sxm4-80gb").profiles[0]
    >>> profile.name, profile.compute_units, profile.max_instances
    ('1g.10gb', 14, 7)
    """

    name: str
    compute_units: int
    memory_bytes: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    size: int
    max_instances: int
    profile_id: int | None = None
    cache_fraction: float | None = None
    attributes: str = ""
    aliases: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one device to the next: one direction's bandwidth and the latency."""

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Device:
    """A whole accelerator, or a part of one (then `parent` is the whole).

    `peak_flop_per_s` holds dense rates: `fp32` is the vector rate, every other type that of the
    matrix units, or of the vector units where those lack the type (operations per second, a
    multiply-add is 2). `fp32_matrix_flop_per_s` is the fp32 rate of matrix units that have one
    (AMD CDNA); `matrix_flop_per_s` gives the right one for a contraction. `cache_bytes` is the
    last level before memory. `idle_power_w` is the floor of board power while work runs (clocks
    up, units waiting), not that of a card at rest. `compute_units` are SMs, compute units or
    cores. `launch_s` is the least time between two kernels that a compiled program submits,
    `host_s` the fixed part of one inference that a slice does not change. `sources` says where a
    figure comes from, by its name; `figures` stands for those not named. `rate_notes` are
    notes on rates that concern only a graph which computes in that type.

    >>> import slicewise
    >>> card = slicewise.device("l4")
    >>> card.compute_units, card.slice_name, card.share(percent=50).slice_name
    (58, None, '50%')
    """

    name: str
    kind: str  # "gpu" or "cpu"
    vendor: str
    architecture: str
    compute_units: int
    peak_flop_per_s: Mapping[DType, float]
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    cache_bytes: int
    clock_hz: float
    idle_power_w: float
    max_power_w: float
    launch_s: float
    host_s: float
    fp32_matrix_flop_per_s: float | None = None
    link: Link | None = None
    memory_slots: int = 0
    profiles: tuple[SliceProfile, ...] = ()
    title: str = ""
    parent: "Device | None" = None
    profile: SliceProfile | None = None
    share_percent: float | None = None
    notes: tuple[Note, ...] = ()
    rate_notes: Mapping[DType, Note] = field(default_factory=dict, compare=False, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def whole(self) -> "Device":
        """The accelerator this is a part of, or itself."""
        return self if self.parent is None else self.parent

    @property
    def slice_name(self) -> str | None:
        """'2g.10gb' on a slice, '50%' on a share, None on a whole device."""
        if self.profile is not None:
            return self.profile.name
        return None if self.share_percent is None else f"{self.share_percent:g}%"

    @property
    def digest(self) -> str:
        """SHA-256 of the figures that tell one device from another of the same name.

        Two machines' processors are both called `cpu`. 64 hexadecimal digits.
        """
        told = (
            self.name, self.title, self.compute_units, self.cache_bytes,
            sorted((dtype.value, rate) for dtype, rate in self.peak_flop_per_s.items()),
            self.memory_bandwidth_bytes_per_s,
        )  # fmt: skip
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def matrix_flop_per_s(self, dtype: DType) -> float | None:
        """Return the dense rate of contractions in `dtype` (operations/s), None if it has none."""
        if dtype is DType.FP32 and self.fp32_matrix_flop_per_s is not None:
            return self.fp32_matrix_flop_per_s
        return self.peak_flop_per_s.get(dtype)

    def peak_for(self, precision: Precision) -> float:
        """Return the dense matrix rate (operations/s) for `precision`; `DeviceError` if none."""
        rate = self.matrix_flop_per_s(precision.compute)
        if rate is None:
            able = ", ".join(sorted(dtype.value for dtype in self.peak_flop_per_s))
            raise DeviceError(
                f"{self.name} has no {precision.compute} arithmetic, asked by precision"
                f" {precision.name!r}; its data sheet gives {able}; choose a precision that uses"
                " one of these, or another device"
            )
        return rate

    def profile_named(self, name: str) -> SliceProfile:
        """Return the profile called `name`, driver spellings included (`3g.39gb`)."""
        wanted = name.strip().lower().removeprefix("mig-").removeprefix("mig ").replace(" ", "")
        for profile in self.profiles:
            if wanted in (profile.name, *profile.aliases):
                return profile
        names = [profile.name for profile in self.profiles]
        if not names:
            raise DeviceError(
                f"{self.name} cannot be sliced (no MIG profiles), given {name!r}; use it whole or"
                f" as a share, as in {self.name}@50%"
            )
        hint = did_you_mean(wanted, names) or _same_size_hint(wanted, self.profiles)
        raise DeviceError(
            f"{self.name} has no slice profile {name!r}; it has {', '.join(names)}{hint}"
        )

    def slice(self, profile_name: str) -> "Device":
        """Return the slice `profile_name` of this device, as a device with this one as parent.

        Compute scales by SMs, bandwidth by memory slices, cache by the profile's share; power by
        SMs. `DeviceError` if the device is itself a part or lacks the profile.
        """
        if self.parent is not None:
            raise DeviceError(
                f"{self.name} is already a part of {self.parent.name}; slice the whole card"
            )
        profile = self.profile_named(profile_name)
        compute = profile.compute_units / self.compute_units
        memory = profile.memory_slices / self.memory_slots
        cache = memory if profile.cache_fraction is None else profile.cache_fraction
        return replace(
            self,
            name=f"{self.name}/{profile.name}",
            compute_units=profile.compute_units,
            peak_flop_per_s={d: r * compute for d, r in self.peak_flop_per_s.items()},
            fp32_matrix_flop_per_s=_part_of(self.fp32_matrix_flop_per_s, compute),
            memory_bytes=profile.memory_bytes,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s * memory,
            cache_bytes=round(self.cache_bytes * cache),
            idle_power_w=self.idle_power_w * compute,
            max_power_w=self.max_power_w * compute,
            profiles=(),
            parent=self,
            profile=profile,
            notes=(*self.notes, *profile.notes),
        )

    def share(self, percent: float) -> "Device":
        """Return the device seen by a client limited to `percent` of its compute units (MPS).

        Memory and cache stay whole, and so does bandwidth, as far as the units can take it in.
        """
        if self.parent is not None:
            raise DeviceError(
                f"{self.name} is already a part of {self.parent.name}; share the whole card"
            )
        if not 0 < percent <= 100:
            raise DeviceError(f"share {percent:g}% of {self.name} must be over 0 and at most 100")
        units = max(1, math.floor(self.compute_units * percent / 100))
        compute = units / self.compute_units
        taken_in = units * UNIT_BYTES_PER_CLOCK * self.clock_hz
        whole = self.memory_bandwidth_bytes_per_s
        return replace(
            self,
            name=f"{self.name}@{percent:g}%",
            compute_units=units,
            memory_bandwidth_bytes_per_s=whole if self.kind == "cpu" else min(whole, taken_in),
            peak_flop_per_s={d: r * compute for d, r in self.peak_flop_per_s.items()},
            fp32_matrix_flop_per_s=_part_of(self.fp32_matrix_flop_per_s, compute),
            profiles=(),
            parent=self,
            share_percent=percent,
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"{self.name} ({self.compute_units} units, {format_capacity(self.memory_bytes)})"


def _part_of(rate: float | None, fraction: float) -> float | None:
    return None if rate is None else rate * fraction


def _same_size_hint(wanted: str, profiles: tuple[SliceProfile, ...]) -> str:
    """Name the profiles with the same number of compute slices: 2g.10gb on an 80 GB card."""
    slices = re.match(r"(\d)g", wanted)
    if slices is None:
        return ""
    same = [p.name for p in profiles if p.name.startswith(slices[0])]
    return f"; did you mean {', '.join(same)}?" if same else ""
