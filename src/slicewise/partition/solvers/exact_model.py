"""Every variant but fast memory in CP-SAT's terms. Builds and reads; solves nothing.

Ideal b + 1 is what the stages up to b hold. Devices in an order: costs are those of the place.
A stock, or replicas: each stage chooses one (device, replicas), or is empty, behind the others.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slicewise.core.pipeline import Assignment, Bound, Objective, PipelineProblem, Trust
from slicewise.partition.evaluate import like_devices
from slicewise.partition.solvers.engine import load_cp_model
from slicewise.partition.solvers.ideals import (
    NOTHING,
    Literal,
    Window,
    add_at_most,
    add_order,
    clause,
    close,
    everything,
    level_in,
    never_passing,
    paid_tensors,
    weighted,
)
from slicewise.partition.solvers.rounding import (
    Rounded,
    RoundedTensor,
    float_below,
    round_down,
    scale_for,
)

Option = tuple[int, int]  # device, replicas


@dataclass(frozen=True, slots=True)
class ExactModel:
    """A model with its ideals, and for a stock the literal of each stage's options."""

    problem: PipelineProblem
    model: Any
    levels: tuple[tuple[Literal, ...], ...]
    options: tuple[dict[Option, Any], ...]
    scale: Fraction
    lower: float

    def bound_of(self, units: int, status: str) -> Bound:
        """Return what `units` of the objective prove, in ms or J."""
        # r replicas share a load that r may not divide: less than one unit was rounded up
        units = max(0, units - int(self.problem.replicates))
        value = max(self.lower, float_below(Fraction(units) / self.scale))
        detail = {
            "status": status,
            "scale": str(self.scale),
            "rounding": "costs down, bound down",
        }
        return Bound("cp-sat", value, Trust.SOLVER, detail)

    def read(self, value: Callable[[Any], int]) -> Assignment:
        """Return the cut of a solution."""

        def holds(literal: Literal) -> bool:
            return bool(literal if isinstance(literal, int) else value(literal))

        stage_of = tuple(
            next(b for b, level in enumerate(self.levels[1:]) if holds(level[node]))
            for node in range(self.problem.nodes)
        )
        if not self.options:
            return like_devices(self.problem, stage_of)
        used = sorted(set(stage_of))
        place = {stage: index for index, stage in enumerate(used)}
        chosen = [
            next(option for option, is_it in self.options[stage].items() if holds(is_it))
            for stage in used
        ]
        return Assignment(
            tuple(place[stage] for stage in stage_of),
            tuple(device for device, _ in chosen),
            tuple(replicas for _, replicas in chosen),
        )

    def hint(self, cut: Assignment) -> None:
        """Let the search start from a cut."""
        stage_of = cut.stage_of
        if self.options:
            used = sorted(set(stage_of))
            place = {stage: index for index, stage in enumerate(used)}
            stage_of = tuple(place[stage] for stage in stage_of)
            for index, options in enumerate(self.options):
                mine = (
                    (cut.kind_of[used[index]], cut.replicas[used[index]])
                    if index < len(used)
                    else None
                )
                for option, is_it in options.items():
                    self.model.add_hint(is_it, option == mine)
        for index, level in enumerate(self.levels[1:]):
            for literal, stage in zip(level, stage_of, strict=True):
                if not isinstance(literal, int):
                    self.model.add_hint(literal, stage <= index)


def build_exact(problem: PipelineProblem, *, upper: float, lower: float) -> ExactModel | None:
    """Return the model of cuts of at most `upper` (ms or J; inf: any); None: there is none."""
    is_energy = problem.objective is Objective.ENERGY
    load_ms = problem.limit_ms if is_energy else upper
    rounded = round_down(problem, load_ms=load_ms if load_ms < math.inf else _whole_ms(problem))
    made = _Making(problem, rounded, load_cp_model().CpModel(), load_ms)
    return made.make(upper, lower)


def _largest_ms(problem: PipelineProblem) -> float:
    """Return more than any stage can take."""
    links = [problem.link(index) for index in range(max(1, problem.stages - 1))]
    sent = sum(
        max(link.latency_ms + link.scale * tensor.transfer_ms for link in links)
        for tensor in problem.transfers
    )
    return 1 + 2 * (problem.nodes * _longest_ms(problem) + 2 * sent)


def _longest_ms(problem: PipelineProblem) -> float:
    works = [w for kind in set(problem.places) for w in problem.kinds[kind].work_ms]
    return max((work for work in works if work < math.inf), default=0.0)


