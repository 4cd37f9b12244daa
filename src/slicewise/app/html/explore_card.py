"""What a sweep looks like in a notebook: the answer, the best of each objective, the front."""

from slicewise.app.explore_words import (
    WORDS,
    best_points,
    configuration,
    headline,
    off_front_reasons,
    ranked_front,
)
from slicewise.app.html.card import PALE, card, card_table
from slicewise.app.html.markup import Content, element
from slicewise.app.words import clean, place, runtime_words
from slicewise.core.exploration import Exploration
from slicewise.core.units import format_number

MOST_ROWS = 20
_MOST_REASONS = 4


def exploration_card(result: Exploration) -> str:
    """Return the card; of a long front the first `MOST_ROWS` in the first objective."""
    several = len({point.source for point in result.points}) > 1
    parts: list[Content] = [element("div", element("b", headline(result)))]
    best = [
        (words.best, words.shown(made), configuration(point, with_model=several))
        for words, point, made in best_points(result)
    ]
    if best:
        parts.append(card_table(("", "best", "where"), best, numeric_from=3))
    front = ranked_front(result)
    if front:
        rows = [
            (
                clean(point.model),
                place(point),
                made.precision,
                runtime_words(made),
                str(made.batch),
                *(format_number(words.figure(made)) for words in WORDS.values()),
            )
            for point, made in front[:MOST_ROWS]
        ]
        figures = (words.head for words in WORDS.values())
        heads = ("model", "device", "precision", "runtime", "batch", *figures)
        parts.append(card_table(heads, rows, numeric_from=4))
    if len(front) > MOST_ROWS:
        told = f"The first {MOST_ROWS} of {len(front):,} on the front; `.front` has all."
        parts.append(element("div", told, style=PALE))
    parts.extend(
        element("div", line, style=PALE) for line in off_front_reasons(result)[:_MOST_REASONS]
    )
    return card(*parts)
