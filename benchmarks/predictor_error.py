"""Errors of the learned predictor on rows that were held out: families, models, devices, sources.

    python -m training.held family model device device-family     # trains, 70 CPU minutes
    python -m benchmarks.predictor_error                          # tables from what that kept

Folds are the official ones; a fold is held out over all files and sources at once. Figures are
MAPE / median of |predicted / measured - 1| in percent; 'mean of files' is the mean over timm's 18
results files of each file's own. Needs the measured data ($SLICEWISE_DATA).
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown, write_result
from slicewise.hardware.catalogue import find_device
from slicewise.predict import fitting
from slicewise.predict.features import CLASSES, FEATURES, ROOFLINE
from slicewise.predict.operators import OperatorRows
from training.fit import BASE, intervals, spread_of, unseen_intervals
from training.held import (
    CHOSEN_ON,
    FOLDS,
    GPUS,
    TIMM,
    Everything,
    everything,
    held_out,
    kept_path,
)
from training.model_rows import ModelRow

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Bands = Callable[[Everything, Floats, NDArray[np.int64]], dict[str, dict[str, float]]]
DRAWS = 4
SHOTS = (1, 5, 10, 20)
SMALL_BATCH = 8


def off(its: Everything, made_us: Floats) -> Floats:
    """Return |predicted / measured - 1| of each row in percent."""
    found: Floats = np.abs(made_us / (its.samples.measured_s * 1e6) - 1) * 100
    return found


def pair(errors: Floats) -> str:
    """Return 'MAPE / median'."""
    return f"{errors.mean():.2f} / {np.median(errors):.2f}"


def within(errors: Floats, percent: float) -> str:
    """Return the part of errors within some percent."""
    return f"{(errors <= percent).mean():.0%}"


def mean_of_files(its: Everything, errors: Floats, which: Mask) -> tuple[float, float]:
    """Return the means over timm's files of MAPE and of the median."""
    files = its.of(lambda row: row.file)
    its_own = [errors[which & (files == name)] for name in sorted(set(files[which]))]
    return (
        float(np.mean([each.mean() for each in its_own])),
        float(np.mean([np.median(each) for each in its_own])),
    )


def file_rows(its: Everything, family: Floats, model: Floats) -> Iterator[tuple[str, ...]]:
    """Yield a line for each of timm's files."""
    files = its.of(lambda row: row.file)
    for name in sorted(set(files[its.is_timm])):
        one = its.is_timm & (files == name)
        own = family[one]
        yield (
            name, str(one.sum()), pair(own), within(own, 10), within(own, 20), pair(model[one]),
        )  # fmt: skip


def group_rows(
    its: Everything, errors: Floats, which: Mask, get: Callable[..., object]
) -> Iterator[tuple[str, ...]]:
    """Yield a line for each group of rows, the worst first."""
    names = its.of(get)
    sizes = [(name, errors[which & (names == name)]) for name in sorted(set(names[which]))]
    for name, own in sorted(sizes, key=lambda each: -each[1].mean()):
        yield str(name), str(len(own)), pair(own), within(own, 10)


def few_shot(its: Everything, gpu: str, protocol: str, count: int) -> tuple[float, float]:
    """Return mean MAPE and median of the rows of one device with `count` of its models measured.

    What is fitted is what `slicewise calibrate` fits: `predict.fitting` on the times of classes of
    kernels. Measured models are drawn at random; rows of a draw are of one results file, as one
    calibrates one runtime; the models drawn are not judged.
    """
    which, classes_us, host_us = _parts(gpu, protocol)
    files = its.of(lambda row: row.file)[which]
    families = its.of(lambda row: row.group)[which]
    models = its.of(lambda row: row.key)[which]
    measured = its.samples.measured_s[which]
    random = np.random.default_rng(0)
    found = []
    for name in sorted(set(files)):
        own = np.flatnonzero(files == name)
        for _ in range(DRAWS):
            drawn = random.choice(np.unique(models[own]), count, replace=False)
            given = own[np.isin(models[own], drawn)]
            judged = own[~np.isin(models[own], drawn)]
            theta = fitting.fit(
                _problem(classes_us[given], host_us[given], measured[given], families[given])
            ).theta
            made = theta.predict(
                _problem(classes_us[judged], host_us[judged], measured[judged], families[judged])
            )
            error = np.abs(made / measured[judged] - 1) * 100
            found.append((float(error.mean()), float(np.median(error))))
    mape, middle = np.mean(np.array(found), axis=0)
    return float(mape), float(middle)


