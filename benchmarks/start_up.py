"""How long a user waits: import, help, one prediction, a large decoder; and what weights cost.

    python -m benchmarks.start_up

Wall and CPU seconds of whole processes, the best of several runs (the machine is shared, so the
least disturbed run says most); the decoder in CPU seconds of one process.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.decoder import write_decoder
from benchmarks.tables import write_result

RUNS = 7
DEVICES = (
    "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-sxm", "l4",
    "l40s", "rtx-4090", "v100-sxm2", "t4",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """One line of the table."""

    what: str
    wall_s: float | None
    cpu_s: float | None
    limit: str
    figure: str = ""


def light_resnet50() -> Path:
    """Return the ResNet-50 that the onnx package ships."""
    import onnx

    return Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"


def process(what: str, arguments: list[str], limit: str) -> Timing:
    """Return the best wall and CPU seconds of a whole process."""
    walls, cpus = [], []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return Timing(what, min(walls), min(cpus), limit)


def bare_import() -> Timing:
    """Return the seconds of `import slicewise` inside a fresh interpreter."""
    code = "import time; t = time.perf_counter(); import slicewise; print(time.perf_counter() - t)"
    walls = [
        float(subprocess.check_output([sys.executable, "-c", code], text=True))
        for _ in range(RUNS)
    ]
    return Timing("`import slicewise`", min(walls), None, "wall < 0.1 s")


_DECODER = """
import json, resource, sys, time
import slicewise
from slicewise.flows.predict import PredictOptions, predict_many
path, devices = sys.argv[1], sys.argv[2].split(",")
def once():
    start = time.process_time()
    graph = slicewise.load(path, batch=1, dims=json.loads(sys.argv[3]))
    loaded = time.process_time() - start
    result = predict_many([graph], devices=devices, batches=[1], options=PredictOptions())
    return loaded, time.process_time() - start, result
first = once()
second = once()
made = second[2].predictions
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"nodes": len(made[0].nodes), "devices": len(made), "peak_bytes": peak,
                  "first_s": first[1], "load_s": second[0], "all_s": second[1]}))
"""


def decoder(folder: Path, *, weight_bytes: int) -> tuple[Timing, int]:
    """Return the timing of the decoder on ten devices, and the process's peak memory."""
    path, dims = write_decoder(folder, inline_weight_bytes=weight_bytes)
    out = subprocess.check_output(
        [sys.executable, "-c", _DECODER, str(path), ",".join(DEVICES), json.dumps(dims)], text=True
    )
    told = json.loads(out)
    figure = (
        f"{told['nodes']} nodes, {told['devices']} devices; first call with imports"
        f" {told['first_s']:.2f} s, warm {told['all_s']:.2f} s, graph alone {told['load_s']:.2f} s"
    )
    timing = Timing("decoder: graph + work + roofline", None, told["first_s"], "CPU < 1 s", figure)
    return timing, told["peak_bytes"]


def main() -> None:
    """Measure and write the table."""
    model = str(light_resnet50())
    command = [sys.executable, "-m", "slicewise"]
    rows = [
        bare_import(),
        process("`slicewise --help`", [*command, "--help"], "wall < 0.5 s"),
        process(
            "`slicewise predict` ResNet-50, whole process",
            [*command, "predict", model, "--device", "a100-sxm4-80gb", "--json"],
            "wall < 1.5 s",
        ),
    ]
    peaks = []
    for weight_bytes in (0, 3 << 30):
        with tempfile.TemporaryDirectory() as folder:
            timing, peak = decoder(Path(folder), weight_bytes=weight_bytes)
            peaks.append(peak)
            if not weight_bytes:
                rows.append(timing)
    rows.append(
        Timing(
            "peak memory, decoder with 0 and 3 GiB of weights in the file", None, None,
            "independent",
            f"{peaks[0] / 2**20:.0f} MiB and {peaks[1] / 2**20:.0f} MiB",
        )
    )  # fmt: skip
    write_result(
        "start_up",
        title="Start-up time and memory",
        command="python -m benchmarks.start_up",
        words=f"Best of {RUNS} runs on {os.cpu_count()} shared cores.",
        columns=("what", "wall s", "CPU s", "to reach", "figures"),
        rows=[
            (
                row.what,
                "" if row.wall_s is None else f"{row.wall_s:.3f}",
                "" if row.cpu_s is None else f"{row.cpu_s:.3f}",
                row.limit,
                row.figure,
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
