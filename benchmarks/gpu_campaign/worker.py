"""A process that measures what it is told: one JSON request a line in, one JSON reply out.

    python -m benchmarks.gpu_campaign.worker --device cuda|cpu|null [--smoke]

Any failure of a point is a reply with an error text. A reply is `fatal` where the process cannot
go on (an error that stays in the CUDA context): the campaign then starts another one.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, TextIO

from benchmarks.gpu_campaign import facts, kernels, models
from benchmarks.gpu_campaign.energy import NullMeter, find_meter
from benchmarks.gpu_campaign.plan import KernelPoint, ModelPoint, work_of
from benchmarks.gpu_campaign.sampling import (
    KERNEL,
    SMOKE,
    CudaTimer,
    HostTimer,
    NullTimer,
    Rules,
    Samples,
    interval,
    quantile,
    take,
)
from benchmarks.gpu_campaign.shares import GreenShares, sms_of

Row = dict[str, Any]


class Bench:
    """The device as this process holds it: clock, meter, context and the models built so far."""

    def __init__(self, device: str, *, smoke: bool) -> None:
        self.device = device
        self.rules = SMOKE if smoke else Rules()
        self.kernel_rules = SMOKE if smoke else KERNEL
        self.timer: Any = {"cuda": CudaTimer, "cpu": HostTimer, "null": NullTimer}[device]()
        self.meter, self.meter_note = find_meter(device)
        if device == "null":
            self.meter = NullMeter(self.timer.now)
        self.sms, self.context_bytes = 0, 0
        self._built: dict[tuple[str, str], models.Built] = {}
        self._ready: dict[str, tuple[models.Built, models.Prepared, float]] = {}
        if device == "cuda":
            self._open()

    def _open(self) -> None:
        """Make the CUDA context and load the libraries; see what it takes of the memory."""
        import torch

        before = self.meter.state()["used_bytes"]
        x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
        (x @ x).sum().item()
        torch.nn.functional.conv2d(x.view(1, 1, 64, 64), x[:3, :3].reshape(1, 1, 3, 3))
        torch.cuda.synchronize()
        after, own = (self.meter.state()[key] for key in ("used_bytes", "process_bytes"))
        held = torch.cuda.memory_reserved()
        if own is not None:
            self.context_bytes = int(own) - held
        elif before is not None and after is not None:
            self.context_bytes = int(after - before) - held
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.green = GreenShares(self.sms)

    # --- models

    def prepare(self, point: ModelPoint) -> Row:
        """Compile a point, run it twice and keep it for `model`."""
        begin = time.perf_counter()
        key = _key(point)
        if key not in self._ready:
            # one module for each precision: compiled code knows the types of its weights
            built = self._module(point, alone=False)
            ready = models.prepare(built, point, device=self.device)
            for _ in range(2):
                ready.run()
            self.timer.sync()
            self._ready[key] = built, ready, time.perf_counter() - begin
            self.clean()
        return {"prepare_s": time.perf_counter() - begin}

    def model(self, point: ModelPoint, *, shared: bool) -> Row:
        """Return the row of one point; `shared` binds it to its share by a green context."""
        if self.device == "null":
            return self._null_row(point)
        if shared and self.device == "cuda" and point.share_percent is not None:
            sms = sms_of(point.share_percent, self.sms)
            with self.green.held(sms):
                row = self._model(point)
            return row | {"sms": sms, "sm_percent": round(100 * sms / self.sms, 3)}
        return self._model(point)

    def _model(self, point: ModelPoint) -> Row:
        kept = self._ready.get(_key(point))
        if kept is None:
            begin = time.perf_counter()
            built = self._module(point, alone=True)
            ready = models.prepare(built, point, device=self.device)
            kept = built, ready, time.perf_counter() - begin
        built, ready, prepare_s = kept
        self.clean()
        before = self._reset_peak()
        samples = take(ready.run, self.timer, meter=self.meter, rules=self.rules)
        row = _times(samples) | self._memory(built, ready, before) | self._state()
        return row | {
            "inputs": ready.shapes,
            "parameters": built.parameters,
            "tf32": point.precision == "tf32",
            "prepare_s": round(prepare_s, 3),
        }

    def _module(self, point: ModelPoint, *, alone: bool) -> models.Built:
        """Return the model, built if it is not here; `alone` drops all others."""
        key = (point.location, "" if alone else point.precision)
        found = self._built.get(key)
        if found is not None and not found.can_be(point.precision):
            found = None
        if found is None:
            if alone:
                self._built.clear()
                self.clean()
            found = self._built[key] = models.build(point.location, device=self.device)
        self.clean()
        return found

    def _reset_peak(self) -> int:
        if self.device != "cuda":
            return 0
        import torch

        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    def _memory(self, built: models.Built, ready: models.Prepared, before: int) -> Row:
        """Return the peak of allocator and context: this model's weights and inputs, and what
        was allocated beyond what was there `before` (other models are there, too)."""
        weights = built.weight_bytes
        if self.device != "cuda":
            return {"weights_bytes": weights, "input_bytes": ready.input_bytes}
        import torch

        beyond = int(torch.cuda.max_memory_allocated()) - before
        peak = beyond + weights + ready.input_bytes
        return {
            "memory_bytes": peak + self.context_bytes,
            "allocator_bytes": peak,
            "reserved_bytes": int(torch.cuda.max_memory_reserved()),
            "weights_bytes": weights,
            "input_bytes": ready.input_bytes,
            "context_bytes": self.context_bytes,
        }

    def _state(self) -> Row:
        state = self.meter.state()
        return {
            "sm_mhz": state["sm_mhz"],
            "memory_mhz": state["memory_mhz"],
            "temperature_c": state["temperature_c"],
            "device_used_bytes": state["used_bytes"],
            "process_bytes": state["process_bytes"],
        }

    def _null_row(self, point: ModelPoint) -> Row:
        if "no_such" in point.location:
            raise ValueError("the null device has no such model")
        ms = 0.2 + 0.05 * point.batch * 100 / (point.share_percent or 100)
        samples = take(lambda: self.timer.work(ms), self.timer, meter=self.meter, rules=self.rules)
        return _times(samples) | self._state() | {"inputs": f"x={point.batch}"}

    # --- kernels, facts, shares

    def kernel(self, point: KernelPoint) -> Row:
        """Return the row of one kernel: a graph of launches on CUDA, single ones elsewhere."""
        flops, moved = work_of(point)
        launches, method, note = 1, "stream", ""
        if self.device == "null":
            run: Callable[[], Any] = lambda: self.timer.work(0.1)  # noqa: E731
        else:
            self.clean()
            run = kernels.make(point, device=self.device)
        if self.device == "cuda":
            launches = self._launches(run)
            if launches > 1:
                try:
                    run, method = kernels.in_graph(run, launches), "graph"
                except Exception as err:  # it cannot be captured: time single launches
                    launches, note = 1, _text(err)
        samples = take(run, self.timer, meter=self.meter, rules=self.kernel_rules)
        row = _times(samples, launches)
        times = samples.event_ms
        return (
            row
            | self._state()
            | {
                "latency_ms": median(times) / launches,
                "latency_low_ms": interval(times)[0] / launches,
                "latency_high_ms": interval(times)[1] / launches,
                "p5_ms": quantile(times, 0.05) / launches,
                "p95_ms": quantile(times, 0.95) / launches,
                "min_ms": min(times) / launches,
                "flops": flops,
                "moved_bytes": moved,
                "launches": launches,
                "method": method,
                "note": note,
            }
        )

    def _launches(self, launch: Callable[[], Any]) -> int:
        """Return how many launches make up the length of a graph."""
        import torch

        for _ in range(3):
            launch()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(5):
            launch()
        last.record()
        torch.cuda.synchronize()
        each_ms = max(first.elapsed_time(last) / 5, 1e-3)
        wanted = round(kernels.GRAPH_MS / each_ms)
        return max(1, min(kernels.MOST_LAUNCHES, int(wanted)))

    def facts(self) -> Row:
        """Return what torch tells of the device and the figures measured on it."""
        own = {"context_bytes": self.context_bytes, "meter": self.meter.source,
               "meter_note": self.meter_note, "idle": self.meter.state()}  # fmt: skip
        return (facts.cuda() if self.device == "cuda" else {}) | own

    def share_check(self, percents: list[int]) -> Row:
        """Return for a fixed product and convolution the slow-down on each green share."""
        import torch

        left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(64, 256, 56, 56, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(256, 256, 3, 3, device="cuda", dtype=torch.bfloat16)
        works: Mapping[str, Callable[[], Any]] = {
            "gemm": lambda: left @ left,
            "conv": lambda: torch.nn.functional.conv2d(x, weight, padding=1),
        }
        found: Row = {}
        for percent in sorted(percents, reverse=True):
            sms = sms_of(percent, self.sms)
            with self.green.held(sms):
                for name, work in works.items():
                    found[f"{name}@{sms}"] = facts._seconds(work)
        whole = {name: found[f"{name}@{self.sms}"] for name in works}
        return {
            key: round(seconds / whole[key.partition("@")[0]], 3) for key, seconds in found.items()
        }

    def clean(self) -> None:
        """Give unused memory back to the device."""
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def is_sound(self) -> bool:
        """True if the device still answers after an error."""
        try:
            self.timer.sync()
        except Exception:  # the context is lost, whatever torch calls it
            return False
        return True


def _key(point: ModelPoint) -> str:
    return json.dumps(asdict(point))


def _times(samples: Samples, launches: int = 1) -> Row:
    """Return the columns about time and energy, of one launch."""
    wall = samples.wall_ms
    low, high = interval(wall)
    energy_j = samples.energy_j
    return {
        "latency_ms": median(wall),
        "latency_low_ms": low,
        "latency_high_ms": high,
        "p5_ms": quantile(wall, 0.05),
        "p95_ms": quantile(wall, 0.95),
        "min_ms": min(wall),
        "samples": len(wall),
        "event_ms": median(samples.event_ms),
        "stream_ms": samples.stream_ms / launches,
        "energy_j": None if energy_j is None else energy_j / launches,
        "power_w": samples.power_w,
        "power_source": samples.power_source,
        "warmup_runs": samples.warmup_runs,
        "window_runs": samples.window_runs,
    }


def _text(err: BaseException) -> str:
    """Return the first line of an error, without paths of this machine."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    text = " ".join((lines or [""])[0].split())
    words = [word.rpartition("/")[2] if word.startswith("/") else word for word in text.split()]
    return f"{type(err).__name__}: {' '.join(words)}"[:240]


