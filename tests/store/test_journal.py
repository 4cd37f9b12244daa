"""The journal: what was appended is there again, whatever happened to the last line."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import StoreError
from slicewise.store.journal import Journal


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    figures: tuple[float, ...] = ()


# Lone surrogates stand for the bytes of a file name that is no UTF-8.
text = st.text(st.characters(exclude_categories=()) | st.sampled_from("\udc80\n\r "), max_size=8)
entries = st.lists(
    st.builds(Entry, text, st.lists(st.floats(allow_nan=False), max_size=3).map(tuple)), max_size=5
)


def _write(path: Path, made: list[Entry], *, digest: str = "d", fresh: bool = False) -> None:
    journal = Journal(path, Entry, digest=digest, fresh=fresh)
    for entry in made:
        journal.append(entry)
    journal.close()


def _read(path: Path, *, digest: str = "d") -> list[Entry]:
    journal = Journal(path, Entry, digest=digest)
    journal.close()
    return journal.entries


@given(entries, entries)
@settings(deadline=None)
def test_what_was_appended_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, first: list[Entry], more: list[Entry]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    _write(path, first)
    _write(path, more)
    assert _read(path) == first + more


@pytest.mark.parametrize("cut", [1, 2, 5, 20])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    _write(path, [Entry("a"), Entry("b", (1.5, 2.5))])
    path.write_bytes(path.read_bytes()[:-cut])
    assert _read(path) == [Entry("a")]
    _write(path, [Entry("c")])
    assert _read(path) == [Entry("a"), Entry("c")]


def test_a_torn_header_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    _write(path, [])
    path.write_bytes(path.read_bytes()[:-3])
    assert _read(path) == []


def test_a_journal_of_other_work_is_refused_unless_fresh(tmp_path: Path) -> None:
    path = tmp_path / "j"
    _write(path, [Entry("a")])
    with pytest.raises(StoreError, match=r"another sweep.*--fresh"):
        _read(path, digest="other")
    assert _read(path) == [Entry("a")]
    _write(path, [Entry("b")], digest="other", fresh=True)
    assert _read(path, digest="other") == [Entry("b")]


@pytest.mark.parametrize("content", [b"my,own\n1,2\n", b"{}\n", b'{"schema": "x"}\n{}\n'])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_that_is_no_journal_is_left_alone(
    tmp_path: Path, content: bytes, fresh: bool
) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is no journal"):
        _write(path, [], fresh=fresh)
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"torn{", b'{"name": 3}', b'["a"]', b"\xff"])
def test_damage_before_the_end_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "j"
    _write(path, [Entry("a"), Entry("b")])
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(StoreError, match=r"line 2 of .* is damaged"):
        _read(path)


def test_two_runs_cannot_write_one_journal(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "j"
    journal = Journal(path, Entry, digest="d")
    with pytest.raises(StoreError, match="written by another run"):
        Journal(path, Entry, digest="d")
    journal.close()
    assert _read(path) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        Journal(tmp_path / "none" / "j", Entry, digest="d")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"hello", b'{"a": 1', b"[" * 100_000 + b"\n", b"\0" * 5000])
def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.partial"
    path.write_bytes(content)
    for fresh in (False, True):
        with pytest.raises(StoreError, match="no journal of slicewise"):
            Journal(path, Entry, digest="d", fresh=fresh)
    assert path.read_bytes() == content


def test_a_header_cut_short_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.partial"
    _write(path, [])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert _read(path) == [] and path.read_bytes() == whole


def test_an_entry_nested_beyond_reading_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.partial"
    _write(path, [Entry("a")])
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b"\n")
    with pytest.raises(StoreError, match=r"line 3 .* is damaged"):
        _read(path)


def test_a_pipe_is_no_journal_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.partial")
    with pytest.raises(StoreError, match="no regular file"):
        _read(tmp_path / "a.partial")


def test_a_disk_that_is_full_is_told_and_what_was_kept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.partial"
    journal = Journal(path, Entry, digest="d")
    journal.append(Entry("a"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            journal.append(Entry("b" * 10_000))
    journal.close()
    assert _read(path)[0] == Entry("a")
