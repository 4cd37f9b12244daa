"""A journal of finished work beside a result, so that a killed run goes on where it stopped.

JSON lines: a header with the digest of the whole work, then one entry a line, each on the disk
before the next is taken up. Knows nothing of what the entries mean.
"""

import io
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Generic, TypeVar

import msgspec

from slicewise.core.errors import StoreError

Entry = TypeVar("Entry")
_SCHEMA = "slicewise.journal/1"
_START = f'{{"schema":"{_SCHEMA}",'.encode()
_LONGEST_HEADER = 4096  # whatever lies there, no more of it is read before it is known
# Opening a pipe waits for its other end, unless told otherwise.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class Words:
    """How a journal speaks of its work: what makes it other work, and what a user then does."""

    other: str
    anew: str
    elsewhere: str


SWEEP = Words(
    other="another sweep (other models, devices, options or another version of slicewise)",
    anew="give --fresh to begin anew",
    elsewhere="write the result elsewhere",
)


class Journal(Generic[Entry]):
    """An open journal; nobody else can open it meanwhile (where the system has file locks)."""

    def __init__(
        self,
        path: Path,
        kind: type[Entry],
        *,
        digest: str,
        fresh: bool = False,
        words: Words = SWEEP,
    ) -> None:
        """Open the journal at `path`, or begin one; `entries` holds what is in it.

        `digest` names the work as a whole. `fresh` drops a journal that is there. A torn last
        line is dropped. `StoreError` if the file is of other work, is no journal, is damaged, is
        being written by another process, or cannot be written.
        """
        self.path = path
        self._words = words
        self.entries: list[Entry] = []
        try:
            # unbuffered: what could not be written is not tried again when the file is closed
            self._file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | _NO_WAIT, 0o666), "r+")
        except OSError as err:
            raise self._unusable(err) from err
        try:
            _lock(self._file, path, words)
            self._take_up(kind, digest, fresh)
        except OSError as err:
            self._file.close()
            raise self._unusable(err) from err
        except StoreError:
            self._file.close()
            raise

    def _take_up(self, kind: type[Entry], digest: str, fresh: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise StoreError(
                f"the journal {str(self.path)!r} is no regular file; {self._words.elsewhere}"
            )
        reader = io.BufferedReader(self._file)
        try:
            self._read(reader, kind, digest, fresh)
        finally:
            reader.detach()  # the file stays open

    def _read(self, reader: BinaryIO, kind: type[Entry], digest: str, fresh: bool) -> None:
        first = reader.readline(_LONGEST_HEADER)
        found = _header(first)
        # a header cut short is one of a run that was killed at its start
        if found is None and not _START.startswith(first[: len(_START)]):
            raise StoreError(
                f"{str(self.path)!r} is there and is no journal of slicewise; move it away, or"
                f" {self._words.elsewhere}"
            )
        if fresh or found is None:
            self._keep_only(0)
            self._write({"schema": _SCHEMA, "digest": digest})
            return
        if found != digest:
            raise StoreError(
                f"{str(self.path)!r} is the journal of {self._words.other}; {self._words.anew}, or"
                f" {self._words.elsewhere}"
            )
        end = len(first)
        for number, line in enumerate(reader, 2):
            if not line.endswith(b"\n"):
                break  # cut short
            self.entries.append(self._decoded(line, number, kind))
            end += len(line)
        self._keep_only(end)

    def _keep_only(self, size: int) -> None:
        self._file.seek(size)
        self._file.truncate()

    def _decoded(self, line: bytes, number: int, kind: type[Entry]) -> Entry:
        try:
            # Not msgspec's own decoder: a file name that is no UTF-8 comes as a lone surrogate.
            return msgspec.convert(json.loads(line), kind)
        except (ValueError, RecursionError, msgspec.ValidationError) as err:
            raise StoreError(
                f"line {number} of {str(self.path)!r} is damaged: {err}; {self._words.anew}"
            ) from err

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on the disk when this returns. `StoreError` if it cannot be."""
        try:
            self._write(msgspec.to_builtins(entry))
        except OSError as err:
            raise self._unusable(err) from err

    def _write(self, plain: object) -> None:
        line = json.dumps(plain, separators=(",", ":")).encode() + b"\n"
        while line:  # a disk that fills up takes a part first
            line = line[self._file.write(line) or 0 :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and leave it where it is."""
        self._file.close()

    def _unusable(self, err: OSError) -> StoreError:
        return StoreError(
            f"the journal {str(self.path)!r} cannot be written: {err.strerror or err};"
            f" {self._words.elsewhere}"
        )


def _header(line: bytes) -> str | None:
    """Return the digest in a header, None if the line is none."""
    try:
        header = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or header.get("schema") != _SCHEMA:
        return None
    return str(header.get("digest"))


def _lock(file: io.FileIO, path: Path, words: Words) -> None:
    """Lock the file until it is closed; a killed process holds no lock."""
    locks = _locks()
    if locks is None:
        return
    try:
        locks.flock(file.fileno(), locks.LOCK_EX | locks.LOCK_NB)
    except BlockingIOError as err:
        raise StoreError(
            f"{str(path)!r} is being written by another run; wait for it, or {words.elsewhere}"
        ) from err


def _locks() -> ModuleType | None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    return fcntl
