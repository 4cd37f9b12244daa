"""Before against after: both measured by turns on the share, and their outputs compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slicewise.core.comparison import Comparison
from slicewise.core.cost import Estimate
from slicewise.core.errors import MeasureError
from slicewise.core.measurement import Job, Measurement, Protocol
from slicewise.core.notes import Note, unique_notes
from slicewise.core.tuning import Artifact
from slicewise.flows.measure import is_usable, run_job

# By turns, so that a machine that grows slower does so for both.
ROUNDS = 3
_ONE = Protocol(min_samples=10, max_samples=200, budget_s=1.5, relative_width=0.02)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Latencies before and after, and whether the outputs agree.

    `comparison` is after against before. `is_equal` None: the outputs could not be compared, a
    Note says why. `difference` is the greatest one, relative to the largest output.
    """

    before_ms: Estimate
    after_ms: Estimate
    comparison: Comparison
    is_equal: bool | None
    difference: float | None
    notes: tuple[Note, ...] = ()

    @property
    def is_slower(self) -> bool:
        """True where after is not faster by its median."""
        return self.after_ms.value > self.before_ms.value


def judge(
    artifact: Artifact,
    *,
    rounds: int = ROUNDS,
    run: Callable[[Job], Measurement] = run_job,
    outputs: Callable[[Job], Sequence[Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Judgement:
    """Return before against after: `rounds` measurements of each, by turns.

    `MeasureError` where one of the two does not run.
    """
    from slicewise.measure.compare import compare
    from slicewise.measure.statistics import summarise

    assert artifact.before is not None and artifact.after is not None
    taken: dict[str, list[Measurement]] = {"before": [], "after": []}
    for number in range(rounds):
        for name, job in (("before", artifact.before), ("after", artifact.after)):
            if progress is not None:
                progress(f"measuring {name}, {number + 1} of {rounds}")
            made = run(replace(job, protocol=_ONE))
            if not is_usable(made):
                raise MeasureError(
                    f"{made.model} does not run {name} tuning: {made.outcome}: {made.error}"
                )
            taken[name].append(made)
    before, after = (_joined(taken[name]) for name in ("before", "after"))
    after = _for_items(after, artifact.before_items / artifact.after_items)
    equal, difference, told = _agreement(artifact, outputs)
    return Judgement(
        summarise(before.samples_ms),
        summarise(after.samples_ms),
        compare(before, after),
        equal,
        difference,
        unique_notes(
            (*_noted(_joined((*taken["before"], *taken["after"]))), *told, *_counted(artifact))
        ),
    )


def _joined(taken: Sequence[Measurement]) -> Measurement:
    """Return one measurement with the samples of all."""
    from slicewise.measure.statistics import summarise

    samples = tuple(ms for each in taken for ms in each.samples_ms)
    notes = unique_notes(note for each in taken for note in each.notes)
    return replace(taken[0], samples_ms=samples, latency_ms=summarise(samples), notes=notes)


def _for_items(made: Measurement, factor: float) -> Measurement:
    """Return the measurement with its times for another number of samples."""
    from slicewise.measure.statistics import summarise

    samples = tuple(ms * factor for ms in made.samples_ms)
    return replace(made, samples_ms=samples, latency_ms=summarise(samples))


def _counted(artifact: Artifact) -> tuple[Note, ...]:
    """Return the Note that times are not those of single runs, where they are not."""
    if artifact.before_items == artifact.after_items:
        return ()
    text = (
        f"throughput is compared: a run gives {artifact.after_items} samples after tuning and"
        f" {artifact.before_items} before; the times are those of {artifact.before_items}"
    )
    return (Note("times-per-sample", text),)


# What says that the figures are worth less; the rest of a measurement's notes is not about them.
_TOLD = frozenset({"machine-busy", "share-disturbed", "share-capped", "share-splits-core"})


def _noted(made: Measurement) -> tuple[Note, ...]:
    """Return what was seen of others, the first of each kind: rounds differ by a few percent."""
    found: dict[str, Note] = {}
    for note in made.notes:
        if note.code in _TOLD:
            found.setdefault(note.code, note)
    return tuple(found.values())


def _agreement(
    artifact: Artifact, outputs: Callable[[Job], Sequence[Any]] | None
) -> tuple[bool | None, float | None, tuple[Note, ...]]:
    """Return whether the outputs are equal within the artefact's tolerance, and the difference."""
    from slicewise.tune.arrays import greatest_difference

    if outputs is None:
        from slicewise.flows.tuning.outputs import outputs_of

        outputs = outputs_of
    assert artifact.before is not None and artifact.after is not None
    try:
        first, second = outputs(artifact.before), outputs(artifact.after)
    except MeasureError as err:
        text = f"outputs before and after were not compared: {err}"
        return None, None, (Note("outputs-uncompared", text),)
    difference = greatest_difference(first, second)
    return difference <= artifact.tolerance, difference, ()
