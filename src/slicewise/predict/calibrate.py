"""Measurements to a device card: one correction for each runtime, precision and part of a device.

    cases -> rows of features (`features.py`) -> nested fit (`fitting.py`) -> Correction -> Card

Each case is a row, and so are those of its operators that a profiler timed (`operators.py`).

How far the fit goes, from one number to a coefficient for each class of kernels and each of its
costs, is chosen by how well families of models that were held out are predicted; a level that
does not help is not taken, so that the error of held-out families is never worse than without a
card. Interval bands are quantiles of the same held-out errors. Nothing is measured or stored here.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slicewise.core.cost import GraphWork, Prediction
from slicewise.core.device import Device
from slicewise.core.errors import MeasureError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Environment, MeasuredMemory
from slicewise.core.notes import Note
from slicewise.core.precision import Precision
from slicewise.predict import efficiency, fitting
from slicewise.predict.correction import (
    Band,
    Card,
    Correction,
    EnergyCorrection,
    Errors,
    MemoryCorrection,
    Range,
)
from slicewise.predict.features import CLASS_NAMES, CLASSES, FEATURES, classify, features
from slicewise.predict.kernels import Array, kernel_times, kernels_of, tabulate, unit_costs
from slicewise.predict.network import learned_times, predict_network_on
from slicewise.predict.operators import OperatorTime, Profiled, operator_rows
from slicewise.predict.roofline import SOURCE, predict_roofline
from slicewise.predict.runtimes import runtime_named

# With fewer families nothing can be held out: the band is a judgement, the scatter of the roofline
# over open rows (`domain.ERROR_BANDS`, UNSEEN_STRETCH) once its bias is taken away.
FEW_BAND = Band(1 / 1.8, 1.8)
# A band is no narrower than what repeating a measurement on a shared machine changes.
NARROWEST = 1.03
# The memory fit is shrunk toward factors of 1 with this strength (one measurement has 1).
MEMORY_RIDGES = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """One measurement and what is needed to predict it.

    `work` is launched for the runtime. `device` has no parent: for a share, `as_whole(share)` with
    `slice` its name. `family` groups models that resemble each other: they are held out together.
    `operators` are all that a profiler told of a run, with the kernels of `work` that each is;
    none where there was no profile.
    """

    graph: Graph
    work: GraphWork
    device: Device
    slice: str | None
    runtime: str
    precision: Precision
    latency_ms: float
    memory: MeasuredMemory | None
    energy_j: float | None
    family: str
    operators: tuple[OperatorTime, ...] = ()


def fit_card(
    cases: Sequence[CalibrationCase],
    *,
    device: Device,
    environment: Environment | None = None,
    made_at: str = "",
    progress: Callable[[str], None] | None = None,
) -> Card:
    """Return the card of `device` learned from `cases`, whose order does not matter.

    `environment` is that of the measurements, `made_at` a time in UTC. `progress` is called with a
    few words before each correction. `MeasureError` for no cases or a latency, energy or memory
    that is no positive number.
    """
    if not cases:
        raise MeasureError(
            f"no measurement of {device.name} to calibrate from, given 0; at least 1 is needed;"
            " run slicewise measure or slicewise campaign first"
        )
    groups: dict[tuple[str, str, str | None], list[CalibrationCase]] = defaultdict(list)
    for case in cases:
        _check(case)
        groups[case.runtime, case.precision.name, case.slice].append(case)
    found = environment or Environment()
    made = []
    for key in sorted(groups, key=lambda each: (each[0], each[1], each[2] or "")):
        if progress is not None:
            progress(f"{key[0]}, {key[1]}, {key[2] or 'whole device'}: {len(groups[key])} runs")
        made.append(_fit_correction(groups[key]))
    return Card(
        device=device.name,
        device_digest=device.digest,
        corrections=tuple(made),
        made_at=made_at,
        environment_digest=found.digest if environment is not None else "",
        packages=dict(found.packages),
    )


def _check(case: CalibrationCase) -> None:
    figures = {"latency_ms": case.latency_ms}
    if case.energy_j is not None:
        figures["energy_j"] = case.energy_j
    if case.memory is not None:
        figures["peak_bytes"] = case.memory.peak_bytes
        figures["runtime_bytes"] = case.memory.runtime_bytes
    for name, value in figures.items():
        if not (math.isfinite(value) and value > 0):
            raise MeasureError(
                f"{case.graph.name}, batch {case.graph.batch_size}: {name} {value!r} cannot be"
                " measured; it must be a positive number; remove that record"
            )
    for time in case.operators:
        if not (math.isfinite(time.latency_ms) and time.latency_ms >= 0 and time.calls > 0):
            raise MeasureError(
                f"{case.graph.name}, batch {case.graph.batch_size}: an operator of"
                f" {time.latency_ms!r} ms in {time.calls!r} calls cannot be measured; times are"
                " finite and not negative, calls are positive; remove that record"
            )


def _fit_correction(cases: Sequence[CalibrationCase]) -> Correction:
    """Return the correction of one runtime, precision and part."""
    prepared = sorted((_prepare(case) for case in cases), key=lambda each: each.order)
    cases = [each.case for each in prepared]
    problem = _problem(prepared)
    fitted = fitting.fit(problem)
    before_s = fitting.uncalibrated().predict(problem)
    held_out = fitted.held_out
    is_held_out = problem.families >= fitting.LEAST_FAMILIES
    if not is_held_out:
        held_out = fitted.theta.predict(problem)
    latencies = [case.latency_ms for case in cases]
    batches = [case.graph.batch_size for case in cases]
    plain = [
        predict_roofline(
            case.graph, case.work, case.device, precision=case.precision, runtime=case.runtime
        )
        if case.memory is not None or case.energy_j is not None
        else None
        for case in cases
    ]
    seen = np.any(problem.design > 0, axis=(0, 2))
    made = Correction(
        runtime=cases[0].runtime,
        precision=cases[0].precision.name,
        slice=cases[0].slice,
        level=fitted.level,
        theta=_named(fitted.theta.kernels),
        host=fitted.theta.host,
        band=_band(problem.measured / held_out, problem.families),
        range=Range(
            (min(batches), max(batches)),
            (min(latencies), max(latencies)),
            tuple(name for name, is_seen in zip(CLASS_NAMES, seen, strict=True) if is_seen),
        ),
        measurements=len(cases),
        families=problem.families,
        before=_errors(before_s, problem.measured, cases),
        after=_errors(held_out, problem.measured, cases),
        memory=_fit_memory(cases, plain),
        base=prepared[0].base,
    )
    return replace(made, energy=_fit_energy(cases, made, plain))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A case with its row of the design, what was profiled, what it is sorted by, and the name of
    the times that are corrected."""

    case: CalibrationCase
    design: Array
    profiled: Profiled
    host_s: float
    order: tuple[str, str, int, float]
    base: str


