"""Decides in which stage each node of an ONNX file stands, given the stages of a graph's nodes.

A file has nodes that a graph has not: what follows from constants or shapes alone, and what no
output needs. The first are copied into every stage that reads them, since a copy costs less than
a transfer of every item; where they begin at a tensor made on the way (the shape of it, say) that
one node stays where the tensor is and its small result goes on. The last are left out. Reads
structure alone: no weights, no shapes; writes nothing.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slicewise.core.errors import PartitionError

if TYPE_CHECKING:
    import onnx

# Their result is another one in every run (ONNX operator specification): one of them is one.
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
     "Multinomial", "Dropout"}
)  # fmt: skip
_SHAPE_READERS = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Step:
    """A node of the file and the stages it stands in; none: no output needs it.

    `frozen` are stages that need what it gives before its input is there: there it becomes a
    constant. `is_copied` tells a node that stands in a stage for its own readers only.
    """

    node: "onnx.NodeProto"
    reads: tuple[str, ...]
    stages: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage holds: steps in order, and names it reads from outside or gives."""

    index: int
    steps: tuple[int, ...]
    frozen: tuple[int, ...]
    weights: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The steps of the file in topological order, and the stages that are not empty.

    `giver` is the stage of each tensor that crosses or is an output of the model. `passed` are
    outputs that are inputs as they came.
    """

    steps: tuple[Step, ...]
    stages: tuple[StagePlan, ...]
    giver: Mapping[str, int] = field(default_factory=dict)
    passed: tuple[str, ...] = ()


def plan_split(
    nodes: "Sequence[onnx.NodeProto]", *,
    stage_of: Mapping[str, int], inputs: Sequence[str], weights: frozenset[str],
    outputs: Sequence[str],
) -> SplitPlan:  # fmt: skip
    """Return where each of the file's nodes stands.

    `stage_of` gives the stage of a tensor that a graph's node makes; `inputs`, `weights` and
    `outputs` are the file's. `PartitionError` where a node would need what a later stage gives.
    """
    ordered = _sorted(nodes)
    assigned = [_stage_of(node, stage_of) for node, _ in ordered]
    placing = _Placing(ordered, assigned, frozenset(inputs), weights, tuple(outputs))
    steps = tuple(placing.place())
    stages = sorted({stage for step in steps for stage in step.stages} | set(stage_of.values()))
    passed = tuple(name for name in outputs if name in placing.inputs)
    giver = {name: _giver(steps, placing.maker, name, stages[:1]) for name in placing.given()}
    plans = tuple(_stage_plan(stage, steps, placing, giver) for stage in stages or [0])
    plans = tuple(plan for plan in plans if plan.steps or plan.frozen or plan.outputs)
    return SplitPlan(steps, plans, giver, passed)


def captured(node: "onnx.NodeProto") -> Iterator[str]:
    """Yield the names that a node's bodies read from outside themselves."""
    for body in bodies_of(node):
        own = {value.name for value in body.input}
        own.update(tensor.name for tensor in body.initializer)
        own.update(sparse.values.name for sparse in body.sparse_initializer)
        own.update(name for inner in body.node for name in inner.output)
        for inner in body.node:
            yield from (name for name in reads_of(inner) if name not in own)
        yield from (value.name for value in body.output if value.name not in own)


def reads_of(node: "onnx.NodeProto") -> tuple[str, ...]:
    """Return the names a node reads, those its bodies capture included, each once."""
    return tuple(dict.fromkeys(name for name in (*node.input, *captured(node)) if name))


def bodies_of(node: "onnx.NodeProto") -> "list[onnx.GraphProto]":
    """Return the sub-graphs in a node's attributes."""
    bodies: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            bodies.append(attribute.g)
        bodies.extend(attribute.graphs)
    return bodies


def title_of(node: "onnx.NodeProto") -> str:
    """Return how messages name a node: its name, else its kind and first output."""
    return node.name or f"{node.op_type} of {next((name for name in node.output if name), '?')}"


# --- order


def _sorted(nodes: "Sequence[onnx.NodeProto]") -> "list[tuple[onnx.NodeProto, tuple[str, ...]]]":
    """Return nodes with what they read, in topological order, ties by their place in the file."""
    reads = [reads_of(node) for node in nodes]
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, names in enumerate(reads):
        for source in {maker[name] for name in names if name in maker}:
            waiting[i] += 1
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        node = next(nodes[i] for i in range(len(nodes)) if waiting[i])
        raise PartitionError(
            f"the model has a cycle through node {title_of(node)!r}; a graph must be acyclic;"
            " export it again"
        )
    return [(nodes[i], reads[i]) for i in order]


def _stage_of(node: "onnx.NodeProto", stage_of: Mapping[str, int]) -> int | None:
    stages = {stage_of[name] for name in node.output if name in stage_of}
    return max(stages) if stages else None


# --- places


