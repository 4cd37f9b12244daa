"""The page of `slicewise tune --html`: the answer, settings, gains, the curve, where time went."""

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
from slicewise.app.tuning.charts import (
    MOST_BARS,
    curve_chart,
    gains_chart,
    is_predicted,
    phases_chart,
    share_chart,
    timeline_chart,
)
from slicewise.app.tuning.words import (
    Standing,
    answer,
    artifact_words,
    best_trials,
    by_weight,
    changed,
    config_words,
    curve_words,
    equality,
    failed,
    failures_words,
    how_lines,
    in_sum,
    is_all_known,
    is_int8,
    knee_words,
    of_whole,
    outlook_words,
    phases_words,
    ratio,
    standing,
    subject,
    time_words,
    tried_words,
    unchanged,
    workload_name,
)
from slicewise.app.words import clean, counted, interval
from slicewise.core.units import format_ms, format_number
from slicewise.flows.tuning.result import SUMMED, ShareChoice, TunedWorkload, TuneResult

RESTS_ON = "latencies were measured on this machine"
_MOST_TRIALS = 1_000


def tune_page(made: TuneResult, *, arguments: Sequence[str]) -> str:
    """Return the page of a tuning; `arguments` are the words that made it."""
    sections = [
        *_settings(made),
        *_gains(made),
        *([] if is_all_known(made) else _curve(made)),
        *_time(made),
        *_shares(made.choice),
        *_trials(made),
        *notes_section(made.notes),
        reproduce_section(
            arguments, name=made.model.name, source=made.model.source, digest=made.model.digest
        ),
    ]
    return page(subject(made), sections, lead=_lead(made), kicker="Tuning", rests_on=RESTS_ON)


def strong_middle(words: tuple[str, str, str]) -> tuple[Content, ...]:
    """Return three pieces of a sentence with the middle one set in bold."""
    return arrows(words[0]), element("strong", words[1]), arrows(words[2])


def arrows(words: str) -> str:
    """Return words with arrows that no line breaks."""
    return words.replace(" -> ", " \N{RIGHTWARDS ARROW} ")


def _lead(made: TuneResult) -> Html:
    parts: list[Content] = [element("p", *strong_middle(answer(made)), class_="answer")]
    if told := artifact_words(made):
        parts.append(element("p", f"{told}.", class_="under"))
    if lines := how_lines(made):
        parts.append(element("pre", element("code", "\n".join(lines))))
    if made.outputs_equal is False and not is_int8(made):
        told = f"{equality(made)}: see the notes before you serve it."
        parts.append(callout("The tuned model computes something else.", told))
    parts.append(_facts(made))
    return join(parts)


def _facts(made: TuneResult) -> Html:
    items: list[Fact] = []
    before, after, total = made.before_ms, made.after_ms, in_sum(made)
    if standing(made) is Standing.KEPT and before is not None:
        items.append(Fact("Latency", format_ms(before.value), f"{interval(before)} ms"))
    elif before is not None and after is not None and before.source != SUMMED:
        gain = ratio(before, after)
        items += [
            Fact("Before", format_ms(before.value), f"{interval(before)} ms"),
            Fact("After", format_ms(after.value), f"{interval(after)} ms"),
            Fact("Gain", f"{format_number(gain.value)} times", interval(gain)),
        ]
    elif total is not None:
        told = f"{total.operators} of {counted(len(made.workloads), 'operator')}"
        ends = f"{interval(total.after_ms)} ms"
        items += [
            Fact("Defaults in sum", format_ms(total.before_ms), told),
            Fact("Tuned in sum", format_ms(total.after_ms.value), ends),
        ]
    its = made.phases
    tried = sum(each.trials for each in made.workloads)
    lost = sum(map(failed, made.workloads))
    items += [
        Fact("Candidates tried", f"{tried:,}", f"{lost:,} of them failed" if lost else ""),
    ]
    if not is_all_known(made):
        items.append(Fact("Device busy", f"{its.busy_share:.0%}", f"of {time_words(its.wall_s)}"))
    return facts(items)


