"""The engine `simulated`: operators whose best configuration is known, and depends on the share.

Nothing is compiled and nothing is timed. It stands in for an engine where the machinery around
engines is tested: in real processes, where candidates crash and hang in earnest, and under the
clock of `tune/simulate.py`, where they take the times of `PhaseTimes`.

A configuration is a level for each of four knobs. With d_j the distance to the best level of knob
j, as a part of its range, and s the share of the device (0 to 1):

    latency = base (p / s + 1 - p) prod_j (1 + a_j d_j^1.5)

The best levels move with the share. So the optimum is known in closed form: all d_j = 0.
"""

import hashlib
import itertools
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from slicewise.core.cost import Estimate
from slicewise.core.crew import Handler, Tell
from slicewise.core.errors import UsageError
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean
from slicewise.core.tuning import (
    Artifact,
    Building,
    Built,
    Prepared,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
    Tuned,
    TuneTask,
    Workload,
)
from slicewise.core.whole_file import output_file
from slicewise.tune.backends._base import QUICK
from slicewise.tune.phases import PhaseTimes
from slicewise.tune.workers import client_handler, server_handler
from slicewise.tune.workloads import distinct_operators

KNOBS, LEVELS = 4, 16
_FORM = "simulated.json"
_PARENTS = 4  # the best known that new candidates are made from
_MUTATED = 0.7  # part of the candidates that are made so; the others are drawn anew


class SimulatedLoss(Exception):
    """A candidate that ends its process or, `is_hang`, never lets it answer; under a simulated
    clock it is raised instead of done."""

    def __init__(self, config: str, *, is_hang: bool) -> None:
        """Name the candidate."""
        super().__init__(f"{config} {'hangs' if is_hang else 'crashed'}")
        self.is_hang = is_hang


@dataclass(frozen=True, slots=True)
class Fates:
    """The part of the candidates that end badly, by what they do; the same ones every time."""

    refuse: float = 0.0  # the compiler refuses them
    crash: float = 0.0  # they end the client that builds them
    hang: float = 0.0  # their build never ends
    wrong: float = 0.0  # they compute something else
    run_crash: float = 0.0  # they end the server that runs them
    run_hang: float = 0.0  # their run never ends


@dataclass(frozen=True, slots=True)
class SimulatedProblem:
    """What clients and servers are made from. `base_ms` by workload; `noise` is the relative
    spread of a sample; `is_virtual`: the time is simulated."""

    base_ms: Mapping[str, float]
    defaults: Mapping[str, str]
    share: float = 1.0
    seed: int = 0
    noise: float = 0.01
    fates: Fates = field(default_factory=Fates)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    is_virtual: bool = False


def text_of(levels: Sequence[int]) -> str:
    """Return the configuration as its text."""
    return json.dumps({"levels": list(levels)}, separators=(",", ":"))


def levels_of(config: str) -> tuple[int, ...] | None:
    """Return the levels that a text names; None where it is no configuration."""
    try:
        levels = tuple(json.loads(config)["levels"])
    except (ValueError, TypeError, KeyError):
        return None
    is_right = len(levels) == KNOBS and all(
        isinstance(level, int) and 0 <= level < LEVELS for level in levels
    )
    return levels if is_right else None


def best_levels(workload: str, share: float) -> tuple[int, ...]:
    """Return the configuration that is fastest at a share of the device (0 to 1)."""
    found = []
    for knob in range(KNOBS):
        low, high = _unit(workload, knob, "low"), _unit(workload, knob, "high")
        found.append(round((LEVELS - 1) * (low + (high - low) * share)))
    return tuple(found)


def latency_ms(workload: str, levels: Sequence[int], *, base_ms: float, share: float) -> float:
    """Return the latency of a configuration in ms, without noise."""
    parallel = 0.5 + 0.5 * _unit(workload, "parallel")
    value = base_ms * (parallel / share + 1.0 - parallel)
    for knob, (level, best) in enumerate(zip(levels, best_levels(workload, share), strict=True)):
        weight = 0.5 + 3.5 * _unit(workload, knob, "weight")
        value *= 1.0 + weight * math.pow(abs(level - best) / (LEVELS - 1), 1.5)
    return value


def _unit(*told: object) -> float:
    """Return a number from 0 to 1 that depends on what is told alone."""
    return int.from_bytes(hashlib.sha256(repr(told).encode()).digest()[:6], "big") / 2**48


