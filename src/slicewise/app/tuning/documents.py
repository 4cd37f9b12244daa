"""`slicewise.tune/1` and `slicewise.tune-matrix/1`: what tuning gave, as plain values."""

import msgspec

from slicewise.app.documents import Json
from slicewise.core.cost import Estimate
from slicewise.core.document import ModelInfo
from slicewise.core.tuning import Matrix, Phases, Trial
from slicewise.flows.tuning.result import (
    CurvePoint,
    MatrixResult,
    Outlook,
    ShareChoice,
    TunedWorkload,
    TuneResult,
)

SCHEMA = "slicewise.tune/1"
MATRIX_SCHEMA = "slicewise.tune-matrix/1"
# Configurations of compilers are programs of many kilobytes; the journal of the run has them.
LONGEST_CONFIG = 1_000


def tune_document(made: TuneResult) -> Json:
    """Return `slicewise.tune/1`. A figure that is not known is null; `gain` is before / after."""
    return {
        "schema": SCHEMA,
        "model": _model(made.model),
        "engine": made.engine,
        "engine_version": made.engine_version,
        "device": made.device,
        "share": made.share,
        "mechanism": made.mechanism,
        "threads": made.threads,
        "batch": made.batch,
        "precision": made.precision,
        "before_ms": None if made.before_ms is None else made.before_ms.value,
        "before_interval_ms": _interval(made.before_ms),
        "before_options": dict(made.before_options),
        "after_ms": None if made.after_ms is None else made.after_ms.value,
        "after_interval_ms": _interval(made.after_ms),
        "after_options": dict(made.after_options),
        "gain": made.gain,
        "outputs_equal": made.outputs_equal,
        "difference": made.difference,
        "artifact": None if made.artifact is None else str(made.artifact),
        "how_to_run": made.how_to_run,
        "workloads": [_workload(each) for each in made.workloads],
        "phases": _phases(made.phases),
        "trials": [_trial(trial) for trial in made.trials],
        "curve": [_point(point) for point in made.curve],
        "outlook": _outlook(made.outlook),
        "share_choice": _choice(made.choice),
        "journal": None if made.journal is None else str(made.journal),
        "seed": made.seed,
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }


def _model(model: ModelInfo) -> Json:
    made: Json = msgspec.to_builtins(model)
    return made


def _estimate(estimate: Estimate | None) -> Json | None:
    """Return a figure with its interval, null where there is none."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _interval(estimate: Estimate | None) -> list[float] | None:
    return None if estimate is None else [estimate.low, estimate.high]


def _workload(each: TunedWorkload) -> Json:
    tuned = each.tuned
    return {
        "name": each.name,
        "key": each.key,
        "op_types": list(each.op_types),
        "count": each.count,
        "weight_ms": each.weight_ms,
        "latency_ms": None if tuned is None else _estimate(tuned.latency_ms),
        "default_ms": None if tuned is None else tuned.default_ms,
        "gain": each.gain,
        "config": None if tuned is None else tuned.config,
        "from_store": tuned is not None and tuned.is_from_store,
        "trials": each.trials,
        "failures": {outcome.value: count for outcome, count in each.failures.items()},
    }


def _phases(phases: Phases) -> Json:
    made: Json = msgspec.to_builtins(phases)
    return {**made, "busy_share": phases.busy_share}


def _trial(trial: Trial) -> Json:
    return {
        "workload": trial.workload,
        "config": trial.config if len(trial.config) <= LONGEST_CONFIG else None,
        "outcome": trial.outcome.value,
        "latency_ms": _estimate(trial.latency_ms),
        "error": trial.error,
        "piece": trial.piece,
        "client": trial.client,
        "server": trial.server,
        "build_s": trial.build_s,
        "measure_s": trial.measure_s,
        "at_s": trial.at_s,
        "alone": trial.is_alone,
        "known_before": trial.is_warm,
        "slowdown": trial.slowdown,
    }


def _point(point: CurvePoint) -> Json:
    return {
        "at_s": point.at_s,
        "trials": point.trials,
        "total_ms": point.total_ms,
        "alone": point.is_alone,
    }


def _outlook(outlook: Outlook | None) -> Json | None:
    if outlook is None:
        return None
    return {
        "seconds": outlook.seconds,
        "trials": outlook.trials,
        "total_ms": _estimate(outlook.total_ms),
    }


def _choice(choice: ShareChoice | None) -> Json | None:
    if choice is None:
        return None
    return {
        "chosen_percent": choice.chosen_percent,
        "tolerance": choice.tolerance,
        "points": [
            {
                "percent": point.percent,
                "predicted_ms": _estimate(point.predicted_ms),
                "measured_ms": _estimate(point.measured_ms),
            }
            for point in choice.points
        ],
    }


def matrix_document(made: MatrixResult) -> Json:
    """Return `slicewise.tune-matrix/1`: `total` over all workloads, then each of them."""
    return {
        "schema": MATRIX_SCHEMA,
        "model": _model(made.model),
        "engine": made.engine,
        "engine_version": made.engine_version,
        "device": made.device,
        "mechanism": made.mechanism,
        "batch": made.batch,
        "shares": list(made.shares),
        "candidates": made.candidates,
        "total": _matrix(made.total),
        "workloads": [_matrix(each) for each in made.workloads],
        "phases": _phases(made.phases),
        "notes": [msgspec.to_builtins(note) for note in made.notes],
    }


def _matrix(matrix: Matrix) -> Json:
    return {
        "name": matrix.name,
        "key": matrix.key,
        "shares": list(matrix.shares),
        "cells": [
            {
                "tuned_at": cell.tuned_at,
                "run_at": cell.run_at,
                "config": cell.config if 0 < len(cell.config) <= LONGEST_CONFIG else None,
                "latency_ms": _estimate(cell.latency_ms),
                "penalty": _estimate(cell.penalty),
            }
            for cell in matrix.cells
        ],
    }
