"""What a search found, made fit to be shown: no empty stages, and a curve that never rises."""

from collections.abc import Sequence
from dataclasses import replace

from slicewise.core.notes import Note
from slicewise.core.pipeline import Assignment, Bound, Partition, PipelineProblem, StageLoad, Trust
from slicewise.flows.partitioning.pipeline_material import Case


def compact(problem: PipelineProblem, found: Partition) -> Partition:
    """Return the partition without empty stages where stages have no place of their own."""
    is_alike = len(set(problem.places)) == 1
    if not (
        problem.is_uniform or ((problem.replicates or not problem.is_placed) and not is_alike)
    ):
        return found
    cut, loads = found.assignment, found.loads
    kept = [stage for stage, load in enumerate(loads) if load.nodes]
    if len(kept) == len(loads):
        return found
    number = {stage: index for index, stage in enumerate(kept)}
    assignment = Assignment(
        tuple(number[stage] for stage in cut.stage_of),
        tuple(cut.kind_of[stage] for stage in kept),
        tuple(cut.replicas[stage] for stage in kept),
    )
    return _judged(problem, replace(found, assignment=assignment))


def checked(problem: PipelineProblem, found: Partition, *, with_bounds: bool) -> Partition:
    """Return the partition once its cut and value are true in exact arithmetic.

    `with_bounds` proves its checked bounds again too, and notes what that could not reach.
    `PartitionError` for what is not true: that would be a mistake of ours.
    """
    from slicewise.partition.rechecks import RECHECKS
    from slicewise.partition.verify import verify

    if not with_bounds:
        verify(problem, replace(found, bounds=()), rechecks={})
        return found
    notes = verify(problem, found, rechecks=RECHECKS)
    proven = [bound for bound in found.bounds if bound.trust is Trust.CHECKED]
    text = f"value and {len(proven) - len(notes)} bounds were proven again in exact arithmetic"
    return replace(found, notes=(*found.notes, *notes, Note("verified", text)))


def _judged(problem: PipelineProblem, found: Partition) -> Partition:
    """Return the partition with the loads and the value of its assignment."""
    from slicewise.partition.evaluate import objective_of, stage_loads

    loads: tuple[StageLoad, ...] = stage_loads(problem, found.assignment)
    return replace(found, loads=loads, value=objective_of(problem, loads))


def joined(cases: Sequence[Case], found: Sequence[Partition]) -> list[Partition]:
    """Return the partitions of a curve, each at least as good as its neighbours allow.

    A cut of fewer stages is one of more (at most k), and no cut of fewer stages beats the bound of
    more. Only where stages are alike: elsewhere another number of stages is another problem.
    """
    made = list(found)
    if len(made) < 2 or not all(_grows(case.problem) for case in cases):
        return made
    for index in range(1, len(made)):
        before, after = made[index - 1], made[index]
        if before.value < after.value:
            made[index] = _taken(cases[index].problem, before, after)
    for index in range(len(made) - 2, -1, -1):
        more = made[index + 1]
        if more.bound > made[index].bound:
            best = max(more.bounds, key=lambda bound: bound.value)
            stages = cases[index + 1].problem.stages
            detail = {**best.detail, "stages": best.detail.get("stages", stages)}
            bound = Bound(f"{best.method}", best.value, best.trust, detail)
            kept = tuple(b for b in made[index].bounds if b.method != bound.method)
            made[index] = replace(made[index], bounds=(*kept, bound))
    return made


def _grows(problem: PipelineProblem) -> bool:
    """True where a cut into k stages is one into k + 1, with the same value."""
    return problem.is_uniform


def _taken(problem: PipelineProblem, before: Partition, after: Partition) -> Partition:
    text = "the best cut found is one of fewer stages"
    notes = (*after.notes, Note("fewer-stages-better", text))
    taken = replace(after, assignment=before.assignment, method=before.method, notes=notes)
    return _judged(problem, taken)
