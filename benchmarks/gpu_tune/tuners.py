"""Tuners at work: each compiles in processes of its own and measures on SMs of its own."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from benchmarks.gpu_tune.plan import Item

# (item) -> answer with `error` and `seconds`
Compile = Callable[[int, Item, Path], Mapping[str, Any]]
# (lane, item) -> answer with `error`, `samples_ms`, `wall_s`
Measure = Callable[[int, Item], Mapping[str, Any]]


@dataclass(slots=True)
class TunersRun:
    """What one run took. Seconds of compiling and measuring are summed over processes and lanes;
    `samples` are those of each item that ran."""

    wall_s: float = 0.0
    compile_s: float = 0.0
    measure_s: list[float] = field(default_factory=list)
    done: int = 0
    failed: int = 0
    is_whole: bool = True
    samples: dict[Item, Sequence[float]] = field(default_factory=dict)


def run_tuners(
    shards: Sequence[Sequence[Item]], clients: int, cache: Path, *, compile_item: Compile,
    measure_item: Measure, until: float, keep: Callable[[int, Item, Mapping[str, Any]], None],
) -> TunersRun:  # fmt: skip
    """Return what tuning all shards at once took; stopped at `until` (time.monotonic)."""
    run = TunersRun(measure_s=[0.0] * len(shards))
    lock = threading.Lock()
    share = clients // len(shards)
    begin = time.monotonic()
    threads: list[threading.Thread] = []
    for lane, shard in enumerate(shards):
        left, built = deque(shard), Queue[tuple[Item, bool]]()
        for client in range(lane * share, (lane + 1) * share):
            arguments = (run, lock, client, left, built, cache, compile_item, until)
            threads.append(threading.Thread(target=_compile_all, args=arguments, daemon=True))
        more = (run, lock, lane, len(shard), built, measure_item, until, keep)
        threads.append(threading.Thread(target=_measure_all, args=more, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.wall_s = time.monotonic() - begin
    run.is_whole = run.done + run.failed == sum(map(len, shards))
    return run


def _compile_all(
    run: TunersRun, lock: threading.Lock, client: int, left: "deque[Item]",
    built: "Queue[tuple[Item, bool]]", cache: Path, compile_item: Compile, until: float,
) -> None:  # fmt: skip
    while time.monotonic() < until:
        try:
            item = left.popleft()
        except IndexError:
            return
        answer = compile_item(client, item, cache)
        with lock:
            run.compile_s += float(answer.get("seconds", 0.0))
        built.put((item, not answer["error"]))


def _measure_all(
    run: TunersRun, lock: threading.Lock, lane: int, count: int,
    built: "Queue[tuple[Item, bool]]", measure_item: Measure, until: float,
    keep: Callable[[int, Item, Mapping[str, Any]], None],
) -> None:  # fmt: skip
    for _ in range(count):
        item, is_built = Item(-1, ""), False
        while item.kernel < 0:
            if time.monotonic() >= until:
                return
            try:
                item, is_built = built.get(timeout=0.2)
            except Empty:
                continue
        answer: Mapping[str, Any] = {"error": "it was not built"}
        if is_built:
            answer = measure_item(lane, item)
        with lock:
            run.measure_s[lane] += float(answer.get("wall_s", 0.0))
            if answer["error"]:
                run.failed += 1
            else:
                run.done += 1
                run.samples[item] = answer["samples_ms"]
        keep(lane, item, answer)
