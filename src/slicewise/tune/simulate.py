"""A crew with a clock of its own: discrete events instead of processes.

Handlers run here, at once; their answers' `seconds` say how long they took, and the clock jumps
from one event to the next. Workers that share a host slow each other down, a measurement is slowed
down and made noisier by what happens on its device meanwhile, held workers stand still, and
workers are lost by chance. Nothing is timed; equal seeds give equal runs.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from slicewise.core.cost import Estimate
from slicewise.core.crew import Answer, AnswerKind, Handler, MakeHandler
from slicewise.core.errors import SlicewiseError, TuningError
from slicewise.core.tuning import Measured, Proposal, Trial, Workload
from slicewise.tune.backends.simulated import (
    SimulatedLoss,
    SimulatedProblem,
    client_maker,
    server_maker,
)
from slicewise.tune.records import RunResult, RunSettings, Seats
from slicewise.tune.run import run_tuning
from slicewise.tune.seating import Role


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker sits: the host whose cores it shares, and the device that a server measures
    on (clients have none)."""

    host: int = 0
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """How workers get in each other's way, and how often they are lost.

    A measurement takes 1 + `interference` x (others measuring on its device) + `neighbours` x
    (clients busy on its host) times as long as alone, and its latencies are as much too high, each
    with a relative error of `interference_noise` times the slowdown beyond 1. `core_efficiency`:
    speed of a client while anybody else of its host is busy. The losses are chances for each
    order, and for each start.
    """

    client_start_s: float = 0.0
    server_start_s: float = 0.0
    core_efficiency: float = 1.0
    interference: float = 0.0
    neighbours: float = 0.0
    interference_noise: float = 0.0
    client_loss: float = 0.0
    server_loss: float = 0.0
    start_loss: float = 0.0


class _Timed(Protocol):
    """An answer that says how long it took."""

    @property
    def seconds(self) -> float:
        """Time in s."""


@dataclass(frozen=True, slots=True)
class _Event:
    """What is said once `at_s` of a worker's work is done; None: nothing ever again."""

    at_s: float
    kind: AnswerKind | None
    value: object = None
    error: Exception | None = None


@dataclass(slots=True)
class _Worker:
    """A worker: its place, and the events of the order at hand in the order they come."""

    number: int
    label: str
    place: Place
    handler: Handler | None = None
    events: list[_Event] = field(default_factory=list)
    done_s: float = 0.0  # work done of the order at hand
    spent_s: float = 0.0  # time that took, holds left out
    is_held: bool = False
    is_ready: bool = False

    @property
    def is_server(self) -> bool:
        return self.label.startswith(Role.SERVER)

    @property
    def is_measuring(self) -> bool:
        return self.is_server and self.is_ready

    @property
    def is_busy(self) -> bool:
        return bool(self.events) and not self.is_held


