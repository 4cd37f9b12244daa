"""The engine `serving`: the model as a whole is one workload, settings are its candidates.

Tried are engine, int8 behind an accuracy gate, threads, spinning, graph level, execution mode,
and for throughput requests at once and the batch. Whatever is found, what is left is no slower
than onnxruntime's defaults on the same share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from slicewise.core.notes import Note
from slicewise.core.tuning import Artifact, Prepared, Tuned, TuneTask
from slicewise.tune.backends._base import Client, Engine, Server
from slicewise.tune.backends.serving.artifact import write_artifact
from slicewise.tune.backends.serving.problem import Problem, take_up, versions
from slicewise.tune.backends.serving.search import PIECE_SIZE
from slicewise.tune.backends.serving.settings import ONNXRUNTIME, OPENVINO
from slicewise.tune.backends.serving.space import EXHAUSTIVE
from slicewise.tune.backends.serving.workers import ServingClient, ServingServer


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine."""

    name: str = "serving"
    places: frozenset[str] = frozenset({"cpu"})
    piece_size: int = PIECE_SIZE
    is_apart: bool = True

    def check(self) -> tuple[Note, ...]:
        """Return nothing: models run in processes of their own, so nothing here can crash."""
        return ()

    def prepare(self, task: TuneTask) -> Prepared:
        """Return the one workload and the settings to try; see the protocol."""
        problem, workload, notes = take_up(task)
        if len(problem.points) > EXHAUSTIVE and find_spec("optuna") is None:
            text = (
                f"{len(problem.points)} settings are drawn from at random, since optuna is not"
                " installed: pip install 'slicewise[tune]'"
            )
            notes = (*notes, Note("search-random", text))
        found = versions((ONNXRUNTIME, OPENVINO))
        told = ", ".join(f"{name} {number}" for name, number in found.items())
        return Prepared(self.name, told, (workload,), problem, notes)

    def client(self, problem: object) -> Client:
        """Return a client."""
        assert isinstance(problem, Problem)
        return ServingClient(problem)

    def server(self, problem: object) -> Server:
        """Return a server."""
        assert isinstance(problem, Problem)
        return ServingServer(problem)

    def finish(self, task: TuneTask, prepared: Prepared, best: Mapping[str, Tuned]) -> Artifact:
        """Write the folder; see the protocol and `artifact.py`."""
        problem = prepared.problem
        assert isinstance(problem, Problem)
        return write_artifact(task, problem, best.get(problem.workload))


ENGINE: Engine = Serving()
