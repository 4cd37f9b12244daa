"""A run in real processes: candidates crash and hang in earnest."""

from collections import Counter
from contextlib import closing

from slicewise.core.tuning import Budget, Trial, TrialOutcome
from slicewise.execute.crews.local import LocalCrew
from slicewise.tune.backends.simulated import Fates, client_maker, server_maker
from slicewise.tune.records import RunSettings, Seats
from slicewise.tune.run import run_tuning
from tests.tune.simulated_runs import problem, workloads


def test_a_run_survives_candidates_that_crash_and_hang() -> None:
    work = workloads(3)
    fates = Fates(refuse=0.1, crash=0.03, run_crash=0.03, hang=0.02, wrong=0.05)
    made = problem(work, fates=fates, is_virtual=False, seed=4)
    seats = Seats((client_maker(made),) * 2, (server_maker(made),), holds={0: (0,)})
    kept: list[Trial] = []
    with closing(LocalCrew()) as crew:
        result = run_tuning(
            crew, work, seats, keep=kept.append,
            settings=RunSettings(Budget(trials=60), piece_size=6, candidate_limit_s=1.0),
        )  # fmt: skip
    counted = Counter((t.workload, t.config) for t in kept if not t.is_alone)
    assert counted.total() == 60 and set(counted.values()) == {1}
    outcomes = {trial.outcome for trial in kept}
    assert {TrialOutcome.CRASHED, TrialOutcome.TIMED_OUT, TrialOutcome.BUILD_FAILED} <= outcomes
    assert result.best.keys() == {"w0", "w1", "w2"}
    assert all(tuned.default_ms is not None for tuned in result.best.values())
    assert result.client_start_s > 0 and result.server_start_s > 0
