"""Predictors of others on timm's rows, whole families or whole models held out.

    python -m benchmarks.predictor_baselines train              # all methods, then the tables
    python -m benchmarks.predictor_baselines train dippm --cpu-seconds 600 --processes 2
    python -m benchmarks.predictor_baselines tables             # from what was predicted before
    python -m benchmarks.predictor_baselines choose             # settings of the network

Every method is rebuilt from its description and trained on the rows and folds that ours is trained
on: `family_fold` holds a fifth of the families out, `model_fold` a fifth of the (model, size)
pairs, from all 18 files at once. A network gets `--cpu-seconds` of one core for each fold, what
ours takes; trees stop when they stop. Held-out predictions go to
$SLICEWISE_TRAINING/baselines/METHOD/*.npz (else build/training/baselines), so that tables can be
made again without training; tables to results/predictor_baselines.md and .json.

Needs the measured data ($SLICEWISE_DATA), `training/graphs`, lightgbm and torch.
"""

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.cases import FOLD_KINDS, FOLDS, Cases, part_of
from benchmarks.baselines.methods import (
    METHODS,
    NETWORK,
    TRIED,
    WORK,
    Method,
    Options,
    cases_of_all,
)
from benchmarks.tables import markdown, write_result
from slicewise.core.whole_file import whole_file

Floats = NDArray[np.float64]


def train(methods: Sequence[str], options: Options, processes: int) -> None:
    """Predict every row by every method while its fold is held out."""
    cases_of_all()
    jobs = [
        (name, kind, fold, options)
        for name in methods
        for kind in FOLD_KINDS
        for fold in range(FOLDS)
    ]
    with ProcessPoolExecutor(processes) as pool:
        for told in pool.map(_job, jobs):
            sys.stderr.write(f"{told}\n")


def _job(job: tuple[str, str, int, Options]) -> str:
    name, kind, fold, options = job
    cases = cases_of_all()
    held_out = cases.fold(kind) == fold
    start = time.process_time()
    predicted_s = METHODS[name][1].predict(cases, held_out, options)
    cpu_s = time.process_time() - start
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{kind}-{fold}.npz") as file:
        np.savez(
            file, model_name=cases.model_name[held_out], source_file=cases.source_file[held_out],
            key=cases.key[held_out], batch=cases.batch[held_out],
            measured_s=cases.measured_s[held_out], predicted_s=predicted_s, cpu_s=cpu_s,
        )  # fmt: skip
    error = np.abs(predicted_s / cases.measured_s[held_out] - 1)
    return f"{name} {kind} {fold}: {error.mean():.1%} / {np.median(error):.1%}, {cpu_s:.0f} CPU s"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """All rows as predicted by one method while they were held out; `cpu_s`: of one fold."""

    file: NDArray[np.str_]
    error: Floats
    cpu_s: float

    def of_file(self, file: str) -> tuple[float, float]:
        """Return mean and median of the relative error of one file."""
        its = self.error[self.file == file]
        return float(its.mean()), float(np.median(its))

    def of_files(self, files: Sequence[str]) -> tuple[float, float]:
        """Return the mean over the files of both."""
        mean, median = np.array([self.of_file(file) for file in files]).mean(axis=0).tolist()
        return mean, median

    def within(self, bound: float, files: Sequence[str]) -> float:
        """Return the part of the rows within a bound, mean over the files."""
        return float(np.mean([(self.error[self.file == f] <= bound).mean() for f in files]))


def held_out_of(method: str, kind: str) -> HeldOut:
    """Return what `train` kept of a method."""
    found: dict[str, list[NDArray[np.generic]]] = {"file": [], "error": [], "cpu_s": []}
    for fold in range(FOLDS):
        with np.load(WORK / method / f"{kind}-{fold}.npz") as arrays:
            found["file"].append(arrays["source_file"])
            found["error"].append(np.abs(arrays["predicted_s"] / arrays["measured_s"] - 1))
            found["cpu_s"].append(arrays["cpu_s"])
    error = np.concatenate(found["error"]).astype(np.float64)
    return HeldOut(
        np.concatenate(found["file"]).astype(np.str_),
        error,
        float(np.mean([float(each) for each in found["cpu_s"]])),
    )