def _settings(made: TuneResult) -> list[Section]:
    rows: list[list[Content]] = [list(row) for row in changed(made)]
    stayed = unchanged(made)
    if not rows and not stayed:
        return []
    body: list[Content] = []
    if rows:
        columns = [Column("setting"), Column("before"), Column("after")]
        body.append(table(columns, rows, caption="What was changed", sortable=False))
    if stayed:
        body.append(sentence(f"Unchanged: {stayed}.", style="quiet"))
    title = "Nothing was changed"
    if rows:
        title = f"{counted(len(rows), 'setting')} changed"
    return [Section("settings", title, join(body), "Settings")]


def _gains(made: TuneResult) -> list[Section]:
    ranked = by_weight(made)
    if not ranked:
        return []
    body: list[Content] = []
    chart = gains_chart(made)
    if chart is not None:
        more = sum(each.gain is not None for each in ranked) - MOST_BARS
        rest = f" The {MOST_BARS} heaviest of them; the table has all." if more > 0 else ""
        caption = f"Default over tuned latency, the heaviest workload first.{rest}"
        body.append(figure("Gain of each workload", chart, caption=caption))
    heads = ("count", "default ms", "tuned ms", "90 %", "gain", "predicted ms", "trials", "failed")
    columns = [Column("workload"), *(Column(head, numeric=True) for head in heads)]
    columns.append(Column("best configuration"))
    body.append(table(columns, [_row(each) for each in ranked], caption="Every workload"))
    told = " ".join(filter(None, (tried_words(made), failures_words(made))))
    body.append(sentence(told, style="quiet"))
    return [Section("workloads", _gains_title(made), join(body), "Workloads")]


def _gains_title(made: TuneResult) -> str:
    gains = [each.gain for each in made.workloads if each.gain is not None]
    if not gains:
        reached = sum(each.tuned is not None for each in made.workloads)
        return f"{reached} of {counted(len(made.workloads), 'workload')} tuned"
    if standing(made) is Standing.KEPT:
        best = format_number(max(gains))
        return f"Among the candidates the best looked {best} times as fast; the default is served"
    if len(gains) == 1:
        return f"{format_number(gains[0])} times as fast as the default"
    low, high = format_number(min(gains)), format_number(max(gains))
    return f"{low} to {high} times as fast as the defaults"


def _row(each: TunedWorkload) -> list[Content]:
    tuned = each.tuned
    name = element("span", workload_name(each), element("small", clean(", ".join(each.op_types))))
    cells = ["-", "-", "-", "-"]
    config = ""
    if tuned is not None:
        default = "-" if tuned.default_ms is None else format_number(tuned.default_ms)
        figures = format_number(tuned.latency_ms.value), interval(tuned.latency_ms)
        cells = [default, *figures, "-" if each.gain is None else format_number(each.gain)]
        source = " (from the store)" if tuned.is_from_store else ""
        config = f"{config_words(tuned.config)}{source}"
    return [
        name,
        f"{each.count:,}",
        *cells,
        format_number(each.weight_ms) if each.weight_ms else "-",
        f"{each.trials:,}",
        f"{failed(each):,}",
        element("small", config) if config else "",
    ]


def _curve(made: TuneResult) -> list[Section]:
    chart = curve_chart(made)
    if chart is None:
        return []
    caption = (
        "Sum of the best latencies so far, times their counts; workloads without a trial yet count"
        " as predicted."
    )
    told = (arrows(curve_words(made.curve)), outlook_words(made.outlook), caption)
    body = figure(_curve_title(made), chart, caption=" ".join(filter(None, told)))
    return [Section("curve", "Latency over the time of tuning", body, "Tuning curve")]


def _curve_title(made: TuneResult) -> str:
    first, last = made.curve[0], made.curve[-1]
    begin = "predicted" if first.trials == 0 else "at first"
    return f"{format_ms(first.total_ms)} {begin}, {format_ms(last.total_ms)} at the end"


