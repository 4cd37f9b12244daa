from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.tuning import (
    Budget,
    MeasureOrder,
    SearchOrder,
    Trial,
    TrialOutcome,
)
from slicewise.tune.backends.simulated import (
    Fates,
    best_levels,
    client_maker,
    latency_ms,
    server_maker,
    text_of,
)
from slicewise.tune.records import RunSettings, Seats
from slicewise.tune.run import run_tuning
from slicewise.tune.simulate import Machine, SimulatedCrew
from tests.tune.simulated_runs import DEFAULT, TIMES, Setting, problem, workloads

chances = st.sampled_from([0.0, 0.0, 0.05, 0.2])


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 6),
    clients=st.integers(1, 4),
    servers=st.integers(1, 3),
    trials=st.integers(1, 60),
    seed=st.integers(0, 10_000),
    fates=st.builds(
        Fates, refuse=chances, crash=chances, hang=chances, wrong=chances, run_crash=chances,
        run_hang=chances,
    ),
    machine=st.builds(
        Machine, client_start_s=st.sampled_from([0.0, 3.0]), client_loss=chances,
        server_loss=chances, start_loss=chances, interference=st.sampled_from([0.0, 0.3]),
        core_efficiency=st.sampled_from([1.0, 0.7]),
    ),
    has_holds=st.booleans(),
)  # fmt: skip
def test_whatever_fails_every_candidate_is_counted_once_and_the_budget_is_exact(
    count: int,
    clients: int,
    servers: int,
    trials: int,
    seed: int,
    fates: Fates,
    machine: Machine,
    has_holds: bool,
) -> None:
    setting = Setting(
        workloads(count), clients=clients, servers=servers, seed=seed, fates=fates,
        machine=machine, holds={0: tuple(range(0, clients, 2))} if has_holds else {},
    )  # fmt: skip
    result = setting.run(Budget(trials=trials))
    counted = setting.counted()
    assert all(times == 1 for times in counted.values())
    given_up = any(note.code == "workload-given-up" for note in result.notes)
    assert counted.total() == trials or (given_up and counted.total() < trials)
    assert not setting.crew.held
    assert result.trials == tuple(setting.kept)
    for trial in result.trials:
        assert trial.is_ok or trial.error
    alone = Counter((t.workload, t.config) for t in setting.kept if t.is_alone)
    assert all(times == 1 for times in alone.values())
    if trials >= 30 and not given_up:  # every workload had another piece after a lost one
        assert {(work.key, DEFAULT) for work in setting.work} <= set(counted)


