"""The card of the learned weights: what they were trained on, cover, and are off by.

A folder `weights/` holds `network.onnx` and `card.json`. Reading refuses a folder whose columns
are not those of this version: weights that mean something else would be silently wrong. No code
is ever loaded from it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from slicewise.core.device import Device
from slicewise.core.errors import PredictionError
from slicewise.core.graph import Graph
from slicewise.predict.basis import BASIS
from slicewise.predict.conditions import FIGURES
from slicewise.predict.context import CONTEXT
from slicewise.predict.kernels import Array, Row

SCHEMA = "slicewise.weights/1"
# For each way in which a case lies outside, the logarithms of its interval are stretched so much.
OUTSIDE_STRETCH = 1.25
# Kernels of sorts never seen are told where they take more than this part of the time.
UNSEEN_PART = 0.05


def schema_digest() -> str:
    """Return what changes when the meaning of a column does: SHA-256, 16 digits."""
    told = json.dumps([list(CONTEXT), list(BASIS), list(FIGURES)])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def weights_path() -> Path:
    """Return where the networks lie."""
    return Path(__file__).parent / "weights" / "network.onnx"


@dataclass(frozen=True, slots=True)
class WeightsCard:
    """What is told of the weights, as it lies in `card.json`."""

    told: Mapping[str, Any]

    @property
    def source(self) -> str:
        """What predictions call it: 'network 1 (2cf66afe)'; device cards correct just these."""
        return f"network {self.told['version']} ({self.told['network_sha256'][:8]})"

    def uncovered(self, device: Device, runtime: str, precision: str) -> str:
        """Return in words what the weights do not cover, '' where they cover the case."""
        covered = self.told["covers"].get(device.kind, {}).get(runtime)
        if covered is None:
            return f"{runtime} on a {device.kind}"
        if precision not in covered["precisions"]:
            return f"{precision} with {runtime} on a {device.kind}"
        if device.name not in covered.get("devices", [device.name]):
            return f"{runtime} on {device.name}"
        return ""

    def knows(self, device: Device, runtime: str) -> bool:
        """True for a device of which whole models were measured under the runtime."""
        return device.name in self.told["measured"].get(runtime, ())

    def device_number(self, name: str) -> int:
        """Return the number of a device, 0 for one never seen."""
        devices: list[str] = self.told["devices"]
        return devices.index(name) + 1 if name in devices else 0

    def condition_number(
        self, runtime: str, precision: str, layout: str, version: Sequence[int]
    ) -> int:
        """Return the number of the nearest condition: that of the newest version that is not
        newer; 0 where runtime, precision and layout were never seen together."""
        its: list[tuple[tuple[int, ...], int]] = [
            (tuple(each["version"]), i + 1)
            for i, each in enumerate(self.told["conditions"])
            if (each["runtime"], each["precision"], each["layout"]) == (runtime, precision, layout)
        ]
        if not its:
            return 0
        its.sort()
        if not version:
            return its[-1][1]
        older = [number for known, number in its if known <= tuple(version)]
        return older[-1] if older else its[0][1]

    def known_version(self, runtime: str, asked: tuple[int, ...]) -> tuple[int, ...]:
        """Return the version asked, or the nearest end of those that rows are of; () where no
        version was asked or none was told by the rows."""
        its = [
            tuple(each["version"])
            for each in self.told["conditions"]
            if each["runtime"] == runtime and each["version"]
        ]
        if not asked or not its:
            return asked
        if asked[:2] > max(its):
            return max(its)
        return max(asked, min(its))

    def outside(
        self, graph: Graph, rows: Sequence[Row], *, device: Device, runtime: str,
        precision: str, version: Sequence[int], layout: str, batch: int, kernel_s: Array,
    ) -> list[str]:  # fmt: skip
        """Return in words how a case lies outside of what was learned."""
        found = []
        if not self.knows(device, runtime):
            known = "kernels alone were" if self.device_number(device.name) else "nothing was"
            found.append(f"{device.name} ({known} measured on it with {runtime})")
        if not self.condition_number(runtime, precision, layout, version):
            found.append(f"{runtime} in {precision} and {layout} (never seen together)")
        batches = self.told["batches"].get(f"{device.kind} {runtime}")
        if batches and not batches[0] <= batch <= batches[1]:
            found.append(f"batch {batch} (rows: {batches[0]} to {batches[1]})")
        seen = frozenset(self.told["sorts"])
        sorts = [sort_of(graph, row) for row in rows]
        is_new = np.array([sort not in seen for sort in sorts], dtype=bool)
        part = float(kernel_s[is_new].sum()) / max(float(kernel_s.sum()), 1e-30)
        if part > UNSEEN_PART:
            new = sorted({sort for sort, one in zip(sorts, is_new, strict=True) if one})
            more = f" and {len(new) - 3} more" if len(new) > 3 else ""
            found.append(
                f"kernels never seen take {part:.0%} of the time ({', '.join(new[:3])}{more})"
            )
        return found

    def factors(
        self, device: Device, runtime: str, *, spread: float, outside: int, precision: str
    ) -> tuple[float, float]:
        """Return the factors of the 90 % interval.

        Conformal: quantiles of log(measured / predicted) over a scale, on rows whose family, and
        for a device never seen whose device, was held out. The scale grows with the disagreement
        of the networks.
        """
        is_known = self.knows(device, runtime)
        bands = self.told["intervals"]["known device" if is_known else "unseen device"]
        band = bands.get(f"{device.kind} {runtime}") or bands["all"]
        scale = band["base"] + band["spread"] * spread
        stretch = OUTSIDE_STRETCH ** max(outside - (0 if is_known else 1), 0)
        low, high = band["low"] * scale * stretch, band["high"] * scale * stretch
        return math.exp(min(low, -1e-3)), math.exp(max(high, 1e-3))


def sort_of(graph: Graph, row: Row) -> str:
    """Return what sort of kernel one is, in words: kind, operator, and for products whether they
    run in groups."""
    kernel = row.kernel
    groups = ""
    if kernel.contraction is not None and kernel.op_type == "Conv":
        groups = " in groups" if kernel.contraction.batch > 1 else ""
    return f"{kernel.op_type}{groups}"


@cache
def read_card() -> WeightsCard:
    """Return the card of the weights that are installed.

    `PredictionError` where it is absent, damaged, or of another version of the columns.
    """
    path = weights_path().with_name("card.json")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        is_ours = told["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise PredictionError(
            f"the card of the learned weights cannot be read: {err}; install slicewise anew"
        ) from err
    if not is_ours or told["columns"] != schema_digest():
        raise PredictionError(
            f"the learned weights are of another version of slicewise (columns"
            f" {told.get('columns')!r}, here {schema_digest()!r}); train them anew with"
            " python -m training.fit, or install slicewise anew"
        )
    digest = hashlib.sha256(weights_path().read_bytes()).hexdigest()
    if digest != told["network_sha256"]:
        raise PredictionError(
            "the learned weights are not those that their card describes; install slicewise anew"
        )
    return WeightsCard(told)
