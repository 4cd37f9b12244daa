"""Held-out predictions that are kept are those of the settings asked for."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from training import held
from training.held import SETTINGS, kept_path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "folder", lambda: tmp_path)


def test_the_same_settings_find_what_was_kept() -> None:
    assert kept_path("family-0") == kept_path("family-0", replace(SETTINGS))
    assert kept_path("family-0") != kept_path("family-1")


@pytest.mark.parametrize("name", [each.name for each in fields(SETTINGS)])
def test_a_part_done_with_other_settings_is_not_taken_up(name: str) -> None:
    value = getattr(SETTINGS, name)
    other = replace(SETTINGS, **{name: not value if isinstance(value, bool) else value + 1})
    assert kept_path("family-0", other) != kept_path("family-0")


def test_a_part_done_with_other_rows_of_kernels_or_columns_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = kept_path("family-0")
    assert kept_path("family-0", kernels=1) != kept
    monkeypatch.setattr(held, "schema_digest", lambda: "other columns")
    assert kept_path("family-0") != kept