class SimulatedCrew:
    """A crew whose workers live by a simulated clock.

    `places` says by label where a worker sits ('client 0', 'server 1'); one that is not there sits
    on host 0, a server on device 0.
    """

    def __init__(
        self,
        *,
        places: Mapping[str, Place] | None = None,
        machine: Machine | None = None,
        seed: int = 0,
    ) -> None:
        """Start the clock at 0."""
        self._places, self._machine = places or {}, machine or Machine()
        self._draw = random.Random(seed)
        self._now_s = 0.0
        self._workers: dict[int, _Worker] = {}
        self._hired = 0
        self.dismissed = 0
        self.orders: list[tuple[str, object]] = []  # who was given what

    @property
    def held(self) -> frozenset[int]:
        """The workers that are held now."""
        return frozenset(number for number, each in self._workers.items() if each.is_held)

    def now_s(self) -> float:
        """Return the time on the simulated clock in s."""
        return self._now_s

    def hire(
        self, make: MakeHandler, *, label: str, resources: Mapping[str, float] | None = None
    ) -> int:
        """Start a worker; it is ready once its start is over."""
        number = self._hired
        self._hired += 1
        is_server = label.startswith(Role.SERVER)
        place = self._places.get(label, Place(device=0 if is_server else None))
        worker = _Worker(number, label, place)
        machine = self._machine
        start_s = machine.server_start_s if is_server else machine.client_start_s
        if self._draw.random() < machine.start_loss:
            event = _Event(start_s, AnswerKind.LOST, error=_lost(label))
        else:
            try:
                worker.handler = make()
                event = _Event(start_s, AnswerKind.READY)
            except Exception as err:  # whatever a maker raises is its answer
                event = _Event(start_s, AnswerKind.FAILED, error=err)
        worker.events = [event]
        self._workers[number] = worker
        return number

    def give(self, worker: int, order: object) -> None:
        """Let the worker carry the order out, at once, and keep what it says for its time."""
        told = self._workers[worker]
        assert told.handler is not None and told.is_ready, f"{told.label} is not ready"
        assert not told.events, f"{told.label} has an order"
        assert not told.is_held, f"{told.label} is held"
        self.orders.append((told.label, order))
        told.done_s = told.spent_s = 0.0
        steps: list[object] = []
        end: _Event
        try:
            answer = told.handler(order, steps.append)
            seconds = cast(_Timed, answer).seconds
            searched = answer.search_s if isinstance(answer, Proposal) else 0.0
            end = _Event(seconds, AnswerKind.DONE, answer)
        except SimulatedLoss as loss:
            # a crash shows when the candidate is begun, a hang never
            seconds, searched = float(len(steps)), 0.0
            kind = None if loss.is_hang else AnswerKind.LOST
            end = _Event(seconds, kind, error=TuningError(str(loss)))
        except Exception as err:  # a handler's error is its answer
            seconds, searched = 0.0, 0.0
            end = _Event(seconds, AnswerKind.FAILED, error=err)
        told.events = [*_spaced(steps, searched, seconds), end]
        chance = self._machine.server_loss if told.is_server else self._machine.client_loss
        if self._draw.random() < chance:
            at_s = self._draw.random() * seconds
            before = [event for event in told.events if event.at_s <= at_s and event is not end]
            told.events = [*before, _Event(at_s, AnswerKind.LOST, error=_lost(told.label))]

    def wait(self, *, timeout_s: float | None = None) -> tuple[Answer, ...]:
        """Let the clock go on to what is said next, at most by `timeout_s`."""
        limit = math.inf if timeout_s is None else self._now_s + timeout_s
        while True:
            due = [
                (self._now_s + max(0.0, each.events[0].at_s - each.done_s) / rate, each)
                for each, rate in self._rates()
                if each.events[0].kind is not None
            ]
            next_s = min((at_s for at_s, _ in due), default=math.inf)
            if next_s > limit:
                self._pass(limit)
                return ()
            assert math.isfinite(next_s), "nobody will ever answer, and nobody waits"
            arrived = [each for at_s, each in due if at_s <= next_s]
            self._pass(next_s)
            said = [answer for each in arrived for answer in self._say(each)]
            if said:
                return tuple(said)

    def _pass(self, now_s: float) -> None:
        """Let the clock stand at `now_s`, and everybody's work with it."""
        gone = now_s - self._now_s
        for worker, rate in self._rates():
            worker.done_s += gone * rate
            worker.spent_s += gone
        self._now_s = now_s

    def _rates(self) -> list[tuple[_Worker, float]]:
        """Return how fast each busy worker works now, 1 where nobody disturbs it."""
        machine = self._machine
        busy = [each for each in self._workers.values() if each.is_busy]
        at_host = Counter(each.place.host for each in busy)
        clients = Counter(each.place.host for each in busy if not each.is_server)
        measuring = Counter(each.place.device for each in busy if each.is_measuring)
        rates = []
        for each in busy:
            if each.is_measuring:
                others = measuring[each.place.device] - 1
                slowdown = 1.0 + machine.interference * others
                slowdown += machine.neighbours * clients[each.place.host]
                rates.append((each, 1.0 / slowdown))
            else:
                is_alone = at_host[each.place.host] == 1
                rates.append((each, 1.0 if is_alone else machine.core_efficiency))
        return rates

    def _say(self, worker: _Worker) -> list[Answer]:
        """Return what a worker says now: all events that are due."""
        said = []
        while worker.events and worker.events[0].at_s <= worker.done_s + 1e-12:
            event = worker.events[0]
            if event.kind is None:
                break
            worker.events.pop(0)
            value = event.value
            if isinstance(value, Measured):
                value = self._disturbed(worker, value)
            if event.kind is AnswerKind.READY:
                worker.is_ready = True
            if event.kind is AnswerKind.LOST:
                del self._workers[worker.number]
            said.append(Answer(worker.number, event.kind, value, event.error))
        if not said and worker.events and worker.events[0].kind is not None:
            worker.done_s = worker.events[0].at_s  # rounding left a rest
        return said

    def _disturbed(self, worker: _Worker, measured: Measured) -> Measured:
        """Return what was measured as the neighbours made it look."""
        slowdown = worker.spent_s / worker.done_s if worker.done_s > 0 else 1.0
        slowdown = max(1.0, slowdown)
        trials = tuple(self._slowed(trial, slowdown) for trial in measured.trials)
        return replace(measured, trials=trials, measure_s=worker.spent_s)

    def _slowed(self, trial: Trial, slowdown: float) -> Trial:
        if trial.latency_ms is None:
            return trial
        error = self._draw.gauss(0.0, self._machine.interference_noise * (slowdown - 1.0))
        factor = max(1.0, slowdown * (1.0 + error)) if slowdown > 1.0 else 1.0
        seen = trial.latency_ms
        value = Estimate(
            seen.value * factor, seen.low * factor, seen.high * factor, source=seen.source
        )
        samples = tuple(sample * factor for sample in trial.samples_ms)
        return replace(trial, latency_ms=value, samples_ms=samples, slowdown=slowdown)

    def hold(self, workers: Collection[int]) -> Collection[int]:
        """Let these workers stand still."""
        held = [number for number in workers if number in self._workers]
        for number in held:
            self._workers[number].is_held = True
        return held

    def release(self, workers: Collection[int]) -> None:
        """Let held workers go on."""
        for number in workers:
            if number in self._workers:
                self._workers[number].is_held = False

    def dismiss(self, worker: int) -> None:
        """End a worker."""
        self.dismissed += self._workers.pop(worker, None) is not None

    def close(self) -> None:
        """End all workers."""
        self._workers.clear()