def _parts(gpu: str, protocol: str) -> tuple[NDArray[np.int64], Floats, Floats]:
    names = [f"{protocol}-{gpu}"]
    if protocol == "device-family":
        names = [f"{protocol}-{gpu}-{i}" for i in FOLDS]
    which, classes, host = [], [], []
    for name in names:
        with np.load(kept_path(name)) as file:
            which.append(file["which"])
            classes.append(file["classes_us"])
            host.append(file["host_us"])
    return np.concatenate(which), np.concatenate(classes), np.concatenate(host)


def _problem(
    classes_us: Floats, host_us: Floats, measured_s: Floats, families: NDArray[np.object_]
) -> fitting.Problem:
    design = np.zeros((len(classes_us), len(CLASSES), len(FEATURES)))
    design[:, :, ROOFLINE] = classes_us * 1e-6
    numbers = {name: i for i, name in enumerate(sorted(set(families)))}
    return fitting.Problem(
        design=design,
        host=host_us * 1e-6,
        measured=measured_s,
        family=np.array([numbers[name] for name in families]),
        operators=OperatorRows(),
    )


def coverage_rows(
    its: Everything, members_us: Floats, parts: NDArray[np.int64], get: Callable[..., object], *,
    bands_of: Bands = intervals,
) -> Iterator[tuple[str, ...]]:  # fmt: skip
    """Yield coverage and width of the 90 % interval by group; bands of a part come from the
    others, for a device left out from the other devices."""
    judged = np.flatnonzero((parts >= 0) & its.usable)
    low, high = np.full(len(parts), np.nan), np.full(len(parts), np.nan)
    cases = its.of(_case_of)
    held = parts
    if bands_of is unseen_intervals:
        _, held = np.unique(its.of(lambda row: row.device).astype(str), return_inverse=True)
        held = np.where(parts >= 0, held, -1)
    for part in np.unique(held[judged]):
        others = np.where(held == part, -1, parts)
        bands = bands_of(its, members_us, others)
        for i in judged[held[judged] == part]:
            band = bands.get(cases[i]) or bands["all"]
            scale = BASE + band["spread"] * spread_of(members_us[:, i : i + 1])[0]
            low[i], high[i] = np.exp(band["low"] * scale), np.exp(band["high"] * scale)
    ratio = its.samples.measured_s * 1e6 / members_us.mean(axis=0)
    names = its.of(get)
    for name in sorted(set(names[judged])):
        own = judged[names[judged] == name]
        inside = (ratio[own] >= low[own]) & (ratio[own] <= high[own])
        width = float(np.median(high[own] / low[own]))
        yield str(name), str(len(own)), f"{inside.mean():.1%}", f"{width:.2f}"


