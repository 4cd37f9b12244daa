from dataclasses import replace
from typing import Any

import pytest

from benchmarks import tune_scaling
from benchmarks.tune_scaling import Farm, check_rows, check_words, least, over_optimum, simulated
from slicewise.core.tuning import Budget
from slicewise.tune.phases import PhaseTimes, serial_wall_s
from slicewise.tune.records import RunSettings
from slicewise.tune.simulate import simulate_run

TIMES = PhaseTimes(
    1.2, 0.6, 0.2, client_start_s=4.0, server_start_s=4.0, core_efficiency=0.8,
    search_spread=0.2, build_spread=0.2,
)  # fmt: skip


def made_run(clients: int, seed: int) -> dict[str, Any]:
    """Return a simulated run in the form of the real ones."""
    work = tune_scaling.workloads(10)
    found = simulate_run(
        work, tune_scaling.problem_of(work, TIMES),
        settings=RunSettings(Budget(96), piece_size=8, seed=seed),
        machine=tune_scaling.machine_of(TIMES), clients=clients, clients_per_host=2,
        holds={0: (1,)} if clients > 1 else {}, seed=seed,
    )  # fmt: skip
    return {
        "schedule": "ours", "clients": clients, "seed": seed, "wall_s": found.phases.wall_s,
        "search_s": found.phases.search_s, "build_s": found.phases.build_s,
        "measure_s": found.phases.measure_s, "startup_s": found.client_start_s,
        "pieces": [
            {"workload": p.workload, "size": p.size, "search_s": p.search_s,
             "build_s": p.build_s, "measure_s": p.measure_s}
            for p in found.pieces
        ],
    }  # fmt: skip


def stock_run(seed: int) -> dict[str, Any]:
    """Return what one after the other takes, a bit faster than one core would."""
    piece = {"workload": "w0", "size": 8, "search_s": 8 * 0.9, "build_s": 8 * 0.4,
             "measure_s": 8 * 0.2}  # fmt: skip
    wall = 4.0 + 12 * 8 * 1.5
    return {"schedule": "stock", "clients": 1, "seed": seed, "wall_s": wall, "search_s": 0.0,
            "build_s": 0.0, "measure_s": 0.0, "pieces": [piece] * 12}  # fmt: skip


def test_runs_are_predicted_from_runs_of_other_seeds() -> None:
    runs = [made_run(clients, seed) for clients in (1, 2) for seed in (0, 1, 2)]
    rows = check_rows([*runs, *(stock_run(seed) for seed in (0, 1, 2))])
    assert len(rows) == 9
    for row in rows:
        assert abs(float(row[4]) / float(row[3]) - 1) < 0.15, row
    assert "ours with 2 clients" in check_words(rows)


def test_without_real_runs_the_page_says_so() -> None:
    assert "no prediction was checked" in check_words(check_rows([]))


def test_one_client_gains_little_and_two_nearly_twice() -> None:
    serial = serial_wall_s(TIMES, trials=128, piece_size=tune_scaling.PIECE)
    walls = [simulated(Farm(n), TIMES, trials=128).phases.wall_s for n in (1, 2, 64)]
    assert walls[0] == pytest.approx(serial, rel=0.2)
    assert walls[0] > walls[1] > walls[2]


def test_the_optimum_is_a_bound() -> None:
    result = simulated(Farm(2), replace(TIMES, search_s=0.1), trials=200)
    assert 1.0 <= over_optimum(result) < 3.0


def test_the_least_farm_has_the_fewest_servers() -> None:
    found = {(4, 1): 3.0, (8, 1): 4.5, (4, 8): 6.0}
    assert least(found, 4.0) == "8 clients, 1 server"
    assert least(found, 5.0) == "4 clients, 8 servers"
    assert least(found, 9.0) == "none tried"
