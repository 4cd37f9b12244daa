"""Whether changed numerics still give the same answers, on real inputs.

The samples are split once: a part calibrates int8, the others judge it, and none does both.
Agreement is between the changed model and the unchanged one; no labels are needed. No model is
run here.
"""

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import UsageError
from slicewise.core.measurement import InputSpec
from slicewise.core.tuning import AccuracyData

Array = NDArray[Any]
# Samples that calibrate at most: ranges of activations change little beyond some tens (Nagel et
# al., A White Paper on Neural Network Quantization, arXiv 2106.08295, section 3).
CALIBRATING = 32
JUDGING = 512
LEAST_SAMPLES = 8
# A part of samples is known no finer than one in so many.
_FINE = 100
_SUM_TOLERANCE = 1e-2
_LARGEST_LABEL = 2**24  # whole numbers up to here are exact in fp32


@dataclass(frozen=True, slots=True)
class Samples:
    """Real inputs, cut into runs of the model's own shapes.

    `calibrating` and `judging` are numbers of runs; no run is in both.
    """

    files: Mapping[str, Path]
    inputs: tuple[InputSpec, ...]
    calibrating: tuple[int, ...]
    judging: tuple[int, ...]

    def runs(self, numbers: Sequence[int]) -> Iterator[Mapping[str, Array]]:
        """Yield the inputs of these runs by name, in the types that the model takes."""
        opened = {spec.name: _open(self.files[spec.name], spec) for spec in self.inputs}
        for number in numbers:
            yield {
                spec.name: _cut(opened[spec.name], spec, number).astype(_type_of(spec))
                for spec in self.inputs
            }


