"""A tuned-at, run-at matrix as a heat map: numbers in cells, colours behind them."""

import math

from slicewise.app.html.markup import EN_DASH, TIMES, Html, element
from slicewise.app.tuning.matrix_words import cell_at
from slicewise.app.words import clean
from slicewise.core.tuning import Matrix
from slicewise.core.units import format_ms, format_number

_CORNER = "tuned \N{DOWNWARDS ARROW} run \N{RIGHTWARDS ARROW}"
_FULL_HEAT = math.log(1.5)  # a penalty of half as much again has the whole colour


def heat_map(matrix: Matrix) -> Html:
    """Return the matrix as a table: penalties with their intervals, the latency on the diagonal.

    Colours tell the size, a line under the number that it is beyond noise.
    """
    corner = element("th", _CORNER, scope="col")
    heads = [element("th", clean(share), scope="col") for share in matrix.shares]
    rows = [
        element(
            "tr",
            element("th", clean(share), scope="row"),
            *(_cell(matrix, share, run_at) for run_at in matrix.shares),
        )
        for share in matrix.shares
    ]
    made = element(
        "table", element("thead", element("tr", corner, *heads)), element("tbody", *rows),
        class_="heat",
    )  # fmt: skip
    label = f"Penalty of tuning elsewhere: {clean(matrix.name)}"
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=label)


def _cell(matrix: Matrix, tuned_at: str, run_at: str) -> Html:
    cell = cell_at(matrix, tuned_at, run_at)
    if cell is None:
        return element("td", EN_DASH, title="not measured")
    if tuned_at == run_at:
        return element(
            "td", element("b", format_ms(cell.latency_ms.value)), element("small", "tuned here"),
            class_="diagonal",
        )  # fmt: skip
    its = cell.penalty
    heat = min(1.0, abs(math.log(its.value)) / _FULL_HEAT)
    style = "cost" if its.value >= 1 else "gain"
    beyond = "" if its.low <= 1 <= its.high else " beyond"
    ends = f"{format_number(its.low)} {EN_DASH} {format_number(its.high)}"
    return element(
        "td",
        element("b", f"{TIMES}{format_number(its.value)}"),
        element("small", ends),
        class_=f"{style}{beyond}",
        style=f"--heat:{heat:.2f}",
        title=f"{format_ms(cell.latency_ms.value)} at {clean(run_at)}",
    )
