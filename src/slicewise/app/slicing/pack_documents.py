"""`slicewise.pack/1`: cards, slices and what runs in them, as plain values for scripts."""

import math

import msgspec

from slicewise.app.documents import Json
from slicewise.core.packing import PackObjective, PlacedGpu, PlacedSlice, Serving
from slicewise.flows.packing.result import Outcome, PackResult
from slicewise.flows.packing.ways import MEASURED, PREDICTED

SCHEMA = "slicewise.pack/1"


def pack_document(made: PackResult) -> Json:
    """Return `slicewise.pack/1`. A figure that is not known is null; `gap` is 1 - bound / value.

    `gpus` are the used cards, and those of a current layout that keep a slice.
    """
    packing, problem, options = made.packing, made.problem, made.options
    return {
        "schema": SCHEMA,
        "gpus_used": packing.gpus_used,
        "lower_bound_gpus": made.lower_bound_gpus,
        "optimal": packing.is_optimal,
        "objective": problem.objective.value,
        "value": packing.value,
        "bound": packing.bound,
        "gap": packing.gap,
        "bounds": [
            {"method": each.method, "value": each.value, "exact": each.is_exact}
            for each in packing.bounds
        ],
        "latency_model": options.model.value,
        "safety": options.safety,
        "gpus": [_gpu(made, gpu) for gpu in packing.gpus],
        "workloads": [_workload(each) for each in made.outcomes],
        "unserved": [
            {"workload": each.workload, "rate_per_s": each.rate_per_s, "reason": each.reason}
            for each in packing.unserved
        ],
        "stock": [
            {"device": each.device.name, "count": each.count, "cost": each.cost}
            for each in problem.stock
        ],
        "left_over": [
            {
                "device": each.device,
                "index": each.index,
                "profiles": list(each.profiles),
                "largest": each.largest or None,
            }
            for each in made.left_over
        ],
        "largest_free": made.largest_free or None,
        "moves": packing.moves if made.standing and made.before is None else None,
        "what_if": None
        if made.before is None
        else {
            "workloads": list(made.added),
            "gpus_used_before": made.before.gpus_used,
            "gpus_used": packing.gpus_used,
            "moves": packing.moves,
        },
        "method": packing.method,
        "seed": packing.seed,
        "seconds": packing.seconds,
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }


def _gpu(made: PackResult, gpu: PlacedGpu) -> Json:
    return {
        "device": gpu.device,
        "index": gpu.index,
        "slices": [_slice(made, gpu, each) for each in gpu.slices],
    }


def _slice(made: PackResult, gpu: PlacedGpu, each: PlacedSlice) -> Json:
    offer = each.offer
    serving = None if offer is None else offer.serving
    card = made.problem.device(gpu.device)
    part = card if each.profile is None else card.profile_named(each.profile)
    return {
        "profile": each.profile,
        "start": each.start,
        "workload": each.workload,
        "batch": None if serving is None else serving.batch,
        "processes": None if serving is None else serving.processes,
        "service_ms": None if serving is None else serving.service_ms.value,
        "throughput_per_s": None if serving is None else serving.throughput_per_s,
        "service_interval_ms": None
        if serving is None
        else [serving.service_ms.low, serving.service_ms.high],
        "capacity_per_s": None if offer is None else offer.capacity_per_s,
        "rate_per_s": each.rate_per_s if each.workload is not None else None,
        "max_delay_ms": None if offer is None else offer.max_delay_ms,
        "memory_bytes": None if serving is None else round(serving.memory_bytes),
        "memory_limit_bytes": part.memory_bytes,
        "energy_j": _energy(made, serving),
        "measured": None if serving is None else serving.source == MEASURED,
        "in_use": each.in_use,
    }


def _energy(made: PackResult, serving: Serving | None) -> float | None:
    """Return what an item costs beyond idle power, null where that is not known nor asked for."""
    is_asked = made.problem.objective is PackObjective.ENERGY
    if serving is None or not (is_asked or serving.source == PREDICTED):
        return None
    return serving.energy_j


def _workload(each: Outcome) -> Json:
    spec, played = each.spec, each.simulated
    return {
        "name": spec.name,
        "source": spec.source,
        "rate_per_s": spec.rate_per_s,
        "latency_ms": spec.latency_ms,
        "percentile": spec.percentile,
        "slices": len(each.uses),
        "capacity_per_s": each.capacity_per_s,
        "capacity_largest_batch_per_s": each.capacity_largest_batch_per_s,
        "head_room": _finite(each.head_room),
        "unserved_per_s": each.unserved_per_s,
        "simulated": None
        if played is None
        else {
            "percentile": played.percentile,
            "latency_ms": played.latency_ms,
            "requests": played.requests,
            "met": played.is_met,
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
