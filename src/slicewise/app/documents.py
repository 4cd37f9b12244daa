"""The JSON documents that scripts rely on: frozen types in, plain values out.

Field names are fixed by the contract: added to, never renamed.
"""

import msgspec

from slicewise.core.cost import Estimate, MemoryEstimate, NodeEstimate, Prediction
from slicewise.core.coverage import Support
from slicewise.core.device import Device, SliceProfile
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.notes import Note

Json = dict[str, object]


def encode(document: Json) -> bytes:
    """Return the document as indented JSON text with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def predict_document(result: PredictionSet, *, nodes: bool) -> Json:
    """Return `slicewise.predict/1`. `model` is the first model, `models` all of them."""
    models = [_model(model) for model in result.models]
    return {
        "schema": "slicewise.predict/1",
        "model": models[0],
        "models": models,
        "predictions": [_prediction(made, nodes=nodes) for made in result.predictions],
    }


def support_document(result: Support) -> Json:
    """Return `slicewise.support/1`."""
    return {
        "schema": "slicewise.support/1",
        "model": _model(result.model),
        "covered": result.covered,
        "operators": [
            {
                "op_type": operator.op_type,
                "domain": operator.domain,
                "kind": operator.kind,
                "count": operator.count,
                "coverage": operator.coverage,
            }
            for operator in result.operators
        ],
        "notes": [_note(note) for note in result.notes],
    }


def devices_document(devices: tuple[Device, ...]) -> Json:
    """Return `slicewise.devices/1`."""
    return {"schema": "slicewise.devices/1", "devices": [_device(device) for device in devices]}


def _model(model: ModelInfo) -> Json:
    return {
        "name": model.name,
        "source": model.source,
        "digest": model.digest,
        "parameters": model.parameters,
        "buffers": model.buffers,
    }


def _prediction(made: Prediction, *, nodes: bool) -> Json:
    document: Json = {
        "model": made.model,
        "device": made.device,
        "slice": made.slice,
        "batch": made.batch,
        "precision": made.precision,
        "runtime": made.runtime,
        "macs": made.macs,
        "flops": made.flops,
        "latency_ms": _estimate(made.latency_ms),
        "host_ms": made.host_ms,
        "throughput_per_s": made.throughput_per_s,
        "energy_j": _estimate(made.energy_j),
        "memory_bytes": _memory(made.memory_bytes),
        "compute_utilisation": made.compute_utilisation,
        "saturation": made.saturation,
        "source": made.source,
    }
    if nodes:
        document["nodes"] = [_node(node) for node in made.nodes]
    document["notes"] = [_note(note) for note in made.notes]
    return document


def _estimate(estimate: Estimate) -> Json:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _memory(estimate: MemoryEstimate) -> Json:
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "weights": estimate.weights,
        "activations": estimate.activations,
        "runtime": estimate.runtime,
    }


def _node(node: NodeEstimate) -> Json:
    return {
        "name": node.name,
        "op_type": node.op_type,
        "kind": node.kind,
        "latency_ms": node.latency_ms,
        "compute_ms": node.compute_ms,
        "memory_ms": node.memory_ms,
        "limit": node.limit,
        "flops": node.flops,
        "moved_bytes": node.moved_bytes,
    }


def _note(note: Note) -> Json:
    return {"code": note.code, "text": note.text, "node": note.node}


def _device(device: Device) -> Json:
    return {
        "name": device.name,
        "title": device.title,
        "kind": device.kind,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "parent": None if device.parent is None else device.parent.name,
        "slice": device.slice_name,
        "compute_units": device.compute_units,
        "peak_flop_per_s": {dtype.value: rate for dtype, rate in device.peak_flop_per_s.items()},
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "cache_bytes": device.cache_bytes,
        "clock_hz": device.clock_hz,
        "idle_power_w": device.idle_power_w,
        "max_power_w": device.max_power_w,
        "launch_s": device.launch_s,
        "host_s": device.host_s,
        "link": None
        if device.link is None
        else {
            "name": device.link.name,
            "bandwidth_bytes_per_s": device.link.bandwidth_bytes_per_s,
            "latency_s": device.link.latency_s,
        },
        "profiles": [_profile(profile) for profile in device.profiles],
        "sources": dict(device.sources),
        "notes": [_note(note) for note in device.notes],
    }


def _profile(profile: SliceProfile) -> Json:
    return {
        "name": profile.name,
        "compute_units": profile.compute_units,
        "memory_bytes": profile.memory_bytes,
        "compute_slices": profile.compute_slices,
        "memory_slices": profile.memory_slices,
        "starts": list(profile.starts),
        "size": profile.size,
        "max_instances": profile.max_instances,
        "notes": [_note(note) for note in profile.notes],
    }
