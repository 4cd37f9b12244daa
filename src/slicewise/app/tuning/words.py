"""Words and sums that the report, the page and the card of a tuning share.

Formats, and adds up what a result holds; nothing is measured or judged twice: whether two
latencies differ is asked of their 90 % intervals.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from slicewise.app.words import clean, counted, short_name
from slicewise.core.cost import Estimate
from slicewise.core.tuning import Trial, TrialOutcome
from slicewise.core.units import format_ms, format_number
from slicewise.flows.tuning.result import (
    SUMMED,
    CurvePoint,
    Outlook,
    ShareChoice,
    TunedWorkload,
    TuneResult,
)

_LONGEST_CONFIG = 60
_REASON = 120  # characters of why candidates failed
_KEPT = frozenset({"default-kept", "tune-no-gain"})  # notes that say so
_OF_KERNELS = frozenset({"tvm", "triton"})  # what these change is in no option of a runtime
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 32


class Standing(Enum):
    """What the measurements before and after say."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # no difference beyond noise
    KEPT = "kept"  # nothing was better than the settings that were there
    APART = "apart"  # operators only: the model was not run as a whole


def standing(made: TuneResult) -> Standing:
    """Return what tuning came to. Latencies differ where their intervals do not meet."""
    before, after = made.before_ms, made.after_ms
    if before is None or after is None or before.source == SUMMED:
        return Standing.APART
    is_told = any(note.code in _KEPT for note in made.notes)
    is_alike = bool(made.before_options) and made.before_options == made.after_options
    if is_told or (is_alike and made.engine not in _OF_KERNELS):
        return Standing.KEPT
    if after.high < before.low:
        return Standing.FASTER
    return Standing.SLOWER if after.low > before.high else Standing.SAME


def ratio(over: Estimate, under: Estimate) -> Estimate:
    """Return `over` / `under` with the widest interval that theirs allow.

    >>> ratio(Estimate(8.0, 7.0, 9.0), Estimate(4.0, 3.5, 4.5)).value
    2.0
    """
    return Estimate(over.value / under.value, over.low / under.high, over.high / under.low)


@dataclass(frozen=True, slots=True)
class InSum:
    """Operators that have a default and a tuned latency, added up over their counts, in ms."""

    before_ms: float
    after_ms: Estimate
    operators: int


def in_sum(made: TuneResult) -> InSum | None:
    """Return the sum over the operators whose default was measured; None where none was."""
    known = [
        (each.count, each.tuned.default_ms, each.tuned.latency_ms)
        for each in made.workloads
        if each.tuned is not None and each.tuned.default_ms is not None
    ]
    if not known:
        return None
    after = Estimate(
        sum(count * tuned.value for count, _, tuned in known),
        sum(count * tuned.low for count, _, tuned in known),
        sum(count * tuned.high for count, _, tuned in known),
    )
    return InSum(sum(count * default for count, default, _ in known), after, len(known))


def where(made: TuneResult) -> str:
    """Return 'cpu@50%, 1 thread', or 'gpu:0' where threads say nothing."""
    threads = f", {counted(made.threads, 'thread')}" if made.threads else ""
    return f"{clean(place_of(made.device, made.share))}{threads}"


def place_of(device: str, share: str | None) -> str:
    """Return a device and its part as other commands take them.

    >>> place_of("cpu", "50%"), place_of("h100", "1g.10gb"), place_of("cpu", None)
    ('cpu@50%', 'h100/1g.10gb', 'cpu')
    """
    if share is None:
        return device
    return f"{device}{'@' if share.endswith('%') else '/'}{share}"


def subject(made: TuneResult) -> str:
    """Return 'resnet50 on cpu@50%, 1 thread, batch 1'."""
    return f"{clean(made.model.name)} on {where(made)}, batch {made.batch}"