def _lost(label: str) -> SlicewiseError:
    return TuningError(f"{label} was lost by chance")


def _spaced(steps: Sequence[object], searched_s: float, seconds: float) -> list[_Event]:
    """Return steps as events, evenly over the time after the search."""
    part = (seconds - searched_s) / max(1, len(steps))
    return [_Event(searched_s + i * part, AnswerKind.STEP, step) for i, step in enumerate(steps)]


def simulate_run(
    workloads: Sequence[Workload],
    problem: SimulatedProblem,
    *,
    settings: RunSettings,
    machine: Machine,
    clients: int,
    servers: int = 1,
    devices: int = 1,
    clients_per_host: int = 1,
    holds: Mapping[int, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> RunResult:
    """Return what a run with so many clients and, on each device, servers would find and take.

    Clients sit `clients_per_host` to a host. Servers sit on hosts of their own unless `holds`
    names clients that share their cores: then all of them sit on host 0.
    """
    places = {f"client {i}": Place(host=i // clients_per_host) for i in range(clients)}
    for i in range(servers * devices):
        host = 0 if holds else -1 - i
        places[f"server {i}"] = Place(host=host, device=i // servers)
    seats = Seats(
        clients=(client_maker(problem),) * clients,
        servers=(server_maker(problem),) * (servers * devices),
        holds=holds or {},
        devices=tuple(i // servers for i in range(servers * devices)),
    )
    crew = SimulatedCrew(places=places, machine=machine, seed=seed)
    return run_tuning(crew, workloads, seats, settings=settings, keep=_forget)


def _forget(_: Trial) -> None:
    """Keep nothing: a simulated run is not taken up again."""
