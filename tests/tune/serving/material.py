"""Small models and tasks for the tests of the serving engine."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.cost import Estimate
from slicewise.core.measurement import Environment, Job, Measurement, Outcome
from slicewise.core.notes import Note
from slicewise.core.share import Mechanism, Share
from slicewise.core.tuning import AccuracyData, TuneTask
from slicewise.flows.load import load
from slicewise.flows.measure import run_job, target_here
from slicewise.flows.tuning.outputs import outputs_of
from slicewise.measure.quiet import bound_cores
from slicewise.testing import runtimes as suite


def small_task(folder: Path, **changes: Any) -> TuneTask:
    """Return the task of tuning the small model of the runtimes' suite on one core, batch 2."""
    subject = suite.small_onnx(folder, 2)
    graph = load(subject.location, batch=2)
    target = target_here("cpu")
    core = Share(Mechanism.CORES, cores=bound_cores()[:1])
    task = TuneTask(
        subject=replace(subject, digest=graph.digest),
        graph=graph,
        place="cpu",
        device=target.device,
        threads=1,
        folder=folder / "run",
        measure=run_job,
        outputs=outputs_of,
        share=core,
        node_ms={node.name: 1.0 for node in graph.nodes},
        options={"confirm": "1"},
    )
    return replace(task, **changes)


def real_inputs(folder: Path, *, samples: int = 64, seed: int = 3) -> AccuracyData:
    """Return inputs for the small model, in samples along its batch."""
    random = np.random.default_rng(seed)
    path = folder / "x.npy"
    np.save(path, random.standard_normal((samples, *suite.inputs(2)[0].shape[1:])))
    return AccuracyData({"x": path}, least_agreement=0.9, source="made")


Latency = Callable[[Job], float | Outcome]


def fake_measure(job: Job, *, latency_ms: Latency, notes: Sequence[Note] = ()) -> Measurement:
    """Return a measurement whose latency a function of the job says, or that failed."""
    found = latency_ms(job)
    made = Measurement(
        job.subject.name, job.subject.location, job.subject.digest, job.device_name, job.slice,
        job.runtime, job.batch, job.precision, job.threads or 1, options=job.options,
        environment=Environment(waited=0.5), notes=tuple(notes),
    )  # fmt: skip
    if isinstance(found, Outcome):
        return replace(made, outcome=found, error="as the test wants")
    value = Estimate(found, low=found * 0.99, high=found * 1.01, source="made up")
    return replace(made, latency_ms=value, samples_ms=(found, found, found))


def fake_outputs(
    job: Job, inputs: Mapping[str, Path] | None = None, *, wrong: str = ""
) -> tuple[NDArray[Any], ...]:
    """Return the same outputs for every runtime but the one that is `wrong`."""
    return (np.array([1.0, 2.0 + 0.1 * (job.runtime == wrong)], np.float32),)


def with_latency(task: TuneTask, latency_ms: Latency, *, wrong: str = "") -> TuneTask:
    """Return the task with measuring and outputs made up: no process is started."""
    return replace(
        task,
        measure=functools.partial(fake_measure, latency_ms=latency_ms),
        outputs=functools.partial(fake_outputs, wrong=wrong),
    )
