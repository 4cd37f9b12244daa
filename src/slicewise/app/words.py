"""Words that every report uses: names without control characters, places, notes.

Formats only; what is rendered where is the business of `report.py` and `html/`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slicewise.core.conditions import USUAL, RuntimeChoice
from slicewise.core.cost import Estimate, Prediction
from slicewise.core.exploration import ExploredPoint
from slicewise.core.measurement import Measurement
from slicewise.core.notes import Note, unique_notes
from slicewise.core.units import format_number

# Notes about figures of a device come after those about the model and the prediction.
ABOUT_DEVICES = frozenset(
    {
        "spec-recalled", "spec-derived", "spec-estimated", "spec-probed", "idle-power-estimated",
        "launch-estimated", "host-estimated", "bandwidth-estimated", "slice-estimated",
        "slice-memory-estimated", "slice-cache-uncertain", "energy-estimated",
    }
)  # fmt: skip


def clean(name: str) -> str:
    """Return a name from outside without control characters.

    >>> clean("conv\\x1b[31m")
    'conv?[31m'
    """
    return "".join(char if char.isprintable() else "?" for char in name)


def counted(count: int, noun: str) -> str:
    """Return '1 node' or '5,000 nodes'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_LONGEST_NAME = 60


def short_name(name: str) -> str:
    """Return a name that a line holds: what tells nodes apart stands at its end.

    >>> short_name("layer/" * 20 + "conv")[:3], len(short_name("layer/" * 20 + "conv"))
    ('...', 60)
    """
    told = clean(name)
    return told if len(told) <= _LONGEST_NAME else f"...{told[3 - _LONGEST_NAME :]}"


def place(made: Prediction | ExploredPoint | Measurement) -> str:
    """Return the device and the slice or share of it, as `--device` takes it.

    >>> place(Measurement("m", "", "", "cpu", "50%", "onnxruntime", 1, "fp32", 2))
    'cpu@50%'
    """
    if made.slice is None:
        return clean(made.device)
    return clean(f"{made.device}{'@' if made.slice.endswith('%') else '/'}{made.slice}")


def runtime_words(made: Prediction | ExploredPoint) -> str:
    """Return the runtime with the version and the layout that were asked beside the usual ones.

    >>> import slicewise
    >>> runtime_words(slicewise.predict(model, device="t4", runtime="tensorrt"))
    'tensorrt'
    >>> asked = slicewise.predict(model, device="t4", runtime="tensorrt@8.4", layout="nhwc")
    >>> runtime_words(asked)
    'tensorrt@8.4 in nhwc'
    """
    runtime = str(RuntimeChoice(made.runtime or "", made.runtime_version))
    if made.layout == USUAL.layout:
        return runtime
    return f"{runtime} in {made.layout}".strip()


def interval(estimate: Estimate) -> str:
    """Return '1.62 - 2.04'."""
    return f"{format_number(estimate.low)} - {format_number(estimate.high)}"


def as_argument(model: str) -> str:
    """Return a model as a command line takes it: a name that begins with a dash is no option.

    >>> as_argument("-x.onnx")
    './-x.onnx'
    """
    return f"./{model}" if model.startswith("-") else model


def subject(made: Prediction) -> str:
    """Return 'resnet50 on a100-sxm4-80gb/2g.20gb, batch 8'."""
    return f"{clean(made.model)} on {place(made)}, batch {made.batch}"


def may_not_fit(made: Prediction) -> bool:
    """Tell whether the memory needed, with its interval, goes beyond that of the device."""
    return any(note.code == "memory-exceeded" for note in made.notes)


def eligible(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Return what an answer may recommend: what fits into memory, or all where nothing does."""
    return [made for made in predictions if not may_not_fit(made)] or predictions


def doubt_of_memory(predictions: Sequence[Prediction]) -> str:
    """Return what an answer must add about memory: '2 of 3 may not fit into memory', or ''."""
    doubtful = sum(map(may_not_fit, predictions))
    if not doubtful:
        return ""
    if doubtful < len(predictions):
        return f"{doubtful} of {len(predictions)} may not fit into memory and are left out here"
    return "May not fit into memory" if doubtful == 1 else "None is sure to fit into memory"


@dataclass(frozen=True, slots=True)
class NoteText:
    """What notes with the same words say: the words, and the nodes that they concern."""

    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteGroup:
    """All notes of one code, each text once, in order of appearance."""

    code: str
    texts: tuple[NoteText, ...]


def grouped_notes(notes: Iterable[Note]) -> tuple[NoteGroup, ...]:
    """Return the notes by code, those about the model first.

    >>> [group] = grouped_notes([Note("shape-guessed", "as its input", node) for node in "ab"])
    >>> group.texts
    (NoteText(text='as its input', nodes=('a', 'b')),)
    """
    by_code: dict[str, dict[str, list[str]]] = {}
    for note in sorted(unique_notes(notes), key=lambda note: note.code in ABOUT_DEVICES):
        nodes = by_code.setdefault(note.code, {}).setdefault(note.text, [])
        if note.node:
            nodes.append(note.node)
    return tuple(
        NoteGroup(code, tuple(NoteText(text, tuple(nodes)) for text, nodes in texts.items()))
        for code, texts in by_code.items()
    )


def intervals_sentence(predictions: Iterable[Prediction]) -> str:
    """Return what the intervals of these predictions rest on, as one sentence."""
    rests = {_rest_of(made) for made in predictions}
    if rests == {"card"}:
        return "Intervals follow from what was measured on this device, as its card tells."
    if rests == {"open"}:
        return "Intervals hold 90 % of open measurements of this kind."
    if rests == {"nothing"}:
        return "No open measurement is of this kind: intervals are borrowed and wide."
    if "card" in rests:
        return (
            "Intervals hold 90 % of measurements, on this device where a card is named, or are"
            " borrowed and wide (see notes)."
        )
    return "Intervals hold 90 % of open measurements, or are borrowed and wide (see notes)."


def _rest_of(made: Prediction) -> str:
    """Return what the interval of a prediction rests on: a device card, open rows, nothing."""
    if "card" in made.latency_ms.source:
        return "card"
    uncovered = any(note.code == "interval-uncovered" for note in made.notes)
    return "nothing" if uncovered else "open"