def test_equal_seeds_give_equal_runs() -> None:
    machine = Machine(client_loss=0.1, server_loss=0.1, interference=0.2, interference_noise=0.5)
    runs = [
        Setting(workloads(4), clients=3, servers=2, machine=machine, seed=5).run(Budget(trials=50))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_every_workload_has_trials_and_finalists_measured_alone() -> None:
    setting = Setting(workloads(5))
    result = setting.run(Budget(trials=60))
    assert set(result.best) == {f"w{i}" for i in range(5)}
    alone = [trial for trial in result.trials if trial.is_alone]
    assert Counter(trial.workload for trial in alone).most_common()[-1][1] >= 3
    assert all(trial.config in {t.config for t in alone} for trial in result.best.values())
    # the default is among them, so that the gain is against something measured in the same way
    for key, tuned in result.best.items():
        assert tuned.default_ms is not None and tuned.latency_ms.value <= tuned.default_ms
        assert any(t.workload == key and t.config == DEFAULT for t in alone)
    assert result.curve[-1].is_alone and not result.curve[-2].is_alone


def test_clients_are_gone_while_finalists_are_measured() -> None:
    setting = Setting(workloads(3), clients=3)
    setting.run(Budget(trials=24))
    first = next(
        i for i, (_, order) in enumerate(setting.crew.orders)
        if isinstance(order, MeasureOrder) and order.is_alone
    )  # fmt: skip
    assert all(label.startswith("server") for label, _ in setting.crew.orders[first:])
    assert setting.crew.dismissed == 3


def test_finalists_of_one_device_are_measured_one_after_the_other() -> None:
    machine = Machine(interference=1.0)
    setting = Setting(
        workloads(4), clients=2, servers=4, machine=machine, devices=(0, 0, 1, 1)
    )  # fmt: skip
    result = setting.run(Budget(trials=40))
    assert all(trial.slowdown == 1.0 for trial in result.trials if trial.is_alone)
    assert {trial.server // 2 for trial in result.trials if trial.is_alone} == {0, 1}


def test_clients_of_a_servers_cores_are_held_while_it_measures() -> None:
    machine = Machine(neighbours=1.0)
    free = Setting(workloads(3), machine=machine).run(Budget(trials=24))
    held = Setting(workloads(3), machine=machine, holds={0: (0, 1)}).run(Budget(trials=24))
    assert any((trial.slowdown or 1) > 1 for trial in free.trials)
    assert all(trial.slowdown == 1.0 for trial in held.trials)
    assert sum(piece.held_s for piece in held.pieces) > 0
    assert held.phases.search_s == pytest.approx(sum(piece.search_s for piece in held.pieces))


def test_a_client_that_cannot_be_held_is_noted() -> None:
    class Stubborn(SimulatedCrew):
        def hold(self, workers: Any) -> Any:
            return ()

    made = problem(work := workloads(2))
    seats = Seats((client_maker(made),) * 2, (server_maker(made),), holds={0: (0,)})
    result = run_tuning(
        Stubborn(), work, seats, settings=RunSettings(Budget(trials=8), piece_size=4),
        keep=lambda _: None,
    )  # fmt: skip
    assert [note.node for note in result.notes if note.code == "client-not-held"] == ["client 0"]


def test_clients_do_not_wait_for_a_slow_server() -> None:
    times = replace(TIMES, measure_s=0.5, search_spread=0.0, build_spread=0.0, measure_spread=0.0)
    work = workloads(4)
    made = problem(work, times=times)
    seats = Seats((client_maker(made),) * 2, (server_maker(made),))
    result = run_tuning(
        SimulatedCrew(), work, seats, keep=lambda _: None,
        settings=RunSettings(Budget(trials=64), piece_size=8, finalists=0),
    )  # fmt: skip
    one_after_the_other = result.phases.search_s + result.phases.build_s + result.phases.measure_s
    assert result.phases.wall_s < 0.6 * one_after_the_other
    # 32 candidates each at 1.5 s, and the last piece's measurement
    assert result.phases.wall_s == pytest.approx(32 * 1.5, rel=0.15)


def test_the_backlog_is_bounded() -> None:
    work = workloads(4)
    made = problem(work, times=replace(TIMES, measure_s=20.0))
    seats = Seats((client_maker(made),) * 4, (server_maker(made),))
    crew = SimulatedCrew()
    run_tuning(
        crew, work, seats, keep=lambda _: None,
        settings=RunSettings(Budget(trials=80), piece_size=4, finalists=0, backlog=2),
    )  # fmt: skip
    waiting = most = 0
    for _, order in crew.orders:
        waiting += 1 if isinstance(order, SearchOrder) else -1
        most = max(most, waiting)
    # at work with 4 clients, and 2 waiting when the last of them handed in
    assert most <= 4 + 2 + 1


def test_a_crashing_candidate_is_named_and_never_built_again() -> None:
    setting = Setting(workloads(2), fates=Fates(crash=0.2), seed=3)
    result = setting.run(Budget(trials=40))
    crashed = [t for t in result.trials if t.outcome is TrialOutcome.CRASHED]
    assert crashed and all("crashed" in trial.error for trial in crashed)
    for _, order in setting.crew.orders:
        if isinstance(order, SearchOrder):
            known = {t.config for t in order.known if t.outcome is TrialOutcome.CRASHED}
            assert known <= order.avoid
    assert all(times == 1 for times in setting.counted().values())


def test_a_hanging_candidate_times_out_and_costs_only_itself() -> None:
    setting = Setting(workloads(2), fates=Fates(hang=0.1, run_hang=0.1), seed=1)
    result = setting.run(Budget(trials=40))
    timed_out = [t for t in result.trials if t.outcome is TrialOutcome.TIMED_OUT]
    assert timed_out and all("in time" in trial.error for trial in timed_out)
    assert setting.counted().total() == 40
    assert {trial.server for trial in timed_out} >= {-1, 0}


def test_resume_goes_on_to_exactly_the_budget_and_repeats_nothing() -> None:
    first = Setting(workloads(3))
    first.run(Budget(trials=20))
    second = Setting(workloads(3))
    result = second.run(Budget(trials=50), known=first.kept)
    assert second.counted().total() == 30
    both = first.counted() + second.counted()
    assert all(times == 1 for times in both.values())
    assert result.trials[: len(first.kept)] == tuple(first.kept)
    numbers = {trial.piece for trial in second.kept if not trial.is_alone}
    assert min(numbers) > max(trial.piece for trial in first.kept)


def test_a_finished_run_measures_nothing_again() -> None:
    first = Setting(workloads(3))
    result = first.run(Budget(trials=20))
    again = Setting(workloads(3))
    second = again.run(Budget(trials=20), known=first.kept)
    assert not again.kept and not again.crew.orders
    assert second.best == result.best


def test_a_run_killed_before_its_end_builds_the_finalists_again() -> None:
    first = Setting(workloads(2))
    first.run(Budget(trials=16))
    searched = [trial for trial in first.kept if not trial.is_alone]
    again = Setting(workloads(2))
    result = again.run(Budget(trials=16), known=searched)
    assert all(trial.is_alone for trial in again.kept)
    rebuilt = [order for _, order in again.crew.orders if isinstance(order, SearchOrder)]
    assert rebuilt and all(order.rebuild for order in rebuilt)
    assert result.best.keys() == {"w0", "w1"}


@pytest.mark.parametrize("cut", range(0, 34, 3))
def test_interrupted_anywhere_nothing_is_lost(cut: int) -> None:
    """Ctrl-C comes through `keep`, which stands for the moment it is pressed."""
    setting = Setting(workloads(3), holds={0: (0, 1)})

    class Interrupting(list[Trial]):
        def append(self, trial: Trial) -> None:
            if len(self) == cut:
                raise KeyboardInterrupt
            super().append(trial)

    setting.kept = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        setting.run(Budget(trials=24))
    assert len(setting.kept) == cut and not setting.crew.held
    again = Setting(workloads(3))
    again.run(Budget(trials=24), known=setting.kept)
    both = setting.counted() + again.counted()
    assert both.total() == 24 and all(times == 1 for times in both.values())


def test_what_the_store_knows_is_not_tuned_again() -> None:
    work = workloads(3)
    done = Setting(work).run(Budget(trials=30))
    tuned = done.best["w0"]
    warm = Trial("w0", tuned.config, latency_ms=tuned.latency_ms, is_warm=True)
    setting = Setting(work)
    result = setting.run(Budget(trials=12), known=[warm])
    assert not any(trial.workload == "w0" for trial in setting.kept)
    assert result.best["w0"].is_from_store and result.best["w0"].config == tuned.config
    assert setting.counted().total() == 12
    asked = Setting(work)
    asked.run(Budget(trials=12), known=[warm], is_retuned=True)
    assert any(trial.workload == "w0" for trial in asked.kept)
    assert (("w0", tuned.config)) not in asked.counted()


def test_hints_are_given_while_nothing_is_known() -> None:
    setting = Setting(workloads(2))
    best = text_of(best_levels("w0", 1.0))
    setting.run(Budget(trials=16), hints={"w0": (best,)})
    orders = [o for _, o in setting.crew.orders if isinstance(o, SearchOrder)]
    hinted = [order for order in orders if best in order.hints]
    assert hinted[0].piece.round == 0 and not any(order.known for order in hinted)
    assert ("w0", best) in setting.counted()


def test_kin_of_this_run_are_hinted() -> None:
    setting = Setting(workloads(6), clients=1)
    setting.run(Budget(trials=24))
    orders = [o for _, o in setting.crew.orders if isinstance(o, SearchOrder)]
    assert any(order.hints for order in orders)


def test_more_trials_come_near_the_optimum() -> None:
    work = workloads(3)
    floor = sum(
        each.count * latency_ms(
            each.key, best_levels(each.key, 1.0), base_ms=each.mean_ms / 2, share=1.0
        )
        for each in work
    )  # fmt: skip
    reached = []
    for trials in (12, 60, 300):
        result = Setting(work).run(Budget(trials=trials))
        total = sum(t.workload.count * t.latency_ms.value for t in result.best.values())
        reached.append(total / floor)
    assert reached[0] > reached[1] >= reached[2] * 0.98
    assert reached[2] < 1.1


def test_the_time_budget_is_kept() -> None:
    for seconds in (30.0, 100.0, 300.0):
        result = Setting(workloads(4)).run(Budget(seconds=seconds))
        assert 0.5 * seconds < result.phases.wall_s <= 1.15 * seconds


def test_the_time_budget_is_kept_though_workers_are_lost() -> None:
    machine = Machine(client_loss=0.3, server_loss=0.2)
    setting = Setting(workloads(4), machine=machine, fates=Fates(crash=0.1), clients=3)
    result = setting.run(Budget(seconds=100.0))
    assert result.phases.wall_s <= 130.0
    assert all(times == 1 for times in setting.counted().values())


def test_progress_is_told() -> None:
    setting = Setting(workloads(2))
    setting.run(Budget(trials=8))
    assert any(text.startswith("8 of 8 trials") for text in setting.said)
    assert any("finalists alone" in text for text in setting.said)


def test_phases_add_up() -> None:
    result = Setting(workloads(3), servers=2).run(Budget(trials=30))
    phases = result.phases
    assert phases.clients == 2 and phases.servers == 2
    assert 0 < phases.busy_share < 1
    assert sum(piece.size for piece in result.pieces) == 30
    assert phases.measure_s > sum(piece.measure_s for piece in result.pieces) > 0
