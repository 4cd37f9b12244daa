"""A worker as the campaign sees it, and tables that a kill leaves whole up to the last row."""

import contextlib
import csv
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Reply = Mapping[str, Any]


class WorkerLost(Exception):
    """The worker died, hung or cannot go on; the text says which."""


class Worker:
    """One worker process. It is started at once and answers when it is ready."""

    def __init__(
        self, device: str, *, smoke: bool, log: Path, environment: Mapping[str, str]
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu_campaign.worker", "--device", device]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--smoke"] if smoke else command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._is_ready = False
        self.is_lost = False
        self.sms = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put(None)

    def ready(self, timeout_s: float) -> None:
        """Return once the worker has its device; `WorkerLost` if it does not get there."""
        if not self._is_ready:
            row = self._reply(timeout_s, "starting")
            self._is_ready, self.sms = True, int(row["row"]["sms"])

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> Reply:
        """Return the reply to one request; `WorkerLost` if there is none, and then ever after."""
        if self.is_lost:
            raise WorkerLost("the worker is gone")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as err:
            self.kill()
            raise WorkerLost(f"the worker died with code {self._process.poll()}") from err
        return self._reply(timeout_s, str(request["do"]))

    def _reply(self, timeout_s: float, doing: str) -> Reply:
        try:
            line = self._replies.get(timeout=max(0.1, timeout_s))
        except queue.Empty:
            self.kill()
            raise WorkerLost(f"{doing}: no answer within {timeout_s:.0f} s, ended") from None
        if line is None:
            self.kill()
            raise WorkerLost(f"{doing}: the worker died with code {self._process.poll()}")
        reply: Reply = json.loads(line)
        if reply["fatal"]:
            self.kill()
            if not self._is_ready:
                raise WorkerLost(str(reply["error"]))
        return reply

    def kill(self) -> None:
        """End the process and its children; a second call does nothing."""
        self.is_lost = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()


class Table:
    """A CSV file that grows by whole lines, each written at once."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns = columns
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._write(columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row; what it lacks stays empty."""
        self._write([_cell(row.get(column)) for column in self._columns])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, cells: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        os.write(self._file, line.getvalue().encode())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file by the document, whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(document, indent=1, default=str) + "\n")
    os.replace(beside, path)


class Log:
    """Progress on standard error and in a file, with the seconds since the start."""

    def __init__(self, path: Path, begin: float) -> None:
        self._file, self._begin = path.open("w", buffering=1), begin

    def say(self, text: str) -> None:
        """Write one line."""
        line = f"{time.monotonic() - self._begin:6.1f} s  {text}\n"
        sys.stderr.write(line)
        self._file.write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
