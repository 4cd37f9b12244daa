"""The conformance suite of tuning engines: inherit it, say what to tune, and run pytest.

class TestMine(EngineLaws):
    engine = MyEngine()

    def task(self, folder: Path) -> TuneTask: ...
    def outputs(self, task, artifact): ...

Everything is done in this process, as a client's or a server's process would do it. What is dear
(taking a model apart, a first proposal) is done once for the class. The functions of another
room that an engine needs (a runtime to measure with) come in with the task.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from slicewise.core.cost import Estimate
from slicewise.core.crew import Tell
from slicewise.core.errors import UsageError
from slicewise.core.measurement import Protocol as Sampling
from slicewise.core.notes import Note
from slicewise.core.tuning import (
    Artifact,
    Building,
    Built,
    Piece,
    Prepared,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
    Tuned,
    TuneTask,
    Workload,
    best_of,
)

Outputs = Sequence[NDArray[Any]]
# As few samples as show that a candidate runs.
SAMPLING = Sampling(
    warmup_runs=1, warmup_s=0.0, min_samples=3, max_samples=5, budget_s=0.1, time_limit_s=60.0
)


@dataclass(frozen=True, slots=True)
class Taken:
    """A task, how the engine took it up, and a first proposal for its heaviest workload."""

    task: TuneTask
    prepared: Prepared
    workload: Workload
    order: SearchOrder
    proposal: Proposal
    told: tuple[object, ...]
    trials: tuple[Trial, ...]
    told_by_server: tuple[object, ...]


def silent(_: object) -> None:
    """Take what a worker tells, and leave it."""


def first_order(workload: Workload, *, size: int, seed: int = 11) -> SearchOrder:
    """Return the first order for a workload: nothing is known yet."""
    return SearchOrder(Piece(number=0, workload=workload.key, round=0, size=size, seed=seed))


def next_order(order: SearchOrder, known: Sequence[Trial]) -> SearchOrder:
    """Return the order after `order`, once `known` is known."""
    piece = order.piece
    later = replace(piece, number=piece.number + 1, round=piece.round + 1, seed=piece.seed + 1)
    return SearchOrder(later, known=(*order.known, *known), avoid=order.avoid)


def as_best(workload: Workload, trials: Sequence[Trial]) -> Mapping[str, Tuned]:
    """Return what a run would hand to `finish` for one workload with these trials."""
    best = best_of(trials)
    if best is None or best.latency_ms is None:
        return {}
    return {workload.key: Tuned(workload, best.config, best.latency_ms, trials=len(trials))}


def _weight(workload: Workload) -> float:
    return workload.weight_ms


class EngineLaws:
    """What holds for every engine.

    Set `engine` and override `task`, `outputs`, and `broken_config` where a configuration can be
    written down that does not build or does not run. `size` is how many candidates are asked for
    at once: few, since some engines take seconds for each.
    """

    engine: ClassVar[Any]
    size: ClassVar[int] = 3

    def task(self, folder: Path) -> TuneTask:
        """Return something small to tune, with `folder` as the folder of the run."""
        raise NotImplementedError

    def outputs(self, task: TuneTask, artifact: Artifact) -> tuple[Outputs, Outputs]:
        """Return the outputs of the untuned model and of the artefact for the same inputs."""
        raise NotImplementedError

    def broken_config(self, taken: Taken) -> str | None:
        """Return a configuration of the workload that fails when built or run; None: no such."""
        return None

    def canonical(self, config: str) -> str:
        """Return the one way to write a configuration; as it stands: sorted, tight JSON."""
        try:
            plain = json.loads(config)
        except ValueError:
            return config
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))

    # -- what is done once -------------------------------------------------------------------

    @pytest.fixture(scope="class")
    @classmethod
    def taken(cls, tmp_path_factory: pytest.TempPathFactory) -> Taken:
        laws = cls()
        task = laws.task(tmp_path_factory.mktemp("engine"))
        prepared = cls.engine.prepare(task)
        workload: Workload = max(prepared.workloads, key=_weight)
        order = first_order(workload, size=cls.size)
        told: list[object] = []
        proposal = laws.propose(prepared, order, told.append)
        told_by_server: list[object] = []
        trials = laws.measure(prepared, proposal.built, told_by_server.append)
        return Taken(
            task, prepared, workload, order, proposal, tuple(told), trials, tuple(told_by_server)
        )

    def propose(self, prepared: Prepared, order: SearchOrder, tell: Tell = silent) -> Proposal:
        """Return the proposal of a new client, made as in a process of its own."""
        problem = pickle.loads(pickle.dumps(prepared.problem))
        proposal = self.engine.client(problem).propose(pickle.loads(pickle.dumps(order)), tell)
        assert isinstance(proposal, Proposal)
        return proposal

    def measure(
        self, prepared: Prepared, built: Sequence[Built], tell: Tell = silent
    ) -> tuple[Trial, ...]:
        """Return the trials of a new server, made as in a process of its own."""
        problem = pickle.loads(pickle.dumps(prepared.problem))
        server = self.engine.server(problem)
        trials: tuple[Trial, ...] = server.measure(
            pickle.loads(pickle.dumps(tuple(built))), SAMPLING, tell
        )
        return trials

    # -- the engine and the task -------------------------------------------------------------

    def test_it_says_what_it_is(self) -> None:
        assert self.engine.name == self.engine.name.strip().lower() != ""
        assert self.engine.places and set(self.engine.places) <= {"cpu", "gpu"}
        assert self.engine.piece_size >= 1
        assert all(isinstance(note, Note) for note in self.engine.check())

    def test_workloads_have_keys_of_their_own(self, taken: Taken) -> None:
        prepared = taken.prepared
        assert prepared.engine == self.engine.name and prepared.version
        assert prepared.workloads
        keys = [workload.key for workload in prepared.workloads]
        assert len(set(keys)) == len(keys) and all(keys)
        for workload in prepared.workloads:
            assert workload.name and workload.op_types and workload.count >= 1
            assert 0 <= workload.weight_ms < float("inf")

    def test_the_same_task_gives_the_same_workloads(self, taken: Taken, tmp_path: Path) -> None:
        again = self.engine.prepare(replace(taken.task, folder=tmp_path))
        assert again.workloads == taken.prepared.workloads
        assert again.version == taken.prepared.version

    def test_an_unknown_option_is_refused_by_name(self, taken: Taken) -> None:
        task = replace(taken.task, options={**taken.task.options, "sideways": "1"})
        with pytest.raises(UsageError, match="sideways"):
            self.engine.prepare(task)

    # -- clients -----------------------------------------------------------------------------

    def test_a_client_proposes_no_more_than_asked(self, taken: Taken) -> None:
        proposal = taken.proposal
        assert proposal.piece == taken.order.piece
        configs = self.configs(proposal)
        assert 1 <= len(configs) <= self.size
        assert len(set(configs)) == len(configs)
        assert proposal.search_s >= 0 and proposal.build_s >= 0

    def test_candidates_are_of_the_workload_and_written_in_one_way(self, taken: Taken) -> None:
        for built in taken.proposal.built:
            assert built.workload == taken.workload.key and built.build_s >= 0
        for config in self.configs(taken.proposal):
            assert config and config == config.strip()
            assert self.canonical(config) == config

    def test_a_default_comes_first(self, taken: Taken) -> None:
        default = taken.workload.default_config
        if default:
            assert taken.proposal.built[0].config == default

    def test_a_build_is_told_before_it_begins(self, taken: Taken) -> None:
        told = [step for step in taken.told if isinstance(step, Building)]
        assert all(step.workload == taken.workload.key for step in told)
        assert {step.config for step in told} >= set(self.configs(taken.proposal))

    def test_the_next_round_repeats_nothing(self, taken: Taken) -> None:
        known = (*taken.trials, *taken.proposal.failed)
        proposal = self.propose(taken.prepared, next_order(taken.order, known))
        configs = self.configs(proposal)
        assert len(set(configs)) == len(configs) <= self.size
        assert not set(configs) & {trial.config for trial in known}
        assert configs or proposal.is_exhausted

    def test_what_crashed_is_avoided(self, taken: Taken) -> None:
        bad = frozenset(self.configs(taken.proposal))
        proposal = self.propose(taken.prepared, replace(taken.order, avoid=bad))
        assert not set(self.configs(proposal)) & bad

    def test_a_hint_that_does_not_apply_is_left_out(self, taken: Taken) -> None:
        strange = "no configuration of any engine"
        proposal = self.propose(taken.prepared, replace(taken.order, hints=(strange,)))
        assert strange not in self.configs(proposal) and proposal.built

    def test_candidates_are_built_again_from_their_configurations(self, taken: Taken) -> None:
        wanted = tuple(reversed([built.config for built in taken.proposal.built]))
        order = replace(next_order(taken.order, taken.trials), rebuild=wanted)
        proposal = self.propose(taken.prepared, order)
        assert tuple(built.config for built in proposal.built) == wanted
        assert not proposal.failed
        for trial in self.measure(taken.prepared, proposal.built):
            first = next(t for t in taken.trials if t.config == trial.config)
            assert trial.outcome is first.outcome

    def test_two_clients_serve_the_same_order(self, taken: Taken) -> None:
        known = (*taken.trials, *taken.proposal.failed)
        order = next_order(taken.order, known)
        for _ in range(2):
            proposal = self.propose(taken.prepared, order)
            assert proposal.piece == order.piece
            assert all(built.workload == taken.workload.key for built in proposal.built)
            trials = self.measure(taken.prepared, proposal.built[:1])
            assert len(trials) == len(proposal.built[:1])

    def test_answers_can_be_sent(self, taken: Taken) -> None:
        for answer in (taken.proposal, taken.trials, taken.prepared.workloads):
            assert pickle.loads(pickle.dumps(answer)) == answer

    # -- servers -----------------------------------------------------------------------------

    def test_a_server_gives_one_trial_for_each_in_order(self, taken: Taken) -> None:
        assert [(t.workload, t.config) for t in taken.trials] == [
            (built.workload, built.config) for built in taken.proposal.built
        ]
        assert any(trial.is_ok for trial in taken.trials)
        for trial in taken.trials:
            self.check(trial)

    def test_a_run_is_told_before_it_begins(self, taken: Taken) -> None:
        told = [step for step in taken.told_by_server if isinstance(step, Building)]
        assert told == [Building(b.workload, b.config) for b in taken.proposal.built]

    def test_nothing_to_measure_gives_nothing(self, taken: Taken) -> None:
        assert self.measure(taken.prepared, ()) == ()

    def test_a_broken_candidate_is_a_trial(self, taken: Taken) -> None:
        broken = self.broken_config(taken)
        if broken is None:
            return
        good = next(t.config for t in taken.trials if t.is_ok)
        order = replace(next_order(taken.order, taken.trials), rebuild=(broken, good))
        proposal = self.propose(taken.prepared, order)
        trials = (*proposal.failed, *self.measure(taken.prepared, proposal.built))
        by_config = {trial.config: trial for trial in trials}
        assert len(trials) == 2 and set(by_config) == {broken, good}
        assert not by_config[broken].is_ok and by_config[broken].error
        assert by_config[broken].latency_ms is None
        assert by_config[good].is_ok

    # -- the end -----------------------------------------------------------------------------

    def test_the_artefact_computes_the_same(self, taken: Taken) -> None:
        best = as_best(taken.workload, taken.trials)
        assert best
        self.compare(taken.task, self.finish(taken, best))

    def test_without_a_best_the_artefact_is_the_default(self, taken: Taken) -> None:
        self.compare(taken.task, self.finish(taken, {}))

    # -- by name -----------------------------------------------------------------------------

    def finish(self, taken: Taken, best: Mapping[str, Tuned]) -> Artifact:
        """Return the artefact, once it is seen to lie where it should."""
        artifact = self.engine.finish(taken.task, taken.prepared, best)
        assert isinstance(artifact, Artifact) and artifact.path.exists()
        assert artifact.path.resolve().is_relative_to(taken.task.folder.resolve())
        assert artifact.tolerance > 0
        return artifact

    def compare(self, task: TuneTask, artifact: Artifact) -> None:
        """Check that outputs differ by no more than the artefact's own tolerance."""
        before, after = self.outputs(task, artifact)
        assert len(before) == len(after) > 0
        for one, other in zip(before, after, strict=True):
            assert one.shape == other.shape
            wide, found = one.astype(np.float64), other.astype(np.float64)
            largest = float(np.max(np.abs(wide), initial=np.finfo(np.float32).tiny))
            difference = float(np.max(np.abs(wide - found), initial=0.0))
            assert difference <= artifact.tolerance * largest

    def configs(self, proposal: Proposal) -> list[str]:
        """Return the configurations of a proposal, built or not."""
        return [*(b.config for b in proposal.built), *(t.config for t in proposal.failed)]

    def check(self, trial: Trial) -> None:
        """Check that a trial is one: a latency with its interval, or a reason."""
        assert trial.measure_s >= 0
        if trial.outcome is not TrialOutcome.OK:
            assert trial.latency_ms is None and trial.error
            return
        latency = trial.latency_ms
        assert isinstance(latency, Estimate)
        assert 0 < latency.low <= latency.value <= latency.high < float("inf")
        assert trial.samples_ms and min(trial.samples_ms) > 0
