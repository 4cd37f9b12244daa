"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from slicewise.app.files import check_writable, write_atomically
from slicewise.core.errors import UsageError


def test_a_failed_write_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UsageError, match=r"report.json' cannot be written: No space left"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_impossible_places_are_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        check_writable(tmp_path / "no" / "x.json")
    check_writable(tmp_path / "x.json")
