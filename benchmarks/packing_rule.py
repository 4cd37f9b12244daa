"""The published packing scenarios, and ParvaGPU's rule run again on the models that are open.

After its description (SC'24): each model gets slices of the best rate for each compute slice with
latency under 0.45 of the target, the smallest that will do for the rest; large slices are placed
first, each on the first card with room; then the emptiest cards are dissolved into gaps.
"""

import csv
import gzip
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.packing import Serving
from slicewise.slices.latency import SERVICE_PART
from slicewise.slices.layouts import place

PROFILES = {"1": "1g.10gb", "2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb", "7": "7g.80gb"}


@dataclass(frozen=True)
class Scenario:
    """One published scenario: model -> (target ms, rate per s), and what the original gave it."""

    name: str
    wanted: Mapping[str, tuple[float, float]]
    published_per_s: Mapping[str, float]


def open_profiles(folder: Path) -> dict[str, list[tuple[str, Serving]]]:
    """Return each open model's measured servings: (slices, serving). Memory was not measured."""
    found: dict[str, list[tuple[str, Serving]]] = defaultdict(list)
    with gzip.open(folder / "slices_open.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["source"] != "ParvaGPU":
                continue
            latency_ms, batch = float(row["latency_ms"]), int(row["batch"])
            processes = int(row["n_processes"])
            serving = Serving(
                batch, processes, Estimate(latency_ms, low=latency_ms, high=latency_ms),
                processes * batch / latency_ms * 1e3, 0.0, source="measured",
            )  # fmt: skip
            found[row["model"]].append((row["slice"][0], serving))
    return dict(found)


def open_scenarios(
    folder: Path, profiles: Mapping[str, Sequence[tuple[str, Serving]]]
) -> Iterator[Scenario]:
    """Yield the published scenarios, reduced to the open models."""
    wanted: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    published: dict[str, dict[str, float]] = defaultdict(dict)
    with (folder / "parva_packing_workloads.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] in profiles:
                name = row["scenario"]
                wanted[name][row["model"]] = (
                    float(row["slo_latency_ms"]), float(row["request_rate_per_s"]),
                )  # fmt: skip
                published[name][row["model"]] = float(row["parva_capacity_per_s"])
    for name in sorted(wanted):
        yield Scenario(name, wanted[name], published[name])


def segments(
    servings: Sequence[tuple[str, Serving]], slo_ms: float, rate_per_s: float
) -> list[str]:
    """Return the sizes of the slices that the rule gives one model, and what they carry.

    As many as go into the rate of the slice with the best rate for each of its compute slices
    (latency under 0.45 of the target); for the rest the smallest slice that carries it.
    """
    best: dict[str, float] = {}
    for size, serving in servings:
        if serving.service_ms.value < SERVICE_PART * slo_ms:
            best[size] = max(best.get(size, 0.0), serving.throughput_per_s)
    top = max(best, key=lambda size: best[size] / int(size))
    count = math.floor(rate_per_s / best[top])
    found = [top] * count
    rest = rate_per_s - count * best[top]
    if rest > 1e-9:
        found.append(min((s for s in best if best[s] >= rest), key=int, default=top))
    return found


def capacity_of(
    sizes: Sequence[str], servings: Sequence[tuple[str, Serving]], slo_ms: float
) -> float:
    """Return the rate that slices of these sizes carry under the rule."""
    best: Counter[str] = Counter()
    for size, serving in servings:
        if serving.service_ms.value < SERVICE_PART * slo_ms:
            best[size] = max(best[size], serving.throughput_per_s)  # type: ignore[assignment]
    return math.fsum(best[size] for size in sizes)


@dataclass
class Board:
    """Cards filled by the rule: large slices first, each on the first card with room."""

    card: Device
    cards: list[list[tuple[str, str]]] = field(default_factory=list)  # (model, size) on each

    def has_room(self, there: Sequence[tuple[str, str]], sizes: Sequence[str]) -> bool:
        """True if these slices can stand together, wherever."""
        counts = Counter(PROFILES[size] for _, size in there)
        counts.update(PROFILES[size] for size in sizes)
        return place(self.card, counts) is not None

    def put(self, model: str, size: str) -> None:
        """Put a slice on the first card with room, or on a new one."""
        for there in self.cards:
            if self.has_room(there, [size]):
                there.append((model, size))
                return
        self.cards.append([(model, size)])

    def defragment(
        self, best: Mapping[str, Mapping[str, float]], wanted: Mapping[str, float]
    ) -> None:
        """Empty the least used cards into the gaps of others, in slices of one and two.

        A model keeps its rate: what a slice carried beyond it need not be carried elsewhere.
        """
        while len(self.cards) > 1:
            last = min(self.cards, key=lambda there: sum(int(size) for _, size in there))
            others = [list(there) for there in self.cards if there is not last]
            if not self._spread(last, others, best, wanted):
                return
            self.cards = others

    def _spread(
        self,
        last: Sequence[tuple[str, str]],
        others: list[list[tuple[str, str]]],
        best: Mapping[str, Mapping[str, float]],
        wanted: Mapping[str, float],
    ) -> bool:
        for model in dict.fromkeys(model for model, _ in last):
            carried = math.fsum(
                best[model][size] for there in others for name, size in there if name == model
            )
            rest = wanted[model] - carried
            for there, size in itertools.product(others, ("2", "1")):
                while rest > 1e-9 and size in best[model] and self.has_room(there, [size]):
                    there.append((model, size))
                    rest -= best[model][size]
            if rest > 1e-9:
                return False
        return True


def by_rule(
    card: Device, profiles: Mapping[str, Sequence[tuple[str, Serving]]], scenario: Scenario
) -> tuple[int, int]:
    """Return the rule's GPUs, and for how many models its capacity is the published one."""
    board = Board(card)
    sizes = {
        model: segments(profiles[model], slo_ms, rate)
        for model, (slo_ms, rate) in scenario.wanted.items()
    }
    best = {
        model: {
            size: capacity_of([size], profiles[model], slo_ms)
            for size in PROFILES
            if capacity_of([size], profiles[model], slo_ms) > 0
        }
        for model, (slo_ms, _) in scenario.wanted.items()
    }
    line = [(model, size) for model, each in sizes.items() for size in each]
    for model, size in sorted(line, key=lambda each: -int(each[1])):
        board.put(model, size)
    board.defragment(best, {model: rate for model, (_, rate) in scenario.wanted.items()})
    same = sum(
        abs(capacity_of(sizes[model], profiles[model], slo_ms) - scenario.published_per_s[model])
        < 0.06
        for model, (slo_ms, _) in scenario.wanted.items()
    )
    return len(board.cards), same
