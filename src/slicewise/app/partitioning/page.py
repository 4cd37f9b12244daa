"""The page of `slicewise partition --html`: the answer, the schedule, loads, stages, proof."""

from collections.abc import Sequence

from slicewise.app.html.blocks import (
    Column,
    Fact,
    Section,
    facts,
    figure,
    folded,
    page,
    sentence,
    table,
)
from slicewise.app.html.charts import Bar, Line, bars, legend, lines
from slicewise.app.html.endings import notes_section, reproduce_section
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.scale import linear_axis
from slicewise.app.partitioning.gantt import gantt, load_bars
from slicewise.app.partitioning.words import (
    device,
    is_energy,
    knee,
    objective,
    one_stage,
    percent,
    proof,
    span,
    stage_names,
    subject,
    way,
)
from slicewise.app.words import clean, counted
from slicewise.core.notes import Note, unique_notes
from slicewise.core.units import format_capacity, format_ms, format_number
from slicewise.flows.partitioning.result import PartitionCurve, PartitionResult

_MOST_NAMES = 400
# A proof may hold the price of every node: for programs, not for people.
_LONGEST_DETAIL = 60


def partition_page(made: PartitionResult, *, arguments: Sequence[str]) -> str:
    """Return the page of one number of stages; `arguments` are the words that made it."""
    sections = [*_sections(made), *_endings(made, made.notes, arguments)]
    return page(subject(made), sections, lead=_lead(made), kicker="Pipeline stages")


def curve_page(found: PartitionCurve, *, arguments: Sequence[str]) -> str:
    """Return the page of a curve: the curve, then the stages of the number recommended."""
    chosen = found.knee
    name = clean(chosen.case.material.name)
    notes = unique_notes(note for made in found.results for note in made.notes)
    sections = [_curve(found), *_sections(chosen), *_endings(chosen, notes, arguments)]
    lead = join((element("p", _sentence(knee(found)), class_="answer"), _facts(chosen)))
    return page(f"{name}: how many stages", sections, lead=lead, kicker="Pipeline stages")


def _lead(made: PartitionResult) -> Html:
    what = "An inference costs" if is_energy(made) else "A batch leaves every"
    answer = element(
        "p",
        f"{what} ",
        element("strong", objective(made, made.partition.value)),
        f", {proof(made)}",
        class_="answer",
    )
    return join((answer, _facts(made)))


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _facts(made: PartitionResult) -> Html:
    partition = made.partition
    best = max(partition.bounds, key=lambda bound: bound.value, default=None)
    below = "" if best is None else f"{best.method}, {best.trust.value}"
    return facts(
        (
            Fact("Throughput", f"{format_number(made.throughput_per_s)} items/s"),
            Fact("Bound", objective(made, partition.bound), below),
            Fact("Latency, in step", format_ms(made.synchronous_ms), "all hand on at once"),
            Fact("Latency, free", format_ms(made.asynchronous_ms), "each hands on when done"),
        )
    )


def _sections(made: PartitionResult) -> list[Section]:
    problem = made.case.problem
    rule = "the greatest part" if problem.overlaps else "the three parts together"
    caption = (
        "An item enters once in each period. Between the two lines every stage is busy: the"
        " pipeline fills before the first and drains behind the second."
    )
    charts = join(
        (
            figure("Schedule, item by item", gantt(made), caption=caption),
            figure(
                f"Load of a stage: {rule}",
                load_bars(made),
                caption="The line is the time between two items, times the replicas of a stage.",
            ),
        )
    )
    used = counted(len(made.used), "stage")
    return [
        Section("schedule", f"{used}, {format_ms(made.interval_ms)} apart", charts, "Schedule"),
        *_comparison(made),
        _stages(made),
        *_tensors(made),
        *_proof(made),
    ]


def _comparison(made: PartitionResult) -> list[Section]:
    value = made.partition.value
    rows = [("this cut", value, "accent")]
    rows += [(each.rule, each.value, "host") for each in made.baselines if each.value is not None
             and not each.broken]  # fmt: skip
    alone = one_stage(made)
    if alone is not None:
        rows.append(("one stage", alone, "host"))
    broken = [sentence(f"{each.rule}: {clean(each.broken)}.", style="quiet")
              for each in made.baselines if each.broken]  # fmt: skip
    if len(rows) < 2 and not broken:
        return []
    chart = bars(
        [
            Bar(name, figure_, f"{objective(made, figure_)}, {format_number(figure_ / value)} x"
                if value else objective(made, figure_), style)
            for name, figure_, style in rows
        ],
        label="This cut and simpler ones",
    )  # fmt: skip
    worst = max(rows[1:], key=lambda row: row[1], default=None)
    title = "Against simpler splits"
    if worst is not None and value and len(rows) > 1:
        least = min(row[1] for row in rows[1:])
        low, high = format_number(least / value), format_number(worst[1] / value)
        title = f"{low} to {high} times as quick as simpler splits"
    return [Section("comparison", title, join((chart, *broken)), "Comparison")]


