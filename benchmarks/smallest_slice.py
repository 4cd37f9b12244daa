"""Which is the smallest slice that keeps a latency target: what each rule chooses.

    python -m benchmarks.smallest_slice      # writes results/smallest_slice.md and .json

Targets are 1.1 to 5 times the latency on 7g, for every model and batch of ParvaGPU's open rows.
The right answer is the smallest slice whose measured latency keeps the target; slices without a
row (the batch does not fit) are no candidates. *Exact*: the rule chose it; *missed*: it chose one
that is too slow; *over*: a larger one than needed. Needs the measured data.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.open_rows import is_data_present
from benchmarks.sharing_rows import Subject, alone
from benchmarks.slice_rule import curve_of, on_whole_device
from benchmarks.tables import markdown, write_result
from slicewise.core.cost import Prediction
from slicewise.hardware.catalogue import find_device
from slicewise.predict.measured import MeasuredCurve, MeasuredRow
from slicewise.predict.slice import scale

DEVICE = "a100-sxm4-80gb"
LARGEST = "7g.80gb"
TARGETS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0)
SAFETIES = (0.0, 0.02, 0.05, 0.1)
# DIPPM's rule (karthickai/dippm, model_level notes, section 6) is in MB of an A100 40GB: under
# 5,000 1g, 10,000 2g, 20,000 3g, 40,000 7g. Twice as much on 80 GB; 4g is never given.
DIPPM_MB = ((10_000, "1g.10gb"), (20_000, "2g.20gb"), (40_000, "3g.40gb"), (80_000, LARGEST))


@dataclass(frozen=True, slots=True)
class Case:
    """One model at one batch: what was measured on each slice, from the smallest on."""

    subject: Subject
    batch: int
    measured_ms: Mapping[str, float]

    def right(self, limit_ms: float) -> str:
        """Return the smallest slice that keeps the limit."""
        return next(name for name, ms in self.measured_ms.items() if ms <= limit_ms)


COLUMNS = ("rule", "target", "exact", "missed", "over")
# A rule: latencies that it tells for the case's slices.
Rule = Callable[[Case], Mapping[str, float]]


def cases() -> list[Case]:
    """Return the cases in the order of the rows."""
    device = find_device(DEVICE)
    units = {profile.name: profile.compute_units for profile in device.profiles}
    found = []
    for subject, rows in alone().items():
        if subject.source == "ParvaGPU":
            by_batch: dict[int, dict[str, float]] = defaultdict(dict)
            for row in rows:
                by_batch[row.batch][row.slice or ""] = row.latency_ms
            for batch, its in by_batch.items():
                if LARGEST in its and len(its) > 1:
                    ordered = dict(sorted(its.items(), key=lambda item: units[item[0]]))
                    found.append(Case(subject, batch, ordered))
    return found


def choose(case: Case, told_ms: Mapping[str, float], limit_ms: float, safety: float) -> str:
    """Return the smallest slice whose told latency, the safety added, keeps the limit; else 7g."""
    return next(
        (name for name in case.measured_ms if told_ms[name] * (1 + safety) <= limit_ms), LARGEST
    )


def rules() -> dict[str, Rule]:
    """Return the rules that tell latencies, by name."""
    curves: dict[tuple[Subject, bool], MeasuredCurve] = {}
    rows_of = alone()
    device = find_device(DEVICE)

    def curve(subject: Subject, *, knows_copies: bool) -> MeasuredCurve:
        key = (subject, knows_copies)
        if key not in curves:
            full: list[MeasuredRow] = [r for r in rows_of[subject] if r.slice == LARGEST]
            curves[key] = curve_of(subject, full, knows_copies=knows_copies)
        return curves[key]

    def from_full(case: Case, *, knows_copies: bool) -> Mapping[str, float]:
        its = curve(case.subject, knows_copies=knows_copies)
        return {
            name: its.on(device.slice(name), case.batch).latency_ms.value
            for name in case.measured_ms
        }

    def constant(case: Case) -> Mapping[str, float]:
        return dict.fromkeys(case.measured_ms, case.measured_ms[LARGEST])

    def linear(case: Case) -> Mapping[str, float]:
        full = case.measured_ms[LARGEST] * device.slice(LARGEST).compute_units
        return {name: full / device.slice(name).compute_units for name in case.measured_ms}

    return {
        "7g measured, copies known": lambda case: from_full(case, knows_copies=True),
        "7g measured": lambda case: from_full(case, knows_copies=False),
        "7g measured, predicted slow-down": _predicted,
        "linear in SMs": linear,
        "constant": constant,
    }


_WHOLE: dict[tuple[str, int], Prediction] = {}


def whole_of(case: Case) -> Prediction:
    """Return the prediction of the case on the whole card."""
    key = (case.subject.model, case.batch)
    if key not in _WHOLE:
        _WHOLE[key] = on_whole_device(case.subject.source, *key)
    return _WHOLE[key]


def _predicted(case: Case) -> Mapping[str, float]:
    device = find_device(DEVICE)
    told = {
        name: scale(whole_of(case), device.slice(name)).latency_ms.value
        for name in case.measured_ms
    }
    factor = case.measured_ms[LARGEST] / told[LARGEST]
    return {name: ms * factor for name, ms in told.items()}


def by_memory(case: Case) -> str:
    """Return the slice that DIPPM's rule gives for the predicted memory, 7g beyond its bounds."""
    needed_mb = whole_of(case).memory_bytes.value / 1e6
    given = next((name for below, name in DIPPM_MB if needed_mb < below), LARGEST)
    return given if given in case.measured_ms else LARGEST


