"""MetaSchedule's own `tune_tasks`, watched: what ours is compared with (`tune_tvm.py`)."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slicewise.measure.quiet import bound_cores

Run = dict[str, Any]


def run_stock(
    model: Path, folder: Path, *, seed: int, trials: int, piece: int, is_installed: bool
) -> Run:
    """Tune with `tune_tasks` on all cores; its workers import what is needed, or all."""
    started = time.perf_counter()
    import onnx

    if is_installed:
        import tvm
    else:
        tvm = light_import()
    from tvm.relax.frontend.onnx import from_onnx
    from tvm.s_tir import meta_schedule as ms

    from slicewise.tune.backends.tvm.engine import make_target
    from slicewise.tune.backends.tvm.relax import passes_before_lookup

    target = make_target("", 1)
    module = from_onnx(onnx.load(str(model)))
    with target, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.transform.Sequential(passes_before_lookup(target))(module)
    tasks = ms.relax_integration.extract_tasks(lowered, target)
    prepared_s = time.perf_counter() - started
    started = time.perf_counter()
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        tasks, str(folder), num_threads=len(bound_cores()), seed=seed + 1
    )
    light = None if is_installed else light_import
    builder, runner, log = _watched(
        ms.builder.LocalBuilder(max_workers=len(bound_cores()), initializer=light),
        ms.runner.LocalRunner(initializer=light),
    )
    began = time.perf_counter()
    database = ms.tune.tune_tasks(
        tasks=contexts,
        task_weights=weights,
        work_dir=str(folder),
        max_trials_global=trials,
        num_trials_per_iter=piece,
        builder=builder,
        runner=runner,
        database="memory",
    )
    ended = time.perf_counter()
    pieces = _pieces(log, began)
    made = ms.relax_integration.compile_relax(database, module, target, None)
    library = folder / "model.so"
    made.export_library(str(library))
    sums = {name: sum(piece[name] for piece in pieces) for name in ("build_s", "measure_s")}
    return {
        "clients": 1,
        "wall_s": ended - started,
        "search_s": ended - began - sum(sums.values()),
        **sums,
        "startup_s": began - started,
        "prepared_s": prepared_s,
        "candidates": sum(piece["size"] for piece in pieces),
        "failed": sum(each["failed"] for each in log if each["what"] == "measure"),
        "library": str(library),
        "pieces": pieces,
    }


def light_import() -> Any:
    """Import TVM as our workers do: what MetaSchedule's workers are told to do first."""
    from slicewise.tune.backends.tvm.imports import import_tvm_alone

    return import_tvm_alone()


def _watched(builder: Any, runner: Any) -> tuple[Any, Any, list[Run]]:
    """Return builder and runner that log when each batch began and ended."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import PyBuilder
    from tvm.s_tir.meta_schedule.runner import PyRunner

    log: list[Run] = []

    def noted(what: str, name: str, batch: Sequence[Any], work: Any) -> Any:
        start = time.perf_counter()
        made = work()
        log.append(
            {
                "what": what,
                "workload": name,
                "size": len(batch),
                "start": start,
                "end": time.perf_counter(),
                "failed": 0,
            }
        )
        return made

    @derived_object
    class Builder(PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: Any) -> Any:
            return noted("build", "", build_inputs, lambda: builder.build(build_inputs))

    @derived_object
    class Runner(PyRunner):  # type: ignore[misc]
        def run(self, runner_inputs: Any) -> Any:
            shapes = [
                "x".join(map(str, info.shape))
                for each in runner_inputs[:1]
                for info in each.args_info
            ]
            return noted(
                "measure", " ".join(shapes), runner_inputs, lambda: runner.run(runner_inputs)
            )

    return Builder(), Runner(), log


def _pieces(log: Sequence[Run], began: float) -> list[Run]:
    """Return a piece for each batch: what went by before its build is search."""
    pieces: list[Run] = []
    last = began
    for build in (each for each in log if each["what"] == "build"):
        ran = next(
            (each for each in log if each["what"] == "measure" and each["start"] >= build["end"]),
            None,
        )
        following = next(
            (each for each in log if each["what"] == "build" and each["start"] > build["end"]),
            None,
        )
        is_own = ran is not None and (following is None or ran["start"] < following["start"])
        pieces.append(
            {
                "workload": ran["workload"] if ran is not None and is_own else "",
                "size": build["size"],
                "search_s": build["start"] - last,
                "build_s": build["end"] - build["start"],
                "measure_s": ran["end"] - ran["start"] if ran is not None and is_own else 0.0,
            }
        )
        last = ran["end"] if ran is not None and is_own else build["end"]
    return pieces
