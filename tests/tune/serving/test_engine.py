"""The serving engine keeps the laws of the suite, and what it leaves serves the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from slicewise.core.tuning import Artifact, TuneTask
from slicewise.flows.tuning.outputs import outputs_of
from slicewise.testing.engines import EngineLaws, Taken
from slicewise.tune.backends.serving import ENGINE
from tests.tune.serving.material import small_task

Outputs = Sequence[NDArray[Any]]


class TestServing(EngineLaws):
    engine = ENGINE

    def task(self, folder: Path) -> TuneTask:
        return small_task(folder)

    def outputs(self, task: TuneTask, artifact: Artifact) -> tuple[Outputs, Outputs]:
        assert artifact.before is not None and artifact.after is not None
        return outputs_of(artifact.before), outputs_of(artifact.after)

    def broken_config(self, taken: Taken) -> str | None:
        return taken.workload.default_config.replace('"batch":2', '"batch":3')