def answer(made: TuneResult) -> tuple[str, str, str]:
    """Return the answer in three pieces; the middle one is the finding."""
    about = subject(made)
    its = standing(made)
    if its is Standing.APART:
        return _apart(made, about)
    before, after = made.before_ms, made.after_ms
    assert before is not None
    assert after is not None
    if its is Standing.KEPT:
        told = f" ({span_ms(before)}); kept: {about}."
        return "", "No setting beats the defaults", f", {format_ms(before.value)}{told}"
    figures = f"{format_ms(before.value)} -> {format_ms(after.value)}"
    tail = f"{about}; {equality(made)}."
    if its is Standing.SAME:
        told = f": {figures} ({span_ms(before)} -> {span_ms(after)}), {tail}"
        return "", "no difference beyond noise", told
    is_slower = its is Standing.SLOWER
    gain = ratio(after, before) if is_slower else ratio(before, after)
    middle = f"{format_number(gain.value)} times {'slower' if is_slower else 'faster'}"
    ends = f"{format_number(gain.low)} to {format_number(gain.high)}"
    return "", middle, f" ({ends}): {figures}, {tail}"


def _apart(made: TuneResult, about: str) -> tuple[str, str, str]:
    """The answer where the model was not run as a whole: the sum of its operators."""
    reached = [each for each in made.workloads if each.tuned is not None]
    of_all = f"{len(reached)} of {counted(len(made.workloads), 'operator')}"
    if not reached:
        return "", "nothing ran", f": {of_all}, {about}."
    total = in_sum(made)
    if total is None:
        return "", f"{of_all} tuned", f": {about}; their defaults were not measured."
    gain = ratio(Estimate(total.before_ms, total.before_ms, total.before_ms), total.after_ms)
    figures = f"{format_ms(total.before_ms)} -> {format_ms(total.after_ms.value)}"
    in_all = f"{total.operators} of {counted(len(made.workloads), 'operator')} in sum"
    if gain.low <= 1 <= gain.high:
        return "", "no difference beyond noise", f": {figures}, {in_all}, {about}."
    is_slower = gain.value < 1
    shown = 1 / gain.value if is_slower else gain.value
    low, high = (1 / gain.high, 1 / gain.low) if is_slower else (gain.low, gain.high)
    middle = f"{format_number(shown)} times {'slower' if is_slower else 'faster'}"
    ends = f"{format_number(low)} to {format_number(high)}"
    return "", middle, f" ({ends}): {figures}, {in_all}, {about}; not run as a whole."


def is_good(made: TuneResult) -> bool:
    """True where the answer is good news or none, and the outputs are those of before."""
    total = in_sum(made)
    its = standing(made)
    if its is Standing.APART:
        return total is not None and total.after_ms.high < total.before_ms
    is_right = made.outputs_equal is not False or is_int8(made)
    return its is not Standing.SLOWER and is_right


def is_int8(made: TuneResult) -> bool:
    """True where the result is in int8, whose agreement was judged on real inputs."""
    return any(note.code == "int8-chosen" for note in made.notes)


def span_ms(estimate: Estimate) -> str:
    """Return '3.91 ms to 4.03 ms'."""
    return f"{format_ms(estimate.low)} to {format_ms(estimate.high)}"


def equality(made: TuneResult) -> str:
    """Return what became of the outputs."""
    if made.outputs_equal is None and not (is_int8(made) and made.difference is not None):
        return "outputs not compared"
    off = "" if made.difference is None else _part(made.difference)
    if made.outputs_equal:
        return f"outputs equal{f' (within {off} of the largest)' if off else ''}"
    told = f"outputs differ{f' by up to {off} of the largest' if off else ''}"
    return f"{told}, in int8, whose agreement was judged" if is_int8(made) else told


def _part(fraction: float) -> str:
    """Return a part of the largest output: percent where it is one to notice, else its power."""
    if fraction == 0:
        return "0"
    return f"{100 * fraction:.3g} %" if fraction >= 1e-3 else f"{fraction:.2g}"


def artifact_words(made: TuneResult) -> str:
    """Return where the artefact lies, as one sentence; '' where there is none."""
    if made.artifact is None:
        return ""
    return f"Artefact: {clean(str(made.artifact))}"


def how_lines(made: TuneResult) -> list[str]:
    """Return how to run the artefact, a line each."""
    return [clean(line) for line in made.how_to_run.splitlines() if line.strip()]


def changed(made: TuneResult) -> list[tuple[str, str, str]]:
    """Return the settings that changed: name, before, after; '-' where the engine decides."""
    before, after = made.before_options, made.after_options
    return [
        (clean(name), clean(before.get(name, "-")), clean(after.get(name, "-")))
        for name in dict.fromkeys([*sorted(before), *sorted(after)])
        if before.get(name) != after.get(name)
    ]


