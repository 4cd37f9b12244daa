"""Serves the model that lies beside this file with the settings of config.json.

    from run import load
    served = load()
    outputs = served.run({"input": array})          # name -> array
    many = served.run_many([inputs, inputs, ...])   # as many at once as were found best

`python run.py` runs it on made-up inputs and tells the time. It needs numpy and the engine that
config.json names (onnxruntime or openvino), and nothing else. The process is pinned to the cores
of the share that was tuned for, where it may use them; load(pin=False) leaves it as it is.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Run = Callable[[Arrays], "list[np.ndarray[Any, Any]]"]


class Served:
    """A model that is ready. `run` may be called from several threads at once."""

    def __init__(self, run: Run, output_names: Sequence[str], *, requests: int = 1) -> None:
        self._run = run
        self.output_names = tuple(output_names)
        self.requests = requests
        self._pool = ThreadPoolExecutor(requests) if requests > 1 else None

    def run(self, inputs: Arrays) -> "dict[str, np.ndarray[Any, Any]]":
        """Return the outputs by name for one set of inputs by name."""
        return dict(zip(self.output_names, self._run(inputs), strict=True))

    def run_many(self, many: Sequence[Arrays]) -> "list[dict[str, np.ndarray[Any, Any]]]":
        """Return the outputs of each, in order, with `requests` of them running at once."""
        if self._pool is None:
            return [self.run(inputs) for inputs in many]
        return list(self._pool.map(self.run, many))

    def close(self) -> None:
        """End the threads that `run_many` started."""
        if self._pool is not None:
            self._pool.shutdown()


def load(folder: "str | os.PathLike[str] | None" = None, *, pin: bool = True) -> Served:
    """Return the model of `folder` (the one that this file lies in) as it was tuned."""
    place = Path(folder) if folder is not None else Path(__file__).resolve().parent
    config = json.loads((place / "config.json").read_text())
    if pin:
        pin_to(config["share"]["cores"])
    shapes = {each["name"]: each["shape"] for each in config["inputs"]}
    return open_model(place / config["model"], config["settings"], shapes, config["outputs"])


def pin_to(cores: Sequence[int]) -> None:
    """Keep this process on those of `cores` that it may use, before the engine counts them."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0) & set(cores)
    if allowed:
        os.sched_setaffinity(0, allowed)


def open_model(
    path: Path,
    settings: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
) -> Served:
    """Return the model of a file, opened by the engine of `settings`, for inputs of `shapes`;
    `outputs` are their names in the file's order."""
    openers = {"onnxruntime": _open_onnxruntime, "openvino": _open_openvino}
    run = openers[settings["engine"]](path, settings, shapes)
    return Served(run, outputs, requests=settings["requests"])


def _open_onnxruntime(
    path: Path, settings: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> Run:
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    # those who call run() work too, so that together they are as many threads as given
    options.intra_op_num_threads = settings["threads"] - settings["requests"] + 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = {
        "all": levels.ORT_ENABLE_ALL,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "basic": levels.ORT_ENABLE_BASIC,
    }[settings["graph_level"]]
    if settings["execution"] == "parallel":
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = settings["threads"]
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", settings["spinning"])
    session = onnxruntime.InferenceSession(
        os.fspath(path), options, providers=["CPUExecutionProvider"]
    )
    taken = {each.name for each in session.get_inputs()}

    def run(inputs: Arrays) -> "list[np.ndarray[Any, Any]]":
        given = {name: value for name, value in inputs.items() if name in taken}
        return list(session.run(None, given))

    return run


def _open_openvino(
    path: Path, settings: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> Run:
    import openvino

    core = openvino.Core()
    model = core.read_model(os.fspath(path))
    own = {name: port for port in model.inputs for name in port.get_names() if name in shapes}
    model.reshape({name: list(shapes[name]) for name in own})
    wanted = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": settings["threads"],
        "NUM_STREAMS": str(settings["requests"]),
        "ENABLE_CPU_PINNING": settings["pinning"] == "1",
        "INFERENCE_PRECISION_HINT": settings.get("compute", "f32"),
    }
    compiled = core.compile_model(model, "CPU", wanted)
    requests = threading.local()  # one request must not run twice at once

    def run(inputs: Arrays) -> "list[np.ndarray[Any, Any]]":
        if not hasattr(requests, "mine"):
            requests.mine = compiled.create_infer_request()
        requests.mine.infer({name: inputs[name] for name in own})
        return [np.array(each.data) for each in requests.mine.output_tensors]

    return run


def made_up(folder: Path) -> "dict[str, np.ndarray[Any, Any]]":
    """Return inputs of the right shapes and types: normal numbers, and whole ones in range."""
    random = np.random.default_rng(0)
    made: dict[str, np.ndarray[Any, Any]] = {}
    for each in json.loads((folder / "config.json").read_text())["inputs"]:
        dtype, shape = np.dtype(each["dtype"]), each["shape"]
        if dtype.kind == "f":
            value: np.ndarray[Any, Any] = random.standard_normal(shape)
        elif dtype.kind == "b":
            value = np.ones(shape)
        else:
            value = random.integers(each["low"], each["high"], shape)
        made[each["name"]] = value.astype(dtype)
    return made


def main(runs: int = 30) -> None:
    """Load, warm up, and tell the median time."""
    folder = Path(__file__).resolve().parent
    served = load(folder)
    many = [made_up(folder)] * served.requests
    for _ in range(5):
        served.run_many(many)
    times_ms = []
    for _ in range(runs):
        began = time.perf_counter()
        served.run_many(many)
        times_ms.append((time.perf_counter() - began) * 1e3)
    times_ms.sort()
    sys.stdout.write(
        f"{times_ms[len(times_ms) // 2]:.3f} ms (median of {runs}; {served.requests} at once)\n"
    )
    served.close()


if __name__ == "__main__":
    main()
