"""How long a sweep of 1,000 points takes: whole commands in fresh processes, one of them killed.

    python -m benchmarks.explore_speed

5 models x 10 devices and slices x 5 batches x 2 precisions x 2 runtimes. Wall and CPU seconds
(the command and its workers), the run with the least CPU of several: the machine is shared.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import write
from benchmarks.tables import write_result

RUNS = 3
MODELS = (
    "resnet50@224", "mobilenetv2_100@224", "efficientnet_b0@224", "densenet121@224",
    "vit_small_patch16@224",
)  # fmt: skip
DEVICES = (
    "a100-sxm4-80gb", "a100-sxm4-80gb/1g.10gb", "a100-sxm4-80gb/2g.20gb",
    "a100-sxm4-80gb/3g.40gb", "h100-sxm5-80gb", "h100-sxm5-80gb/1g.10gb",
    "h100-sxm5-80gb/3g.40gb", "l4", "t4", "rtx-4090",
)  # fmt: skip
BATCHES = (1, 4, 16, 64, 256)
POINTS = len(MODELS) * len(DEVICES) * len(BATCHES) * 2 * 2


@dataclass(frozen=True, slots=True)
class Timing:
    """One whole command: its seconds, and the points that it had to do."""

    wall_s: float
    cpu_s: float
    points: int


def command(models: list[str], table: Path, *, workers: int) -> list[str]:
    """Return the command line of the sweep."""
    return [
        sys.executable, "-m", "slicewise", "explore", *models,
        "--device", ",".join(DEVICES), "--batch", ",".join(map(str, BATCHES)),
        "--precision", "fp32,fp16", "--runtime", "onnxruntime,tensorrt",
        "--workers", str(workers), "--csv", str(table),
    ]  # fmt: skip


def timed(arguments: list[str], points: int = POINTS) -> Timing:
    """Return the seconds of a whole process and of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall_s, cpu_s, points)


def best(arguments: list[str]) -> Timing:
    """Return the run with the least CPU of several."""
    return min((timed(arguments) for _ in range(RUNS)), key=lambda run: run.cpu_s)


def killed_and_resumed(arguments: list[str], table: Path) -> Timing:
    """Return the seconds of the same command after a run of it was killed half-way."""
    journal = table.with_name(f"{table.name}.partial")
    groups = len(MODELS) * len(BATCHES)
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") <= groups // 2:
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise SystemExit(f"the sweep ended before it was killed: {process.wait(0.02)}")
        process.kill()
    done = journal.read_bytes().count(b"\n") - 1
    return timed(arguments, POINTS - done * POINTS // groups)


def main() -> None:
    """Measure and write the table."""
    models = [str(write(key)) for key in MODELS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        two, one, resumed = (folder / f"{what}.csv" for what in ("two", "one", "resumed"))
        rows = {
            "2 processes": best(command(models, two, workers=2)),
            "1 process": best(command(models, one, workers=1)),
            "2 processes, killed half-way (-9), the rest": killed_and_resumed(
                command(models, resumed, workers=2), resumed
            ),
        }
        same = two.read_bytes() == one.read_bytes() == resumed.read_bytes()
    write_result(
        "explore_speed",
        title="Speed of a sweep of 1,000 points",
        command="python -m benchmarks.explore_speed",
        words=f"Whole `slicewise explore` commands in fresh processes on {os.cpu_count()} shared"
        f" cores, {RUNS} runs each, that with the least CPU. {len(MODELS)} models"
        f" ({', '.join(key.partition('@')[0] for key in MODELS)}), {len(DEVICES)} devices and"
        f" slices, batches {', '.join(map(str, BATCHES))}, fp32 and fp16, onnxruntime and"
        " tensorrt.",
        columns=("run", "points", "wall s", "CPU s", "points a CPU second", "to reach"),
        rows=[
            (
                what,
                f"{run.points:,}",
                f"{run.wall_s:.1f}",
                f"{run.cpu_s:.1f}",
                f"{run.points / run.cpu_s:.0f}",
                "wall < 60 s" if run.points == POINTS and what.startswith("2") else "",
            )
            for what, run in rows.items()
        ],
        more=f"The three tables are {'the same, byte for byte' if same else 'NOT the same'}.",
    )


if __name__ == "__main__":
    main()