def _answer(bench: Bench, request: Mapping[str, Any]) -> Row:
    verb = request["do"]
    if verb == "kernel":
        return bench.kernel(KernelPoint(**request["point"]))
    if verb == "facts":
        return bench.facts()
    if verb == "share-check":
        return bench.share_check(request["percents"])
    point = ModelPoint(**request["point"])
    if verb == "prepare":
        return bench.prepare(point) if bench.device != "null" else {"prepare_s": 0.0}
    return bench.model(point, shared=bool(request.get("shared")))


def serve(bench: Bench, lines: TextIO, out: TextIO) -> None:
    """Answer every request until the input ends."""
    for line in lines:
        request = json.loads(line)
        reply: Row = {"error": "", "fatal": False, "row": {}}
        begin = time.perf_counter()
        try:
            reply["row"] = _answer(bench, request) | {
                "wall_s": round(time.perf_counter() - begin, 3)
            }
        except Exception as err:  # a failed point is a row, never the end
            reply["error"] = _text(err)
        if reply["error"]:
            reply["fatal"] = not bench.is_sound()
            if not reply["fatal"]:
                bench.clean()
        out.write(json.dumps(reply) + "\n")
        out.flush()


def main() -> int:
    """Take requests from standard input; what libraries print goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu", "null"), default="cuda")
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            bench = Bench(asked.device, smoke=asked.smoke)
            if asked.device != "null":  # imported now, while nobody measures
                from slicewise.graph.frontends import zoo

                zoo.is_installed("torch")
                _import_zoos()
        except Exception as err:  # the campaign shows it and goes on without this part
            out.write(json.dumps({"error": _text(err), "fatal": True, "row": {}}) + "\n")
            return 1
        out.write(json.dumps({"error": "", "fatal": False, "row": {"sms": bench.sms}}) + "\n")
        out.flush()
        serve(bench, sys.stdin, out)
    return 0


def _import_zoos() -> None:
    for package in ("torchvision", "timm", "transformers"):
        try:
            if package == "torchvision":
                from slicewise.graph.frontends.zoo import import_torchvision

                import_torchvision()
            else:
                __import__(package)
        except Exception as err:  # its models will say so in their rows
            sys.stderr.write(f"{package}: {_text(err)}\n")


if __name__ == "__main__":
    raise SystemExit(main())
