"""Several predictions side by side: intervals on a common axis, and all figures in one table."""

from collections.abc import Sequence

from slicewise.app.html.blocks import Column, Section, sentence, table
from slicewise.app.html.charts import Range, intervals
from slicewise.app.html.markup import EN_DASH, Content, element, join
from slicewise.app.html.predict.batches import throughput
from slicewise.app.words import clean, eligible, may_not_fit, place
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.ties import least
from slicewise.core.units import format_capacity, format_ms, format_number

DRAWN_ROWS = 40


def comparison(predictions: Sequence[Prediction]) -> Section:
    """Return the section that compares predictions, in the order given."""
    several_models = len({made.model for made in predictions}) > 1
    several_batches = len({made.batch for made in predictions}) > 1
    quickest = least(eligible(predictions), _per_item if several_batches else _latency)
    drawn = predictions[:DRAWN_ROWS]
    # Latencies of unlike batches cannot be held against each other, times per item can.
    ranges = [
        _range(made, several_models, per_item=several_batches, best=made is quickest)
        for made in drawn
    ]
    axis = "ms per item" if several_batches else "latency, ms"
    parts: list[Content] = [
        intervals(ranges, axis_label=axis, label=f"{axis}, with 90 % intervals"),
        sentence(
            "Dot: the estimate; bar: the 90 % interval. "
            + ("Time per item is latency over batch. " if several_batches else "")
            + (
                f"The first {DRAWN_ROWS} of {len(predictions)} predictions are drawn."
                if len(predictions) > DRAWN_ROWS
                else ""
            ),
            style="quiet",
        ),
        _figures(predictions, several_models),
    ]
    return Section(
        "comparison", _finding(predictions, several_batches), join(parts), about="Comparison"
    )


def _latency(made: Prediction) -> float:
    return made.latency_ms.value


def _per_item(made: Prediction) -> float:
    return made.latency_ms.value / made.batch


def _finding(predictions: Sequence[Prediction], per_item: bool) -> str:
    """Say who is fastest of those that fit, by how much, and whether the intervals tell the two
    apart."""
    key = _per_item if per_item else _latency
    ranked = sorted(eligible(predictions), key=key)
    if len(ranked) == 1:
        return f"The only one sure to fit into memory: {_name(ranked[0], predictions)}"
    best, second = ranked[0], ranked[1]
    what = "least time per item" if per_item else "quickest"
    what += " of those that fit" if len(ranked) < len(predictions) else ""
    factor = key(ranked[-1]) / key(best)
    scale_best, scale_second = ((m.batch if per_item else 1) for m in (best, second))
    apart = best.latency_ms.high / scale_best < second.latency_ms.low / scale_second
    doubt = "" if apart else ", though its interval overlaps that of the next"
    return (
        f"{_capital(what)}: {_name(best, predictions)},"
        f" {format_number(factor)} times as fast as the slowest{doubt}"
    )


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _name(made: Prediction, among: Sequence[Prediction]) -> str:
    parts = [place(made)]
    if len({other.model for other in among}) > 1:
        parts.insert(0, f"{clean(made.model)} on")
    if len({other.batch for other in among}) > 1:
        parts.append(f"at batch {made.batch}")
    return " ".join(parts)


def _range(made: Prediction, with_model: bool, *, per_item: bool, best: bool) -> Range:
    items = made.batch if per_item else 1
    latency = made.latency_ms
    group = [clean(made.model)] if with_model else []
    if per_item:
        group.append(f"batch {made.batch}")
    return Range(
        place(made),
        latency.value / items,
        latency.low / items,
        latency.high / items,
        f"{format_ms(latency.value / items)} ({_bounds(latency, items)})",
        group=", ".join(group),
        best=best,
    )


def _bounds(estimate: Estimate, items: int = 1) -> str:
    return EN_DASH.join(format_number(v / items) for v in (estimate.low, estimate.high))


def _figures(predictions: Sequence[Prediction], with_model: bool) -> Content:
    columns = [Column("device")]
    if with_model:
        columns.insert(0, Column("model"))
    columns += [
        Column("batch", numeric=True),
        Column("latency ms", numeric=True),
        Column("items/s", numeric=True),
        Column("energy J", numeric=True),
        Column("memory GiB", numeric=True),
        Column("of peak", numeric=True, hint="share of the device's peak arithmetic"),
        Column("full", numeric=True, hint="saturation: 100 % = no idle units"),
    ]
    rows = []
    for made in predictions:
        cells: list[Content] = [place(made)]
        if with_model:
            cells.insert(0, clean(made.model))
        cells += [
            str(made.batch),
            _with_interval(made.latency_ms),
            _with_interval(throughput(made)),
            _with_interval(made.energy_j),
            _memory(made),
            f"{made.compute_utilisation:.0%}".replace("%", " %"),
            f"{made.saturation:.0%}".replace("%", " %"),
        ]
        rows.append(cells)
    return table(
        columns, rows, caption="All predictions, the 90 % interval below each figure; latency"
        " and energy are for the whole batch",
    )  # fmt: skip


def _with_interval(estimate: Estimate) -> Content:
    return join((format_number(estimate.value), element("small", _bounds(estimate))))


def _memory(made: Prediction) -> Content:
    over = may_not_fit(made)
    figure = format_number(made.memory_bytes.value / 2**30)
    told = element("small", "may not fit" if over else format_capacity(made.memory_bytes.value))
    return join((figure, told if over else None))