def _prepare(case: CalibrationCase) -> _Prepared:
    runtime = runtime_named(case.runtime)
    rows = list(kernels_of(case.work))
    table = tabulate([row.kernel for row in rows])
    costs, _ = unit_costs(table, case.device)
    times = kernel_times(costs, efficiency.RULES[case.device.kind], runtime, case.device)
    host_s, base = case.device.host_s * runtime.host_factor, SOURCE
    learned = learned_times(
        case.graph, rows, table, costs, times,
        device=case.device, precision=case.precision.name, runtime=case.runtime,
    )  # fmt: skip
    if not isinstance(learned, Note):
        times, host_s, base = learned.times, learned.host_s, learned.source
    columns = features(table, costs, times, case.device)
    columns *= np.array([row.repeats for row in rows])[:, None]
    classes = classify(case.graph, rows)
    design = np.zeros((len(CLASSES), len(FEATURES)))
    np.add.at(design, classes, columns)
    profiled = Profiled(columns, classes, case.operators, case.latency_ms * 1e-3)
    order = (case.family, case.graph.digest, case.graph.batch_size, case.latency_ms)
    return _Prepared(case, design, profiled, host_s, order, base)


def _problem(prepared: Sequence[_Prepared]) -> fitting.Problem:
    families = sorted({each.case.family for each in prepared})
    return fitting.Problem(
        design=np.array([each.design for each in prepared]),
        host=np.array([each.host_s for each in prepared]),
        measured=np.array([each.case.latency_ms for each in prepared]) * 1e-3,
        family=np.array([families.index(each.case.family) for each in prepared]),
        operators=operator_rows([each.profiled for each in prepared]),
    )


def _named(theta: Array) -> dict[str, dict[str, float]]:
    return {
        name: {
            feature: float(value) for feature, value in zip(FEATURES, row, strict=True) if value
        }
        for name, row in zip(CLASS_NAMES, theta, strict=True)
    }


def _band(ratios: Array, families: int) -> Band:
    """Return the 90 % band of measured over predicted, stretched for few families.

    Stretch: the 95 % point of Student's t over that of the normal, 1 + 1.5 / (families - 1) to
    first order (the expansion of Cornish and Fisher).
    """
    if families < fitting.LEAST_FAMILIES:
        return FEW_BAND
    logs = np.log(ratios)
    stretch = 1 + 1.5 / (families - 1)
    low, high = (float(np.quantile(logs, q)) * stretch for q in (0.05, 0.95))
    return Band(min(math.exp(low), 1 / NARROWEST), max(math.exp(high), NARROWEST))


