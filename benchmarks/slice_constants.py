"""How much each constant of the slice rule matters, and what is left when a family is held out.

    python -m benchmarks.slice_constants     # writes results/slice_constants.md and .json

Every constant is moved by itself, up and down, and each slice of ParvaGPU is told from 7g. Held
out: for each model the setting that is best for the other eight, and the error on that one. Needs
the measured data.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean, median
from types import ModuleType
from unittest.mock import patch

from benchmarks.open_rows import is_data_present
from benchmarks.sharing_rows import SOURCES, Subject, alone
from benchmarks.slice_rule import curve_of, part_of
from benchmarks.tables import write_result
from slicewise.predict import measured, sweep
from slicewise.predict import slice as rule
from slicewise.predict.measured import MeasuredRow

SOURCE = "ParvaGPU"
FACTORS = (0.75, 1.33)


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the rule, and every module that has it under its name."""

    name: str
    modules: tuple[ModuleType, ...]

    @property
    def value(self) -> float:
        """What it is in the rule."""
        return float(getattr(self.modules[0], self.name))


CONSTANTS = (
    Constant("KNEE_SHARPNESS", (rule,)),
    Constant("MODEL_COMPUTE_SHARE", (measured, sweep)),
    Constant("BANDWIDTH_EXPONENT", (rule,)),
    Constant("TAIL_SHARE", (sweep,)),
    Constant("TAIL_SPREAD", (sweep,)),
    Constant("TAIL_SPREAD_ABOVE", (sweep,)),
    Constant("TAIL_ITEMS", (sweep,)),
    Constant("TAIL_ITEMS_SPREAD", (sweep,)),
    Constant("HIDDEN_EXPONENT", (sweep,)),
    Constant("SHOWN_EXPONENT", (sweep,)),
    Constant("EXPONENT_SPREAD", (sweep,)),
    Constant("COMPUTE_SPREAD", (sweep,)),
    Constant("NOISE", (sweep,)),
    Constant("TRUST", (sweep,)),
)


def errors(subject: Subject, rows: list[MeasuredRow]) -> list[float]:
    """Return the relative errors on the smaller slices of one model, from 7g, copies known."""
    largest = SOURCES[SOURCE].largest
    full = [row for row in rows if row.slice == largest]
    batches = {row.batch for row in full}
    curve = curve_of(subject, full, knows_copies=True)
    return [
        curve.on(part_of(curve.device, row.slice), row.batch).latency_ms.value / row.latency_ms - 1
        for row in rows
        if row.slice != largest and row.batch in batches
    ]


def by_setting() -> Iterator[tuple[str, str, Mapping[Subject, list[float]]]]:
    """Yield each setting with the errors of each model, the rule's own first."""
    subjects = {each: rows for each, rows in alone().items() if each.source == SOURCE}

    def run() -> dict[Subject, list[float]]:
        return {each: errors(each, rows) for each, rows in subjects.items()}

    yield "as it is", "", run()
    for constant in CONSTANTS:
        for factor in FACTORS:
            moved = constant.value * factor
            if constant.name in ("MODEL_COMPUTE_SHARE", "TRUST"):
                moved = min(moved, 0.95)
            with ExitStack() as stack:
                for module in constant.modules:
                    stack.enter_context(patch.object(module, constant.name, moved))
                yield constant.name, f"{moved:.3g}", run()


def held_out(settings: list[tuple[str, str, Mapping[Subject, list[float]]]]) -> list[float]:
    """Return the errors on each model under the setting that is best for all others."""
    found: list[float] = []
    for subject in settings[0][2]:
        best = min(
            settings,
            key=lambda each: _loss(
                [error for other, its in each[2].items() if other != subject for error in its]
            ),
        )
        found += best[2][subject]
    return found


def _loss(found: list[float]) -> float:
    """Mean and half the median of the absolute error; one bad row counts a half at most."""
    sizes = [abs(error) for error in found]
    return mean(min(size, 0.5) for size in sizes) + 0.5 * median(sizes)


def main() -> int:
    """Move, compare, and write the table."""
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    settings = list(by_setting())
    rows = [
        (name, value, *_cells([error for its in found.values() for error in its]))
        for name, value, found in settings
    ]
    rows.append(("best for the other eight models", "", *_cells(held_out(settings))))
    write_result(
        "slice_constants",
        title="Constants of the slice rule",
        command="python -m benchmarks.slice_constants",
        words=(
            "Errors on 265 rows of ParvaGPU, each slice from 7g, copies known: with one constant"
            " moved at a time, and for each model under the setting that is best for the others."
        ),
        columns=("constant", "moved to", "median", "mean"),
        rows=rows,
    )
    return 0


def _cells(found: list[float]) -> tuple[str, str]:
    sizes = [abs(error) for error in found]
    return f"{median(sizes):.2%}", f"{mean(sizes):.2%}"


if __name__ == "__main__":
    sys.exit(main())
