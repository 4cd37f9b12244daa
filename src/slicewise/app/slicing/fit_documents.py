"""`slicewise.fit/1`: every part of a card judged, as plain values for scripts."""

import msgspec

from slicewise.app.documents import Json
from slicewise.core.conditions import version_text
from slicewise.core.packing import Fit
from slicewise.flows.fitting.result import Elsewhere, FitResult, FitSet, LargestBatch
from slicewise.slices.fit import has_memory, usable_bytes

SCHEMA = "slicewise.fit/1"


def fit_document(made: FitResult) -> Json:
    """Return `slicewise.fit/1` of one card. A figure that is not known is null.

    `recommended` is null where nothing fits and where only the whole card does, which
    `recommendation.kind` tells apart.
    """
    first = made.fits[0].prediction
    chosen = made.recommended
    return {
        "schema": SCHEMA,
        "model": {
            "name": made.model.name,
            "source": made.model.source,
            "digest": made.model.digest or None,
            "parameters": None if made.is_measured else made.model.parameters,
            "buffers": None if made.is_measured else made.model.buffers,
        },
        "device": made.device.name,
        "batch": made.batch,
        "precision": None if first.precision == "unknown" else first.precision,
        "runtime": None if made.is_measured else first.runtime,
        "runtime_version": version_text(first.runtime_version),
        "layout": None if made.is_measured else first.layout,
        "mechanism": made.mechanism,
        "processes": made.processes,
        "measured": made.is_measured,
        "target": {
            "latency_ms": made.target.latency_ms,
            "throughput_per_s": made.target.throughput_per_s,
            "safety": made.target.safety,
        },
        "recommended": None if chosen is None else chosen.prediction.slice,
        "recommendation": _recommendation(made),
        "profiles": [_entry(fit, made) for fit in made.fits],
        "largest_batches": [_largest(each) for each in made.largest],
        "elsewhere": [_elsewhere(each) for each in made.elsewhere],
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }


def fits_document(found: FitSet) -> Json:
    """Return `slicewise.fit/1` of several cards: `fits` in the order asked, and the best place."""
    best = found.best
    return {
        "schema": SCHEMA,
        "fits": [fit_document(made) for made in found.results],
        "best": None if best is None or best.recommended is None else {
            "device": best.device.name,
            "profile": best.recommended.prediction.slice,
            "part_of_card": best.part_of_card(best.recommended),
        },
    }  # fmt: skip


def _recommendation(made: FitResult) -> Json:
    fit, larger = made.recommended, made.next_larger
    if fit is None:
        best = made.best_possible
        return {
            "kind": "none",
            "profile": None,
            "reason": best.reason,
            "best_possible": _figures(best),
        }
    return {
        "kind": _kind(fit),
        "profile": fit.prediction.slice,
        "reason": fit.reason,
        "rule": "smallest that fits" if made.has_target else "best rate for each slice taken",
        "confidence": fit.confidence,
        "next_larger": None if larger is None else {"kind": _kind(larger), **_figures(larger)},
    }


def _kind(fit: Fit) -> str:
    name = fit.prediction.slice
    return "card" if name is None else "share" if name.endswith("%") else "slice"


def _figures(fit: Fit) -> Json:
    """Return what every entry of the document has: the part and its predicted figures."""
    made = fit.prediction
    energy, memory = made.energy_j, made.memory_bytes
    return {
        "profile": made.slice,
        "fits": fit.fits,
        "reason": fit.reason,
        "latency_ms": msgspec.to_builtins(made.latency_ms),
        "throughput_per_s": made.throughput_per_s,
        "energy_j": msgspec.to_builtins(energy) if energy.value > 0 else None,
        "memory_bytes": msgspec.to_builtins(memory) if has_memory(made) else None,
    }


def _entry(fit: Fit, made: FitResult) -> Json:
    units = made.device.compute_units
    if fit.profile is not None:
        units = fit.profile.compute_units
    elif fit.prediction.slice is not None:
        units = made.device.share(float(fit.prediction.slice[:-1])).compute_units
    return {
        **_figures(fit),
        "usable_memory_bytes": usable_bytes(fit.profile, made.device),
        "compute_units": units,
        "part_of_card": made.part_of_card(fit),
        "per_slice_per_s": fit.per_slice_per_s,
        "saturation": fit.prediction.saturation,
        "confidence": fit.confidence,
        "safety": fit.safety,
    }


def _largest(each: LargestBatch) -> Json:
    figures: Json = {"fits": False} if each.fit is None else _figures(each.fit)
    return {**figures, "profile": each.part, "batch": each.batch, "limit": each.limit}


def _elsewhere(each: Elsewhere) -> Json:
    return {"device": each.device.name, **_figures(each.fit)}