def unchanged(made: TuneResult) -> str:
    """Return the settings that stayed, as 'threads=1, graph=all'; '' where there are none."""
    before, after = made.before_options, made.after_options
    same = [name for name in sorted(before) if after.get(name) == before[name]]
    return ", ".join(f"{clean(name)}={clean(before[name])}" for name in same)


def config_words(config: str) -> str:
    """Return a configuration as people read it: settings by name, or the head of a long text.

    >>> config_words('{"threads": 2, "spinning": false}'), config_words("x" * 70)[-4:]
    ('threads=2, spinning=false', 'x...')
    """
    try:
        found = json.loads(config)
    except ValueError:
        found = None
    if isinstance(found, dict) and all(not isinstance(v, dict | list) for v in found.values()):
        return clean(", ".join(f"{name}={_value(value)}" for name, value in found.items()))
    told = clean(config)
    return told if len(told) <= _LONGEST_CONFIG else f"{told[: _LONGEST_CONFIG - 3]}..."


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def by_weight(made: TuneResult) -> list[TunedWorkload]:
    """Return the operators, those first that take most of the time: as they were, else as
    predicted."""

    def weight(each: TunedWorkload) -> float:
        default = None if each.tuned is None else each.tuned.default_ms
        return each.weight_ms if default is None else each.count * default

    return sorted(made.workloads, key=lambda each: -weight(each))


def workload_name(each: TunedWorkload) -> str:
    """Return the name of an operator on one line."""
    return short_name(each.name)


def failed(each: TunedWorkload) -> int:
    """Return how many candidates of an operator came to nothing."""
    return sum(each.failures.values())


def failures(workloads: Sequence[TunedWorkload]) -> Mapping[TrialOutcome, int]:
    """Return the number of candidates that came to nothing, by outcome, the most first."""
    found: dict[TrialOutcome, int] = {}
    for each in workloads:
        for outcome, count in each.failures.items():
            found[outcome] = found.get(outcome, 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0].value)))


def failures_words(made: TuneResult) -> str:
    """Return '2 of 64 candidates failed: 1 crashed (signal 11), 1 wrong (...).', with the most
    common reason of each outcome; '' where none did."""
    found = failures(made.workloads)
    if not found:
        return ""
    told = ", ".join(
        f"{count:,} {outcome}{_reason(made, outcome)}" for outcome, count in found.items()
    )
    tried = sum(each.trials for each in made.workloads)
    return f"{sum(found.values()):,} of {counted(tried, 'candidate')} failed: {told}."


def _reason(made: TuneResult, outcome: TrialOutcome) -> str:
    """Return the reason that most trials with this outcome give, cut short, in brackets."""
    reasons = Counter(
        clean(" ".join(trial.error.split()))
        for trial in made.trials
        if trial.outcome is outcome and trial.error
    )
    if not reasons:
        return ""
    ((text, _),) = reasons.most_common(1)
    return f" ({text if len(text) <= _REASON else text[: _REASON - 3] + '...'})"


def tried_words(made: TuneResult) -> str:
    """Return how much was tried, and what was known before, as one sentence."""
    tried = sum(each.trials for each in made.workloads)
    told = f"{counted(tried, 'candidate')} of {counted(len(made.workloads), 'workload')} tried"
    warm = sum(trial.is_warm for trial in made.trials)
    stored = sum(each.tuned is not None and each.tuned.is_from_store for each in made.workloads)
    known = [f"{counted(stored, 'workload')} taken from the store"] if stored else []
    known += [f"{counted(warm, 'trial')} known before"] if warm else []
    return f"{', '.join([told, *known])}."


def time_words(seconds: float) -> str:
    """Return a time for people with three digits at most; what is below a millisecond is 0.

    >>> time_words(4.256), time_words(754.0), time_words(3720.0), time_words(0.0001)
    ('4.26 s', '12 min 34 s', '1 h 2 min', '0 s')
    """
    if seconds < 5e-4:
        return "0 s"
    if seconds < 99.95:
        return f"{format_number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def is_all_known(made: TuneResult) -> bool:
    """True where nothing was tried this time: the store or the journal had it all."""
    return made.phases.measure_s == 0 and made.phases.search_s + made.phases.build_s < 1.0


