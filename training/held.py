"""Predictions of rows that were held out, by protocol; kept, so that tables and intervals agree.

    python -m training.held family model device device-family

A protocol is a list of parts; in each, some rows are predicted by networks trained without them:
`family` and `model` leave out a fold of the official folds, `device` one of the GPUs of timm's
files, `device-family` both a GPU and a fold. Each part is kept as soon as it is done
(`build/training/held`, under the settings and columns that it was done with), and a part that is
there is not done again.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from slicewise.core.cost import Kind
from slicewise.predict.context import CONTEXT
from slicewise.predict.features import CLASSES
from slicewise.predict.weights import schema_digest
from training.gather import folder, joined, samples
from training.network import (
    Inputs,
    Settings,
    Vocabulary,
    classes_us,
    fit,
    inputs_of,
    predict_us,
    vocabulary_of,
)
from training.samples import Samples

GPUS = ("rtx-3090", "rtx-4090", "rtx-pro-6000-maxq")
FOLDS = range(5)
TIMM = "timm-results"
# Rows of a kernel alone are many and cheap to learn; one counts as this part of a model's.
KERNEL_WEIGHT = 0.3
# Rows with more in them than the model are not trained on; copying a batch in is little of theirs.
BEYOND = frozenset({"end-to-end", "training-mode"})
SETTINGS = Settings(
    hidden=192, width=96, epochs=20, batch=128, dropout=0.1, is_bounded=True, reach=3.0,
    largest=9.0, members=2,
)  # fmt: skip
"""Chosen on folds 0 and 1 of families (`CHOSEN_ON`) and fold 0 of models."""
CHOSEN_ON = (0, 1)

KERNELS = 20_000


@dataclass(frozen=True, slots=True)
class Part:
    """One training and what it is judged on: masks over the samples."""

    name: str
    trained: NDArray[np.bool_]
    judged: NDArray[np.bool_]


@dataclass(slots=True)
class Everything:
    """All samples with what selects among them."""

    samples: Samples
    vocabulary: Vocabulary
    inputs: Inputs
    is_timm: NDArray[np.bool_]
    usable: NDArray[np.bool_]
    weights: NDArray[np.float64]

    def of(self, get: Callable[..., object]) -> NDArray[np.object_]:
        """Return something of each row."""
        return self.samples.column(get)


def everything(*, kernels: int = KERNELS) -> Everything:
    """Return timm's rows, those of other sources, and `kernels` rows of kernels alone."""
    parts = [samples("timm"), samples("others")]
    if kernels:
        from training.kernel_rows import as_samples

        parts.append(as_samples(kernels, seed=0))
    whole = joined(parts)
    vocabulary = vocabulary_of(whole)
    is_timm = np.array([row.source == TIMM for row in whole.rows])
    usable = np.array([row.is_trainable and not BEYOND & set(row.flags) for row in whole.rows])
    weights = np.array([KERNEL_WEIGHT if row.family_fold < 0 else 1.0 for row in whole.rows])
    return Everything(whole, vocabulary, inputs_of(whole, vocabulary), is_timm, usable, weights)


def parts_of(protocol: str, its: Everything) -> Iterator[Part]:
    """Yield the parts of a protocol."""
    family = its.of(lambda row: row.family_fold).astype(int)
    model = its.of(lambda row: row.model_fold).astype(int)
    device = its.of(lambda row: row.device)
    if protocol in ("family", "model"):
        fold = family if protocol == "family" else model
        for i in FOLDS:
            yield Part(f"{protocol}-{i}", fold != i, fold == i)
    elif protocol == "device":
        for gpu in GPUS:
            yield Part(f"device-{gpu}", device != gpu, (device == gpu) & its.is_timm)
    elif protocol == "device-family":
        for gpu in GPUS:
            for i in FOLDS:
                yield Part(
                    f"device-family-{gpu}-{i}",
                    (device != gpu) & (family != i),
                    (device == gpu) & (family == i) & its.is_timm,
                )
    else:
        raise ValueError(f"protocol {protocol!r} is unknown")


def kept_path(name: str, settings: Settings = SETTINGS, *, kernels: int = KERNELS) -> Path:
    """Return where a part lies that was done with these settings and the columns of today."""
    told = repr((settings, kernels, schema_digest())).encode()
    return folder() / "held" / f"{name}-{hashlib.sha256(told).hexdigest()[:12]}.npz"


def held_out(
    protocol: str, its: Everything, settings: Settings = SETTINGS, *, kernels: int = KERNELS
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return each member's prediction in microseconds, nan for rows never held out, and the part
    in which a row was."""
    count = len(its.samples.rows)
    made = np.full((settings.members, count), np.nan)
    part_of = np.full(count, -1)
    for number, part in enumerate(parts_of(protocol, its)):
        path = kept_path(part.name, settings, kernels=kernels)
        if not path.exists():
            _do(part, its, settings, path)
        with np.load(path) as file:
            which = file["which"]
            made[:, which] = file["members_us"]
            part_of[which] = number
    return made, part_of


def class_numbers(contexts: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the class of kernels that calibration knows, read off their context."""
    kinds = [f"kind {kind.value}" for kind in Kind]
    kind = contexts[:, [CONTEXT.index(name) for name in kinds]].argmax(axis=1)
    first = {kind: i for i, (kind, _) in reversed(list(enumerate(CLASSES)))}
    made: NDArray[np.int64] = np.array([first[each] for each in Kind])[kind]
    for column, name in (("depthwise", "depthwise"), ("grouped", "grouped"), ("1x1", "pointwise")):
        is_one = (contexts[:, CONTEXT.index(column)] > 0) & (kind == list(Kind).index(Kind.CONV))
        made[is_one] = CLASSES.index((Kind.CONV, name))
    return made


def _do(part: Part, its: Everything, settings: Settings, path: Path) -> None:
    started = time.process_time()
    trained = np.flatnonzero(part.trained & its.usable)
    judged = np.flatnonzero(part.judged)
    networks = fit(its.inputs, trained, its.vocabulary, settings, weights=its.weights)
    members = predict_us(networks, its.inputs, judged)
    classes, host = classes_us(
        networks, its.inputs, judged, class_numbers(its.samples.contexts), len(CLASSES)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    spent = time.process_time() - started
    temporary = path.with_suffix(".part.npz")
    np.savez(
        temporary, which=judged, members_us=members, cpu_s=spent, classes_us=classes, host_us=host
    )
    temporary.rename(path)
    error = np.abs(members.mean(0) / (its.samples.measured_s[judged] * 1e6) - 1)
    timm = its.is_timm[judged]
    sys.stderr.write(
        f"{part.name}: {len(trained)} rows trained on, timm {error[timm].mean():.2%} /"
        f" {np.median(error[timm]):.2%}"
        + (f", others {error[~timm].mean():.1%} / {np.median(error[~timm]):.1%}"
           if (~timm).any() else "")
        + f", {spent:.0f} CPU s\n"
    )  # fmt: skip


def main() -> None:
    """Do the protocols asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("protocols", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--members", type=int, default=SETTINGS.members)
    parser.add_argument("--epochs", type=int, default=SETTINGS.epochs)
    parser.add_argument("--kernels", type=int, default=KERNELS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    its = everything(kernels=given.kernels)
    settings = replace(SETTINGS, members=given.members, epochs=given.epochs)
    for protocol in given.protocols:
        held_out(protocol, its, settings, kernels=given.kernels)


if __name__ == "__main__":
    main()
