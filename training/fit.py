"""Trains the networks that ship and writes their folder, card included.

    python -m training.fit          # about 80 CPU minutes the first time: folds are held out

Held-out predictions (`training.held`) give the errors and the intervals of the card; then the
networks are trained on all rows. Seeds are fixed, files are written whole.
"""

import argparse
import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray

from slicewise.core.whole_file import whole_file
from slicewise.hardware.catalogue import find_device
from slicewise.predict.weights import SCHEMA, schema_digest, weights_path
from training.export import as_onnx
from training.gather import folder
from training.held import SETTINGS, Everything, everything, held_out
from training.network import Vocabulary, fit
from training.sorts import sorts_seen

VERSION = "1"
MEMBERS = 4
# Rows of a case below which it has no interval of its own.
LEAST_ROWS = 60
LEVELS = (0.05, 0.95)
BASE = 0.05

COVERS = {
    "gpu": {
        "torch-eager": {"precisions": ["fp32", "tf32", "fp16", "bf16", "amp"]},
        "torch-compile": {"precisions": ["fp32", "tf32", "fp16", "bf16", "amp"]},
        # Rows of convolutions are of two cards; on others, and in int8, held-out families are
        # further off than with the roofline (benchmarks/results/predictor_error.md).
        "tensorrt": {"precisions": ["fp32", "fp16"], "devices": ["t4", "v100-sxm2-16gb"]},
    },
    "cpu": {"torch-compile": {"precisions": ["fp32"]}},
}
"""What the networks answer for, by kind of device and runtime, maybe on some devices only."""


def spread_of(members_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far the members disagree: the deviation of their logarithms."""
    made: NDArray[np.float64] = np.std(np.log(members_us), axis=0)
    return made


def _case(its: Everything) -> NDArray[np.object_]:
    kinds = {name: find_device(name).kind for name in its.vocabulary.devices}
    return its.of(lambda row: f"{kinds[row.device]} {row.runtime}")


def intervals(
    its: Everything, members_us: NDArray[np.float64], parts: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """Return the conformal bands by case of rows that were held out.

    The scale of a row is BASE + k x the disagreement of the networks, with k such that the scaled
    errors of agreeing and disagreeing rows are alike; the band's ends are quantiles of the scaled
    errors, those of the finite sample (Vovk et al., 2005), each part weighing the same.
    """
    case = _case(its)
    judged = np.flatnonzero(parts >= 0)
    judged = judged[its.usable[judged]]
    error = np.log(its.samples.measured_s[judged] * 1e6 / members_us[:, judged].mean(axis=0))
    spread = spread_of(members_us[:, judged])
    made = {}
    for name in ("all", *sorted(set(case[judged]))):
        which = np.ones(len(judged), dtype=bool) if name == "all" else case[judged] == name
        if which.sum() < LEAST_ROWS:
            continue
        slope = _slope(error[which], spread[which])
        scaled = error[which] / (BASE + slope * spread[which])
        low, high = (float(np.quantile(scaled, level)) for level in LEVELS)
        made[name] = {
            "base": BASE, "spread": slope, "low": low, "high": high, "rows": int(which.sum()),
        }  # fmt: skip
    return made


def unseen_intervals(
    its: Everything, members_us: NDArray[np.float64], parts: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """Return the bands for devices never seen, from rows whose device was held out.

    Which way the next device is off is not known from three, so that a band is as wide down as up;
    and as wide as the worst of the devices needs, the conformal choice for so few.
    """
    judged = np.flatnonzero(parts >= 0)
    error = np.abs(np.log(its.samples.measured_s[judged] * 1e6 / members_us[:, judged].mean(0)))
    slope = _slope(error, spread_of(members_us[:, judged]))
    scaled = error / (BASE + slope * spread_of(members_us[:, judged]))
    devices = its.of(lambda row: row.device)[judged]
    widest = max(
        float(np.quantile(scaled[devices == name], LEVELS[1] - LEVELS[0])) for name in set(devices)
    )
    band = {"base": BASE, "spread": slope, "low": -widest, "high": widest, "rows": len(judged)}
    return {"all": band}


def _slope(error: NDArray[np.float64], spread: NDArray[np.float64]) -> float:
    """Return k: by how much errors grow with the disagreement, over quarters of the rows."""
    size = np.abs(error)
    ends = np.quantile(spread, (0.25, 0.75))
    low, high = spread <= ends[0], spread >= ends[1]
    if not low.any() or not high.any():
        return 0.0
    one, two = np.quantile(size[low], 0.9), np.quantile(size[high], 0.9)
    near, far = float(spread[low].mean()), float(spread[high].mean())
    # (BASE + k far) / (BASE + k near) = two / one
    ratio = float(two / max(one, 1e-9))
    bottom = far - ratio * near
    return max(0.0, BASE * (ratio - 1) / bottom) if bottom > 1e-6 else 4.0


def errors(its: Everything, members_us: NDArray[np.float64]) -> dict[str, dict[str, float]]:
    """Return MAPE and median by file of timm's rows and by other source, in percent."""
    known = ~np.isnan(members_us[0])
    off = np.abs(members_us.mean(axis=0) / (its.samples.measured_s * 1e6) - 1) * 100
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(its.samples.rows):
        if known[i]:
            groups[row.file if its.is_timm[i] else row.source].append(i)
    return {
        name: {
            "rows": len(which),
            "mape_percent": round(float(off[which].mean()), 2),
            "median_percent": round(float(np.median(off[which])), 2),
        }
        for name, which in sorted(groups.items())
    }


def card_of(
    its: Everything, vocabulary: Vocabulary, *, network: bytes,
    known: dict[str, dict[str, float]], unseen: dict[str, dict[str, float]],
    held: Mapping[str, object],
) -> dict[str, object]:  # fmt: skip
    """Return the card of the weights."""
    case = _case(its)
    rows = its.samples.rows
    batches: dict[str, list[int]] = {}
    for name in sorted(set(case[its.usable])):
        sizes = [row.batch for row, one in zip(rows, case == name, strict=True) if one]
        batches[name] = [min(sizes), max(sizes)]
    counts: dict[str, int] = defaultdict(int)
    for i in np.flatnonzero(its.usable):
        counts[rows[i].source] += 1
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "columns": schema_digest(),
        "network_sha256": hashlib.sha256(network).hexdigest(),
        "seed": SETTINGS.seed,
        "members": MEMBERS,
        "rows_by_source": dict(sorted(counts.items())),
        "rows_sha256": _digest(its),
        "licences": "rows under Apache-2.0, MIT and BSD licences only",
        "devices": list(vocabulary.devices),
        "conditions": [_condition(name) for name in vocabulary.conditions],
        "covers": COVERS,
        "measured": _measured(its),
        "batches": batches,
        "sorts": sorts_seen(),
        "intervals": {"known device": known, "unseen device": unseen},
        "errors": held,
    }


