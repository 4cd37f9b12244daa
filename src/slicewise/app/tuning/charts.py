"""Charts of a tuning: the curve, gains of operators, where time went, who worked when, shares.

Values in, markup out; what is better is judged elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slicewise.app.html.blocks import sentence
from slicewise.app.html.charts import Bar, Line, bars, legend, lines, stack
from slicewise.app.html.markup import TIMES, Html, element, join
from slicewise.app.html.plot import label_at, marker, outline, percent, plot, segment
from slicewise.app.html.scale import Axis, linear_axis, log_axis
from slicewise.app.tuning.words import by_weight, time_words, workload_name
from slicewise.app.words import counted
from slicewise.core.tuning import Phases, Trial
from slicewise.core.units import format_ms, format_number
from slicewise.flows.tuning.result import CurvePoint, ShareChoice, SharePoint, TuneResult

ARROW = "\N{RIGHTWARDS ARROW}"
MOST_BARS = 12
MOST_LANES = 12  # of clients, and of servers
_WIDE_SPAN = 8  # values that span more are shown on a logarithmic axis
_MINUTES_FROM_S = 600.0


def _time_axis(until_s: float) -> tuple[Axis, float]:
    """Return an axis of time and what divides seconds into its unit."""
    unit, divisor = ("min", 60.0) if until_s >= _MINUTES_FROM_S else ("s", 1.0)
    return linear_axis(unit, [until_s / divisor], exact=True), divisor


def curve_chart(made: TuneResult) -> Html | None:
    """Return the latency over the time of the run as steps; finalists, measured alone, are marked.

    None of fewer than two points.
    """
    points = made.curve
    if len(points) < 2:
        return None
    across, divisor = _time_axis(max(point.at_s for point in points))
    values = [point.total_ms for point in points]
    is_log = min(values) > 0 and max(values) > _WIDE_SPAN * min(values)
    up = log_axis("ms", values) if is_log else linear_axis("ms", values)
    corners: list[tuple[float, float]] = []
    for point in points:
        here = across.at(point.at_s / divisor), 1 - up.at(point.total_ms)
        if corners:
            corners.append((here[0], corners[-1][1]))
        corners.append(here)
    marks = [outline(corners, style="line accent")]
    for point in _told(points):
        shape, style = ("diamond", "norm") if point.is_alone else ("circle", "accent")
        hover = (
            f"{format_ms(point.total_ms)} after {time_words(point.at_s)},"
            f" {counted(point.trials, 'trial')}{', measured alone' if point.is_alone else ''}"
        )
        place = across.at(point.at_s / divisor), 1 - up.at(point.total_ms)
        marks.append(marker(*place, hover, shape=shape, style=style, size=4.5))
    drawn = plot(marks, x=across, y=up, label="Latency over the time of tuning", height=260)
    entries = [("best so far", "", "circle", "accent")]
    if any(point.is_alone for point in points):
        entries.append(("finalists, measured alone", "", "diamond", "norm"))
    return join((drawn, legend(entries)))


def _told(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Return the points worth a mark: the ends, every change, every finalist."""
    told = [points[0]]
    for before, point in pairwise(points):
        if point.is_alone or point.total_ms != before.total_ms:
            told.append(point)
    return told if told[-1] is points[-1] else [*told, points[-1]]


def phases_chart(phases: Phases) -> Html:
    """Return what clients and servers did with their time, a bar each."""
    clients_s = phases.wall_s * max(1, phases.clients)
    servers_s = phases.wall_s * max(1, phases.servers)
    clients = _shared(
        [("search", phases.search_s, "conv"), ("build", phases.build_s, "norm")], clients_s
    )
    servers = _shared([("measuring", phases.measure_s, "matmul")], servers_s)
    return join(
        (
            sentence(f"{counted(phases.clients, 'client')}, {time_words(clients_s)} in sum"),
            stack(clients, label="Time of the clients"),
            sentence(f"{counted(phases.servers, 'server')}, {time_words(servers_s)} in sum"),
            stack(servers, label="Time of the servers"),
        )
    )


