"""The client, which picks settings and makes the files they serve, and the server, which measures
them. Both are made from the problem alone; each candidate runs in a process of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slicewise.core.crew import Tell
from slicewise.core.errors import MeasureError, SlicewiseError, TuningError
from slicewise.core.measurement import Measurement, Outcome
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note, unique_notes
from slicewise.core.tuning import (
    Building,
    Built,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
)
from slicewise.tune.arrays import greatest_difference
from slicewise.tune.backends.serving.gate import Refusal, served_file
from slicewise.tune.backends.serving.problem import Problem
from slicewise.tune.backends.serving.search import choose
from slicewise.tune.backends.serving.settings import AS_IS, Settings

_OUTCOMES = {
    Outcome.OK: TrialOutcome.OK,
    Outcome.REFUSED: TrialOutcome.REFUSED,
    Outcome.CRASHED: TrialOutcome.CRASHED,
    Outcome.OUT_OF_MEMORY: TrialOutcome.REFUSED,
    Outcome.TIMED_OUT: TrialOutcome.TIMED_OUT,
}
# What a measurement notes about the trust that it deserves; the rest is about the model.
_TRUST = frozenset({"machine-busy", "share-disturbed", "share-capped", "warm-up-unsteady"})


@dataclass(slots=True)
class ServingClient:
    """Picks settings; int8 files are made and judged on the way."""

    problem: Problem
    # settings proposed by this client for each piece, whose trials it may not know yet
    _proposed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        """Return the next settings; see the protocol.

        Where int8 of a kind is refused on an engine, all settings with it are dropped at once:
        threads and spinning do not change what is computed.
        """
        began = time.perf_counter()
        dropped = _refused_kinds(order.known)
        configs, is_last = self._configs(order, dropped)
        search_s = time.perf_counter() - began
        built: list[Built] = []
        failed: list[Trial] = []
        notes: list[Note] = []
        for config in configs:
            if not order.rebuild and _kind_of(config) in dropped:
                continue
            tell(Building(order.piece.workload, config))
            made = self._build(order, config)
            if isinstance(made, Built):
                built.append(made)
                continue
            failed.append(made)
            notes += made.notes
            dropped |= _refused_kinds([made])
        if not order.rebuild:
            self._proposed[order.piece.number] = tuple(configs)
        return Proposal(
            order.piece,
            tuple(built),
            tuple(failed),
            is_exhausted=is_last,
            search_s=search_s,
            build_s=time.perf_counter() - began - search_s,
            notes=unique_notes(notes),
        )

    def _configs(
        self, order: SearchOrder, dropped: set[tuple[str, str]]
    ) -> tuple[Sequence[str], bool]:
        if order.rebuild:
            return order.rebuild, False
        others = (c for n, c in self._proposed.items() if n != order.piece.number)
        excluded = {*order.avoid, *(config for configs in others for config in configs)}
        points = self.problem.points
        excluded |= {point for point in points if _kind_of(point) in dropped}
        if order.piece.round == 0 and order.hints:
            rest = [point for point in points[1:] if point not in order.hints]
            points = (points[0], *(h for h in order.hints if h in points[1:]), *rest)
        chosen = choose(points, order.piece, known=order.known, excluded=excluded)
        return chosen.points, chosen.is_last

    def _build(self, order: SearchOrder, config: str) -> Built | Trial:
        began = time.perf_counter()
        workload = order.piece.workload
        try:
            served_file(self.problem, self.problem.settings_of(config))
        except Refusal as err:
            return Trial(
                workload,
                config,
                TrialOutcome.REFUSED,
                error=str(err),
                build_s=time.perf_counter() - began,
                notes=(err.note,),
            )
        except SlicewiseError as err:
            spent = time.perf_counter() - began
            return Trial(
                workload, config, TrialOutcome.BUILD_FAILED, error=str(err), build_s=spent
            )
        return Built(workload, config, build_s=time.perf_counter() - began)


def _kind_of(config: str) -> tuple[str, str]:
    """Return numerics and engine; ('', '') of what is no configuration."""
    try:
        settings = Settings.parse(config)
    except TuningError:
        return "", ""
    return settings.numerics, settings.engine


def _refused_kinds(trials: Sequence[Trial]) -> set[tuple[str, str]]:
    """Return the (numerics, engine) that were refused as such, as opposed to one setting of it."""
    return {
        _kind_of(trial.config)
        for trial in trials
        if trial.outcome is TrialOutcome.REFUSED
        and any(note.code in _GATE for note in trial.notes)
    }


_GATE = frozenset({"int8-refused", "int8-disagrees", "no-accuracy-data"})


@dataclass(slots=True)
class ServingServer:
    """Measures settings, each in a process that is bound to the share, and compares outputs."""

    problem: Problem
    # the greatest difference of outputs by what decides what is computed; None: not compared
    _differences: dict[tuple[object, ...], float | str] = field(default_factory=dict)
    _expected: dict[int, Sequence[Any]] = field(default_factory=dict)

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        """Return a trial for each; see the protocol.

        Latency is that of a run of the batch; where the objective is throughput, the time that
        one batch takes in the mean: that of a run over the number of requests, or a batch of the
        task's own size where batches are chosen from.
        """
        trials = []
        for each in built:
            tell(Building(each.workload, each.config))
            began = time.perf_counter()
            trial = self._trial(each, sampling)
            trials.append(replace(trial, measure_s=time.perf_counter() - began))
        return tuple(trials)

    def _trial(self, built: Built, sampling: Sampling) -> Trial:
        failed = Trial(built.workload, built.config, build_s=built.build_s)
        try:
            settings = self.problem.settings_of(built.config)
            path = served_file(self.problem, settings).path
            made = self.problem.measure(self.problem.job(settings, path, sampling=sampling))
        except Refusal as err:
            notes = (err.note,)
            return replace(failed, outcome=TrialOutcome.REFUSED, error=str(err), notes=notes)
        except TuningError as err:
            return replace(failed, outcome=TrialOutcome.BUILD_FAILED, error=str(err))
        except SlicewiseError as err:  # settings that the runtime does not have
            return replace(failed, outcome=TrialOutcome.REFUSED, error=str(err))
        trial = self._told(failed, made, settings)
        if not trial.is_ok or settings.numerics != AS_IS or settings == self.problem.default:
            return trial
        return self._checked(trial, settings)

    def _told(self, trial: Trial, made: Measurement, settings: Settings) -> Trial:
        waited = made.environment.waited
        trial = replace(
            trial,
            outcome=_OUTCOMES[made.outcome],
            error=made.error,
            slowdown=None if waited is None else 1.0 / max(1e-3, 1.0 - waited),
            notes=tuple(note for note in made.notes if note.code in _TRUST),
        )
        if made.latency_ms is None:
            return trial
        # of one batch of the task's own size
        part = 1.0
        if self.problem.options.is_throughput:
            part = self.problem.default.batch / self.problem.items(settings)
        whole = made.latency_ms
        return replace(
            trial,
            latency_ms=replace(
                whole, value=whole.value * part, low=whole.low * part, high=whole.high * part
            ),
            samples_ms=tuple(ms * part for ms in made.samples_ms),
        )

    def _checked(self, trial: Trial, settings: Settings) -> Trial:
        """Return the trial as it is where the outputs are those of the default, else as wrong."""
        found = self._difference(settings)
        if isinstance(found, str):
            note = Note("outputs-uncompared", f"outputs were not compared: {found}")
            return replace(trial, notes=(*trial.notes, note))
        tolerance = self.problem.options.tolerance
        if found <= tolerance:
            return trial
        text = (
            f"outputs differ from those of onnxruntime's defaults by {found:.3g} of the largest;"
            f" allowed is tolerance={tolerance:g}"
        )
        return replace(
            trial, outcome=TrialOutcome.WRONG, error=text, latency_ms=None, samples_ms=()
        )

    def _difference(self, settings: Settings) -> float | str:
        """Return the greatest relative difference, or why there is none; asked once for each
        engine and graph level, since threads and spinning do not change what is computed."""
        level = settings.options.get("graph_level", "")
        key = (settings.engine, level, settings.execution, settings.batch)
        if key not in self._differences:
            self._differences[key] = self._compared(settings)
        return self._differences[key]

    def _compared(self, settings: Settings) -> float | str:
        run = self.problem.outputs
        if run is None:
            return "nothing was given to run a model with"
        default = replace(self.problem.default, batch=settings.batch)
        try:
            if settings.batch not in self._expected:
                self._expected[settings.batch] = tuple(run(self.problem.job(default)))
            found: Sequence[Any] = tuple(run(self.problem.job(replace(settings, requests=1))))
        except MeasureError as err:
            return str(err)
        return greatest_difference(self._expected[settings.batch], found)
