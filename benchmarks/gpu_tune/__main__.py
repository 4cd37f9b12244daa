"""Runs the check: compile, sweep over SM counts, tuners beside each other, winners judged.

    benchmarks/gpu_tune.sh [--device cuda|cpu] [--smoke] [--out DIR] [--seconds N]

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
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.gpu_campaign import facts
from benchmarks.gpu_campaign.process import Log, write_json
from benchmarks.gpu_tune.gpu import Gpu
from benchmarks.gpu_tune.plan import (
    COMPILERS,
    CONFIGS,
    SMS,
    TUNERS,
    Item,
    configs,
    in_turn,
    kernels,
    share_out,
    tuned_count,
)
from benchmarks.gpu_tune.process import Lines, Peer, PeerLost, short
from benchmarks.gpu_tune.tuners import TunersRun, run_tuners

SECONDS = 515.0
SMOKE_SECONDS = 120.0
# Each part ends by this fraction of the whole; what a part does not use goes to the next.
COMPILE_END, SWEEP_END, TUNERS_END, JUDGE_END = 0.24, 0.52, 0.94, 0.99
COMPILE_S = 45.0  # one kernel
START_S = 90.0
SAMPLES = 10  # of a configuration on a set of SMs and visit; there are two visits
JUDGE_SAMPLES = 40


class Run:
    """One run: its clock, its files, its processes."""

    def __init__(self, device: str, out: Path, seconds: float, *, smoke: bool) -> None:
        """Open the files; start nothing."""
        self.device, self.smoke, self.out = device, smoke, out
        self.begin = time.monotonic()
        self.end = self.begin + seconds
        out.mkdir(parents=True, exist_ok=True)
        self.log = Log(out / "log.txt", self.begin)
        self.sweep_rows, self.tuner_rows = Lines(out / "sweep.jsonl"), Lines(out / "tuners.jsonl")
        self._scratch = tempfile.TemporaryDirectory(prefix="gpu-tune-", ignore_cleanup_errors=True)
        self.scratch = Path(self._scratch.name)
        self.gpu = Gpu(device, self.scratch, self.log.say, end=self.end)
        self.kernels = kernels(smoke=smoke)
        self.compilers: list[Peer | None] = [None] * (4 if smoke else COMPILERS)
        self.compile_s: dict[Item, float] = {}
        self.measure_s: dict[int, float] = dict.fromkeys(range(len(self.kernels)), 0.0)
        self.environment: dict[str, Any] = {
            "started_at": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
        }
        self.parts: dict[str, Any] = {}

    def until(self, fraction: float) -> float:
        """Return when a part must end, on the clock of time.monotonic."""
        return self.begin + fraction * (self.end - self.begin)

    def at_s(self) -> float:
        """Return the seconds since the start."""
        return round(time.monotonic() - self.begin, 2)

    # --- compiling

    def compiler(self, number: int) -> Peer:
        """Return a compiling process, started anew where it is lost."""
        found = self.compilers[number]
        if found is None or found.is_lost:
            found = self.compilers[number] = Peer(
                "benchmarks.gpu_tune.compiler", log=self.scratch / "compilers.txt",
                environment={"CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        return found

    def compile_item(self, number: int, item: Item, cache: Path) -> Mapping[str, Any]:
        """Return the answer of compiling process `number`; a lost one is an error."""
        request = {
            "operation": self.kernels[item.kernel].op.text, "config": item.config,
            "capability": self.gpu.facts["capability"], "cache": str(cache),
        }  # fmt: skip
        begin = time.monotonic()
        try:
            peer = self.compiler(number)
            peer.ready(START_S)
            left_s = max(1.0, self.end - begin)
            return peer.ask(request, timeout_s=min(COMPILE_S, left_s))
        except PeerLost as err:
            return {"error": str(err), "seconds": round(time.monotonic() - begin, 3)}

    def compile_all(self, items: Sequence[Item], until: float) -> list[Item]:
        """Compile in all processes at once; return what was compiled."""
        left, built, lock = deque(items), dict[Item, bool](), threading.Lock()

        def work(number: int) -> None:
            while time.monotonic() < until:
                try:
                    item = left.popleft()
                except IndexError:
                    return
                answer = self.compile_item(number, item, self.scratch / "cache")
                with lock:
                    built[item] = not answer["error"]
                    self.compile_s[item] = float(answer["seconds"])
                self.sweep_rows.add(
                    {"phase": "compile", **self._named(item), "error": answer["error"],
                     "seconds": answer["seconds"], "shared_bytes": answer.get("shared_bytes"),
                     "at_s": self.at_s()}
                )  # fmt: skip

        begin = time.monotonic()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.compilers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.parts["compile"] = {
            "asked": len(items), "done": sum(built.values()),
            "failed": len(built) - sum(built.values()), "not_reached": len(left),
            "seconds": round(time.monotonic() - begin, 2),
            "processes": len(threads),
        }  # fmt: skip
        self.log.say(f"compiled: {self.parts['compile']}")
        return [item for item in items if built.get(item)]

    def _named(self, item: Item) -> dict[str, Any]:
        kernel = self.kernels[item.kernel]
        return {
            "kernel": kernel.name, "count": kernel.count, "operation": kernel.op.text,
            "config": item.config,
        }  # fmt: skip

    # --- sweep

    def sweep(self, items: Sequence[Item], until: float) -> None:
        """Measure every configuration on every number of SMs, twice if there is time."""
        begin, done, failed, reached = time.monotonic(), 0, 0, 0
        wrong: set[Item] = set()
        for visit in range(2):
            for item in items:
                if time.monotonic() >= until:
                    break
                reached += 1
                if item in wrong:
                    continue
                for sms in self.sm_counts():
                    answer = self.gpu.measure(
                        self.kernels[item.kernel].op.text, item.config, sms=sms, lane=0,
                        samples=SAMPLES, check=visit == 0 and sms == self.sm_counts()[0],
                    )  # fmt: skip
                    self.measure_s[item.kernel] += float(answer.get("wall_s", 0.0))
                    self.sweep_rows.add(
                        {"phase": "sweep", **self._named(item), "sms": sms, "visit": visit,
                         "error": answer["error"], "samples_ms": answer.get("samples_ms", []),
                         "off": answer.get("off"), "wall_s": answer.get("wall_s"),
                         "at_s": self.at_s()}
                    )  # fmt: skip
                    if answer["error"]:
                        failed += 1
                        wrong.add(item)
                        break
                    done += 1
        self.parts["sweep"] = {
            "points": done, "failed": failed, "not_reached": 2 * len(items) - reached,
            "sms": self.sm_counts(), "seconds": round(time.monotonic() - begin, 2),
        }  # fmt: skip
        self.log.say(f"swept: {self.parts['sweep']}")

    def sm_counts(self) -> tuple[int, ...]:
        """Return the numbers of SMs; the whole device alone where nothing can be shared."""
        if self.gpu.mechanism == "whole" and self.device == "cuda":
            return (0,)
        return tuple(sms for sms in SMS if sms <= int(self.gpu.facts["sms"]))

    def lane_sms(self) -> int:
        """Return the SMs that a tuner measures on; 0: the whole device."""
        return 0 if self.sm_counts() == (0,) else self.gpu.lane_sms

    # --- tuners

    def tune(self, items: Sequence[Item], until: float) -> None:
        """Tune with one and with several tuners, each from nothing; then judge the winners."""
        seconds = max(1.0, until - time.monotonic())
        typical = mean(self.compile_s.values()) if self.compile_s else 1.0
        count = 3 if self.smoke else tuned_count(seconds, len(self.kernels), typical)
        per_kernel: dict[int, list[Item]] = {}
        for item in items:
            per_kernel.setdefault(item.kernel, []).append(item)
        chosen = in_turn([[i.config for i in per_kernel.get(k, [])[:count]]
                          for k in range(len(self.kernels))])  # fmt: skip
        cost_s = {
            kernel: sum(self.compile_s.get(i, 0.0) for i in mine[:count])
            + self.measure_s[kernel] * count / max(1, len(mine)) / (2 * len(self.sm_counts()))
            for kernel, mine in per_kernel.items()
        }
        self.parts["tuners"] = {"configs_each": count, "items": len(chosen), "runs": []}
        winners: dict[int, dict[str, str]] = {}
        for tuners, wanted in TUNERS:
            clients = min(wanted, len(self.compilers))
            if tuners > 1 and not self.gpu.is_disjoint:
                self.log.say(f"{tuners} tuners: left out, no disjoint sets of SMs here")
                continue
            if time.monotonic() >= until:
                self.log.say(f"{tuners} tuners with {clients} processes: no time left")
                continue
            run = self._run_tuners(
                tuners, min(clients, len(self.compilers)), chosen, cost_s, until
            )
            for kernel, config in _winners(run).items():
                winners.setdefault(kernel, {})[f"{tuners}/{clients}"] = config
        self.judge(winners, self.until(JUDGE_END))

    def _run_tuners(
        self, tuners: int, clients: int, chosen: Sequence[Item], cost_s: Mapping[int, float],
        until: float,
    ) -> TunersRun:  # fmt: skip
        cache = Path(tempfile.mkdtemp(prefix="cache-", dir=self.scratch))
        self.gpu.use_cache(cache)
        for number in range(clients):  # those that were lost start before the clock does
            with contextlib.suppress(PeerLost):
                self.compiler(number).ready(START_S)

        def measure_item(lane: int, item: Item) -> Mapping[str, Any]:
            return self.gpu.measure(
                self.kernels[item.kernel].op.text, item.config,
                sms=self.lane_sms(), lane=lane, samples=SAMPLES,
                check=True,
            )  # fmt: skip

        def keep(lane: int, item: Item, answer: Mapping[str, Any]) -> None:
            self.tuner_rows.add(
                {"phase": "tuner", "tuners": tuners, "clients": clients, "lane": lane,
                 **self._named(item), "error": answer["error"],
                 "samples_ms": answer.get("samples_ms", []), "wall_s": answer.get("wall_s"),
                 "at_s": self.at_s()}
            )  # fmt: skip

        run = run_tuners(
            share_out(chosen, tuners, cost_s), clients, cache, compile_item=self.compile_item,
            measure_item=measure_item, until=until, keep=keep,
        )  # fmt: skip
        row = {
            "phase": "run", "tuners": tuners, "clients": clients,
            "wall_s": round(run.wall_s, 3), "compile_s": round(run.compile_s, 3),
            "measure_s": [round(seconds, 3) for seconds in run.measure_s],
            "done": run.done, "failed": run.failed, "is_whole": run.is_whole,
        }  # fmt: skip
        self.tuner_rows.add(row)
        self.parts["tuners"]["runs"].append(row)
        self.log.say(f"{tuners} tuners: {row}")
        return run

    def judge(self, winners: Mapping[int, Mapping[str, str]], until: float) -> None:
        """Measure alone, in turn and with many samples, what each run chose."""
        self.gpu.use_cache(self.scratch / "cache")
        judged = 0
        for kernel, by_run in winners.items():
            for _ in range(2):
                for config in sorted(set(by_run.values())):
                    if time.monotonic() >= until:
                        break
                    answer = self.gpu.measure(
                        self.kernels[kernel].op.text, config,
                        sms=self.lane_sms(), lane=0,
                        samples=SAMPLES if self.smoke else JUDGE_SAMPLES, check=False,
                    )  # fmt: skip
                    judged += not answer["error"]
                    self.tuner_rows.add(
                        {"phase": "judge", **self._named(Item(kernel, config)),
                         "chosen_by": [run for run, c in by_run.items() if c == config],
                         "error": answer["error"], "samples_ms": answer.get("samples_ms", []),
                         "at_s": self.at_s()}
                    )  # fmt: skip
        self.parts["judge"] = {"points": judged}

    # --- the whole

    def run(self) -> None:
        """Do all that the time allows."""
        for number in range(len(self.compilers)):  # they import while the device is opened
            self.compiler(number)
        if self.device == "cuda":
            self.environment["nvidia_smi"] = facts.smi()
        self.gpu.open()
        self.save()
        smallest = self.sm_counts()[0] or int(self.gpu.facts["sms"])
        chosen = [
            configs(kernel.op, 4 if self.smoke else CONFIGS,
                    capability=int(self.gpu.facts["capability"]), smallest_sms=smallest)
            for kernel in self.kernels
        ]  # fmt: skip
        items = self.compile_all(in_turn(chosen), self.until(COMPILE_END))
        self.save()
        for name, part, end in (
            ("sweep", self.sweep, SWEEP_END),
            ("tuners", self.tune, TUNERS_END),
        ):
            try:
                self.gpu.use_cache(self.scratch / "cache")
                part(items, self.until(end))
            except Exception as err:  # what the other part measures is worth having
                self.parts.setdefault(name, {})["error"] = short(err)
                self.log.say(f"{name}: {traceback.format_exc()}")
            self.save()

    def save(self) -> None:
        """Write env.json as it stands."""
        document = {
            "schema": "slicewise.gpu-tune/1",
            **self.environment,
            "device": self.gpu.facts,
            "mechanism": self.gpu.mechanism,
            "mechanisms": self.gpu.told,
            "lane_sms": self.gpu.lane_sms,
            "parts": self.parts,
            "seconds": self.at_s(),
            "asked_device": self.device,
            "smoke": self.smoke,
        }
        write_json(self.out / "env.json", document)

    def close(self) -> None:
        """End all processes and close the files."""
        self.gpu.close()
        for peer in self.compilers:
            if peer is not None:
                peer.kill()
        self.save()
        self.log.say(f"written to {self.out}")
        self.sweep_rows.close()
        self.tuner_rows.close()
        self.log.close()
        self._scratch.cleanup()


def _winners(run: TunersRun) -> dict[int, str]:
    """Return the configuration with the least median for each kernel."""
    best: dict[int, tuple[float, str]] = {}
    for item, samples in run.samples.items():
        found = (median(samples), item.config)
        best[item.kernel] = min(best.get(item.kernel, found), found)
    return {kernel: config for kernel, (_, config) in best.items()}


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: files whole, workers gone."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if something was measured, 1 if nothing was, 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="gpu_tune.sh", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny kernels, few configurations")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "gpu-tune-out"))
    parser.add_argument("--seconds", type=float, help="of the whole run")
    asked = parser.parse_args(arguments)
    seconds = asked.seconds or (SMOKE_SECONDS if asked.smoke else SECONDS)
    run, code = Run(asked.device, asked.out, seconds, smoke=asked.smoke), 0
    with _stopped_by_signals():
        try:
            run.run()
        except KeyboardInterrupt:
            run.log.say("stopped")
            code = 130
        except PeerLost as err:
            run.log.say(f"no process measures on {asked.device}: {err}")
        finally:
            run.close()
    return code or (0 if run.parts.get("sweep", {}).get("points") else 1)


if __name__ == "__main__":
    sys.exit(main())
