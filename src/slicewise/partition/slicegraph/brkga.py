"""The biased random-key genetic algorithm over orders, as the paper has it.

A key for each node makes an order (of the ready nodes the least key comes first), the order is
sliced by `slice_dp`, and its value is the fitness (Archer et al., arXiv 2311.03703, Algorithm 2;
the method: Goncalves and Resende 2011, Journal of Heuristics 17). `search` finds better cuts
sooner; this one is here to compare with the paper. No bound is given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slicewise.core.errors import UsageError
from slicewise.core.pipeline import Assignment, PipelineProblem
from slicewise.partition.evaluate import objective_or_raise
from slicewise.partition.slicegraph.arrays import Floats
from slicewise.partition.slicegraph.order import Orders
from slicewise.partition.slicegraph.slice_dp import Deadline, Slicer


@dataclass(frozen=True, slots=True)
class Preset:
    """How many sets of keys a generation has, and how many generations there are.

    Parts of a generation kept as they are, and made anew by chance; the chance that a key comes
    from the better parent. The last three are within the ranges that Goncalves and Resende advise
    (0.1-0.25, 0.1-0.3, 0.5-0.8); those of the paper are not known to us.
    """

    population: int
    generations: int
    elite: float = 0.2
    mutants: float = 0.15
    bias: float = 0.7


# Names and sizes: Archer et al., Table 2.
PRESETS = {"brkga-100": Preset(10, 10), "brkga-10000": Preset(100, 100)}


def evolve(
    problem: PipelineProblem, preset: str, *, seed: int, deadline: Deadline,
    report: Callable[[Assignment, float], None], start: Assignment | None = None,
) -> Assignment | None:  # fmt: skip
    """Return the best cut of all generations, or `start` where none is better.

    `report` gets every better cut with its value (ms or J), first that of `start`. The same seed
    gives the same cut unless `deadline()` ends it before. None: no legal cut was found.
    `UsageError` for a preset that is none of `PRESETS`.
    """
    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} is not known; choose one of {', '.join(PRESETS)}")
    herd = _Herd(problem, deadline, report)
    if start is not None:
        herd.offer(start, objective_or_raise(problem, start))
    sizes = PRESETS[preset]
    chance = np.random.default_rng(seed)
    keys = chance.random((sizes.population, herd.orders.units))
    keys[0] = np.arange(herd.orders.units) / herd.orders.units  # the order as given
    values = herd.values(keys)
    for _ in range(sizes.generations - 1):
        if deadline():
            break
        rank = np.argsort(values, kind="stable")
        elite = max(1, round(sizes.elite * sizes.population))
        keys, old = _next(keys[rank], sizes, chance), values[rank][:elite]
        values = np.concatenate([old, herd.values(keys[elite:])])
    return herd.cut


class _Herd:
    """Gives keys their value, and keeps the best cut of all."""

    def __init__(
        self, problem: PipelineProblem, deadline: Deadline,
        report: Callable[[Assignment, float], None],
    ) -> None:  # fmt: skip
        self.cut: Assignment | None = None
        self.value = math.inf
        self._slicer = Slicer(problem)
        self.orders = Orders(problem, self._slicer.arrays)
        self._deadline = deadline
        self._report = report

    def offer(self, cut: Assignment, value: float) -> None:
        if value < self.value:
            self.cut, self.value = cut, value
            self._report(cut, value)

    def values(self, keys: Floats) -> Floats:
        """Return the value of each set of keys; inf without a legal cut, or after the deadline."""
        found = np.full(len(keys), math.inf)
        for index, row in enumerate(keys):
            order = self.orders.keyed(row)
            sliced = self._slicer.slice(order, deadline=self._deadline)
            if sliced is None:
                continue
            found[index] = sliced.value
            if sliced.value < self.value:
                better = self._slicer.best(order, incumbent=self.value, deadline=self._deadline)
                if better is not None:
                    self.offer(better[1], better[0])
        return found


def _next(keys: Floats, sizes: Preset, chance: np.random.Generator) -> Floats:
    """Return the next generation of keys that are sorted by value: elite, children, mutants."""
    count, units = keys.shape
    elite = max(1, round(sizes.elite * count))
    mutants = min(count - elite, round(sizes.mutants * count))
    children = count - elite - mutants
    first = keys[chance.integers(elite, size=children)]
    second = keys[chance.integers(elite, max(elite + 1, count), size=children)]
    is_first = chance.random((children, units)) < sizes.bias
    made = np.where(is_first, first, second)
    return np.concatenate([keys[:elite], made, chance.random((mutants, units))])