def _time(made: TuneResult) -> list[Section]:
    if is_all_known(made):
        told = phases_words(made)
        body_of_none = sentence(f"{told[0].upper()}{told[1:]}")
        return [Section("time", "Everything was known already", body_of_none, "Time")]
    body: list[Content] = [
        figure("What the time went into", phases_chart(made.phases), caption=phases_words(made))
    ]
    lanes = timeline_chart(made)
    if lanes is not None:
        caption = (
            "Building is drawn as late as it can have been, before its piece was measured;"
            " searching is not drawn."
        )
        body.append(figure("Who worked when", lanes, caption=caption))
    busy = f"{made.phases.busy_share:.0%}"
    title = f"The share was in use during {busy} of the time"
    return [Section("time", title, join(body), "Time")]


def _shares(choice: ShareChoice | None) -> list[Section]:
    if choice is None:
        return []
    heads = ("predicted ms", "90 %", "times the largest", "measured ms", "90 %")
    columns = [Column("share"), *(Column(head, numeric=True) for head in heads)]
    rows: list[list[Content]] = []
    for point in choice.points:
        name = f"{point.percent:.3g} %"
        is_chosen = point.percent == choice.chosen_percent
        predicted = ("-", "-", "-")
        if is_predicted(point):
            its = point.predicted_ms
            predicted = format_number(its.value), interval(its), of_whole(choice, point.percent)
        measured = ("-", "-")
        if point.measured_ms is not None:
            measured = format_number(point.measured_ms.value), interval(point.measured_ms)
        first: Content = element("strong", f"{name}, the knee") if is_chosen else name
        rows.append([first, *predicted, *measured])
    body = join(
        (
            figure("Latency over shares", share_chart(choice), caption=knee_words(choice)),
            table(columns, rows, caption="Every share that was looked at", sortable=False),
        )
    )
    title = f"{choice.chosen_percent:.3g} % of the device is enough"
    return [Section("share", title, body, "Share")]


def _trials(made: TuneResult) -> list[Section]:
    """Every configuration that ran, and those that failed with their reason, folded away."""
    names = {each.key: workload_name(each) for each in made.workloads}
    good = best_trials(made)
    rows: list[list[Content]] = []
    for trial in good[:_MOST_TRIALS]:
        assert trial.latency_ms is not None
        its = trial.latency_ms
        config = config_words(trial.config)
        cells = [config, format_number(its.value), interval(its), "yes" if trial.is_alone else ""]
        rows.append([names.get(trial.workload, "?"), *cells])
    bad = [trial for trial in made.trials if not trial.is_ok]
    reasons: list[list[Content]] = [
        [
            names.get(trial.workload, "?"),
            config_words(trial.config),
            trial.outcome.value,
            clean(trial.error.strip().splitlines()[0]) if trial.error.strip() else "",
        ]
        for trial in bad[:_MOST_TRIALS]
    ]
    body: list[Content] = []
    if rows:
        columns = [Column("workload"), Column("configuration"), Column("ms", numeric=True)]
        columns += [Column("90 %", numeric=True), Column("alone", hint="measured at the end")]
        body.append(table(columns, rows, caption="Configurations that ran", filterable=True,
                          fold=True))  # fmt: skip
    if reasons:
        columns = [Column(head) for head in ("workload", "configuration", "outcome", "why")]
        body.append(table(columns, reasons, caption="Candidates that failed", filterable=True,
                          fold=True))  # fmt: skip
    if not body:
        return []
    hidden = max(0, len(good) - _MOST_TRIALS) + max(0, len(bad) - _MOST_TRIALS)
    if hidden:
        body.append(sentence(f"{hidden:,} more; --json has all.", style="quiet"))
    title = f"{counted(len(good), 'configuration')} ran, {len(bad):,} failed"
    return [Section("trials", title, join(body), "Trials")]