@dataclass(slots=True)
class _Placing:
    """The walk over the nodes: `first` is the earliest legal stage of each, `need` the stages that
    read a tensor, `has_items` tells nodes whose results change from item to item."""

    ordered: "Sequence[tuple[onnx.NodeProto, tuple[str, ...]]]"
    assigned: Sequence[int | None]
    inputs: frozenset[str]
    weights: frozenset[str]
    outputs: tuple[str, ...]
    maker: dict[str, int] = field(default_factory=dict)
    need: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    first: list[int] = field(default_factory=list)
    has_items: list[bool] = field(default_factory=list)

    def place(self) -> Iterator[Step]:
        """Yield each node with its stages; `PartitionError` for one read before it is made."""
        self.maker = {
            name: i for i, (node, _) in enumerate(self.ordered) for name in node.output if name
        }
        lowest = min((stage for stage in self.assigned if stage is not None), default=0)
        for i, (_, reads) in enumerate(self.ordered):
            stage = self.assigned[i]
            made = [self.first[self.maker[name]] for name in reads if name in self.maker]
            self.first.append(max(made, default=lowest) if stage is None else stage)
            # A graph leaves out what is read for its shape alone; the file still computes it.
            is_shape = self.ordered[i][0].op_type in _SHAPE_READERS
            self.has_items.append(stage is not None or (not is_shape and self._reads_items(reads)))
        found: list[Step] = []
        wanted = set(self.outputs)
        for i in reversed(range(len(self.ordered))):
            found.append(self._step(i, wanted))
        yield from reversed(found)

    def given(self) -> Iterator[str]:
        """Yield the tensors made by nodes that others than their readers' own stages want."""
        yield from dict.fromkeys((*self.outputs, *self.need))

    def _step(self, i: int, wanted: set[str]) -> Step:
        node, reads = self.ordered[i]
        needed = {stage for name in node.output if name for stage in self.need.get(name, ())}
        if not needed and wanted.isdisjoint(filter(None, node.output)):
            return Step(node, reads)  # no output needs it
        stage, frozen, copied = self.assigned[i], set[int](), False
        if stage is None and self._is_anchor(i):
            moved = any(name in self.maker for name in reads)
            stage = self.first[i] if moved else min(needed, default=self.first[i])
        if stage is None:
            copied, stages = True, needed or {self.first[i]}
        else:
            stages = {stage}
            frozen = {early for early in needed if early < stage}
            if frozen and node.op_type not in _SHAPE_READERS:
                self._refuse(i, stage, min(frozen))
        for name in reads:
            self.need[name] |= stages
        return Step(node, reads, tuple(sorted(stages)), tuple(sorted(frozen)), copied)

    def _is_anchor(self, i: int) -> bool:
        """True where a copy would need a tensor of its own that changes from item to item."""
        node, reads = self.ordered[i]
        return node.op_type in _RANDOM or self._reads_items(reads)

    def _reads_items(self, reads: Sequence[str]) -> bool:
        return any(
            name in self.inputs or (name in self.maker and self.has_items[self.maker[name]])
            for name in reads
        )

    def _refuse(self, i: int, stage: int, early: int) -> None:
        node, _ = self.ordered[i]
        reader = next(
            (title_of(other) for j, (other, reads) in enumerate(self.ordered)
             if self.assigned[j] == early and not set(reads).isdisjoint(node.output)),
            "?",
        )  # fmt: skip
        raise PartitionError(
            f"node {title_of(node)!r} is in stage {stage} and node {reader!r}, which needs it, in"
            f" stage {early}; a stage reads what earlier ones give; cut the model again"
        )


# --- stages


def _giver(steps: Sequence[Step], maker: Mapping[str, int], name: str, first: list[int]) -> int:
    """Return the stage that hands on a tensor: the first that makes it."""
    if name in maker:
        return steps[maker[name]].stages[0]
    return first[0] if first else 0


def _stage_plan(
    stage: int, steps: Sequence[Step], placing: _Placing, giver: Mapping[str, int]
) -> StagePlan:
    own = tuple(i for i, step in enumerate(steps) if stage in step.stages)
    frozen = tuple(i for i, step in enumerate(steps) if stage in step.frozen)
    made = {name for i in (*own, *frozen) for name in steps[i].node.output if name}
    reads = dict.fromkeys(name for i in own for name in steps[i].reads if name not in made)
    outputs: list[str] = []
    for name, source in giver.items():
        if source != stage or name in placing.inputs:
            continue
        later = name in made and any(
            reader > stage and not _has_own(steps, placing, name, reader)
            for reader in placing.need.get(name, ())
        )
        if name in placing.outputs or later:
            outputs.append(name)
    kept = {name for name in outputs if name not in made}  # weights that are outputs
    return StagePlan(
        stage,
        own,
        frozen,
        frozenset(name for name in reads if name in placing.weights) | kept,
        tuple(name for name in reads if name not in placing.weights),
        tuple(outputs),
    )


def _has_own(steps: Sequence[Step], placing: _Placing, name: str, stage: int) -> bool:
    step = steps[placing.maker[name]]
    return stage in step.stages or stage in step.frozen
