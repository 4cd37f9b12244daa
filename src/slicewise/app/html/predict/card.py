"""What a prediction looks like in a notebook: a small card, styled in place, without a script.

Colours are the notebook's own, paler by opacity, so that a card reads in light and in dark.
"""

from collections.abc import Sequence

from slicewise.app.html.markup import EN_DASH, Content, Html, element, join
from slicewise.app.html.predict.batches import throughput
from slicewise.app.words import clean, grouped_notes, place, subject
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.document import PredictionSet
from slicewise.core.units import format_capacity, format_ms, format_number

MOST_ROWS = 40
_HEADS = ("model", "device", "batch", "latency ms", "90 %", "items/s", "energy J", "memory")

_CARD = (
    "font-family:system-ui,sans-serif;font-variant-numeric:tabular-nums;line-height:1.45;"
    "max-width:46em;padding:4px 0"
)
_PALE = "opacity:.72;font-size:.88em"
_CELL = "padding:3px 16px 3px 0;background:none;border:0;vertical-align:top"
_LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.35);background:none"


def prediction_card(made: Prediction) -> str:
    """Return the answer, its figures with their intervals, and how many notes there are."""
    latency = made.latency_ms
    answer = element(
        "div",
        f"{subject(made)}: ",
        element("b", format_ms(latency.value)),
        " ",
        element("span", f"({format_ms(latency.low)} to {format_ms(latency.high)})", style=_PALE),
        style="font-size:1.1em",
    )
    rate, memory = throughput(made), made.memory_bytes
    rows = (
        (
            "throughput",
            f"{format_number(rate.value)} items/s",
            f"{format_number(rate.low)} to {format_number(rate.high)}",
        ),
        (
            "energy",
            f"{format_number(made.energy_j.value)} J",
            f"{format_number(made.energy_j.low)} to {format_number(made.energy_j.high)}",
        ),
        (
            "memory",
            format_capacity(memory.value),
            f"{format_capacity(memory.low)} to {format_capacity(memory.high)}",
        ),
    )
    table = _table(("", "estimate", "90 % interval"), rows, numeric_from=1)
    about = f"{made.precision} with {made.runtime}; {_notes([made])}"
    return _card(answer, table, element("div", about, style=_PALE))


def predictions_card(result: PredictionSet) -> str:
    """Return a table of the predictions, one row each, the first `MOST_ROWS` of them."""
    predictions = result.predictions
    several = len({made.model for made in predictions}) > 1
    heads: Sequence[str] = (
        "model",
        "device",
        "batch",
        "latency ms",
        "90 %",
        "items/s",
        "energy J",
        "memory",
    )
    rows: list[Sequence[str]] = [_row(made) for made in predictions[:MOST_ROWS]]
    if not several:
        heads, rows = heads[1:], [row[1:] for row in rows]
    table = _table(heads, rows, numeric_from=2 if several else 1)
    models = ", ".join(clean(model.name) for model in result.models)
    left_out = len(predictions) - MOST_ROWS
    more = f" The first {MOST_ROWS} of {len(predictions)} are shown." if left_out > 0 else ""
    runs = ", ".join(dict.fromkeys(f"{m.precision} with {m.runtime}" for m in predictions))
    about = element("div", f"{runs}; {_notes(predictions)}.{more}", style=_PALE)
    return _card(element("div", element("b", models)), table, about)


def _row(made: Prediction) -> tuple[str, ...]:
    return (
        clean(made.model),
        place(made),
        str(made.batch),
        format_number(made.latency_ms.value),
        _bounds(made.latency_ms),
        format_number(made.throughput_per_s),
        format_number(made.energy_j.value),
        format_capacity(made.memory_bytes.value),
    )


def _bounds(estimate: Estimate) -> str:
    return f"{format_number(estimate.low)}{EN_DASH}{format_number(estimate.high)}"


def _notes(predictions: Sequence[Prediction]) -> str:
    groups = grouped_notes(note for made in predictions for note in made.notes)
    codes = ", ".join(group.code for group in groups)
    return f"notes: {codes}" if codes else "no notes"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numeric_from: int) -> Html:
    def style(i: int) -> str:
        return f"{_CELL};text-align:{'right' if i >= numeric_from else 'left'}"

    head = element(
        "tr",
        *(element("th", word, scope="col", style=style(i)) for i, word in enumerate(heads)),
        style=_LINE,
    )
    body = [
        element(
            "tr",
            *(element("td", cell, style=style(i)) for i, cell in enumerate(row)),
            style="background:none",
        )
        for row in rows
    ]
    return element(
        "table", element("thead", head), element("tbody", *body),
        style="border-collapse:collapse;margin:6px 0;font-size:.95em",
    )  # fmt: skip


def _card(*parts: Content) -> str:
    return str(element("div", join(parts), style=_CARD))
