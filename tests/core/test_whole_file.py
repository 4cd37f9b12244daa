"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from slicewise.core.errors import StoreError, UsageError
from slicewise.core.whole_file import output_file, whole_file


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    path.chmod(0o640)
    with pytest.raises(StoreError), whole_file(path) as file:
        file.write(b"half")
        raise StoreError("in the midst")
    assert path.read_text() == "before"
    with whole_file(path) as file:
        file.write(b"whole")
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(path) as file:
        file.write(b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"), output_file(tmp_path / "no" / "x"):
        pass
