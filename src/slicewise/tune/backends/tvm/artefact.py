"""What tuning leaves: the compiled model, the database of its operators, and how to run it.

`compile_relax` is used for the untuned model as well, with an empty database: the pipeline "zero"
that TVM's pages name leaves `call_tir` in the module, which its virtual machine refuses.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slicewise.core.errors import SlicewiseError, TuningError
from slicewise.core.measurement import Job, Measurement, Protocol, Subject
from slicewise.core.notes import Note
from slicewise.core.tuning import Artifact, Prepared, Tuned, TuneTask
from slicewise.tune.backends.tvm.build import first_line
from slicewise.tune.backends.tvm.problem import TvmProblem
from slicewise.tune.backends.tvm.relax import import_model
from slicewise.tune.backends.tvm.timing import relative_difference
from slicewise.tune.backends.tvm.trace import DEFAULT_CONFIG, schedule_of

# Sums in another order, through all layers of a model in fp32: 4e-6 was seen on a ResNet.
TOLERANCE = 1e-3
_FOLDER, _LIBRARY = "tvm", "model.so"
# Measured against, and no part of the artefact.
_UNTUNED = "tvm-untuned.so"
_REFERENCE = Protocol(min_samples=10, max_samples=100, budget_s=1.5)

_RUN = '''"""Runs the tuned model with made-up inputs and times it; needs apache-tvm {version}."""

import os
import time
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = "{threads}"
os.environ["TVM_BIND_THREADS"] = "0"  # threads keep the affinity of the process

import numpy as np
import tvm
from tvm import relax

INPUTS = {inputs}


def load():
    """Return the model as a function of tensors, in the order of INPUTS."""
    library = tvm.runtime.load_module(str(Path(__file__).parent / "{library}"))
    return relax.VirtualMachine(library, tvm.cpu())["main"]


if __name__ == "__main__":
    run = load()
    values = [
        tvm.runtime.tensor(np.ones(shape, dtype)) for _, shape, dtype in INPUTS
    ]
    times = []
    for _ in range(10):
        start = time.perf_counter()
        run(*values)
        times.append(time.perf_counter() - start)
    print(f"{{min(times) * 1e3:.3g}} ms, the least of {{len(times)}} runs")
'''

_README = """# {name}, tuned by TVM for {threads} thread{plural}

| file | what it is |
|---|---|
| {library} | the compiled model, weights included; runs on this kind of processor: {target} |
| run.py | loads it and runs it: `python run.py` |
| database_workload.json, database_tuning_record.json | MetaSchedule's database of the operators |

Run it with as many threads as it was tuned for, on as many cores. Tuned operators: {tuned} of
{all}. To compile the model again with another TVM of the same minor version:
`meta_schedule.relax_integration.compile_relax(database, module, target, None)`.
"""

_PARTS_README = """# {name}: operators tuned by TVM for {threads} thread{plural}

The model as a whole was not compiled, since TVM does not import all of its operators.
database_workload.json and database_tuning_record.json are MetaSchedule's database of the {tuned}
operators that were tuned (of {all}), for target {target}.
"""


def write_artefact(
    task: TuneTask, prepared: Prepared, problem: TvmProblem, best: Mapping[str, Tuned]
) -> Artifact:
    """Return the artefact, written into the task's folder in one step.

    `TuningError` where TVM does not compile the model.
    """
    folder = task.folder / _FOLDER
    part = task.folder / f"{_FOLDER}.{os.getpid()}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        imported = import_model(task.subject, task.graph)
        target = problem.make_target()
        database, tuned = _database(part, problem, target, best)
        if imported.skipped:
            _describe(part, _PARTS_README, task, problem, tuned)
            _put(part, folder)
            return Artifact(folder, how_to_run=_parts_text(folder))
        _compile(database, imported.module, target, part / _LIBRARY, task.subject.name)
        untuned = task.folder / _UNTUNED
        _compile(None, imported.module, target, untuned, task.subject.name)
        subject = replace(task.subject, inputs=imported.inputs)
        _describe(part, _README, task, problem, tuned)
        _write_run(part, subject, problem, prepared)
        _put(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    before = _job(task, subject, untuned)
    after = _job(task, subject, folder / _LIBRARY)
    how = f"python {folder / 'run.py'}"
    notes = _beside_onnxruntime(task, after)
    return Artifact(folder, before, after, TOLERANCE, how_to_run=how, notes=notes)


def _database(
    folder: Path, problem: TvmProblem, target: Any, best: Mapping[str, Tuned]
) -> tuple[Any, int]:
    """Return TVM's database of the best configurations, kept in `folder`, and their number."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

    database = JSONDatabase(
        str(folder / "database_workload.json"), str(folder / "database_tuning_record.json")
    )
    count = 0
    for key, tuned in best.items():
        if key not in problem.modules or tuned.config == DEFAULT_CONFIG:
            continue
        module = problem.load_module(key)
        try:
            schedule = schedule_of(module, tuned.config)
        except Exception as err:  # of TVM, or the JSON reader's
            raise TuningError(
                f"configuration of {tuned.workload.name} makes no schedule: {first_line(err)};"
                " tune it again with --fresh"
            ) from err
        seconds = tuned.latency_ms.value / 1e3
        database.commit_tuning_record(
            TuningRecord(
                schedule.trace,
                database.commit_workload(module),
                [seconds],
                target,
                ArgInfo.from_entry_func(schedule.mod, remove_preproc=True),
            )
        )
        count += 1
    return database, count