def verdict(case: Case, chosen: str, limit_ms: float) -> str:
    """Return what came of a choice."""
    if chosen == case.right(limit_ms):
        return "exact"
    return "missed" if case.measured_ms[chosen] > limit_ms else "over"


def judged(
    chosen: Callable[[Case, float], str], its: Sequence[Case]
) -> Iterator[tuple[float, str, Case]]:
    """Yield target, verdict and case for every case and target."""
    for case in its:
        for target in TARGETS:
            limit_ms = target * case.measured_ms[LARGEST]
            yield target, verdict(case, chosen(case, limit_ms), limit_ms), case


def main() -> int:
    """Choose, judge, and write the tables."""
    if not is_data_present():
        sys.stderr.write("measured data is absent: set SLICEWISE_DATA to its folder\n")
        return 1
    its = cases()
    chosen: dict[str, Callable[[Case, float], str]] = {}
    for name, rule in rules().items():
        told = {id(case): rule(case) for case in its}
        safeties = SAFETIES if "7g measured" in name else (0.0,)
        for safety in safeties:
            title = f"{name}, safety {safety:.0%}" if len(safeties) > 1 else name
            chosen[title] = _chooser(told, safety)
    chosen["DIPPM's memory rule"] = lambda case, limit_ms: by_memory(case)
    rows, by_target = [], []
    for name, choice in chosen.items():
        found = list(judged(choice, its))
        others = [each for each in found if each[2].subject.model != "bert"]
        rows.append((name, str(len(found)), *_shares(found), *_shares(others)))
        for target in TARGETS:
            of_target = [each for each in found if each[0] == target]
            by_target.append((name, f"{target:g}", *_shares(of_target)))
    write_result(
        "smallest_slice",
        title="The smallest slice under a latency target",
        command="python -m benchmarks.smallest_slice",
        words=(
            "ParvaGPU's open rows, MIG slices of an A100 80GB; targets"
            f" {', '.join(f'{target:g}' for target in TARGETS)} times the latency on 7g. Nothing"
            " but 7g is measured beforehand."
        ),
        columns=(
            "rule", "choices", "exact", "missed", "over", "exact without bert",
            "missed without bert", "over without bert",
        ),
        rows=rows,
        more="\n".join(["## By target", "", *markdown(COLUMNS, by_target)]),
    )  # fmt: skip
    return 0


def _chooser(
    told: Mapping[int, Mapping[str, float]], safety: float
) -> Callable[[Case, float], str]:
    return lambda case, limit_ms: choose(case, told[id(case)], limit_ms, safety)


def _shares(found: Sequence[tuple[float, str, Case]]) -> tuple[str, str, str]:
    total = len(found)
    exact, missed, over = (
        f"{sum(each[1] == kind for each in found) / total:.1%}"
        for kind in ("exact", "missed", "over")
    )
    return exact, missed, over


if __name__ == "__main__":
    sys.exit(main())
