"""Finds the repeated block of a model, and says a cut between its layers as others write it.

`torch.distributed.pipelining` takes the paths of modules at which a stage begins, vLLM the number
of layers of each stage. Where a node is from is read from its path (`layers.3.attn.proj`,
`/model/layers.3/attn/MatMul`). No graph is cut here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slicewise.core.errors import PartitionError
from slicewise.core.graph import Graph, Node

# A path is cut at dots and slashes; `layer_3` and `layer3.0` are other spellings of a layer.
_SEPARATOR = re.compile(r"[./]+")


@dataclass(frozen=True, slots=True)
class Layer:
    """One repetition of a block: the path of the list that holds it, and its number in it."""

    block: str
    index: int

    @property
    def path(self) -> str:
        """The path of the module."""
        return f"{self.block}.{self.index}"


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers in the order in which data goes through them, and the layer of each node.

    Nodes before, after and between the layers belong to the last layer that they follow, the
    first where they follow none.
    """

    layers: tuple[Layer, ...]
    layer_of: tuple[int, ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Nodes by index that share a stage when cuts fall between layers only."""
        found: list[list[int]] = [[] for _ in self.layers]
        for node, layer in enumerate(self.layer_of):
            found[layer].append(node)
        return tuple(tuple(group) for group in found if group)

    @property
    def is_one_block(self) -> bool:
        """True if all layers are of the same list, numbered from 0 in order."""
        return [(each.block, each.index) for each in self.layers] == [
            (self.layers[0].block, i) for i in range(len(self.layers))
        ]


@dataclass(frozen=True, slots=True)
class SplitPoints:
    """A cut between layers: `begins` the layer at which each stage but the first begins, `counts`
    the layers of each stage; `vllm` is None where vLLM cannot say it."""

    begins: tuple[str, ...]
    counts: tuple[int, ...]
    vllm: str | None

    @property
    def pipelining(self) -> str:
        """The split specification of `torch.distributed.pipelining.pipeline`, as Python.

        Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html (`SplitPoint`).
        """
        lines = [f"    {path!r}: SplitPoint.BEGINNING,\n" for path in self.begins]
        return (
            "from torch.distributed.pipelining import SplitPoint\n\n"
            f"split_spec = {{\n{''.join(lines)}}}\n"
        )


def find_layers(graph: Graph) -> Layers:
    """Return the layers of the repeated blocks of a graph.

    `PartitionError` where there is none, or layers that read what later ones give.
    """
    paths = [_path(node) for node in graph.nodes]
    counts = Counter(path for path in paths if path is not None)
    repeated = Counter(block for block, _ in counts)
    chosen = {each for each in counts if repeated[each[0]] >= 2}
    # By its last node, which waits for all that the layer reads: a decoder begins beside its
    # encoder and ends behind it.
    last = {path: i for i, path in enumerate(paths) if path is not None and path in chosen}
    order = {path: i for i, path in enumerate(sorted(last, key=last.__getitem__))}
    if len(order) < 2:
        raise PartitionError(
            f"model {graph.name!r} has no block of layers that repeats, as `layers.0`, `layers.1`"
            " in the names of its nodes; cut it without --between-layers"
        )
    layer_of = tuple(_layers_of(graph, [order.get(p) if p else None for p in paths]))
    return Layers(tuple(Layer(*each) for each in order), layer_of)


def group_layers(
    layers: Layers, groups: Sequence[Sequence[int]], edges: Iterable[tuple[int, int]]
) -> Layers:
    """Return the layers over groups of nodes that are not cut apart, as kernels of a runtime are.

    A group that is in two layers, as one that ends the one and begins the next, belongs to the
    first, later ones where what it reads does. `groups` are in topological order, `edges` between
    them by index.
    """
    before = [0] * len(groups)
    reads: dict[int, list[int]] = {}
    for source, target in edges:
        reads.setdefault(target, []).append(source)
    for i, group in enumerate(groups):
        own = min((layers.layer_of[node] for node in group), default=0)
        before[i] = max([own, *(before[source] for source in reads.get(i, ()))])
    return Layers(layers.layers, tuple(before))


def split_points(layers: Layers, stage_of: Sequence[int]) -> SplitPoints:
    """Return the cut as split points; `stage_of` goes as `layers.layer_of` does.

    Stages without nodes are left out. `PartitionError` names a layer that is cut through, or a
    stage that comes back.
    """
    stages: list[int] = []
    for i, layer in enumerate(layers.layers):
        own = {stage_of[node] for node, of in enumerate(layers.layer_of) if of == i}
        if len(own) > 1:
            raise PartitionError(
                f"layer {layer.path!r} is in stages {sorted(own)}; split points fall between"
                " layers; cut with --between-layers"
            )
        stages.append(own.pop() if own else (stages[-1] if stages else 0))
    if stages != sorted(stages):
        raise PartitionError(
            "the layers do not go through the stages in order; cut with --between-layers"
        )
    counts = tuple(Counter(stages).values())
    begins = tuple(
        layer.path
        for layer, stage, before in zip(layers.layers[1:], stages[1:], stages[:-1], strict=True)
        if stage != before
    )
    vllm = ",".join(map(str, counts)) if layers.is_one_block else None
    return SplitPoints(begins, counts, vllm)


def split_points_text(points: SplitPoints) -> str:
    """Return both forms as a file for people and shells."""
    vllm = (
        # https://docs.vllm.ai/en/latest/configuration/env_vars.html
        f'# vLLM: VLLM_PP_LAYER_PARTITION="{points.vllm}"'
        f" with --pipeline-parallel-size {len(points.counts)}\n"
        if points.vllm is not None
        else "# vLLM: the layers are not one list, which VLLM_PP_LAYER_PARTITION asks for\n"
    )
    use = "# torch.distributed.pipelining.pipeline(module, mb_args, split_spec=split_spec)\n"
    return f"{vllm}{use}{points.pipelining}"


def _path(node: Node) -> tuple[str, int] | None:
    """Return the list and the number of the outermost layer that a node is in."""
    for text in (node.origin, node.name):
        parts = [part for part in _SEPARATOR.split(text) if part]
        for i, part in enumerate(parts):
            if part.isdecimal() and i:
                return ".".join(parts[:i]), int(part)
            spelt = re.fullmatch(r"(.*[A-Za-z])_([0-9]+)", part)
            if spelt and i < len(parts) - 1 and spelt[1].lower() in _WORDS:
                return ".".join([*parts[:i], spelt[1]]), int(spelt[2])
    return None


_WORDS = frozenset({"layer", "layers", "block", "blocks", "h"})


def _layers_of(graph: Graph, own: Sequence[int | None]) -> Iterator[int]:
    """Yield the layer of each node; `PartitionError` for a layer that reads a later one."""
    before = [0] * len(graph.nodes)
    for source, target, _ in graph.edges:
        # Edges come by target in topological order, so that sources are settled.
        layer = own[source]
        reached = before[source] if layer is None else layer
        mine = own[target]
        if mine is not None and reached > mine:
            raise PartitionError(
                f"node {graph.nodes[target].name!r} of an earlier layer reads"
                f" {graph.nodes[source].name!r} of a later one; cut without --between-layers"
            )
        before[target] = max(before[target], reached)
    for node, layer in enumerate(own):
        yield before[node] if layer is None else layer
