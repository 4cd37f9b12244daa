"""The GPU as the run sees it: which way of sharing works, and measuring on a set of SMs."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_campaign.shares import Mps
from benchmarks.gpu_tune.plan import LANE_SMS, TUNERS
from benchmarks.gpu_tune.process import Peer, PeerLost
from benchmarks.gpu_tune.shares import DISJOINT, MECHANISMS

START_S = 90.0
PROBE_S = 40.0
MEASURE_S = 30.0
_MOST_STARTS = 12
# A share works if a fixed product is as much slower there as it should, within this factor, and
# two disjoint ones work at the same time if neither is slower by more than the second.
_SLOWER_WITHIN = 1.6
_BESIDE_WITHIN = 1.5

Say = Callable[[str], None]


class Gpu:
    """One measuring process for green contexts; one for each share under MPS."""

    def __init__(self, device: str, scratch: Path, say: Say, *, end: float) -> None:
        """Start nothing yet. Nothing is waited for beyond `end`, on the clock of
        time.monotonic."""
        self._end = end
        self.device, self._scratch, self._say = device, scratch, say
        self.mechanism = "whole"
        self.lane_sms = LANE_SMS
        self.facts: dict[str, Any] = {}
        self.told: dict[str, Any] = {}
        self._mps: Mps | None = None
        self._cache = str(scratch / "cache")
        self._peers: dict[tuple[int, int], Peer] = {}
        self._starts = 0
        self._lock = threading.Lock()

    @property
    def is_disjoint(self) -> bool:
        """True if several sets of SMs can be used at once."""
        return self.mechanism in DISJOINT or self.device != "cuda"

    def open(self) -> None:
        """Find the way of sharing that works here: streams and contexts first, then MPS."""
        if self.device != "cuda":
            self.facts = dict(self._ask((0, 0), {"do": "facts"}, timeout_s=START_S))
            return
        for mechanism in MECHANISMS:
            self.mechanism = mechanism
            if self._is_working(mechanism):
                return
            self.close()
        self.mechanism = "mps"
        self._mps = Mps()
        error = self._mps.start()
        if not error and self._is_working("mps"):
            return
        self.told["mps"] = error or self.told.get("mps")
        self.close()
        self.mechanism = "whole"
        self._say(f"no way of sharing works: {self.told}")

    def _is_working(self, mechanism: str) -> bool:
        whole = (0, 0)
        try:
            if not self.facts:
                self.facts = dict(self._ask(whole, {"do": "facts"}, timeout_s=START_S))
            if mechanism == "mps":
                found = self._probe_mps()
            else:
                self.lane_sms = self._find_lanes()
                request = {
                    "do": "probe", "sms": self.lane_sms, "is_disjoint": mechanism in DISJOINT,
                }  # fmt: skip
                found = dict(self._ask(whole, request, timeout_s=PROBE_S))
        except PeerLost as err:
            found = {"error": str(err)}
        self.told[mechanism] = {k: v for k, v in found.items() if k not in ("number", "is_fatal")}
        self._say(f"shares by {mechanism}: {self.told[mechanism]}")
        if found.get("error"):
            return False
        slower, wanted, beside = found["slower"], found["wanted"], found.get("beside")
        is_right = wanted / _SLOWER_WITHIN <= slower <= wanted * _SLOWER_WITHIN
        return is_right and (beside is None or beside <= _BESIDE_WITHIN)

    def _find_lanes(self) -> int:
        """Return the most SMs that a tuner can have: the device may split into fewer sets than
        its SMs would allow."""
        most = max(tuners for tuners, _ in TUNERS)
        for sms in (LANE_SMS, LANE_SMS - 8, LANE_SMS // 2):
            found = self._ask((0, 0), {"do": "lanes", "sms": sms}, timeout_s=PROBE_S)
            if not found["error"] and (found["lanes"] is None or found["lanes"] >= most):
                return sms
        return LANE_SMS // 2

    def _probe_mps(self) -> dict[str, Any]:
        """Return the probe's times of a client with all SMs against one of a share."""
        request = {"do": "probe", "sms": 0, "is_disjoint": False}
        times = {}
        self.lane_sms = LANE_SMS
        for sms in (0, LANE_SMS):
            found = dict(self._ask((sms, 0), request, timeout_s=PROBE_S))
            if found["error"]:
                return found
            times[sms] = float(found["whole_ms"])
        return {
            "error": "",
            "whole_ms": times[0],
            "slower": round(times[LANE_SMS] / times[0], 3),
            "wanted": round(int(self.facts["sms"]) / LANE_SMS, 3),
        }

    # --- peers

    def _key(self, sms: int, lane: int) -> tuple[int, int]:
        return (sms, lane) if self.mechanism == "mps" else (0, 0)

    def _peer(self, key: tuple[int, int]) -> Peer:
        with self._lock:
            found = self._peers.get(key)
            if found is None or found.is_lost:
                if self._starts >= _MOST_STARTS:
                    raise PeerLost("the measuring process was lost too often")
                self._starts += 1
                found = self._peers[key] = self._start(key)
        found.ready(START_S)
        return found

    def _start(self, key: tuple[int, int]) -> Peer:
        environment = {"TRITON_CACHE_DIR": str(self._scratch / "launchers")}
        mechanism = self.mechanism
        if self._mps is not None:
            sms = key[0] or int(self.facts["sms"])
            percent = round(100 * sms / int(self.facts["sms"]))
            environment |= self._mps.client(percent)
            mechanism = "whole"
        return Peer(
            "benchmarks.gpu_tune.bench", "--device", self.device, "--mechanism", mechanism,
            "--cache", self._cache, log=self._scratch / "bench.txt", environment=environment,
        )  # fmt: skip

    def _ask(
        self, key: tuple[int, int], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[str, Any]:
        left_s = max(1.0, self._end - time.monotonic())
        reply = self._peer(key).ask(request, timeout_s=min(timeout_s, left_s))
        if reply.get("is_fatal"):
            self._peers[key].kill()
        return reply

    # --- what the run does

    def use_cache(self, cache: Path) -> None:
        """Load kernels from this folder from now on."""
        self._cache = str(cache)
        for key in list(self._peers):
            self._ask(key, {"do": "cache", "cache": str(cache)}, timeout_s=START_S)

    def measure(
        self, operation: str, config: str, *, sms: int, lane: int, samples: int, check: bool
    ) -> Mapping[str, Any]:
        """Return `samples_ms` or an `error`; a lost process is an error, too."""
        request = {
            "do": "measure", "operation": operation, "config": config, "sms": sms, "lane": lane,
            "samples": samples, "check": check,
        }  # fmt: skip
        try:
            return self._ask(self._key(sms, lane), request, timeout_s=MEASURE_S)
        except PeerLost as err:
            self._say(f"measuring {operation} {config}: {err}")
            return {"error": str(err), "wall_s": 0.0}

    def close(self) -> None:
        """End all measuring processes, and the MPS daemon if it is ours."""
        for peer in self._peers.values():
            peer.kill()
        self._peers.clear()
        if self._mps is not None:
            self._mps.stop()
            self._mps = None
