"""What a fit looks like in a notebook."""

from slicewise.app.html.card import PALE, card, card_table
from slicewise.app.html.markup import Content, element
from slicewise.app.slicing.fit_words import (
    answer,
    best_words,
    elsewhere_words,
    memory_cell,
    part,
    safety_words,
    shown,
    sureness,
)
from slicewise.app.words import grouped_notes, interval
from slicewise.core.units import format_number
from slicewise.flows.fitting.result import FitResult, FitSet


def strong_middle(words: tuple[str, str, str]) -> tuple[Content, ...]:
    """Return three pieces of a sentence with the middle one set in bold."""
    return words[0], element("strong", words[1]), words[2]


def fit_card(made: FitResult) -> str:
    """Return what a notebook shows of a fit: the answer, then every part in a table."""
    heads = ("part", "fits", "latency ms", "90 %", "items/s", "memory")
    rows = [
        (
            part(fit),
            "yes" if fit.fits else "no",
            format_number(fit.prediction.latency_ms.value),
            interval(fit.prediction.latency_ms),
            format_number(fit.prediction.throughput_per_s),
            memory_cell(fit, made),
        )
        for fit in shown(made)
    ]
    told = " ".join(words for words in (sureness(made), elsewhere_words(made)) if words)
    parts: list[Content] = [element("div", *strong_middle(answer(made)), style="font-size:1.1em")]
    parts += [element("div", told, style=PALE)] if told else []
    codes = ", ".join(group.code for group in grouped_notes(made.notes)) or "none"
    about = element("div", f"{safety_words(made)} Notes: {codes}", style=PALE)
    return card(*parts, card_table(heads, rows, numeric_from=2), about)


def fits_card(found: FitSet) -> str:
    """Return what a notebook shows of several cards: the best place, then each card."""
    parts = [str(element("div", *strong_middle(best_words(found))))]
    return "".join([*parts, *(fit_card(made) for made in found.results)])
