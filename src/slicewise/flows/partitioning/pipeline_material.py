"""What can be cut into stages, before stages are chosen: nodes, tensors, times by device.

A model and a problem file both become this. Types only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.core.device import Link
from slicewise.core.graph import Graph
from slicewise.core.notes import Note
from slicewise.core.pipeline import PipelineProblem, StageDevice


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A tensor by name; `transfer_ms` is what the source itself says that one transfer costs,
    None where bytes and a link say it; `size_bytes` None is unknown."""

    name: str
    producer: int
    consumers: tuple[int, ...]
    size_bytes: float | None
    transfer_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """Nodes in topological order, each a group of nodes of the source that are not cut apart.

    `labels` are the names of the source's nodes in its own order, `groups` their indices for each
    node here. `devices` are those asked for, by the names under which they were; their limits and
    reserves are what holds unless a wish says otherwise. `links` are the devices' own.
    `most_stages` None: no limit. `problem` is set where the numbers came ready made.
    """

    name: str
    source: str
    labels: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    tensors: tuple[CutTensor, ...]
    devices: Mapping[str, StageDevice]
    memory_bytes: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    links: Mapping[str, Link | None] = field(default_factory=dict)
    together: tuple[tuple[int, ...], ...] = ()
    most_stages: int | None = None
    batch: int = 1
    digest: str = ""
    runtime: str = ""
    precision: str = ""
    graph: Graph | None = None
    problem: PipelineProblem | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A problem with k stages and where its numbers come from: what `split` and reports need.

    `places` name the device of each stage, or the stock.
    """

    problem: PipelineProblem
    material: Material
    places: tuple[str, ...]
    notes: tuple[Note, ...] = ()

    @property
    def graph(self) -> Graph | None:
        """The model, None for a problem file."""
        return self.material.graph

    def stage_of_label(self, stage_of: "tuple[int, ...]") -> tuple[int, ...]:
        """Return the stage of each node of the source, in the source's order."""
        stages = [0] * len(self.material.labels)
        for node, group in enumerate(self.material.groups):
            for index in group:
                stages[index] = stage_of[node]
        return tuple(stages)
