"""Runs with engines and workers that do what they should not."""

from collections import Counter
from functools import partial

import pytest

from slicewise.core.cost import Estimate
from slicewise.core.crew import Handler, Tell
from slicewise.core.errors import DeviceError, TuningError
from slicewise.core.tuning import (
    Budget,
    Built,
    Measured,
    MeasureOrder,
    Proposal,
    SearchOrder,
    Trial,
    Workload,
)
from slicewise.tune.backends.simulated import client_maker, server_maker
from slicewise.tune.records import RunSettings, Seats
from slicewise.tune.run import run_tuning
from slicewise.tune.simulate import Machine, SimulatedCrew
from tests.tune.simulated_runs import Setting, problem, workloads


def test_without_a_budget_a_small_space_is_tried_to_its_end() -> None:
    work = workloads(1)
    seats = Seats((partial(_few, 7),), (_instant,))
    kept: list[Trial] = []
    run_tuning(SimulatedCrew(), work, seats, settings=RunSettings(piece_size=4), keep=kept.append)
    assert Counter(t.config for t in kept if not t.is_alone) == Counter(map(str, range(7)))


def _few(count: int) -> Handler:
    """Return a client that knows `count` configurations."""

    def propose(order: object, tell: Tell) -> object:
        assert isinstance(order, SearchOrder)
        if order.rebuild:
            return Proposal(order.piece, tuple(Built("w0", c) for c in order.rebuild))
        seen = {trial.config for trial in order.known} | order.avoid
        new = [str(i) for i in range(count) if str(i) not in seen]
        built = tuple(Built("w0", config) for config in new[: order.piece.size])
        return Proposal(order.piece, built, is_exhausted=len(new) <= order.piece.size)

    return propose


def _silly(order: object, tell: Tell) -> object:
    """Propose the same again and again, something foreign, and more than was asked."""
    assert isinstance(order, SearchOrder)
    built = (Built("w0", "same"), Built("other", "x"), *(Built("w0", f"{i}") for i in range(9)))
    return Proposal(order.piece, built)


def _instant() -> Handler:
    def measure(order: object, tell: Tell) -> object:
        assert isinstance(order, MeasureOrder)
        trials = tuple(
            Trial(b.workload, b.config, latency_ms=Estimate(1.0, 1.0, 1.0)) for b in order.built
        )
        return Measured(trials)

    return measure


def test_an_engine_that_repeats_itself_ends() -> None:
    work = (Workload("w0", "op", ("MatMul",), weight_ms=1.0),)
    kept: list[Trial] = []
    result = run_tuning(
        SimulatedCrew(), work, Seats((lambda: _silly,), (_instant,)), keep=kept.append,
        settings=RunSettings(Budget(trials=100), piece_size=4, finalists=0),
    )  # fmt: skip
    assert all(trial.workload == "w0" for trial in kept) and len(kept) == 10
    assert {note.code for note in result.notes} >= {"workload-spent", "candidate-repeated"}


def _broken(error: Exception) -> Handler:
    raise error


def _failing(order: object, tell: Tell) -> object:
    raise ZeroDivisionError("no search today")


def test_a_worker_that_cannot_be_made_is_noted_and_all_are_an_error() -> None:
    work = workloads(2)
    made = problem(work)
    broken = partial(_broken, DeviceError("core 7 is not ours"))
    some = Setting(work, makers=(client_maker(made), broken)).run(Budget(trials=8))
    assert [(n.code, n.node) for n in some.notes if n.code == "client-lost"] == [
        ("client-lost", "client 1")
    ]
    with pytest.raises(TuningError, match="core 7 is not ours"):
        Setting(work, makers=(broken, broken)).run(Budget(trials=8))


def test_a_client_whose_every_search_fails_gives_the_workloads_up() -> None:
    work = workloads(2)
    setting = Setting(work, makers=(lambda: _failing,))
    result = setting.run(Budget(trials=8))
    assert not setting.kept
    notes = [note for note in result.notes if note.code == "workload-given-up"]
    assert {note.node for note in notes} == {"op 0", "op 1"}
    assert all("no search today" in note.text for note in notes)


def test_when_nobody_is_left_the_error_says_why_and_trials_are_kept() -> None:
    setting = Setting(workloads(2), machine=Machine(server_loss=0.8))
    with pytest.raises(TuningError, match=r"no server is left .* lost by chance.*resume"):
        setting.run(Budget(trials=40), losses=3)
    assert setting.kept
    always = Setting(workloads(2), machine=Machine(start_loss=1.0))
    with pytest.raises(TuningError, match=r"no (client|server) is left"):
        always.run(Budget(trials=8), losses=3)


def test_a_lost_server_at_the_end_leaves_a_note() -> None:
    class Failing(SimulatedCrew):
        def give(self, worker: int, order: object) -> None:
            is_alone = isinstance(order, MeasureOrder) and order.is_alone
            self._machine = Machine(server_loss=1.0 if is_alone else 0.0)
            super().give(worker, order)

    made = problem(work := workloads(2))
    seats = Seats((client_maker(made),), (server_maker(made),))
    result = run_tuning(
        Failing(), work, seats, keep=lambda _: None,
        settings=RunSettings(Budget(trials=16), piece_size=4, losses=1),
    )  # fmt: skip
    assert "finalists-unconfirmed" in {note.code for note in result.notes}
    assert result.best.keys() == {"w0", "w1"}
