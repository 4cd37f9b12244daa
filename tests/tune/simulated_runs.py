"""Runs over the simulated crew, and what can be seen of them afterwards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slicewise.core.tuning import Budget, Trial, Workload
from slicewise.tune.backends.simulated import (
    Fates,
    SimulatedProblem,
    client_maker,
    server_maker,
    text_of,
)
from slicewise.tune.phases import PhaseTimes
from slicewise.tune.records import RunResult, RunSettings, Seats
from slicewise.tune.run import run_tuning
from slicewise.tune.simulate import Machine, Place, SimulatedCrew

TIMES = PhaseTimes(search_s=1.0, build_s=0.5, measure_s=0.2, careful=2.0)
DEFAULT = text_of([8, 8, 8, 8])


def workloads(count: int, *, default: str = DEFAULT) -> tuple[Workload, ...]:
    return tuple(
        Workload(f"w{i}", f"op {i}", ("MatMul",), count=1 + i % 3, weight_ms=4.0 / (i + 1),
                 kin=f"kin{i % 2}", default_config=default)
        for i in range(count)
    )  # fmt: skip


def problem(work: Sequence[Workload], **changes: Any) -> SimulatedProblem:
    made = SimulatedProblem(
        base_ms={each.key: each.mean_ms / 2 for each in work},
        defaults={each.key: each.default_config for each in work},
        times=TIMES,
        is_virtual=True,
    )
    return replace(made, **changes)


@dataclass
class Setting:
    """A run over the simulated crew, and what can be seen of it afterwards."""

    work: tuple[Workload, ...]
    clients: int = 2
    servers: int = 1
    machine: Machine = field(default_factory=Machine)
    fates: Fates = field(default_factory=Fates)
    holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    seed: int = 0
    kept: list[Trial] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    crew: SimulatedCrew = field(default_factory=SimulatedCrew)
    makers: tuple[Any, ...] | None = None

    def run(
        self,
        budget: Budget,
        known: Sequence[Trial] = (),
        hints: Mapping[str, tuple[str, ...]] | None = None,
        **changes: Any,
    ) -> RunResult:
        made = problem(self.work, fates=self.fates)
        seats = Seats(
            clients=self.makers or (client_maker(made),) * self.clients,
            servers=(server_maker(made),) * self.servers,
            holds=self.holds,
            devices=self.devices,
        )
        places = {f"server {i}": Place(device=device) for i, device in enumerate(self.devices)}
        self.crew = SimulatedCrew(machine=self.machine, places=places, seed=self.seed)
        options = RunSettings(
            budget=budget, piece_size=4, seed=self.seed, piece_limit_s=100.0,
            candidate_limit_s=20.0, start_limit_s=50.0, losses=1000,
        )  # fmt: skip
        return run_tuning(
            self.crew, self.work, seats, settings=replace(options, **changes),
            keep=self.kept.append, known=known, hints=hints, progress=self.said.append,
        )  # fmt: skip

    def counted(self) -> Counter[tuple[str, str]]:
        return Counter((t.workload, t.config) for t in self.kept if not t.is_alone)
