"""The journal of trials: every field is read again, and only the same tuning goes on."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Estimate
from slicewise.core.errors import StoreError
from slicewise.core.notes import Note
from slicewise.core.tuning import Trial, TrialOutcome
from slicewise.store.trials import digest_of_run, open_trials

text = st.text(st.characters(exclude_categories=()) | st.sampled_from("\udc80\n\r"), max_size=6)
figures = st.floats(allow_nan=False)
trials = st.builds(
    Trial,
    text,
    text,
    outcome=st.sampled_from(TrialOutcome),
    latency_ms=st.none() | st.builds(Estimate, figures, figures, figures, source=text),
    samples_ms=st.lists(figures, max_size=3).map(tuple),
    error=text,
    piece=st.integers(-1, 99),
    client=st.integers(-1, 99),
    server=st.integers(-1, 99),
    build_s=figures,
    measure_s=figures,
    at_s=figures,
    is_alone=st.booleans(),
    is_warm=st.booleans(),
    slowdown=st.none() | figures,
    notes=st.lists(st.builds(Note, text, text, node=text), max_size=2).map(tuple),
)


def _write(path: Path, made: list[Trial], *, digest: str = "d", fresh: bool = False) -> None:
    journal = open_trials(path, digest=digest, fresh=fresh)
    for trial in made:
        journal.append(trial)
    journal.close()


def _read(path: Path, *, digest: str = "d") -> list[Trial]:
    journal = open_trials(path, digest=digest, fresh=False)
    journal.close()
    return journal.entries


@given(st.lists(trials, max_size=4), st.lists(trials, max_size=3))
@settings(deadline=None)
def test_every_field_of_a_trial_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, first: list[Trial], more: list[Trial]
) -> None:
    path = tmp_path_factory.mktemp("run") / "deep" / "trials.jsonl"
    _write(path, first)
    _write(path, more)
    found = _read(path)
    assert found == first + more
    assert all(type(trial.outcome) is TrialOutcome for trial in found)
    _write(path, more, fresh=True)
    assert _read(path) == more


@given(st.builds(Trial, text, text, slowdown=st.just(float("nan"))))
@settings(deadline=None, max_examples=5)
def test_a_figure_that_is_no_number_is_no_damage(
    tmp_path_factory: pytest.TempPathFactory, trial: Trial
) -> None:
    path = tmp_path_factory.mktemp("run") / "trials.jsonl"
    _write(path, [trial])
    (found,) = _read(path)
    assert found.slowdown is not None and found.slowdown != found.slowdown


def test_another_tuning_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    _write(path, [Trial("w", "c")])
    with pytest.raises(StoreError) as caught:
        _read(path, digest="other")
    assert str(caught.value) == (
        f"{str(path)!r} is the journal of another tuning (another model, share, device, engine or"
        " version of it, option or seed); leave --resume out to begin anew, or set"
        " SLICEWISE_HOME to another folder"
    )


def test_two_runs_cannot_write_one_journal(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "trials.jsonl"
    journal = open_trials(path, digest="d", fresh=False)
    for fresh in (False, True):
        with pytest.raises(StoreError) as caught:
            open_trials(path, digest="d", fresh=fresh)
        assert str(caught.value) == (
            f"{str(path)!r} is being written by another run; wait for it, or set SLICEWISE_HOME"
            " to another folder"
        )
    journal.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"folder '.*file/run' of the journal cannot be made"):
        open_trials(tmp_path / "file" / "run" / "trials.jsonl", digest="d", fresh=False)


KILLED = """
import sys
from pathlib import Path
from slicewise.core.tuning import Trial
from slicewise.store.trials import open_trials

journal = open_trials(Path(sys.argv[1]), digest="d", fresh=False)
number = len(journal.entries)
while True:
    journal.append(Trial("w", str(number), error="x" * (number % 7 * 1000)))
    number += 1
    print(number, flush=True)
"""


def test_a_run_that_is_killed_loses_no_trial(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    for after in (1, 2, 5, 9):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            told = [int(child.stdout.readline()) for _ in range(after)]
            child.kill()
            told.extend(map(int, child.stdout.read().split()))
        found = [int(trial.config) for trial in _read(path)]
        assert found == list(range(len(found)))
        assert told[-1] <= len(found) <= told[-1] + 1


RUN = {"engine": "tvm", "version": "1", "device": "cpu d", "share": "cores:0", "seed": 3}


def test_the_digest_is_that_of_the_work_and_not_of_its_order() -> None:
    def digest(**changed: object) -> str:
        told = {**RUN, "keys": ["a", "b"], "options": {"x": "1", "y": "2"}, **changed}
        return digest_of_run(**told)  # type: ignore[arg-type]

    assert digest() == digest(keys=("b", "a", "a")) == digest(options={"y": "2", "x": "1"})
    changes: list[dict[str, object]] = [
        {"engine": "triton"}, {"version": "2"}, {"device": "l4"}, {"share": None}, {"seed": 4},
        {"keys": ["a"]}, {"options": {}},
    ]  # fmt: skip
    digests = {digest(**changed) for changed in changes}
    assert len(digests) == len(changes) and digest() not in digests
