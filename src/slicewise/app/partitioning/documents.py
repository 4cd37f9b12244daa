"""`slicewise.partition/1`: stages, bounds, and what was cut, as plain values for scripts."""

import math

import msgspec

from slicewise.app.documents import Json
from slicewise.app.partitioning.words import device, is_energy, stage_names
from slicewise.core.pipeline import Bound
from slicewise.flows.partitioning.result import (
    KNEE_TOLERANCE,
    CutTensorAt,
    PartitionCurve,
    PartitionResult,
)

SCHEMA = "slicewise.partition/1"


def partition_document(made: PartitionResult) -> Json:
    """Return `slicewise.partition/1` of one number of stages. A figure that is not known is null.

    `gap` is 1 - bound / value; where energy is made least it is that of the energy.
    """
    partition, problem, material = made.partition, made.case.problem, made.case.material
    energy = is_energy(made)
    has_energy = all(kind.energy_j for kind in problem.kinds)
    return {
        "schema": SCHEMA,
        "model": {
            "name": material.name,
            "source": material.source,
            "digest": material.digest or None,
            "nodes": len(material.labels),
        },
        "batch": material.batch,
        "runtime": material.runtime or None,
        "precision": material.precision or None,
        "objective": problem.objective.value,
        "most_stages": problem.stages,
        "stages": [_stage(made, stage) for stage in range(len(partition.loads))
                   if partition.loads[stage].nodes or partition.loads[stage].load_ms],
        "bottleneck_ms": partition.bottleneck_ms,
        "lower_bound_ms": None if energy else partition.bound,
        "energy_j": partition.energy_j if has_energy else None,
        "lower_bound_j": partition.bound if energy else None,
        "limit_ms": _finite(problem.limit_ms),
        "gap": partition.gap,
        "optimal": partition.is_optimal,
        "complete": partition.is_complete,
        "method": partition.method,
        "bounds": [_bound(bound, energy=energy) for bound in partition.bounds],
        "stage_of": list(made.stage_of),
        "seed": partition.seed,
        "seconds": partition.seconds,
        "throughput_per_s": _finite(made.throughput_per_s),
        "latency_ms": {"synchronous": made.synchronous_ms, "asynchronous": made.asynchronous_ms},
        "cut_tensors": [_tensor(each) for each in made.cut_tensors],
        "baselines": [
            {"rule": each.rule, "value": each.value, "broken": each.broken or None}
            for each in made.baselines
        ],
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }  # fmt: skip


def curve_document(found: PartitionCurve) -> Json:
    """Return `slicewise.partition/1` of a curve: `knee` is the number of stages recommended."""
    return {
        "schema": SCHEMA,
        "curve": [partition_document(made) for made in found.results],
        "knee": found.knee.case.problem.stages,
        "knee_tolerance": KNEE_TOLERANCE,
        "infeasible": [{"stages": stages, "reason": why} for stages, why in found.infeasible],
    }


def _stage(made: PartitionResult, index: int) -> Json:
    load = made.partition.loads[index]
    kind = made.case.problem.kinds[load.kind]
    return {
        "index": index,
        "device": device(made, load),
        "nodes": stage_names(made, index),
        "work_ms": load.work_ms,
        "receive_ms": load.receive_ms,
        "send_ms": load.send_ms,
        "load_ms": load.load_ms,
        "memory_bytes": round(load.memory_bytes),
        "memory_limit_bytes": _whole(kind.memory_limit_bytes),
        "fast_bytes": None if kind.fast_memory is None else round(load.fast_bytes),
        "energy_j": load.energy_j if kind.energy_j else None,
        "replicas": load.replicas,
    }


def _bound(bound: Bound, *, energy: bool) -> Json:
    return {
        "method": bound.method,
        "bottleneck_ms": None if energy else bound.value,
        "energy_j": bound.value if energy else None,
        "trust": bound.trust.value,
        "detail": dict(bound.detail),
    }


def _tensor(cut: CutTensorAt) -> Json:
    return {
        "name": cut.tensor.name,
        "source": cut.source,
        "targets": list(cut.targets),
        "size_bytes": None if cut.tensor.size_bytes is None else round(cut.tensor.size_bytes),
        "transfer_ms": cut.transfer_ms,
    }


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