class SimulatedClient:
    """Draws configurations, more of them near the best known."""

    def __init__(self, problem: SimulatedProblem) -> None:
        """Take up the problem."""
        self._problem = problem

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        """Return new configurations, or those that are to be built again."""
        piece, problem = order.piece, self._problem
        draw = random.Random(piece.seed)
        size = max(1, piece.size)
        searched = problem.times.draw_search_s(size, draw)
        configs = list(order.rebuild) or self._new(order, draw)
        built: list[Built] = []
        failed: list[Trial] = []
        spent = 0.0
        for config in configs:
            tell(Building(piece.workload, config))
            seconds = problem.times.draw_build_s(draw) if problem.is_virtual else 0.0
            spent += seconds
            error = self._refusal(piece.workload, config)
            if error:
                failed.append(
                    Trial(piece.workload, config, TrialOutcome.BUILD_FAILED, error=error)
                )
            else:
                built.append(Built(piece.workload, config, build_s=seconds))
        return Proposal(
            piece, tuple(built), tuple(failed),
            is_exhausted=not order.rebuild and len(configs) < piece.size,
            search_s=searched if problem.is_virtual and not order.rebuild else 0.0,
            build_s=spent,
        )  # fmt: skip

    def _new(self, order: SearchOrder, draw: random.Random) -> list[str]:
        """Return configurations that are neither known nor avoided."""
        seen = {trial.config for trial in order.known} | order.avoid
        first = [*order.hints]
        if order.piece.round == 0:
            first.insert(0, self._problem.defaults.get(order.piece.workload, ""))
        found = [c for c in dict.fromkeys(first) if levels_of(c) and c not in seen]
        del found[order.piece.size :]
        good = sorted((t for t in order.known if t.is_ok), key=_value)[:_PARENTS]
        parents = [levels for t in good if (levels := levels_of(t.config))]
        for config in itertools.chain(_drawn(parents, draw, 40 * order.piece.size), _all()):
            if len(found) >= order.piece.size:
                break
            if config not in seen and config not in found:
                found.append(config)
        return found

    def _refusal(self, workload: str, config: str) -> str:
        if levels_of(config) is None:
            return f"{config!r} is no configuration"
        fate = _fate(self._problem, workload, config)
        if fate in ("crash", "hang"):
            _end(self._problem, config, is_hang=fate == "hang")
        return "refused by its fate" if fate == "refuse" else ""


