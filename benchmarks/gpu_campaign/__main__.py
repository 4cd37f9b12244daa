"""Runs the campaign: parts with budgets of time, each in worker processes, tables as they come.

    benchmarks/gpu_campaign.sh [--device cuda|cpu|null] [--smoke] [--out DIR] [--seconds N]

This process imports no framework and holds no device: whatever dies or hangs is a worker.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_campaign import facts
from benchmarks.gpu_campaign.plan import (
    SHARES,
    KernelPoint,
    ModelPoint,
    compiled_points,
    eager_points,
    kernel_points,
    share_points,
)
from benchmarks.gpu_campaign.process import Log, Table, Worker, WorkerLost, write_json
from benchmarks.gpu_campaign.shares import Mps, sms_of

SECONDS = 520.0
# Of the seconds, in the order of the parts: (part, until this fraction of the whole). What is
# left of them after the first round goes to the points not reached.
ROUNDS = (
    ("eager", 0.25), ("shares", 0.39), ("kernels", 0.51), ("compiled", 0.81),
    ("eager", 0.91), ("shares", 0.94), ("kernels", 0.98),
)  # fmt: skip
POINT_S = 30.0  # a point that takes longer is given up
START_S = 90.0
MOST_STARTS = 2
SMOKE_SECONDS = 50.0

_TIMES = (
    "latency_ms", "latency_low_ms", "latency_high_ms", "p5_ms", "p95_ms", "min_ms", "samples",
    "event_ms", "stream_ms", "energy_j", "power_w", "power_source", "warmup_runs", "window_runs",
)  # fmt: skip
_STATE = ("sm_mhz", "memory_mhz", "temperature_c", "device_used_bytes", "process_bytes")
_END = ("prepare_s", "wall_s", "at_s")
_MODEL = (
    "location", "family", "batch", "precision", "runtime", "inputs", "outcome", "error",
    *_TIMES, "memory_bytes", "allocator_bytes", "reserved_bytes", "weights_bytes", "input_bytes",
    "context_bytes", "parameters", "tf32", *_STATE, *_END,
)  # fmt: skip
TABLES: Mapping[str, Sequence[str]] = {
    "models.csv": _MODEL,
    "shares.csv": ("mechanism", "share_percent", "sms", "sm_percent", *_MODEL),
    "kernels.csv": (
        "kind", "op", "sizes", "precision", "flops", "moved_bytes", "launches", "method", "note",
        "outcome", "error", *_TIMES, *_STATE, "wall_s", "at_s",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    device: str
    smoke: bool
    out: Path
    seconds: float


@dataclass(slots=True)
class Part:
    """Points still to be measured and where their rows go."""

    table: str
    left: deque[Any]
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Campaign:
    """One run: its clock, its tables, its workers."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.begin = time.monotonic()
        self.end = self.begin + options.seconds
        options.out.mkdir(parents=True, exist_ok=True)
        self.log = Log(options.out / "log.txt", self.begin)
        self.tables = {
            name: Table(options.out / name, columns) for name, columns in TABLES.items()
        }
        self._scratch = tempfile.TemporaryDirectory(
            prefix="gpu-campaign-", ignore_cleanup_errors=True
        )
        self.workers: dict[str, Worker] = {}
        self.environment: dict[str, Any] = {
            "started_at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
        }
        smoke = options.smoke
        self.parts = {
            "eager": Part("models.csv", deque(eager_points(smoke=smoke))),
            "shares": Part("shares.csv", deque(share_points(smoke=smoke))),
            "kernels": Part("kernels.csv", deque(kernel_points(smoke=smoke))),
            "compiled": Part("models.csv", deque()),
        }
        self._is_closed = False
        self._failed_starts: dict[str, int] = {}
        self.mechanism = "none"
        self.mps: Mps | None = None

    # --- workers

    def worker(self, name: str, environment: Mapping[str, str] | None = None) -> Worker:
        """Return the worker called `name`, started anew where it is lost, not waited for."""
        found = self.workers.get(name)
        if found is None or found.is_lost:
            caches = {
                "TORCHINDUCTOR_CACHE_DIR": f"{self._scratch.name}/inductor",
                "TRITON_CACHE_DIR": f"{self._scratch.name}/triton",
                "TORCHINDUCTOR_COMPILE_THREADS": "2",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            }
            if self.options.device == "cpu":
                caches["OMP_NUM_THREADS"] = "1"
            found = self.workers[name] = Worker(
                self.options.device,
                smoke=self.options.smoke,
                log=Path(self._scratch.name) / f"{name}.txt",
                environment=caches | dict(environment or {}),
            )
        return found

    def left_s(self, until: float | None = None) -> float:
        """Return the seconds to `until`, or to the end of the campaign."""
        return (self.end if until is None else until) - time.monotonic()

    def ask(
        self, name: str, request: Mapping[str, Any], **more: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return (error, row) of a request; a lost worker is an error, and replaced next time."""
        limit = min(POINT_S, self.left_s() + 5)
        try:
            worker = self.worker(name, more.get("environment"))
            self._failed_starts[name] = self._failed_starts.get(name, 0) + 1
            worker.ready(min(START_S, self.left_s()))
            self._failed_starts[name] = 0
            reply = worker.ask(request, timeout_s=more.get("timeout_s", limit))
        except WorkerLost as err:
            self.log.say(f"{name}: {err}; {self._last_words(name)}")
            return str(err), {}
        return str(reply["error"]), dict(reply["row"])

    def _last_words(self, name: str) -> str:
        path = Path(self._scratch.name) / f"{name}.txt"
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        said = [line.strip() for line in lines if line.strip()]
        return " ".join(
            word for word in (said[-1] if said else "it said nothing").split() if "/" not in word
        )[:200]

    # --- parts

    def record(self, part: Part, point: Any, error: str, row: Mapping[str, Any]) -> None:
        """Write the row of a point, measured or failed."""
        if self._is_closed:  # a thread that compiles may outlast a stop
            return
        told = asdict(point)
        if isinstance(point, KernelPoint):
            told |= {"sizes": ";".join(f"{k}={v}" for k, v in point.sizes.items())}
            told |= {"precision": "bf16"}
        told |= {"mechanism": self.mechanism, "outcome": _outcome(error), "error": error}
        told |= {"at_s": round(time.monotonic() - self.begin, 2)}
        self.tables[part.table].add({**told, **row})
        part.done += 1
        part.failed += bool(error)

    def measure(self, name: str, until: float) -> None:
        """Measure points of a part, one after the other, until `until` or there are none."""
        part = self.parts[name]
        while part.left and self.left_s(until) > 1.0:
            point = part.left.popleft()
            worker, request, environment = self._request(name, point)
            begin = time.monotonic()
            if self._failed_starts.get(worker, 0) >= MOST_STARTS:
                part.left.appendleft(point)
                self.log.say(f"{name}: its worker does not start, the part is left out")
                return
            error, row = self.ask(worker, request, environment=environment)
            took = time.monotonic() - begin
            self.record(part, point, error, row)
            told = error or f"{row.get('latency_ms', 0):.3f} ms"
            self.log.say(f"{name} {_title(point)}: {told} ({took:.1f} s)")

    def _request(
        self, name: str, point: Any
    ) -> tuple[str, Mapping[str, Any], Mapping[str, str] | None]:
        told = asdict(point)
        if isinstance(point, KernelPoint):
            return "kernels", {"do": "kernel", "point": told}, None
        if name != "shares":
            return "eager", {"do": "model", "point": told}, None
        if self.mps is not None and self.mechanism == "mps" and point.share_percent is not None:
            share = point.share_percent
            environment = self.mps.client(share)
            return f"mps-{share}", {"do": "model", "point": told}, environment
        return "shares", {"do": "model", "point": told, "shared": True}, None

    def compiled(self, until: float) -> None:
        """Compile in one process a model, all at once; then measure them one after the other."""
        part = self.parts["compiled"]
        groups = compiled_points(smoke=self.options.smoke)
        planned = [each for group in groups for each in group]
        measuring_s = 0.7 * len(planned)
        compile_end = until - min(measuring_s, 0.35 * max(0.0, self.left_s(until)))
        ready: dict[int, list[ModelPoint]] = {i: [] for i in range(len(groups))}
        threads = [
            threading.Thread(
                target=self._compile, args=(f"compile-{i}", group, ready[i], compile_end),
                daemon=True,
            )
            for i, group in enumerate(groups)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self.left_s(compile_end) + 10))
        for i, thread in enumerate(threads):
            if thread.is_alive():  # it would disturb the others while they are measured
                ready[i].clear()
                self.workers[f"compile-{i}"].kill()
        self.log.say(f"compiled {sum(map(len, ready.values()))} of {len(planned)} points")
        for row in range(max(map(len, groups))):
            for i in ready:
                if row < len(ready[i]) and self.left_s(until) > 0.5:
                    point = ready[i][row]
                    error, told = self.ask(f"compile-{i}", {"do": "model", "point": asdict(point)})
                    self.record(part, point, error, told)
                    self.log.say(
                        f"compiled {_title(point)}:"
                        f" {error or format(told['latency_ms'], '.3f') + ' ms'}"
                    )
        for i in ready:
            if (worker := self.workers.get(f"compile-{i}")) is not None:
                worker.kill()

    def _compile(
        self, name: str, points: Sequence[ModelPoint], ready: list[ModelPoint], until: float
    ) -> None:
        longest = 0.0
        with contextlib.suppress(WorkerLost):  # asking says what it was
            self.worker(name).ready(max(1.0, self.left_s(until)))
        for point in points:
            begin = time.monotonic()
            if self.left_s(until) < longest:
                return
            error, _ = self.ask(
                name,
                {"do": "prepare", "point": asdict(point)},
                timeout_s=max(1.0, self.left_s(until) + 8),
            )
            longest = max(longest, time.monotonic() - begin)
            if error:
                self.record(self.parts["compiled"], point, error, {})
                self.log.say(f"compiled {_title(point)}: {error}")
                if self.workers[name].is_lost:
                    ready.clear()
                    return
            else:
                ready.append(point)

    # --- shares

    def choose_mechanism(self) -> None:
        """Look which way of holding work to SMs works here, green contexts first."""
        if self.options.device != "cuda":
            self.mechanism = "none"
            return
        error, ratios = self.ask("shares", {"do": "share-check", "percents": list(SHARES)})
        sms = self.worker("shares").sms or 132
        told: dict[str, Any] = {"green": error or ratios}
        if not error and _limits(ratios, sms):
            self.mechanism = "green"
        else:
            told["green_verdict"] = "not used: it fails, or a share does not limit the fixed works"
            self._try_mps(told, keep=True)
        if self.mechanism == "none":  # whole-device times are no times of shares
            self.parts["shares"].left.clear()
        self.log.say(f"shares by {self.mechanism}: {told}")
        self.environment["share_mechanisms"] = told | {"chosen": self.mechanism}

    def _try_mps(self, told: dict[str, Any], *, keep: bool) -> None:
        """Start an MPS daemon and ask a client of 25 % how many SMs it sees."""
        mps = Mps()
        told["mps"] = error = mps.start()
        if not error:
            found, error = mps.visible_sms(25)
            told["mps"] = error or f"a client of 25 % sees {found} SMs"
            total = max(worker.sms for worker in self.workers.values())
            if keep and 0 < found < 0.5 * total:
                self.mechanism, self.mps = "mps", mps
                return
        mps.stop()

    # --- the whole

    def run(self) -> None:
        """Measure everything that the time allows."""
        cuda = self.options.device == "cuda"
        self.environment["software"] = facts.software()
        try:
            self.worker("eager").ready(START_S)
        except WorkerLost as err:
            self.log.say(f"no worker starts on {self.options.device}: {err}")
            return
        for name in ("shares", "kernels"):  # they import while nothing is measured
            self.worker(name)
        if cuda:
            self.environment["nvidia_smi"] = facts.smi()
        for name in ("shares", "kernels"):
            with contextlib.suppress(WorkerLost):
                self.worker(name).ready(START_S)
        self.log.say("workers are ready")
        error, row = self.ask("eager", {"do": "facts"}, timeout_s=60.0)
        self.environment["device"] = row or {"error": error}
        self.save()
        self.choose_mechanism()
        first = time.monotonic()
        for name, fraction in ROUNDS:
            until = first + fraction * (self.end - first)
            begin = time.monotonic()
            if name == "compiled":
                self.compiled(until)
            else:
                self.measure(name, until)
            part = self.parts[name]
            part.seconds += time.monotonic() - begin
            self.save()
        if cuda and self.mechanism == "green" and self.left_s() > 0:
            self._try_mps(self.environment["share_mechanisms"], keep=False)
            self.save()

    def save(self) -> None:
        """Write env.json as it stands."""
        counts = {
            name: {"measured": part.done - part.failed, "failed": part.failed,
                   "not_reached": len(part.left), "seconds": round(part.seconds, 1)}
            for name, part in self.parts.items()
        }  # fmt: skip
        document = {
            "schema": "slicewise.gpu-campaign/1",
            **self.environment,
            "parts": counts,
            "seconds": round(time.monotonic() - self.begin, 1),
            "asked_device": self.options.device,
            "smoke": self.options.smoke,
        }
        write_json(self.options.out / "env.json", document)

    def close(self) -> None:
        """End all workers and close the files."""
        self._is_closed = True
        for worker in self.workers.values():
            worker.kill()
        if self.mps is not None:
            self.mps.stop()
        self.save()
        self.log.say(f"written to {self.options.out}")
        for table in self.tables.values():
            table.close()
        self.log.close()
        self._scratch.cleanup()


def _outcome(error: str) -> str:
    if not error:
        return "ok"
    return "out of memory" if "OutOfMemory" in error or "MemoryError" in error else "failed"


def _title(point: Any) -> str:
    if isinstance(point, KernelPoint):
        return f"{point.op} {' '.join(f'{k}={v}' for k, v in point.sizes.items())}"
    share = "" if point.share_percent is None else f" {point.share_percent} %"
    return f"{point.location} x{point.batch} {point.precision}{share}"


def _limits(ratios: Mapping[str, float], sms: int) -> bool:
    """True if a quarter of the SMs slows both fixed works as a quarter should, within 1.6x."""
    quarter = sms_of(25, sms)
    wanted = sms / quarter
    found = [ratios.get(f"{name}@{quarter}", 0.0) for name in ("gemm", "conv")]
    return all(wanted / 1.6 <= ratio <= wanted * 1.6 for ratio in found)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM end the campaign as Ctrl-C does: files whole, workers gone."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; 0 also where points failed, 1 where nothing could be measured, 130 where
    it was stopped."""
    parser = argparse.ArgumentParser(prog="gpu_campaign.sh", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu", "null"), default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny models, few points")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "gpu-out"))
    parser.add_argument("--seconds", type=float, help="of the whole campaign")
    asked = parser.parse_args(arguments)
    seconds = asked.seconds or (SMOKE_SECONDS if asked.smoke else SECONDS)
    campaign = Campaign(Options(asked.device, asked.smoke, asked.out, seconds))
    code = 0
    with _stopped_by_signals():
        try:
            campaign.run()
        except KeyboardInterrupt:
            campaign.log.say("stopped")
            code = 130
        finally:
            campaign.close()
    measured = sum(part.done - part.failed for part in campaign.parts.values())
    return code or (0 if measured else 1)


if __name__ == "__main__":
    sys.exit(main())