def _shared(parts: Sequence[tuple[str, float, str]], whole_s: float) -> list[Bar]:
    used_s = sum(seconds for _, seconds, _ in parts)
    whole_s = max(whole_s, used_s)
    if whole_s <= 0:
        return []
    rows = [*parts, ("idle or starting", whole_s - used_s, "host")]
    return [
        Bar(name, seconds / whole_s, f"{time_words(seconds)} ({seconds / whole_s:.0%})", style)
        for name, seconds, style in rows
        if seconds > 0
    ]


def gains_chart(made: TuneResult) -> Html | None:
    """Return how many times faster each operator became, the heaviest first; None without any."""
    rows = []
    for each in by_weight(made):
        if each.gain is None or each.tuned is None or each.tuned.default_ms is None:
            continue
        times = f"{each.count:,} of them, " if each.count > 1 else ""
        figures = (
            f"{format_ms(each.tuned.default_ms)} {ARROW} {format_ms(each.tuned.latency_ms.value)}"
        )
        shown = element("span", element("b", f"{TIMES}{format_number(each.gain)}"))
        told = element("small", f" {times}{figures}")
        name = element("span", workload_name(each), told)
        rows.append((name, each.gain, shown, "accent" if each.gain >= 1 else "launch"))
    if not rows:
        return None
    drawn = [Bar(name, gain, shown, style) for name, gain, shown, style in rows[:MOST_BARS]]
    return bars(drawn, label="Gain of each operator")


@dataclass(frozen=True, slots=True)
class Work:
    """What a client or server did for a piece, from `begin_s` to `end_s` of the run."""

    begin_s: float
    end_s: float
    hover: str
    is_alone: bool = False


def server_work(trials: Iterable[Trial]) -> dict[int, list[Work]]:
    """Return the times of measuring by server, those of a piece joined; `at_s` ends a trial."""
    return {
        server: [
            Work(
                max(0.0, end_s - sum(trial.measure_s for trial in its)),
                end_s,
                f"{_piece(its[0])}: {counted(len(its), 'candidate')},"
                f" {time_words(sum(trial.measure_s for trial in its))}",
                its[0].is_alone,
            )
            for its in groups
            for end_s in [max(trial.at_s for trial in its)]
        ]
        for server, groups in _groups(trials, "server").items()
    }


def client_work(trials: Iterable[Trial]) -> dict[int, list[Work]]:
    """Return the times of building by client, drawn as late as they can have been: before the
    piece is measured and before the client's next one. Searching is not told by trials."""
    found: dict[int, list[Work]] = {}
    for client, groups in _groups(trials, "client").items():
        end_s, works = float("inf"), []
        for its in reversed(groups):
            measured_s = max(trial.at_s for trial in its) - sum(trial.measure_s for trial in its)
            end_s = max(0.0, min(end_s, measured_s))
            build_s = sum(trial.build_s for trial in its)
            hover = f"{_piece(its[0])}: {counted(len(its), 'candidate')}, {time_words(build_s)}"
            works.append(Work(max(0.0, end_s - build_s), end_s, hover))
            end_s = works[-1].begin_s
        found[client] = works[::-1]
    return found


def _piece(trial: Trial) -> str:
    return "finalists" if trial.is_alone else f"piece {trial.piece}"


def _groups(trials: Iterable[Trial], worker: str) -> dict[int, list[list[Trial]]]:
    """Return the trials of this run by worker and piece, in the order of time."""
    found: dict[tuple[int, int, bool, str], list[Trial]] = {}
    for trial in trials:
        number = getattr(trial, worker)
        if trial.is_warm or number < 0 or (worker == "client" and trial.is_alone):
            continue
        workload = trial.workload if trial.is_alone else ""
        found.setdefault((number, trial.piece, trial.is_alone, workload), []).append(trial)
    by_worker: dict[int, list[list[Trial]]] = {}
    for key, its in sorted(found.items(), key=lambda item: max(t.at_s for t in item[1])):
        by_worker.setdefault(key[0], []).append(its)
    return dict(sorted(by_worker.items()))