def write_tables() -> None:
    """Write the tables of the methods that were trained."""
    cases = cases_of_all()
    files = cases.files
    names = [name for name in METHODS if (WORK / name).is_dir()]
    made = {kind: {name: held_out_of(name, kind) for name in names} for kind in FOLD_KINDS}

    def cells(kind: str, name: str) -> list[str]:
        its = made[kind][name]
        mean, median = its.of_files(files)
        return [_percent(mean), _percent(median), _percent(its.within(0.1, files))]

    heads = ["method", "unseen families: MAPE", "median", "within 10 %",
             "unseen (model, size): MAPE", "median", "within 10 %", "CPU s a fold"]  # fmt: skip
    rows = [
        [METHODS[name][0], *cells("family_fold", name), *cells("model_fold", name),
         f"{made['family_fold'][name].cpu_s:.0f}"]
        for name in names
    ]  # fmt: skip
    more: list[str] = []
    for kind, words in zip(FOLD_KINDS, ("families", "(model, size) pairs"), strict=True):
        more += [f"## By file, unseen {words}: MAPE / median, percent", ""]
        its_rows = [
            [file, str(int((cases.source_file == file).sum())), *_by_file(made[kind], names, file)]
            for file in files
        ]
        more += [*markdown(["file", "rows", *(METHODS[name][0] for name in names)], its_rows), ""]
    write_result(
        "predictor_baselines",
        title="Baselines of the learned predictor on timm's rows",
        command="python -m benchmarks.predictor_baselines train",
        words=f"{len(cases.batch)} rows of {len(cases.starts) - 1} graphs in {len(files)} files,"
        " five folds, a fold held out of all files at once; percent, mean over the files. Settings"
        " of the trees were chosen inside the training rows of family fold 0, which are judged in"
        f" other folds: not nested. Networks, where shown, are {NETWORK.hidden} wide, untuned; the"
        " slicewise roofline, where shown, was fitted by hand"
        " to open rows of other graphs of the same files: nothing is held out from it.",
        columns=heads,
        rows=rows,
        more="\n".join(more).strip(),
    )


def _by_file(made: Mapping[str, HeldOut], names: Sequence[str], file: str) -> list[str]:
    return [" / ".join(_percent(each) for each in made[name].of_file(file)) for name in names]


def _percent(part: float) -> str:
    return f"{100 * part:.1f}"


def choose(options: Options, processes: int) -> None:
    """Try settings inside the training rows of family fold 0."""
    cases = cases_of_all()
    inner = part_of(cases, cases.family_fold != 0)
    with ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(_try, inner, method, folds, options) for _, method, folds in TRIED]
        for (name, _, _), job in zip(TRIED, jobs, strict=True):
            sys.stderr.write(f"{name}: {job.result()}\n")


def _try(cases: Cases, method: Method, folds: Sequence[int], options: Options) -> str:
    judged = np.isin(cases.family_fold, folds)
    made = np.zeros(len(judged))
    for fold in folds:
        held_out = cases.family_fold == fold
        made[held_out] = method.predict(cases, held_out, options)
    error = np.abs(made[judged] / cases.measured_s[judged] - 1)
    mean, median = HeldOut(cases.source_file[judged], error, 0.0).of_files(cases.files)
    return f"{_percent(mean)} / {_percent(median)}"


def main() -> None:
    """Train, choose, or write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("train", "tables", "choose"))
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(METHODS)}; all if none")
    parser.add_argument("--cpu-seconds", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    unknown = sorted(set(given.methods) - set(METHODS))
    if unknown:
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = Options(given.cpu_seconds, given.seed)
    if given.what == "choose":
        choose(options, given.processes)
        return
    if given.what == "train":
        train(given.methods or list(METHODS), options, given.processes)
    write_tables()


if __name__ == "__main__":
    main()
