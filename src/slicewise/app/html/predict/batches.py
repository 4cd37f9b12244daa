"""Latency and throughput over the batch, as lines."""

from collections.abc import Callable, Sequence

from slicewise.app.html.blocks import figure, sentence
from slicewise.app.html.charts import Line, legend, lines
from slicewise.app.html.markup import Content, Html, element, join
from slicewise.app.html.predict.kinds import GROUPS, Look
from slicewise.app.html.predict.sweep import Sweep
from slicewise.app.html.scale import linear_axis, log_axis, power_axis
from slicewise.app.words import place
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.ties import least
from slicewise.core.units import format_ms, format_number

_NEAR_BEST = 0.9  # of the highest throughput: the knee that the title names
MOST_LINES = 6
# One colour and shape for each device; the six of the operator groups are told apart in both
# themes and never stand in the same chart.
_LOOKS = GROUPS


def over_batch(sweep: Sweep, places: Sequence[str]) -> Html:
    """Return latency and throughput over the batch, a line for each of `places`."""
    by_place: dict[str, list[Prediction]] = {name: [] for name in places[:MOST_LINES]}
    for made in sorted(sweep.predictions, key=lambda made: made.batch):
        if place(made) in by_place:
            by_place[place(made)].append(made)
    rows = {name: made for name, made in by_place.items() if made}
    batches = sorted({made.batch for line in rows.values() for made in line})
    if len(batches) < 2:
        return join((sentence("Only one batch could be predicted."), _failures(sweep)))
    parts: list[Content] = [_panels(rows, batches)]
    if len(rows) > 1:
        looks = zip(rows, _LOOKS, strict=False)
        parts.append(legend((name, "", look.shape, look.style) for name, look in looks))
    doubtful = any(_exceeds(made) for line in rows.values() for made in line)
    words = []
    if doubtful:
        words.append("Hollow marks: the model does not, or may not, fit into the memory.")
    if len(rows) == 1:
        words.append("The shaded band is the 90 % interval.")
    if len(places) > MOST_LINES:
        words.append(f"The first {MOST_LINES} of {len(places)} devices are drawn.")
    if words:
        parts.append(sentence(" ".join(words), style="quiet"))
    parts.append(_failures(sweep))
    return join(parts)


def _panels(rows: dict[str, list[Prediction]], batches: Sequence[int]) -> Html:
    x = power_axis("batch", batches)
    band = len(rows) == 1
    drawn = [made for line in rows.values() for made in line]
    bounds = [b for made in drawn for b in (made.latency_ms.low, made.latency_ms.high)]
    y_ms = log_axis("latency, ms", bounds if band else [m.latency_ms.value for m in drawn])
    rates = [throughput(made) for made in drawn]
    y_rate = linear_axis("items/s", [r.high if band else r.value for r in rates])
    names = list(enumerate(rows.items()))
    latency = lines(
        [_line(name, made, _LOOKS[i], of=_latency) for i, (name, made) in names],
        x=x,
        y=y_ms,
        label="Latency over batch",
        band=band,
    )
    rate = lines(
        [_line(name, made, _LOOKS[i], of=throughput) for i, (name, made) in names],
        x=x,
        y=y_rate,
        label="Throughput over batch",
        band=band,
    )
    return element(
        "div",
        figure(_latency_title(rows), latency),
        figure(_rate_title(rows), rate),
        class_="pair",
    )


def _line(
    name: str, made: Sequence[Prediction], look: Look, *, of: Callable[[Prediction], Estimate]
) -> Line:
    figures = [of(each) for each in made]
    return Line(
        name,
        [(each.batch, figure.value) for each, figure in zip(made, figures, strict=True)],
        [
            f"{name}, batch {each.batch}: {format_ms(each.latency_ms.value)},"
            f" {format_number(each.throughput_per_s)} items/s"
            for each in made
        ],
        style=look.style,
        shape=look.shape,
        low=[figure.low for figure in figures],
        high=[figure.high for figure in figures],
        doubtful=frozenset(i for i, each in enumerate(made) if _exceeds(each)),
    )


def _latency(made: Prediction) -> Estimate:
    return made.latency_ms


def throughput(made: Prediction) -> Estimate:
    """Return items per second with the interval that follows from that of the latency."""
    latency = made.latency_ms
    items = made.batch * 1e3
    return Estimate(made.throughput_per_s, items / latency.high, items / latency.low)


def _exceeds(made: Prediction) -> bool:
    return any(note.code == "memory-exceeded" for note in made.notes)


def _latency_title(rows: dict[str, list[Prediction]]) -> str:
    first = next(iter(rows.values()))
    low, high = first[0], first[-1]
    if len(rows) == 1:
        return (
            f"{high.batch / low.batch:.3g} times the batch takes"
            f" {format_number(high.latency_ms.value / low.latency_ms.value)} times as long"
        )
    at_one = {name: made[0].latency_ms.value for name, made in rows.items()}
    quickest = least(list(at_one), at_one.__getitem__)
    return f"Batch {low.batch} is quickest on {quickest}: {format_ms(at_one[quickest])}"


def _rate_title(rows: dict[str, list[Prediction]]) -> str:
    points = [made for line in rows.values() for made in line]
    best = least(points, lambda made: -made.throughput_per_s)
    line = next(line for line in rows.values() if best in line)
    knee = next(m for m in line if m.throughput_per_s >= _NEAR_BEST * best.throughput_per_s)
    top = f"{format_number(best.throughput_per_s)} items/s"
    where = f" on {place(best)}" if len(rows) > 1 else ""
    if knee.batch == best.batch:
        return f"Throughput still grows at batch {best.batch}, to {top}{where}"
    return f"From batch {knee.batch} on, throughput is within 10 % of its best, {top}{where}"


def _failures(sweep: Sweep) -> Html | None:
    if not sweep.failed:
        return None
    first, reason = sweep.failed[0]
    if len(sweep.failed) == 1:
        words = f"Batch {first} could not be predicted: {reason}."
    else:
        listed = ", ".join(str(batch) for batch, _ in sweep.failed)
        words = f"Batches {listed} could not be predicted. Batch {first}: {reason}."
    return sentence(words, style="quiet")
