"""Words that the report and the page of a partition share. Formats only."""

from collections.abc import Sequence

from slicewise.app.words import clean, counted
from slicewise.core.pipeline import Objective, StageLoad
from slicewise.core.units import format_ms, format_number
from slicewise.flows.partitioning.result import (
    KNEE_TOLERANCE,
    CutTensorAt,
    PartitionCurve,
    PartitionResult,
)

PARTS = ("receive", "work", "send")
_NAME = 36  # letters of a node in a table of stages


def subject(made: PartitionResult) -> str:
    """Return 'resnet50 in 4 stages on a100-sxm4-80gb, batch 8'."""
    material = made.case.material
    batch = f", batch {material.batch}" if material.graph is not None else ""
    return f"{clean(material.name)} in {counted(len(made.used), 'stage')} on {places(made)}{batch}"


def places(made: PartitionResult) -> str:
    """Return the devices of the stages: one name where all are alike."""
    loads = [made.partition.loads[stage] for stage in made.used]
    names = [device(made, load) for load in loads]
    counts = dict.fromkeys(names, 0)
    for name, load in zip(names, loads, strict=True):
        counts[name] += load.replicas
    if len(counts) == 1:
        return clean(names[0])
    return clean(", ".join(f"{count} x {name}" for name, count in counts.items()))


def device(made: PartitionResult, load: StageLoad) -> str:
    """Return the name of a stage's device."""
    return clean(made.case.problem.kinds[load.kind].name)


def objective(made: PartitionResult, value: float) -> str:
    """Return a value of the objective with its unit."""
    if made.case.problem.objective is Objective.ENERGY:
        return f"{format_number(value)} J"
    return format_ms(value)


def is_energy(made: PartitionResult) -> bool:
    """True where energy is made least."""
    return made.case.problem.objective is Objective.ENERGY


def proof(made: PartitionResult) -> str:
    """Return how good the cut is known to be."""
    partition = made.partition
    if partition.bound <= 0 < partition.value:
        told = "nothing is proven"
    elif partition.is_optimal:
        told = "proven optimal"
    else:
        told = f"at most {percent(partition.gap)} above the least possible"
    return (
        told if partition.is_complete or partition.is_optimal else f"{told} (search ended early)"
    )


def percent(part: float) -> str:
    """Return a part as percent with two digits.

    >>> percent(0.0321), percent(0.5)
    ('3.2 %', '50 %')
    """
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def latency(made: PartitionResult) -> str:
    """Return both latencies as one sentence."""
    return (
        f"Latency {format_ms(made.synchronous_ms)} where all stages hand on at once,"
        f" {format_ms(made.asynchronous_ms)} where each hands on when it is done."
    )


def comparison(made: PartitionResult) -> str:
    """Return what simpler splits come to, as one sentence; '' where there are none."""
    value = made.partition.value
    told = []
    for each in made.baselines:
        if each.value is None or each.broken:
            told.append(f"{each.rule} gives no legal cut ({clean(each.broken)})")
        elif value > 0:
            told.append(f"{each.rule} gives {objective(made, each.value)},"
                        f" {format_number(each.value / value)} times this")  # fmt: skip
    alone = one_stage(made)
    if alone is not None and value > 0:
        told.append(f"one stage {objective(made, alone)}, {format_number(alone / value)} times")
    return f"By simpler rules: {'; '.join(told)}." if told else ""


def one_stage(made: PartitionResult) -> float | None:
    """Return the time of all nodes in one stage on the quickest device, whatever its limits.

    None where nodes are pinned to several stages, and for energy.
    """
    problem = made.case.problem
    if is_energy(made) or len(set(problem.pinned.values())) > 1:
        return None
    sums = [sum(problem.kinds[place].work_ms) for place in set(problem.places)]
    least = min(sums)
    return least if least < float("inf") else None


def strip(load: StageLoad, period_ms: float, *, width: int = 40, overlaps: bool = False) -> str:
    """Return one period of a stage: '<' receives, '#' works, '>' sends, '.' waits.

    Overlapped parts run at the same time and the longest is shown.

    >>> strip(StageLoad((0,), 0, 1, 2.0, 1.0, 0.0, 3.0, 0.0, 0.0), 4.0, width=8)
    '<<####..'
    """
    if period_ms <= 0:
        return "." * width
    parts = [load.receive_ms, load.work_ms, load.send_ms]
    if overlaps:
        longest = max(parts)
        parts = [part if part == longest else 0.0 for part in parts]
    made = ""
    end_ms = 0.0
    for mark, part in zip("<#>", parts, strict=True):
        end_ms += part / load.replicas
        made = made.ljust(min(width, round(end_ms / period_ms * width)), mark)
    return made.ljust(width, ".")


def span(names: Sequence[str]) -> str:
    """Return the first and the last of the nodes of a stage."""
    ends = [names[0]] if len(names) == 1 else [names[0], names[-1]]
    return " .. ".join(
        name if len(name) <= _NAME else f"...{name[3 - _NAME :]}" for name in map(clean, ends)
    )


def stage_names(made: PartitionResult, stage: int) -> list[str]:
    """Return the names of a stage's nodes, in the order in which they run."""
    material = made.case.material
    nodes = made.partition.loads[stage].nodes
    indices = [index for node in nodes for index in material.groups[node]]
    if material.graph is not None:
        indices.sort()  # a model's nodes stand in topological order, a file's may not
    return [material.labels[index] for index in indices]


def way(cut: CutTensorAt) -> str:
    """Return '0 to 1, 3'."""
    return f"{cut.source} to {', '.join(map(str, cut.targets))}"


def knee(found: PartitionCurve) -> str:
    """Return where more stages stop helping, as one sentence."""
    made = found.knee
    stages = counted(made.case.problem.stages, "stage")
    if is_energy(made):
        return f"least energy with {stages}: {objective(made, made.partition.value)} an inference"
    figures = f"{format_ms(made.interval_ms)}, {format_number(made.throughput_per_s)} items/s"
    if made is found.results[-1]:
        return f"throughput still grows at {stages}, the most asked for: {figures}"
    tolerance = percent(KNEE_TOLERANCE)
    return f"throughput stops growing at {stages} (within {tolerance} of the best): {figures}"