def timeline_chart(made: TuneResult) -> Html | None:
    """Return who worked when, a lane for each client and server; None where trials do not tell."""
    servers, clients = server_work(made.trials), client_work(made.trials)
    if not servers:
        return None
    ends = [work.end_s for works in servers.values() for work in works]
    across, divisor = _time_axis(max(made.phases.wall_s, *ends))
    rows = [
        _lane(f"client {number}", works, across, divisor, style="norm")
        for number, works in list(clients.items())[:MOST_LANES]
    ]
    rows += [
        _lane(f"server {number}", works, across, divisor, style="matmul")
        for number, works in list(servers.items())[:MOST_LANES]
    ]
    ticks = [
        label_at(across.at(tick), 0, across.show(tick), anchor="middle", dy=13)
        for tick in across.ticks
    ]
    scale = element(
        "li",
        element("span", across.label, class_="name"),
        element("span", element("svg", *ticks, width="100%", height=18, aria_hidden="true"),
                class_="track"),
        element("span", class_="value"),
        class_="scale",
    )  # fmt: skip
    drawn = element("ul", *rows, scale, class_="rows intervals", aria_label="Who worked when")
    entries = [("building", "", "square", "norm"), ("measuring", "", "square", "matmul")]
    if any(work.is_alone for works in servers.values() for work in works):
        entries.append(("finalists, alone", "", "square", "attention"))
    return join((drawn, legend(entries)))


def _lane(name: str, works: Sequence[Work], across: Axis, divisor: float, *, style: str) -> Html:
    marks = [segment(across.at(t), 0, across.at(t), 1, style="grid") for t in across.ticks]
    for work in works:
        begin, end = across.at(work.begin_s / divisor), across.at(work.end_s / divisor)
        marks.append(
            element(
                "rect",
                element("title", f"{name}, {work.hover}"),
                class_=f"bar {'attention' if work.is_alone else style}",
                x=percent(begin), width=percent(max(0.0015, end - begin)), y=5, height=16,
            )
        )  # fmt: skip
    busy_s = sum(work.end_s - work.begin_s for work in works)
    told = f"{time_words(busy_s)} in {counted(len(works), 'piece')}"
    drawing = element(
        "svg", *marks, width="100%", height=26, role="img", aria_label=f"{name}: {told}"
    )
    return element(
        "li",
        element("span", name, class_="name"),
        element("span", drawing, class_="track"),
        element("span", told, class_="value"),
    )


def is_predicted(point: SharePoint) -> bool:
    """True where the model has a predicted latency on that share."""
    return point.predicted_ms.source != "none"


def share_chart(choice: ShareChoice) -> Html:
    """Return latency over shares: predicted with its interval, measured where it was confirmed."""
    predicted = [point for point in choice.points if is_predicted(point)]
    measured = [
        (point.percent, point.measured_ms)
        for point in choice.points
        if point.measured_ms is not None
    ]
    values = [point.predicted_ms.high for point in predicted] + [its.high for _, its in measured]
    across, up = linear_axis("% of the device", [100.0], exact=True), linear_axis("ms", values)
    drawn = []
    if predicted:
        drawn.append(
            Line(
                "predicted",
                [(point.percent, point.predicted_ms.value) for point in predicted],
                [f"{p.percent:.3g} %: {format_ms(p.predicted_ms.value)} predicted"
                 for p in predicted],
                "accent",
                low=[point.predicted_ms.low for point in predicted],
                high=[point.predicted_ms.high for point in predicted],
            )
        )  # fmt: skip
    if measured:
        drawn.append(
            Line(
                "measured",
                [(at, its.value) for at, its in measured],
                [f"{at:.3g} %: {format_ms(its.value)} measured" for at, its in measured],
                "norm",
                shape="diamond",
                low=[its.low for _, its in measured],
                high=[its.high for _, its in measured],
            )
        )
    chart = lines(drawn, x=across, y=up, label="Latency over shares of the device", band=True)
    shapes = {"predicted": ("circle", "accent"), "measured": ("diamond", "norm")}
    return join((chart, legend((line.name, "", *shapes[line.name]) for line in drawn)))