def _errors(predicted: Array, measured: Array, cases: Sequence[CalibrationCase]) -> Errors:
    ratio = predicted / measured
    error = np.abs(ratio - 1)

    def medians(names: Sequence[str]) -> dict[str, float]:
        return {
            name: float(np.median(error[[each == name for each in names]]))
            for name in sorted(set(names), key=lambda name: (len(name), name))
        }

    return Errors(
        median=float(np.median(error)),
        mean=float(np.mean(error)),
        p90=float(np.quantile(error, 0.9)),
        bias=float(np.median(ratio - 1)),
        by_family=dict(sorted(medians([case.family for case in cases]).items())),
        by_batch=medians([str(case.graph.batch_size) for case in cases]),
    )


def _fit_memory(
    cases: Sequence[CalibrationCase], plain: Sequence[Prediction | None]
) -> MemoryCorrection | None:
    """Return the factors on the parts of the memory estimate; None where nothing was measured.

    What the runtime holds is the median of what was measured before a model was loaded, times a
    factor of its own: code that only runs with a model is loaded with it.
    """
    its = [
        (case, made.memory_bytes, case.memory)
        for case, made in zip(cases, plain, strict=True)
        if case.memory is not None and made is not None
    ]
    if not its:
        return None
    held = float(np.median([memory.runtime_bytes for _, _, memory in its]))
    parts = np.array(
        [[made.weights, made.activations, made.workspace, held] for _, made, _ in its],
        dtype=np.float64,
    )
    measured = np.array([memory.peak_bytes for _, _, memory in its], dtype=np.float64)
    families = [case.family for case, _, _ in its]
    ridge = _memory_ridge(parts, measured, families)
    factors = _memory_factors(parts, measured, ridge)
    held_out = parts @ factors
    count = len(set(families))
    if count >= fitting.LEAST_FAMILIES:
        held_out = _memory_held_out(parts, measured, families, ridge)
    some = [case for case, _, _ in its]
    before = np.array([made.value for _, made, _ in its], dtype=np.float64)
    weights, activations, workspace, runtime = factors.tolist()
    return MemoryCorrection(
        runtime_bytes=max(1, round(held * runtime)),
        weights=weights,
        activations=activations,
        workspace=workspace,
        band=_band(measured / held_out, count),
        before=_errors(before, measured, some),
        after=_errors(held_out, measured, some),
    )


def _memory_factors(parts: Array, measured: Array, ridge: float) -> Array:
    """Return the factors >= 0 of least relative error, shrunk toward 1."""
    scaled = parts / measured[:, None]
    gram = scaled.T @ scaled + ridge * np.eye(parts.shape[1])
    right = scaled.sum(axis=0) + ridge
    return fitting.non_negative(gram, right, np.ones(parts.shape[1]))


def _memory_held_out(
    parts: Array, measured: Array, families: Sequence[str], ridge: float
) -> Array:
    """Return each row's bytes while its family is held out."""
    held_out = np.zeros(len(measured))
    for family in sorted(set(families)):
        out = np.array([each == family for each in families])
        held_out[out] = parts[out] @ _memory_factors(parts[~out], measured[~out], ridge)
    return held_out


def _memory_ridge(parts: Array, measured: Array, families: Sequence[str]) -> float:
    if len(set(families)) < fitting.LEAST_FAMILIES:
        return MEMORY_RIDGES[-1]
    errors = [
        float(np.mean(np.abs(_memory_held_out(parts, measured, families, r) / measured - 1)))
        for r in MEMORY_RIDGES
    ]
    return MEMORY_RIDGES[errors.index(min(errors))]


def _fit_energy(
    cases: Sequence[CalibrationCase], made: Correction, plain: Sequence[Prediction | None]
) -> EnergyCorrection | None:
    """Return the factor on the energy of the corrected times; None where nothing was measured."""
    its = [
        (case, without)
        for case, without in zip(cases, plain, strict=True)
        if case.energy_j is not None and without is not None
    ]
    if not its:
        return None
    card = Card(cases[0].device.name, "", (replace(made, slice=None),))
    estimated = np.array([_corrected_energy_j(case, card) for case, _ in its])
    measured = np.array([case.energy_j for case, _ in its], dtype=np.float64)
    logs = np.log(measured / estimated)
    count = len({case.family for case, _ in its})
    some = [case for case, _ in its]
    prior = fitting.FACTOR_PRIOR
    factor = math.exp(float(np.median(logs)) * len(logs) / (len(logs) + prior))
    before = np.array([without.energy_j.value for _, without in its])
    return EnergyCorrection(
        factor=factor,
        band=_band(measured / (estimated * factor), count),
        before=_errors(before, measured, some),
        after=_errors(estimated * factor, measured, some),
    )


def _corrected_energy_j(case: CalibrationCase, card: Card) -> float:
    (made,) = predict_network_on(
        case.graph,
        case.work,
        [case.device],
        precision=case.precision,
        runtime=case.runtime,
        cards={case.device.name: card},
    )
    return made.energy_j.value
