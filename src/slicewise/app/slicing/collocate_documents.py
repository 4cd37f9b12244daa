"""`slicewise.collocate/1`: two models on one card by mechanism, as plain values for scripts."""

import msgspec

from slicewise.app.documents import Json
from slicewise.core.conditions import version_text
from slicewise.core.cost import Prediction
from slicewise.core.document import ModelInfo
from slicewise.flows.collocate import CollocateResult
from slicewise.slices.collocate import Sharing, Side

SCHEMA = "slicewise.collocate/1"


def collocate_document(made: CollocateResult) -> Json:
    """Return `slicewise.collocate/1`. `sides` stand in the order of `models`."""
    return {
        "schema": SCHEMA,
        "device": made.device.name,
        "models": [
            _model(info, alone) for info, alone in zip(made.models, made.alone, strict=True)
        ],
        "sharings": [_sharing(each) for each in made.sharings],
        "recommended": None if made.recommended is None else made.recommended.mechanism,
        "reason": made.reason,
        "left_out": [msgspec.to_builtins(each) for each in made.left_out],
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }


def _model(info: ModelInfo, alone: Prediction) -> Json:
    told: Json = msgspec.to_builtins(info)
    return {
        **told,
        "batch": alone.batch,
        "precision": alone.precision,
        "runtime": alone.runtime,
        "runtime_version": version_text(alone.runtime_version),
        "layout": alone.layout,
        "alone": {
            "latency_ms": msgspec.to_builtins(alone.latency_ms),
            "throughput_per_s": alone.throughput_per_s,
            "memory_bytes": msgspec.to_builtins(alone.memory_bytes),
            "saturation": alone.saturation,
        },
    }


def _sharing(each: Sharing) -> Json:
    return {
        "mechanism": each.mechanism,
        "fits": each.fits,
        "reason": each.reason,
        "worst_slowdown": each.worst_slowdown,
        "gain": each.gain,
        "sides": [_side(side) for side in each.sides],
        "placements": [msgspec.to_builtins(placement) for placement in each.placements],
    }


def _side(side: Side) -> Json:
    return {
        "part": side.prediction.slice,
        "slowdown": msgspec.to_builtins(side.slowdown),
        "neighbour_factor": msgspec.to_builtins(side.factor),
        "latency_ms": msgspec.to_builtins(side.latency_ms),
        "throughput_per_s": side.throughput_per_s,
        "memory_bytes": msgspec.to_builtins(side.prediction.memory_bytes),
    }