def phases_words(made: TuneResult) -> str:
    """Return where the time went, as one sentence."""
    its = made.phases
    if is_all_known(made):
        return "nothing was tried this time, as all was known; --fresh begins anew."
    return (
        f"{time_words(its.wall_s)} of tuning: search {time_words(its.search_s)}, build"
        f" {time_words(its.build_s)} over {counted(its.clients, 'client')}; measuring"
        f" {time_words(its.measure_s)} over {counted(its.servers, 'server')}, busy"
        f" {its.busy_share:.0%} of the time."
    )


def spark(points: Sequence[CurvePoint]) -> str:
    """Return a curve over time as a line of blocks, the least value lowest; '' of fewer than two.

    >>> spark([CurvePoint(0.0, 1, 8.0), CurvePoint(2.0, 9, 4.0)])
    '████████████████████████████████▁'
    """
    if len(points) < 2:
        return ""
    begin, end = points[0].at_s, points[-1].at_s
    low = min(point.total_ms for point in points)
    high = max(point.total_ms for point in points)
    marks, i = [], 0
    for step in range(_SPARK_WIDTH + 1):
        at_s = begin + (end - begin) * step / _SPARK_WIDTH
        while i + 1 < len(points) and points[i + 1].at_s <= at_s:
            i += 1
        part = (points[i].total_ms - low) / (high - low) if high > low else 0.0
        marks.append(_SPARKS[round(part * (len(_SPARKS) - 1))])
    return "".join(marks)


def curve_words(points: Sequence[CurvePoint]) -> str:
    """Return from where to where the curve went and when it last fell, as one sentence."""
    if len(points) < 2:
        return ""
    first, last = points[0], points[-1]
    begin = " (predicted)" if first.trials == 0 else ""
    told = f"{format_ms(first.total_ms)}{begin} -> {format_ms(last.total_ms)}"
    falls = [
        after
        for before, after in pairwise(points)
        # a trial that is better than the prediction is no gain over another trial
        if before.trials > 0 and after.total_ms < before.total_ms and not after.is_alone
    ]
    if not falls:
        return f"{told}; no trial beat the first."
    return f"{told}; last gain after {time_words(falls[-1].at_s)}, trial {falls[-1].trials:,}."


def outlook_words(outlook: Outlook | None) -> str:
    """Return what more time would bring, as one sentence; '' where that is not known."""
    if outlook is None:
        return ""
    its = outlook.total_ms
    return (
        f"{time_words(outlook.seconds)} more ({counted(outlook.trials, 'trial')}) would bring"
        f" {format_ms(its.value)} ({span_ms(its)}): an extrapolation of this run."
    )


def knee_words(choice: ShareChoice) -> str:
    """Return why a share was chosen, as one sentence.

    >>> knee_words(ShareChoice((), chosen_percent=50.0, tolerance=0.1))
    'Share: 50 % is the smallest within 10 % of the latency of the whole device.'
    """
    return (
        f"Share: {choice.chosen_percent:g} % is the smallest within {100 * choice.tolerance:g} %"
        " of the latency of the whole device."
    )


def of_whole(choice: ShareChoice, percent: float) -> str:
    """Return the predicted latency of a share relative to that of the largest, as '1.08'."""
    by_percent = {point.percent: point.predicted_ms.value for point in choice.points}
    return format_number(by_percent[percent] / by_percent[max(by_percent)])


def best_trials(made: TuneResult) -> list[Trial]:
    """Return the trials with a latency, each configuration once: measured alone where it was;
    by workload in the order of the result, the quickest first."""
    best: dict[tuple[str, str], Trial] = {}
    for trial in made.trials:
        if not trial.is_ok:
            continue
        seen = best.get((trial.workload, trial.config))
        if seen is None or _rank(trial) < _rank(seen):
            best[trial.workload, trial.config] = trial
    order = {each.key: i for i, each in enumerate(made.workloads)}
    return sorted(
        best.values(), key=lambda trial: (order.get(trial.workload, len(order)), _ms(trial))
    )


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.is_alone, _ms(trial)


def _ms(trial: Trial) -> float:
    assert trial.latency_ms is not None
    return trial.latency_ms.value