def _stages(made: PartitionResult) -> Section:
    columns = [Column("stage"), Column("device")]
    columns += [
        Column(head, numeric=True)
        for head in ("load ms", "work", "receive", "send", "memory", "nodes")
    ]
    columns.append(Column("from .. to"))
    rows: list[list[Content]] = []
    parts: list[Content] = []
    for index, load in enumerate(made.partition.loads):
        if not load.nodes and not load.load_ms:
            continue
        names = stage_names(made, index)
        figures = (load.load_ms, load.work_ms, load.receive_ms, load.send_ms)
        rows.append(
            [
                str(index),
                device(made, load),
                *map(format_number, figures),
                format_capacity(load.memory_bytes),
                f"{len(names):,}",
                span(names) if names else "passes tensors on",
            ]
        )
        listed = "\n".join(clean(name) for name in names[:_MOST_NAMES])
        more = len(names) - _MOST_NAMES
        tail = f"\n{more:,} more; --json has all" if more > 0 else ""
        # one element for each name: line ends are no part of a text
        inner = [element("li", name) for name in f"{listed}{tail}".split("\n")]
        parts.append(
            folded(f"Nodes of stage {index}", element("ul", *inner, class_="mono"), style="long")
        )  # fmt: skip
    body = join((table(columns, rows, caption="Stages, times in ms"), *parts))
    return Section("stages", "What each stage holds", body, "Stages")


def _tensors(made: PartitionResult) -> list[Section]:
    cut = made.cut_tensors
    if not cut:
        return []
    rows: list[list[Content]] = [
        [
            clean(each.tensor.name),
            "-" if each.tensor.size_bytes is None else format_number(each.tensor.size_bytes / 1e6),
            format_number(each.transfer_ms),
            way(each),
        ]
        for each in cut
    ]
    columns = [Column("tensor"), Column("MB", numeric=True), Column("ms", numeric=True),
               Column("stages")]  # fmt: skip
    title = f"{counted(len(cut), 'tensor')} cross{'es' if len(cut) == 1 else ''} between stages"
    body = table(columns, rows, caption="Cut tensors, the largest first", filterable=len(cut) > 20)
    return [Section("tensors", title, body, "Cut")]


def _proof(made: PartitionResult) -> list[Section]:
    bounds = made.partition.bounds
    if not bounds:
        return []
    rows: list[list[Content]] = [
        [
            bound.method,
            objective(made, bound.value),
            bound.trust.value,
            ", ".join(
                f"{key} {value if len(str(value)) <= _LONGEST_DETAIL else 'in --json'}"
                for key, value in bound.detail.items()
            ),
        ]
        for bound in sorted(bounds, key=lambda bound: -bound.value)
    ]
    columns = [Column("bound"), Column("value", numeric=True), Column("trust"), Column("detail")]
    caption = "No cut has less; checked: computed again exactly, solver: its word is taken"
    body = join(
        (
            table(columns, rows, caption=caption, sortable=False),
            sentence(
                f"Found by {made.partition.method} in {made.partition.seconds:.1f} s, seed"
                f" {made.partition.seed}.",
                style="quiet",
            ),
        )
    )
    return [Section("proof", _sentence(proof(made)), body, "Proof")]


def _curve(found: PartitionCurve) -> Section:
    results = found.results
    stages = [float(made.case.problem.stages) for made in results]
    values = [made.partition.value for made in results]
    bounds = [made.partition.bound for made in results]
    across = linear_axis("stages", stages)
    up = linear_axis("J" if is_energy(found.knee) else "ms", values)
    drawn = [
        Line(
            "bound",
            list(zip(stages, bounds, strict=True)),
            [f"{made.case.problem.stages} stages: bound {objective(made, made.partition.bound)}"
             for made in results],
            "host",
        ),
        Line(
            "best cut",
            list(zip(stages, values, strict=True)),
            [f"{subject(made)}: {objective(made, made.partition.value)}, {proof(made)}"
             for made in results],
            "accent",
        ),
    ]  # fmt: skip
    chart = lines(drawn, x=across, y=up, label="Value and bound by number of stages", band=False)
    named = legend((("best cut", "", "circle", "accent"), ("bound", "", "circle", "host")))
    rows: list[list[Content]] = [
        [
            str(made.case.problem.stages),
            str(len(made.used)),
            objective(made, made.partition.value),
            objective(made, made.partition.bound),
            "0" if made.partition.is_optimal else percent(made.partition.gap),
            format_number(made.throughput_per_s),
        ]
        for made in results
    ]
    columns = [
        Column("stages"),
        *(Column(head, numeric=True) for head in ("used", "value", "bound", "gap", "items/s")),
    ]
    body = join(
        (
            figure("What each number of stages comes to", join((chart, named))),
            table(columns, rows, caption="The curve", sortable=False),
            *(sentence(f"{count}: {clean(why)}") for count, why in found.infeasible),
        )
    )
    return Section("curve", "Best cut and bound by number of stages", body, "Curve")


def _endings(
    made: PartitionResult, notes: Sequence[Note], arguments: Sequence[str]
) -> list[Section]:
    its = made.case.material
    return [
        *notes_section(notes),
        reproduce_section(arguments, name=its.name, source=its.source, digest=its.digest),
    ]
