"""The page of `slicewise pack --html`: the answer, the cards, targets, rates, every slice."""

from collections.abc import Sequence

from slicewise.app.html.blocks import (
    Column,
    Fact,
    Section,
    callout,
    facts,
    figure,
    page,
    sentence,
    table,
)
from slicewise.app.html.endings import notes_section, reproduce_section
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.slicing.pack_charts import MOST_ROWS, rate_chart, target_chart
from slicewise.app.slicing.pack_words import (
    bound_line,
    card_name,
    cards_used,
    change_lines,
    doubt_line,
    growth_line,
    head_room,
    interval_cell,
    kinds_used,
    left_over_lines,
    objective,
    proof,
    rule_line,
    service_cell,
    simulated_cell,
    subject,
    unserved_line,
)
from slicewise.app.words import clean, counted
from slicewise.core.packing import PackObjective
from slicewise.core.units import format_capacity, format_number, format_scaled
from slicewise.flows.packing.result import Outcome, PackResult


def pack_page(made: PackResult, *, arguments: Sequence[str]) -> str:
    """Return the page of a packing; `arguments` are the words that made it."""
    sections = [
        *_cards(made),
        *_targets(made),
        _workloads(made),
        *_slices(made),
        *_proof(made),
        *notes_section(made.notes),
        reproduce_section(arguments),
    ]
    return page(subject(made), sections, lead=_lead(made), kicker="Packing of slices")


def _lead(made: PackResult) -> Html:
    proven = f"{kinds_used(made)}, {proof(made)}"
    answer = element("p", "Takes ", element("strong", cards_used(made)), proven, class_="answer")
    told = " ".join(filter(None, (rule_line(made), doubt_line(made), *change_lines(made))))
    parts: list[Content] = [answer, element("p", told, class_="under")]
    if made.packing.unserved:
        parts.append(callout("Not everything is served.", f"{unserved_line(made)}."))
    parts.append(_facts(made))
    return join(parts)


def _facts(made: PackResult) -> Html:
    packing = made.packing
    best = max(packing.bounds, key=lambda bound: bound.value, default=None)
    what = "Power" if made.problem.objective is PackObjective.ENERGY else "Cards"
    items = [
        Fact(what, objective(made, packing.value), _of_cards(made)),
        Fact(
            "Least that could do",
            objective(made, packing.bound) if best is not None else "not known",
            "" if best is None else "no packing has less",
        ),
        Fact(
            "Requests",
            format_scaled(sum(each.spec.rate_per_s for each in made.outcomes), "/s"),
            f"carried: {format_scaled(sum(each.capacity_per_s for each in made.outcomes), '/s')}",
        ),
        Fact(
            "Largest free slice", made.largest_free.rpartition("/")[2] or "none", "on used cards"
        ),
    ]
    return facts(items)


def _of_cards(made: PackResult) -> str:
    """Return what stands under the objective: the cards, where it does not tell them itself."""
    cards = counted(made.packing.gpus_used, "GPU")
    if objective(made, made.packing.value) != cards:
        return f"in {cards}"
    kinds = len({gpu.device for gpu in made.used})
    return f"of {counted(kinds, 'kind')}" if kinds else ""


def _cards(made: PackResult) -> list[Section]:
    from slicewise.app.html.slots import fleet_slots

    gpus = [gpu for gpu in made.packing.gpus if gpu.slices]
    if not gpus:
        return []
    body = join(
        (
            fleet_slots(gpus, made.problem.device),
            *(sentence(line, style="quiet") for line in left_over_lines(made)),
        )
    )
    return [Section("cards", f"What runs where on {cards_used(made)}", body, "Cards")]


def _targets(made: PackResult) -> list[Section]:
    if not any(outcome.uses for outcome in made.outcomes):
        return []
    caption = "Times are those of one batch on the slice, while all processes of it work."
    if len(made.outcomes) > MOST_ROWS:
        caption = f"{caption} The {MOST_ROWS} nearest to their limits are shown."
    charts = join(
        (
            figure("Times against the targets", target_chart(made), caption=caption),
            figure(
                "Rates against what the slices carry",
                rate_chart(made),
                caption="What is left of a bar is the head-room: the rate can grow by that.",
            ),
        )
    )
    return [Section("targets", _title(made), charts, "Targets")]