def _whole_ms(problem: PipelineProblem) -> float:
    used = [problem.kinds[kind] for kind in set(problem.places)]
    finite = [[work for work in kind.work_ms if work < math.inf] for kind in used]
    return max(sum(works) for works in finite)


@dataclass
class _Making:
    """The parts of a model on their way into it."""

    problem: PipelineProblem
    rounded: Rounded
    model: Any
    load_ms: float
    levels: list[tuple[Literal, ...]] = field(default_factory=list)
    options: list[dict[Option, Any]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    terms: list[Any] = field(default_factory=list)
    energy_scale: Fraction = Fraction(1)

    def make(self, upper: float, lower: float) -> ExactModel | None:
        problem, scale = self.problem, self.rounded.scale
        is_energy = problem.objective is Objective.ENERGY
        if not self.add_levels():
            return None
        if is_energy:
            self.energy_scale = scale_for(_whole_energy(problem))
            most: Any = math.floor(Fraction(problem.limit_ms) * scale)
        else:
            largest = self.rounded.from_ms(min(upper, _largest_ms(problem)))
            largest += int(problem.replicates)
            least = min(self.rounded.from_ms(lower), largest)
            most = self.model.new_int_var(least, largest, "load")
        if self.is_stock():
            self.add_options()
        if not all(self.add_stage(stage, most) for stage in range(problem.stages)):
            return None
        if is_energy:
            self.model.minimize(sum(self.terms))
            scale = self.energy_scale
        else:
            self.model.minimize(most)
        return ExactModel(
            problem, self.model, tuple(self.levels), tuple(self.options), scale, lower
        )

    def is_stock(self) -> bool:
        """True if stages choose their devices."""
        problem = self.problem
        is_alike = len(set(problem.places)) == 1
        return problem.replicates or not (problem.is_placed or is_alike)

    def add_levels(self) -> bool:
        """Add the ideals: constants where no stage may take longer than `load_ms`."""
        rounded, stages = self.rounded, self.problem.stages
        total = rounded.total
        between = [Window(0, total)] * (stages - 1)
        self.windows = [NOTHING, *between, everything(rounded)]
        if self.load_ms < math.inf and not self.problem.replicates:
            load = rounded.from_ms(self.load_ms)
            for border in range(1, stages):
                least, most = total - (stages - border) * load, border * load
                self.windows[border] = Window(max(0, least), min(total, most))
            if total > stages * load:
                return False
        self.closure = close(rounded)
        ok = True
        for index, window in enumerate(self.windows):
            level = level_in(self.model, rounded, self.closure, window)
            if level is None:
                return False
            self.levels.append(level)
            ok &= add_order(self.model, rounded, level)
            for node, stage in self.problem.pinned.items():
                ok &= clause(self.model, [(level[node], index > stage)])
        for inner, outer in itertools.pairwise(self.levels):
            for first, second in zip(inner, outer, strict=True):
                ok &= clause(self.model, [(first, False), (second, True)])
        return ok

    def add_options(self) -> None:
        """Let each stage choose a device and replicas; the stock is not overdrawn."""
        problem, model = self.problem, self.model
        kinds = sorted(set(problem.places))
        pairs = [
            (kind, replicas)
            for kind in kinds
            for replicas in range(1, (problem.places.count(kind) if problem.replicates else 1) + 1)
        ]
        for stage in range(problem.stages):
            chosen = {pair: model.new_bool_var("") for pair in pairs}
            model.add_at_most_one(chosen.values())
            if stage:  # empty ones behind the others
                before = self.options[-1].values()
                model.add(sum(chosen.values()) <= sum(before))
            self.options.append(chosen)
        for kind in kinds:
            taken = [
                r * x for row in self.options for (other, r), x in row.items() if other == kind
            ]
            model.add(sum(taken) <= problem.places.count(kind))

    def add_stage(self, stage: int, most: Any) -> bool:
        """Add the load, the limits and the energy of one stage."""
        problem = self.problem
        ends = (self.levels[stage], self.levels[stage + 1])
        least = self.windows[stage + 1].least - self.windows[stage].most
        apart = never_passing(self.rounded, self.closure, least)
        sides = []
        for is_sent in (False, True):
            link = problem.link(stage if is_sent else stage - 1)
            costs = [Fraction(link.latency_ms) + Fraction(link.scale) * cost for cost in self.ms()]
            tensors = [
                RoundedTensor(tensor.producer, tensor.consumers, int(cost > 0))
                for tensor, cost in zip(self.rounded.tensors, costs, strict=True)
            ]
            paid = paid_tensors(
                self.model, tensors, ends, apart=apart, is_sent=is_sent, hops=problem.hops
            )
            sides.append((costs, paid))
        rows = self.options[stage].items() if self.options else [((problem.places[stage], 1), 1)]
        ok = self.add_membership(stage, ends)
        for (kind, replicas), is_it in rows:
            where = [] if isinstance(is_it, int) else [is_it]
            ok &= self.add_load(kind, ends, sides, replicas * most, where)
        if problem.objective is Objective.ENERGY:
            self.add_energy(stage, ends, sides)
        return ok

    def ms(self) -> list[Fraction]:
        """Return the transfers' costs on a plain link, in the order of the rounded tensors."""
        return [Fraction(t.transfer_ms) for t in self.problem.transfers if t.consumers]

    def units(self, values: Sequence[Any], scale: Fraction) -> list[int]:
        """Return costs in whole units, rounded down; 0 for what is forbidden elsewhere."""
        return [math.floor(Fraction(v) * scale) if v < math.inf else 0 for v in values]

    def between(self, values: Sequence[int], ends: Any) -> Any:
        """Return the sum of the values of the nodes of a stage."""
        return weighted(values, ends[1]) - weighted(values, ends[0])

    def add_membership(self, stage: int, ends: Any) -> bool:
        """Keep nodes out of stages that are empty or whose device cannot run them."""
        ok = True
        for node, (first, second) in enumerate(zip(*ends, strict=True)):
            outside = [(first, True), (second, False)]
            if not self.options:
                if self.problem.kinds[self.problem.places[stage]].work_ms[node] == math.inf:
                    ok &= clause(self.model, outside)
                continue
            able = [
                (is_it, True)
                for (kind, _), is_it in self.options[stage].items()
                if self.problem.kinds[kind].work_ms[node] < math.inf
            ]
            ok &= clause(self.model, [*outside, *able])
        return ok

    def add_load(self, kind: int, ends: Any, sides: Any, most: Any, where: Sequence[Any]) -> bool:
        """Add that a stage on a device of a kind is not slower than it may be, nor too large."""
        device, scale = self.problem.kinds[kind], self.rounded.scale
        parts = [self.between(self.units(device.work_ms, scale), ends)]
        parts += [weighted(self.units(costs, scale), paid) for costs, paid in sides]
        ok = True
        for part in parts if self.problem.overlaps else [sum(parts)]:
            ok &= add_at_most(self.model, part, most, where=where)
        if device.memory_limit_bytes < math.inf:
            room = Fraction(device.memory_limit_bytes) - Fraction(device.reserve_bytes)
            if room < 0:  # not even an empty model
                for first, second in zip(*ends, strict=True):
                    rule = [(first, True), (second, False), *((x, False) for x in where)]
                    ok &= clause(self.model, rule)
            elif self.problem.memory_bytes:
                held = self.between([math.floor(m) for m in self.problem.memory_bytes], ends)
                ok &= add_at_most(self.model, held, math.floor(room), where=where)
        return ok

    def add_energy(self, stage: int, ends: Any, sides: Any) -> None:
        """Add what a stage takes for an item to the objective."""
        problem, scale = self.problem, self.energy_scale
        rate = Fraction(problem.transfer_j_per_ms)
        for costs, paid in sides:
            self.terms.append(weighted(self.units([rate * c for c in costs], scale), paid))
        if not self.options:
            device = problem.kinds[problem.places[stage]]
            self.terms.append(self.between(self.units(device.energy_j, scale), ends))
            used = self.model.new_bool_var("")
            for first, second in zip(*ends, strict=True):
                clause(self.model, [(first, True), (second, False), (used, True)])
            self.terms.append(self.static(problem.places[stage], 1) * used)
            return
        spent = self.model.new_int_var(0, 2**40, "")
        for (kind, replicas), is_it in self.options[stage].items():
            nodes = self.between(self.units(problem.kinds[kind].energy_j, scale), ends)
            add_at_most(self.model, nodes, spent, where=[is_it])
            self.terms.append(self.static(kind, replicas) * is_it)
        self.terms.append(spent)

    def static(self, kind: int, replicas: int) -> int:
        """Return the units that devices draw in the time between two items."""
        watts = Fraction(self.problem.kinds[kind].static_w) * replicas
        joules = watts * Fraction(self.problem.limit_ms) / 1000
        return math.floor(joules * self.energy_scale)


def _whole_energy(problem: PipelineProblem) -> float:
    return max(sum(problem.kinds[kind].energy_j) for kind in set(problem.places))
