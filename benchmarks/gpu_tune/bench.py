"""The process that holds the GPU: runs compiled kernels on sets of SMs, several lanes at once.

With `--device cpu` Triton's interpreter runs them and a formula tells the time.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu_tune.process import own_output, serve, short
from benchmarks.gpu_tune.shares import Shares
from slicewise.tune.backends.triton import launch
from slicewise.tune.backends.triton.operations import TOLERANCE, Operation
from slicewise.tune.backends.triton.plans import make_plan, read_config, write_config
from slicewise.tune.backends.triton.timing import Clock, CudaClock, FormulaClock

Row = dict[str, Any]
# A product that is bound by arithmetic on any part of the device.
_PROBE = Operation.make("matmul", "bf16", batch=1, m=4096, n=4096, k=2048, trans_b=1)
_PROBE_CONFIG = write_config(
    {"block_m": 128, "block_n": 128, "block_k": 64, "group": 8, "stages": 2, "warps": 8}
)
_PROBE_RUNS = 10


class Bench:
    """The device as this process holds it. One thread a lane."""

    def __init__(self, device: str, mechanism: str, cache: Path) -> None:
        """Open the device; kernels are loaded from the folder `cache`."""
        self.device = device
        self._cache = cache
        self.shares = Shares(mechanism)
        self._lanes: dict[int, ThreadPoolExecutor] = {}
        self._clocks: dict[tuple[int, int], CudaClock] = {}
        self._tensors: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self._bound: dict[tuple[object, ...], Callable[[], None]] = {}
        # Triton builds its launchers, and its interpreter runs, in one thread at a time.
        self._making = threading.Lock()
        self.capability = 90
        self.sms = 132
        if device == "cuda":
            import torch

            torch.zeros(1, device="cuda")
            major, minor = torch.cuda.get_device_capability(0)
            self.capability = 10 * major + minor
            self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    # --- requests

    def answer(self, request: Mapping[str, Any], reply: Callable[[Row], None]) -> None:
        """Hand a request to the thread of its lane, which replies."""
        lane = int(request.get("lane", 0))
        if lane not in self._lanes:
            self._lanes[lane] = ThreadPoolExecutor(1)
        self._lanes[lane].submit(self._work, request, reply)

    def _work(self, request: Mapping[str, Any], reply: Callable[[Row], None]) -> None:
        begin = time.perf_counter()
        row: Row = {"error": "", "is_fatal": False}
        try:
            if self.device == "cuda":
                import torch

                torch.cuda.set_device(0)  # a new thread has no context yet
            row |= _VERBS[request["do"]](self, request)
        except Exception as err:  # a failed point is a row, never the end
            row["error"] = short(err)
            row["is_fatal"] = not self._is_sound()
        reply(row | {"wall_s": round(time.perf_counter() - begin, 5)})

    def _is_sound(self) -> bool:
        """True if the device still answers after an error."""
        if self.device != "cuda":
            return True
        import torch

        try:
            torch.cuda.synchronize()
        except Exception:  # the context is lost, whatever torch calls it
            return False
        return True

    def facts(self, request: Mapping[str, Any]) -> Row:
        """Return what is to be known of device and software."""
        import torch
        import triton

        told: Row = {
            "torch": torch.__version__, "triton": triton.__version__,
            "python": sys.version.split()[0], "capability": self.capability, "sms": self.sms,
            "cpu_count": os.cpu_count(),
        }  # fmt: skip
        if self.device == "cuda":
            told["device"] = torch.cuda.get_device_name(0)
            told["cuda"] = torch.version.cuda
        return told

    def lanes(self, request: Mapping[str, Any]) -> Row:
        """Return how many disjoint sets of so many SMs there are."""
        return {"lanes": self.shares.count(int(request["sms"]))}

    def use_cache(self, request: Mapping[str, Any]) -> Row:
        """Load kernels from another folder from now on; asked while no lane is at work.

        Triton's launchers, which are the same for all, stay in a folder of their own.
        """
        self._cache = Path(request["cache"])
        self._bound.clear()
        return {}

    def measure(self, request: Mapping[str, Any]) -> Row:
        """Return samples of one kernel on a set of SMs, and whether its result was right."""
        op = Operation.parse(request["operation"])
        sms, lane = int(request["sms"]), int(request["lane"])
        one_by_one = self._making if self.device != "cuda" else contextlib.nullcontext()
        with one_by_one, self.shares.held(sms, lane):
            start = self._bind(op, request["config"], sms, lane)
            off = self._check(op, lane, start) if request["check"] else None
            if off is not None and off > TOLERANCE[op.precision]:
                return {"error": f"wrong: off by {off:.3g} of the largest output", "off": off}
            clock = self._clock(op, request["config"], sms, lane)
            clock.take(start, 2)
            samples = clock.take(start, int(request["samples"]))
        return {"samples_ms": [round(each, 6) for each in samples], "off": off}

    def probe(self, request: Mapping[str, Any]) -> Row:
        """Return how much slower a fixed product is on a set of SMs, and beside another."""
        sms = int(request["sms"])
        found = {part: self._time_probe(part, 0) for part in (sms, 0)}
        together: list[float] = []

        def beside(lane: int) -> None:
            together.append(self._time_probe(sms, lane))

        # lanes as they are used later: their own threads
        if request["is_disjoint"]:
            pool = [threading.Thread(target=beside, args=(lane,)) for lane in range(2)]
            self._time_probe(sms, 1)  # all is loaded before both run
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
        return {
            "whole_ms": round(found[0], 4),
            "slower": round(found[sms] / found[0], 3),
            "wanted": round(self.sms / sms, 3),
            "beside": round(max(together) / found[sms], 3) if len(together) == 2 else None,
            "seen_sms": self.shares.seen,
        }

    # --- parts

    def _time_probe(self, sms: int, lane: int) -> float:
        with self.shares.held(sms, lane):
            start = self._bind(_PROBE, _PROBE_CONFIG, sms, lane)
            clock = self._clock(_PROBE, _PROBE_CONFIG, sms, lane)
            clock.take(start, 3)
            found = sorted(clock.take(start, _PROBE_RUNS))
        return found[len(found) // 2]

    def _bind(self, op: Operation, config: str, sms: int, lane: int) -> Callable[[], None]:
        """Return what launches a kernel; loaded once for each set of SMs, which may be a context
        of its own."""
        key = (op.text, config, sms, lane)
        if key not in self._bound:
            plan = make_plan(op, read_config(op.kind, config))
            tensors, _ = self._inputs(op, lane)
            if self.device != "cuda":
                self._bound[key] = launch.bind_interpreted(op, plan, tensors)
            else:
                with self._making:
                    made = launch.compile_plan(
                        op, plan, capability=self.capability, cache=self._cache
                    )
                    self._bound[key] = launch.bind_compiled(made, plan, tensors)
        return self._bound[key]

    def _inputs(self, op: Operation, lane: int) -> tuple[dict[str, Any], Any]:
        """Return tensors and the expected output, kept for the lane."""
        key = (lane, op.text)
        if key not in self._tensors:
            where = "cuda" if self.device == "cuda" else "cpu"
            tensors = launch.make_tensors(op, device=where, seed=1)
            self._tensors[key] = tensors, launch.reference(op, tensors)
            if self.device == "cuda":
                import torch

                torch.cuda.current_stream().synchronize()  # other sets read them later
        return self._tensors[key]

    def _check(self, op: Operation, lane: int, start: Callable[[], None]) -> float:
        tensors, expected = self._inputs(op, lane)
        tensors["out"].fill_(float("nan"))
        start()
        return launch.difference(op, expected, tensors["out"])

    def _clock(self, op: Operation, config: str, sms: int, lane: int) -> Clock:
        if self.device != "cuda":
            return FormulaClock(op, read_config(op.kind, config), sms or self.sms)
        if (sms, lane) not in self._clocks:
            self._clocks[sms, lane] = CudaClock()
        return self._clocks[sms, lane]


_VERBS: Mapping[str, Callable[[Bench, Mapping[str, Any]], Row]] = {
    "facts": Bench.facts,
    "lanes": Bench.lanes,
    "cache": Bench.use_cache,
    "measure": Bench.measure,
    "probe": Bench.probe,
}


def main() -> int:
    """Answer requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--mechanism", default="whole")
    parser.add_argument("--cache", type=Path, required=True)
    asked = parser.parse_args()
    out = own_output()
    bench = Bench(asked.device, asked.mechanism, asked.cache)
    serve(bench.answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