def _title(made: PackResult) -> str:
    short = [each for each in made.outcomes if each.unserved_per_s > 0]
    if short:
        return f"{counted(len(short), 'workload')} of {len(made.outcomes)} not served in full"
    tightest = min(made.outcomes, key=lambda each: each.head_room)
    return f"Every target is kept; {clean(tightest.spec.name)} has least room to grow"


def _workloads(made: PackResult) -> Section:
    columns = [Column("workload"), Column("model or profile")]
    heads = ("requests/s", "carries/s", "head-room", "slices", "target ms", "percentile")
    columns += [Column(head, numeric=True) for head in heads]
    if made.simulated:
        columns.append(Column("simulated ms", numeric=True))
    rows: list[list[Content]] = []
    for each in made.outcomes:
        cells: list[Content] = [
            clean(each.spec.name),
            clean(each.spec.source),
            format_number(each.spec.rate_per_s),
            format_number(each.capacity_per_s),
            head_room(each),
            str(len(each.uses)),
            format_number(each.spec.latency_ms),
            f"{each.spec.percentile:g}",
        ]
        rows.append([*cells, simulated_cell(each)] if made.simulated else cells)
    body = join(
        (
            table(columns, rows, caption="Workloads", filterable=len(rows) > 20),
            sentence(growth_line(made), style="quiet") if growth_line(made) else "",
        )
    )
    return Section("workloads", f"{counted(len(rows), 'workload')}", body, "Workloads")


def _slices(made: PackResult) -> list[Section]:
    columns = [Column("card"), Column("slice"), Column("workload")]
    heads = ("slot", "batch", "processes", "requests/s", "carries/s", "batch ms", "90 %",
             "wait ms", "memory")  # fmt: skip
    columns += [Column(head, numeric=True) for head in heads]
    rows = [cells for outcome in made.outcomes for cells in _slice_rows(made, outcome)]
    if not rows:
        return []
    about = "Wait: the longest that a batch is filled before it starts."
    body = join(
        (
            table(columns, rows, caption="Every slice that serves", filterable=len(rows) > 20),
            sentence(about, style="quiet"),
        )
    )
    return [Section("slices", f"{counted(len(rows), 'slice')} that serve", body, "Slices")]


def _slice_rows(made: PackResult, outcome: Outcome) -> list[list[Content]]:
    rows: list[list[Content]] = []
    for use in outcome.uses:
        serving, placed = use.offer.serving, use.placed
        card = made.problem.device(use.gpu.device)
        usable = card if placed.profile is None else card.profile_named(placed.profile)
        memory = f"of {format_capacity(usable.memory_bytes)}"
        if serving.memory_bytes > 0:
            memory = f"{format_capacity(serving.memory_bytes)} {memory}"
        rows.append(
            [
                card_name(made, use.gpu),
                f"{placed.profile or 'whole card'}{', in use' if placed.in_use else ''}",
                clean(outcome.spec.name),
                str(placed.start),
                str(serving.batch),
                str(serving.processes),
                format_number(placed.rate_per_s),
                format_number(use.offer.capacity_per_s),
                service_cell(use.offer),
                interval_cell(use.offer),
                format_number(use.offer.max_delay_ms),
                memory,
            ]
        )
    return rows


def _proof(made: PackResult) -> list[Section]:
    bounds = made.packing.bounds
    if not bounds:
        return []
    rows: list[list[Content]] = [
        [
            clean(bound.method),
            objective(made, bound.value),
            "checked exactly" if bound.is_exact else "the solver's word",
        ]
        for bound in sorted(bounds, key=lambda bound: -bound.value)
    ]
    columns = [Column("bound"), Column("value", numeric=True), Column("trust")]
    body = join(
        (
            table(columns, rows, caption="No packing has less", sortable=False),
            sentence(bound_line(made), style="quiet"),
        )
    )
    told = proof(made)
    return [Section("proof", f"{told[0].upper()}{told[1:]}", body, "Proof")]