def _compile(database: Any, module: Any, target: Any, path: Path, name: str) -> None:
    """Compile the model with the schedules of `database`, None for none, and write the library."""
    from tvm.s_tir import meta_schedule as ms

    known = ms.database.MemoryDatabase() if database is None else database
    try:
        made = ms.relax_integration.compile_relax(known, module, target, None)
        made.export_library(str(path))
    except Exception as err:  # of TVM, or of the C++ compiler that links
        raise TuningError(
            f"TVM does not compile model {name!r}: {first_line(err)}; use engine serving"
        ) from err


def _describe(folder: Path, page: str, task: TuneTask, problem: TvmProblem, tuned: int) -> None:
    """Write the page that says what lies here."""
    (folder / "README.md").write_text(
        page.format(
            name=task.subject.name,
            threads=problem.threads,
            plural="s" if problem.threads > 1 else "",
            library=_LIBRARY,
            target=problem.target,
            tuned=tuned,
            all=len(problem.modules),
        )
    )


def _write_run(folder: Path, subject: Subject, problem: TvmProblem, prepared: Prepared) -> None:
    from slicewise.tune.backends.tvm.relax import numpy_name

    inputs = [(spec.name, spec.shape, numpy_name(spec.dtype)) for spec in subject.inputs]
    version = prepared.version.split(",")[0].removeprefix("apache-tvm ")
    (folder / "run.py").write_text(
        _RUN.format(
            version=version, threads=problem.threads, inputs=repr(inputs), library=_LIBRARY
        )
    )


def _parts_text(folder: Path) -> str:
    return (
        f"the model is not compiled as a whole; {folder} holds MetaSchedule's database of its"
        " operators, for tvm.relax's compile_relax"
    )


def _put(part: Path, folder: Path) -> None:
    """Let `part` become `folder`; what was there goes once the new is in place."""
    old = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _job(task: TuneTask, subject: Subject, path: Path) -> Job:
    """Return the measurement of a compiled library on the share."""
    compiled = replace(
        subject, location=str(path), form="tvm", open=partial(str, str(path)), by_name=False
    )
    return _measured(task, compiled, "tvm")


def _measured(task: TuneTask, subject: Subject, runtime: str) -> Job:
    whole = task.device.whole
    return Job(
        subject,
        runtime,
        task.graph.batch_size,
        precision=task.precision,
        device=task.place,
        device_name=whole.name,
        device_digest=whole.digest,
        threads=task.threads,
        share=task.share,
        slice=task.slice,
        seed=task.seed,
    )


# --- what else would run the model


def _beside_onnxruntime(task: TuneTask, after: Job) -> tuple[Note, ...]:
    """Return what ONNX Runtime takes for the same model on the same share, and whether it computes
    the same: a tuned operator that is slower than another runtime's is no gain."""
    if task.subject.form != "onnx":
        return ()
    job = replace(_measured(task, task.subject, "onnxruntime"), protocol=_REFERENCE)
    try:
        made: Measurement = task.measure(job)
        notes = _compared(task, job, after)
    except SlicewiseError as err:
        return (Note("tune-uncompared", f"ONNX Runtime was not tried beside it: {err}"),)
    if made.latency_ms is None:
        text = f"ONNX Runtime does not run the model here: {made.error or made.outcome}"
        return (Note("tune-uncompared", text), *notes)
    text = (
        f"ONNX Runtime with its defaults takes {made.latency_ms.value:.3g} ms on this share;"
        " 'before' is TVM without tuning"
    )
    return (Note("tune-other-runtime", text), *notes)


def _compared(task: TuneTask, job: Job, after: Job) -> tuple[Note, ...]:
    """Return a note where the compiled model computes something else than ONNX Runtime."""
    if task.outputs is None:
        return ()
    one: Sequence[Any] = task.outputs(job)
    other: Sequence[Any] = task.outputs(after)
    differences = [
        relative_difference(np.asarray(x), np.asarray(y)) if np.shape(x) == np.shape(y) else np.inf
        for x, y in zip(one, other, strict=False)
    ]
    greatest = max(differences, default=np.inf)
    if len(one) == len(other) and greatest <= TOLERANCE:
        return ()
    text = (
        f"outputs differ from ONNX Runtime's by {greatest:.2g} of the largest: TVM imported the"
        " model as something else"
    )
    return (Note("tune-import-differs", text),)