def _drawn(parents: Sequence[tuple[int, ...]], draw: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        if parents and draw.random() < _MUTATED:
            levels = list(draw.choice(parents))
            for _ in range(draw.choice((1, 1, 2))):
                knob = draw.randrange(KNOBS)
                moved = levels[knob] + draw.choice((-3, -2, -1, 1, 2, 3))
                levels[knob] = min(LEVELS - 1, max(0, moved))
            yield text_of(levels)
        else:
            yield text_of([draw.randrange(LEVELS) for _ in range(KNOBS)])


def _all() -> Iterator[str]:
    return (text_of(levels) for levels in itertools.product(range(LEVELS), repeat=KNOBS))


def _value(trial: Trial) -> float:
    return math.inf if trial.latency_ms is None else trial.latency_ms.value


def _fate(problem: SimulatedProblem, workload: str, config: str) -> str:
    """Return how a candidate ends, '' where it ends well; defaults always do."""
    if config == problem.defaults.get(workload):
        return ""
    at = _unit(problem.seed, workload, config, "fate")
    fates = problem.fates
    for name in ("refuse", "crash", "hang", "wrong", "run_crash", "run_hang"):
        at -= getattr(fates, name)
        if at < 0:
            return name
    return ""


def _end(problem: SimulatedProblem, config: str, *, is_hang: bool) -> None:
    """Crash or hang, in earnest or as an error that stands for it."""
    if problem.is_virtual:
        raise SimulatedLoss(config, is_hang=is_hang)
    if not is_hang:
        os._exit(70)
    while True:  # until this process is ended
        time.sleep(3600)


class SimulatedServer:
    """Tells the latency of a configuration, with the noise of a measurement."""

    def __init__(self, problem: SimulatedProblem) -> None:
        """Take up the problem."""
        self._problem = problem

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        """Return a trial for each."""
        trials = []
        for each in built:
            tell(Building(each.workload, each.config))
            trials.append(self._measured(each, sampling))
        return tuple(trials)

    def _measured(self, built: Built, sampling: Sampling) -> Trial:
        problem = self._problem
        is_careful = sampling.min_samples > QUICK.min_samples
        draw = random.Random(f"{problem.seed} {built.workload} {built.config} {is_careful}")
        seconds = (
            problem.times.draw_measure_s(draw, is_careful=is_careful)
            if problem.is_virtual else 0.0
        )  # fmt: skip
        fate = _fate(problem, built.workload, built.config)
        if fate in ("run_crash", "run_hang"):
            _end(problem, built.config, is_hang=fate == "run_hang")
        levels = levels_of(built.config)
        base_ms = problem.base_ms.get(built.workload)
        if levels is None or base_ms is None or fate == "wrong":
            outcome = TrialOutcome.WRONG if fate == "wrong" else TrialOutcome.REFUSED
            return Trial(
                built.workload, built.config, outcome, error=f"{built.config!r} does not run",
                measure_s=seconds,
            )  # fmt: skip
        true = latency_ms(built.workload, levels, base_ms=base_ms, share=problem.share)
        samples = sorted(
            true * math.exp(draw.gauss(0.0, problem.noise)) for _ in range(sampling.min_samples)
        )
        edge = len(samples) // 4
        value = Estimate(
            statistics.median(samples), samples[edge], samples[-1 - edge], source="simulated"
        )
        return Trial(
            built.workload, built.config, latency_ms=value, samples_ms=tuple(samples),
            build_s=built.build_s, measure_s=seconds,
        )  # fmt: skip


def _still() -> float:
    return 0.0


def open_client(problem: SimulatedProblem) -> Handler:
    """Return the handler of a client; under a simulated clock its own stands still."""
    clock: Callable[[], float] = _still if problem.is_virtual else time.perf_counter
    return client_handler(SimulatedClient(problem), clock=clock)


def open_server(problem: SimulatedProblem) -> Handler:
    """Return the handler of a server; under a simulated clock its own stands still."""
    clock: Callable[[], float] = _still if problem.is_virtual else time.perf_counter
    return server_handler(SimulatedServer(problem), clock=clock)


client_maker = partial(partial, open_client)
server_maker = partial(partial, open_server)


class SimulatedEngine:
    """The engine as the table knows it."""

    name = "simulated"
    places = frozenset({"cpu", "gpu"})
    piece_size = 8
    is_apart = False

    def check(self) -> tuple[Note, ...]:
        """Say that nothing here is real."""
        return (Note("simulated", "latencies are made up; nothing is compiled or timed"),)

    def prepare(self, task: TuneTask) -> Prepared:
        """Return the distinct operators of the graph. Options are those of `Fates` and `noise`,
        each from 0 to 1; `UsageError` for another."""
        fates, noise = _options(task.options)
        middle = text_of([LEVELS // 2] * KNOBS)
        workloads = tuple(
            replace(each, default_config=middle)
            for each in distinct_operators(task.graph, task.node_ms)
        )
        share = task.device.compute_units / task.device.whole.compute_units
        problem = SimulatedProblem(
            base_ms={each.key: _base_ms(each) for each in workloads},
            defaults={each.key: middle for each in workloads},
            share=share, seed=task.seed, noise=noise, fates=fates,
        )  # fmt: skip
        return Prepared(self.name, "simulated 1", workloads, problem)

    def client(self, problem: object) -> SimulatedClient:
        """Return a client."""
        assert isinstance(problem, SimulatedProblem)
        return SimulatedClient(problem)

    def server(self, problem: object) -> SimulatedServer:
        """Return a server."""
        assert isinstance(problem, SimulatedProblem)
        return SimulatedServer(problem)

    def finish(self, task: TuneTask, prepared: Prepared, best: Mapping[str, Tuned]) -> Artifact:
        """Write which configuration each operator has; that is all there is to run."""
        problem = prepared.problem
        assert isinstance(problem, SimulatedProblem)
        chosen = {
            each.key: best[each.key].config if each.key in best else each.default_config
            for each in prepared.workloads
        }
        path = task.folder / _FORM
        document = {"digest": task.graph.digest, "share": problem.share, "configs": chosen}
        with output_file(path) as file:
            file.write(json.dumps(document, indent=1, sort_keys=True).encode() + b"\n")
        return Artifact(path, tolerance=1e-12, how_to_run="a simulated artefact is not run")


def _base_ms(workload: Workload) -> float:
    """Return the latency at the optimum on the whole device: half of what was predicted."""
    return workload.mean_ms / 2 if workload.weight_ms > 0 else 0.05 + 0.2 * _unit(workload.key)


def _options(given: Mapping[str, str]) -> tuple[Fates, float]:
    known = {name.replace("_", "-"): name for name in Fates.__dataclass_fields__}
    numbers = {"noise": 0.01}
    for name, text in given.items():
        if name not in known and name != "noise":
            raise UsageError(
                f"engine simulated has no option {name!r}; it has {', '.join([*known, 'noise'])}"
                f"{did_you_mean(name, [*known, 'noise'])}"
            )
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise UsageError(f"option {name}={text} of engine simulated: give 0 to 1")
        numbers[known.get(name, name)] = value
    noise = numbers.pop("noise")
    return Fates(**numbers), noise


ENGINE = SimulatedEngine()
