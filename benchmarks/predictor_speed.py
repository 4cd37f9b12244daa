"""How long the learned predictor takes: many devices and batches, and the first of a process.

    python -m benchmarks.predictor_speed

CPU seconds of one process on a graph of about a thousand nodes that is read already, and wall
seconds of whole commands; the least of several runs, since the machine is shared.
"""

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.models import write
from benchmarks.tables import write_result
from slicewise.flows.load import load
from slicewise.flows.predict import PredictOptions, predict_graph
from slicewise.hardware.catalogue import find_device
from slicewise.predict.weights import weights_path

RUNS = 5
MODEL = "efficientnet_b7@600"
DEVICES = (
    "rtx-3090", "rtx-4090", "rtx-pro-6000-maxq", "t4", "v100-sxm2-16gb", "a100-sxm4-80gb",
    "h100-sxm5-80gb", "l4", "a10", "l40s",
)  # fmt: skip
BATCHES = (1, 8, 32, 64, 128)


def least(run: Callable[[], None], clock: Callable[[], float]) -> float:
    """Return the least time of several runs."""
    found = []
    for _ in range(RUNS):
        start = clock()
        run()
        found.append(clock() - start)
    return min(found)


def main() -> int:
    """Time and write the table."""
    path = write(MODEL)
    graphs = [load(path, batch=batch) for batch in BATCHES]
    devices = [find_device(name) for name in DEVICES]

    def sweep(predictor: str) -> Callable[[], None]:
        options = PredictOptions(precision="fp16", runtime="torch-eager", predictor=predictor)

        def run() -> None:
            for graph in graphs:
                predict_graph(graph, devices, options)

        return run

    def command() -> None:
        subprocess.run(
            [sys.executable, "-m", "slicewise", "predict", str(path), "--device", "t4",
             "--runtime", "torch-eager", "--precision", "fp16", "--card", "none"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    learned = least(sweep("learned"), time.process_time)
    roofline = least(sweep("roofline"), time.process_time)
    whole = least(command, time.perf_counter)
    size = weights_path().stat().st_size / 1e6
    nodes = len(graphs[0].nodes)
    rows = [
        (f"{nodes} nodes, {len(DEVICES)} devices x {len(BATCHES)} batches, learned",
         f"{learned:.2f} CPU s", "< 1 CPU s"),
        ("the same, roofline alone", f"{roofline:.2f} CPU s", ""),
        ("`slicewise predict`, whole process, one device and batch", f"{whole:.2f} s", "< 1.5 s"),
        ("weights", f"{size:.2f} MB", "< 5 MB"),
    ]  # fmt: skip
    write_result(
        "predictor_speed",
        title="Speed and size of the learned predictor",
        command="python -m benchmarks.predictor_speed",
        words=f"{MODEL} as an ONNX file; the least of {RUNS} runs on 2 shared cores.",
        columns=("what", "measured", "to reach"),
        rows=rows,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