def _measured(its: Everything) -> dict[str, list[str]]:
    """Return the devices of which enough rows of whole models are trained on, by runtime."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row, one in zip(its.samples.rows, its.usable, strict=True):
        if one and row.family_fold >= 0:
            counts[row.runtime, row.device] += 1
    made: dict[str, list[str]] = defaultdict(list)
    for (runtime, device), count in sorted(counts.items()):
        if count >= LEAST_ROWS:
            made[runtime].append(device)
    return dict(made)


def _condition(name: str) -> dict[str, object]:
    runtime, precision, layout, version = name.split(" ")
    numbers = [] if version == "-" else [int(number) for number in version.split(".")]
    return {"runtime": runtime, "precision": precision, "layout": layout, "version": numbers}


def _digest(its: Everything) -> str:
    sha = hashlib.sha256()
    for row, one in zip(its.samples.rows, its.usable, strict=True):
        if one:
            sha.update(repr((row.file, row.key, row.batch, row.latency_s)).encode())
    return sha.hexdigest()


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def networks_of(its: Everything, members: int) -> bytes:
    """Return the networks trained on all rows as ONNX; kept, so that a stopped run goes on."""
    settings = replace(SETTINGS, members=members)
    told = repr((settings, schema_digest(), _digest(its))).encode()
    path = folder() / f"network-{hashlib.sha256(told).hexdigest()[:12]}.onnx"
    if not path.exists():
        networks = fit(
            its.inputs, np.flatnonzero(its.usable), its.vocabulary, settings,
            weights=its.weights, told=_tell,
        )  # fmt: skip
        with whole_file(path) as file:
            file.write(as_onnx(networks).SerializeToString())
    return path.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, hold out, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--networks-only", action="store_true")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    its = everything()
    content = networks_of(its, given.members)
    if given.networks_only:
        return 0
    family, parts = held_out("family", its)
    model, _ = held_out("model", its)
    device, device_parts = held_out("device-family", its)
    told = {
        "unseen family": errors(its, family),
        "unseen model and size": errors(its, model),
        "unseen device and family": errors(its, device),
    }
    known = intervals(its, family, parts)
    unseen = unseen_intervals(its, device, device_parts)
    card = card_of(
        its, its.vocabulary, network=content,
        known=known, unseen=unseen, held=told,
    )  # fmt: skip
    place = weights_path().parent
    place.mkdir(exist_ok=True)
    with whole_file(place / "network.onnx") as file:
        file.write(content)
    with whole_file(place / "card.json") as file:
        file.write((json.dumps(card, indent=1) + "\n").encode())
    _tell(f"wrote {place.name}: {math.ceil(len(content) / 1024)} KiB of networks")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
