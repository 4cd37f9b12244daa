"""What every report of a sweep says: places, counts, the best of each objective, reasons."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slicewise.app.words import clean, counted, place, runtime_words
from slicewise.core.cost import Prediction
from slicewise.core.exploration import Exploration, ExploredPoint, Objective, Standing
from slicewise.core.ties import least, places
from slicewise.core.units import format_capacity, format_ms, format_number


@dataclass(frozen=True, slots=True)
class ObjectiveWords:
    """How an objective is spoken of: its best, its figure, the head of its column, its axis."""

    best: str
    shown: Callable[[Prediction], str]
    head: str  # the unit says which it is
    figure: Callable[[Prediction], float]  # in the unit of the head
    less_is_better: bool = True
    axis: str = ""

    def cost(self, made: Prediction) -> float:
        """Return the figure, turned around where more of it is better."""
        return self.figure(made) if self.less_is_better else -self.figure(made)


WORDS: Mapping[Objective, ObjectiveWords] = {
    Objective.LATENCY: ObjectiveWords(
        "lowest latency",
        lambda made: format_ms(made.latency_ms.value),
        "ms",
        lambda made: made.latency_ms.value,
        axis="latency, ms",
    ),
    Objective.THROUGHPUT: ObjectiveWords(
        "highest throughput",
        lambda made: f"{format_number(made.throughput_per_s)} items/s",
        "items/s",
        lambda made: made.throughput_per_s,
        less_is_better=False,
        axis="throughput, items/s",
    ),
    Objective.ENERGY: ObjectiveWords(
        "least energy",
        lambda made: _energy(made.energy_j.value / made.batch),
        "J/item",
        lambda made: made.energy_j.value / made.batch,
        axis="energy, J per item",
    ),
    Objective.MEMORY: ObjectiveWords(
        "least memory",
        lambda made: format_capacity(made.memory_bytes.value),
        "GiB",
        lambda made: made.memory_bytes.value / 2**30,
        axis="peak memory, GiB",
    ),
}


def _energy(joules: float) -> str:
    if joules < 1:
        return f"{format_number(joules * 1e3)} mJ/item"
    return f"{format_number(joules)} J/item"


def configuration(point: ExploredPoint, *, with_model: bool = True) -> str:
    """Return 'resnet50 on a100-sxm4-80gb, batch 8, fp16, tensorrt'."""
    model = f"{clean(point.model)} on " if with_model else ""
    runs = ", ".join(word for word in (point.precision, runtime_words(point)) if word)
    batch = "" if point.batch is None else f", batch {point.batch}"
    return f"{model}{place(point)}{batch}{f', {runs}' if runs else ''}"


def headline(result: Exploration) -> str:
    """Return how many points there are, and how many stand on the front of what."""
    count, front = len(result.points), len(result.front)
    names = [objective.value for objective in result.objectives]
    told = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    made = " of each model" if result.per_model else ""
    return f"{counted(count, 'point')}, {front:,} on the front{made} of {told}"


def best_points(result: Exploration) -> list[tuple[ObjectiveWords, ExploredPoint, Prediction]]:
    """Return the best point of each objective among those that may stand on the front; of a tie
    the first."""
    allowed = (Standing.FRONT, Standing.DOMINATED)
    made = [
        (point, point.prediction)
        for point in result.points
        if point.prediction is not None and point.standing in allowed
    ]
    if not made:
        return []
    return [(words, *_best(words, made)) for words in WORDS.values()]


def _best(
    words: ObjectiveWords, made: Sequence[tuple[ExploredPoint, Prediction]]
) -> tuple[ExploredPoint, Prediction]:
    return least(made, lambda each: words.cost(each[1]))


def ranked_front(result: Exploration) -> list[tuple[ExploredPoint, Prediction]]:
    """Return the front, the best in the first objective first."""
    words = WORDS[result.objectives[0]]
    made = [(point, point.prediction) for point in result.front if point.prediction is not None]
    ranks = places([words.cost(prediction) for _, prediction in made])
    return [made[i] for i in sorted(range(len(made)), key=ranks.__getitem__)]


def off_front_reasons(result: Exploration) -> list[str]:
    """Return why points cannot stand on the front: limits, memory, impossible ones by reason."""
    count = len(result.points)
    standing = Counter(point.standing for point in result.points)
    told = []
    if unfit := standing[Standing.UNFIT]:
        verb = "needs" if unfit == 1 else "need"
        told.append(f"{unfit:,} of {count:,} {verb} more memory than the device has")
    if over := standing[Standing.OVER_LIMIT]:
        limits = []
        if result.latency_limit_ms is not None:
            limits.append(format_ms(result.latency_limit_ms))
        if result.memory_limit_bytes is not None:
            limits.append(format_capacity(result.memory_limit_bytes))
        verb = "is" if over == 1 else "are"
        told.append(f"{over:,} of {count:,} {verb} over the limit of {' or '.join(limits)}")
    reasons = Counter(
        clean(" ".join(point.failure.reason.split()))
        for point in result.points
        if point.failure is not None
    )
    if reasons:
        lost = sum(reasons.values())
        verb = "is" if lost == 1 else "are"
        told.append(f"{lost:,} of {counted(count, 'point')} {verb} impossible:")
        told.extend(f"  {n:,}: {reason}" for reason, n in reasons.most_common(_MOST_REASONS))
        if len(reasons) > _MOST_REASONS:
            rest = sum(n for _, n in reasons.most_common()[_MOST_REASONS:])
            told.append(f"  {rest:,}: {len(reasons) - _MOST_REASONS} more reasons (see the rows)")
    return told


_MOST_REASONS = 8


def note_counts(result: Exploration) -> Sequence[tuple[str, int]]:
    """Return the number of points that have a note of each code, most first."""
    counts = Counter(
        code
        for point in result.points
        if point.prediction is not None
        for code in {note.code for note in point.prediction.notes}
    )
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