def _scenario(name: str, pairs: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    mape, middle = np.mean(np.array(pairs), axis=0)
    return name, f"{mape:.2f} / {middle:.2f}"


def main() -> int:
    """Write the tables."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    its = everything()
    family_us, family_parts = held_out("family", its)
    model_us, model_parts = held_out("model", its)
    family, model = off(its, family_us.mean(axis=0)), off(its, model_us.mean(axis=0))
    timm = its.is_timm
    goals: list[tuple[str, ...]] = [
        _scenario("unseen families", [mean_of_files(its, family, timm)]),
        _scenario("unseen (model, size)", [mean_of_files(its, model, timm)]),
        _scenario("unseen families, folds that no setting was chosen on",
                  [mean_of_files(its, family, timm & ~np.isin(family_parts, CHOSEN_ON))]),
    ]  # fmt: skip
    more: list[str] = []
    lines: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for protocol, words in (("device", ""), ("device-family", "; unseen families too")):
        made, parts = held_out(protocol, its)
        error = off(its, made.mean(axis=0))
        device = its.of(lambda row: row.device)
        each = {gpu: mean_of_files(its, error, timm & (device == gpu)) for gpu in GPUS}
        goals.append(_scenario(f"a GPU left out, nothing measured{words}", list(each.values())))
        for count in SHOTS:
            shots = {gpu: few_shot(its, gpu, protocol, count) for gpu in GPUS}
            goals.append(
                _scenario(f"a GPU left out, {count} measured{words}", list(shots.values()))
            )
            for gpu, (mape, middle) in shots.items():
                lines[f"{gpu}{words}"].append((str(count), f"{mape:.2f} / {middle:.2f}"))
        for gpu, (mape, middle) in each.items():
            lines[f"{gpu}{words}"].insert(0, ("0", f"{mape:.2f} / {middle:.2f}"))
        more += [
            "", f"## Intervals, a GPU left out{words}", "",
            *markdown(("device", "rows", "coverage", "median high / low"),
                      list(coverage_rows(its, made, parts, lambda row: row.device,
                                    bands_of=unseen_intervals))),
        ]  # fmt: skip
    models = np.array([row.family_fold >= 0 for row in its.samples.rows])
    small = ~timm & models & np.array([row.batch <= SMALL_BATCH for row in its.samples.rows])
    tables = (
        ("By results file", ("file", "rows", "unseen families", "within 10 %", "within 20 %",
                             "unseen (model, size)"), list(file_rows(its, family, model))),
        (f"Other sources, batch <= {SMALL_BATCH}, unseen families",
         ("source", "rows", "error", "within 10 %"),
         list(group_rows(its, family, small, lambda row: row.source))),
        ("Unseen families by group of architectures", ("group", "rows", "error", "within 10 %"),
         list(group_rows(its, family, timm, lambda row: row.group))),
        ("Unseen families by batch", ("batch", "rows", "error", "within 10 %"),
         list(group_rows(its, family, timm, lambda row: _bucket(row.batch)))),
        ("Intervals, unseen families", ("case", "rows", "coverage", "median high / low"),
         list(coverage_rows(its, family_us, family_parts, _case_of))),
        ("Intervals, unseen families, by file", ("file", "rows", "coverage", "median high / low"),
         list(coverage_rows(its, family_us, family_parts,
                            _file_or_source))),
        ("Intervals, unseen (model, size)", ("case", "rows", "coverage", "median high / low"),
         list(coverage_rows(its, model_us, model_parts, _case_of))),
    )  # fmt: skip
    for title, columns, rows in tables:
        more += ["", f"## {title}", "", *markdown(columns, rows)]
    for title, rows in lines.items():
        more += ["", f"## Left out: {title}", "", *markdown(("models measured", "error"), rows)]
    write_result(
        "predictor_error",
        title="The learned predictor on what it has not seen",
        command="python -m benchmarks.predictor_error",
        words=f"{int(timm.sum())} rows of timm's 18 files, {int((~timm & models).sum())} of other"
        " sources. MAPE / median in percent, mean over files.",
        columns=("held out", "MAPE / median"),
        rows=goals,
        more="\n".join(more).strip(),
    )
    return 0


def _file_or_source(row: ModelRow) -> str:
    return row.file if row.source == TIMM else row.source


def _bucket(batch: int) -> str:
    for end in (1, 16, 64, 256):
        if batch <= end:
            return f"<= {end}"
    return "> 256"


def _case_of(row: ModelRow) -> str:
    return f"{find_device(row.device).kind} {row.runtime}"


if __name__ == "__main__":
    raise SystemExit(main())
