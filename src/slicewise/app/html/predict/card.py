"""What predictions look like in a notebook."""

from collections.abc import Sequence

from slicewise.app.html.card import PALE, card, card_table
from slicewise.app.html.markup import EN_DASH, element
from slicewise.app.html.predict.batches import throughput
from slicewise.app.words import clean, grouped_notes, place, runtime_words, subject
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.document import PredictionSet
from slicewise.core.units import format_capacity, format_ms, format_number

MOST_ROWS = 40


def prediction_card(made: Prediction) -> str:
    """Return the answer, its figures with their intervals, and how many notes there are."""
    latency = made.latency_ms
    answer = element(
        "div",
        f"{subject(made)}: ",
        element("b", format_ms(latency.value)),
        " ",
        element("span", f"({format_ms(latency.low)} to {format_ms(latency.high)})", style=PALE),
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
    table = card_table(("", "estimate", "90 % interval"), rows, numeric_from=1)
    about = f"{made.precision} with {runtime_words(made)}; {_notes([made])}"
    return card(answer, table, element("div", about, style=PALE))


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
    table = card_table(heads, rows, numeric_from=2 if several else 1)
    models = ", ".join(clean(model.name) for model in result.models)
    left_out = len(predictions) - MOST_ROWS
    more = f" The first {MOST_ROWS} of {len(predictions)} are shown." if left_out > 0 else ""
    runs = ", ".join(dict.fromkeys(f"{m.precision} with {runtime_words(m)}" for m in predictions))
    about = element("div", f"{runs}; {_notes(predictions)}.{more}", style=PALE)
    return card(element("div", element("b", models)), table, about)


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
