"""Profiles, workloads and parts that tests of `pack` have in common."""

import itertools
from pathlib import Path

import slicewise
from slicewise.flows.packing.fleet import Part, parts_of
from slicewise.flows.packing.workload import WorkloadSpec

A100 = "a100-sxm4-80gb"
GIB = 2**30
SLICES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def write_profile(
    path: Path, *, slices: tuple[str, ...] = SLICES, item_ms: float = 7.0, gib: float = 2.0
) -> Path:
    """Write what a model might be measured to: a batch of b takes 2 + item b / slices ms, and n
    processes of it n times as long."""
    rows = ["slice,batch,processes,latency_ms,throughput_per_s,memory_bytes"]
    for name, batch, count in itertools.product(slices, (1, 2, 4, 8), (1, 2)):
        units = int(name[0]) if name else 7.7
        ms = count * (2 + item_ms * batch / units)
        rows.append(
            f"{name},{batch},{count},{ms!r},{count * batch / ms * 1e3!r},{count * gib * GIB!r}"
        )
    path.write_text("\n".join(rows) + "\n")
    return path


def spec_of(profile: Path, **given: object) -> WorkloadSpec:
    usual: dict[str, object] = {
        "name": "a", "rate_per_s": 100.0, "latency_ms": 100.0, "profile": profile,
    }  # fmt: skip
    return WorkloadSpec(**{**usual, **given})  # type: ignore[arg-type]


def all_parts(*names: str) -> list[Part]:
    return [part for name in names or (A100,) for part in parts_of(slicewise.device(name))]