def split_samples(data: AccuracyData, inputs: Sequence[InputSpec], *, seed: int) -> Samples:
    """Return the runs that the data gives, split by `seed`: half of them, at most 32, calibrate,
    at most 512 others judge.

    A sample is a whole input, or a part of one along the batch: then as many samples as the
    batch has make a run, and what is left over is not used. `UsageError` where an input has no
    array, the shapes do not fit, or there are fewer than 8 runs.
    """
    missing = [spec.name for spec in inputs if spec.name not in data.inputs]
    if missing:
        raise UsageError(
            f"accuracy data has no array for input {', '.join(missing)}; it has"
            f" {', '.join(data.inputs) or 'none'}; give one for each input"
        )
    counts = {spec.name: _runs_of(_open(data.inputs[spec.name], spec), spec) for spec in inputs}
    count = min(counts.values(), default=0)
    if count < LEAST_SAMPLES:
        raise UsageError(
            f"accuracy data gives {count} runs of the model; at least {LEAST_SAMPLES} are needed,"
            " half to calibrate and half to judge; give more samples"
        )
    order = np.random.default_rng(seed).permutation(count).tolist()
    calibrating = min(CALIBRATING, count // 2)
    return Samples(
        {spec.name: data.inputs[spec.name] for spec in inputs},
        tuple(inputs),
        tuple(order[:calibrating]),
        tuple(order[calibrating : calibrating + JUDGING]),
    )


def _open(path: Path, spec: InputSpec) -> Array:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as err:
        raise UsageError(
            f"accuracy data {os.fspath(path)!r} for input {spec.name!r} cannot be read: {err};"
            " write it with numpy.save"
        ) from err
    if not isinstance(found, np.ndarray) or not _is_fit(found, spec):
        raise UsageError(
            f"accuracy data for input {spec.name!r} is {getattr(found, 'shape', 'no array')}; the"
            f" model takes {spec.shape}: give (samples, {_listed(spec.shape[1:])}) to be cut along"
            f" the batch, or (samples, {_listed(spec.shape)})"
        )
    return found


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _is_fit(found: Array, spec: InputSpec) -> bool:
    return found.shape[1:] == spec.shape or (
        len(spec.shape) > 0 and found.ndim > 0 and found.shape[1:] == spec.shape[1:]
    )


def _is_whole(found: Array, spec: InputSpec) -> bool:
    """True where each sample is an input; the ranks tell the two ways apart."""
    return found.shape[1:] == spec.shape


def _runs_of(found: Array, spec: InputSpec) -> int:
    return len(found) if _is_whole(found, spec) else len(found) // max(1, spec.shape[0])


def _cut(found: Array, spec: InputSpec, number: int) -> Array:
    if _is_whole(found, spec):
        return np.asarray(found[number])
    batch = spec.shape[0]
    return np.asarray(found[number * batch : (number + 1) * batch])


def _type_of(spec: InputSpec) -> np.dtype[Any]:
    names = {"fp64": "float64", "fp32": "float32", "fp16": "float16"}
    return np.dtype(names.get(spec.dtype.value, spec.dtype.value))


# --- agreement


@dataclass(frozen=True, slots=True)
class OutputAgreement:
    """How one output agrees with that of the unchanged model.

    `kind` says by what it is judged: 'scores' by the part of rows whose greatest element is the
    same (`same_choice`), 'labels' by the part of elements that are equal (`same_choice` too),
    'values' by 1 - relative RMS error (`closeness`). Both figures are given where both exist.
    """

    kind: str
    same_choice: float | None
    closeness: float

    @property
    def value(self) -> float:
        """The figure that the gate looks at."""
        if self.kind == "values" or self.same_choice is None:
            return self.closeness
        return self.same_choice


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement over `samples` judging runs; the worst output counts."""

    outputs: tuple[OutputAgreement, ...]
    samples: int

    @property
    def value(self) -> float:
        """From 0 to 1; 1 where there is no output."""
        return min((output.value for output in self.outputs), default=1.0)

    @property
    def closeness(self) -> float:
        """1 - relative RMS error of the worst output; finer than a part of equal choices."""
        return min((output.closeness for output in self.outputs), default=1.0)

    @property
    def is_coarse(self) -> bool:
        """True where so few samples judged that a part of 1 % is not seen."""
        return self.samples < _FINE

    @property
    def text(self) -> str:
        """Both figures of the worst output."""
        if not self.outputs:
            return "no output to compare"
        worst = min(self.outputs, key=lambda output: output.value)
        choice = (
            "" if worst.same_choice is None else f"{100 * worst.same_choice:.4g} % same choice"
        )
        close = f"1 - relative RMS error {worst.closeness:.4g}"
        told = " and ".join(filter(None, (choice, close)))
        return f"{told} over {self.samples} samples, judged as {worst.kind}"


class Comparing:
    """Takes the outputs of runs one by one, since all of them need not fit into memory.

    `scores` are the outputs that hold a score for each class by what the graph says; others are
    found by their values (rows of probabilities) or their names.
    """

    def __init__(self, output_names: Sequence[str], *, scores: Collection[str] = ()) -> None:
        self._tallies = [_Tally(name, is_scores=name in scores) for name in output_names]
        self._samples = 0

    def add(self, expected: Sequence[Array], found: Sequence[Array]) -> None:
        """Take the outputs of one run, of the unchanged and of the changed model."""
        for tally, before, after in zip(self._tallies, expected, found, strict=True):
            tally.add(before, after)
        self._samples += 1

    def agreement(self) -> Agreement:
        """Return what came of the runs so far."""
        return Agreement(tuple(tally.result() for tally in self._tallies), self._samples)


_SCORE_NAMES = ("logit", "prob", "softmax", "score", "class", "label", "cls")


class _Tally:
    """Sums over the runs of one output."""

    def __init__(self, name: str, *, is_scores: bool) -> None:
        self._is_scores = is_scores
        self._is_named = any(word in name.lower() for word in _SCORE_NAMES)
        self._rows = self._same_rows = self._elements = self._same_elements = 0
        self._error = self._power = 0.0
        self._choices: set[int] = set()
        self._is_probable = self._is_whole = self._is_comparable = True
        self._is_flat = True

    def add(self, before: Array, after: Array) -> None:
        if before.shape != after.shape:
            self._is_comparable = False
            return
        a, b = before.astype(np.float64), after.astype(np.float64)
        if not np.isfinite(b[np.isfinite(a)]).all():
            self._is_comparable = False
            return
        finite = np.isfinite(a)
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        self._elements += a.size
        self._same_elements += int(np.count_nonzero(a == b))
        self._error += float(np.square(a - b).sum())
        self._power += float(np.square(a).sum())
        whole = a.size == 0 or bool((np.abs(a) < _LARGEST_LABEL).all() and (a == np.rint(a)).all())
        self._is_whole = self._is_whole and whole
        if a.ndim < 2 or a.shape[-1] < 2 or a.size == 0:
            self._is_probable = False
            return
        self._is_flat = self._is_flat and a.ndim == 2
        sums = a.sum(axis=-1)
        self._is_probable = self._is_probable and bool(
            (a >= 0).all() and (np.abs(sums - 1) < _SUM_TOLERANCE).all()
        )
        chosen = a.argmax(axis=-1)
        self._rows += chosen.size
        self._same_rows += int(np.count_nonzero(chosen == b.argmax(axis=-1)))
        self._choices.update(np.unique(chosen).tolist())

    def result(self) -> OutputAgreement:
        if not self._is_comparable:
            return OutputAgreement("values", None, 0.0)
        closeness = max(0.0, 1.0 - math.sqrt(self._error / self._power)) if self._power else (
            1.0 if self._error == 0 else 0.0
        )  # fmt: skip
        if self._is_whole and self._elements:
            return OutputAgreement("labels", self._same_elements / self._elements, closeness)
        same = self._same_rows / self._rows if self._rows else None
        # a choice that is always the same tells nothing: any constant would agree with it
        is_telling = len(self._choices) > 1
        is_scores = self._is_probable or self._is_scores or (self._is_flat and self._is_named)
        kind = "scores" if same is not None and is_telling and is_scores else "values"
        return OutputAgreement(kind, same, closeness)
