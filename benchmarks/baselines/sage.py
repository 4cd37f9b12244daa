"""DIPPM's network: GraphSAGE on the chain of operators with weights, in plain PyTorch.

As described in `model_level/NOTES.md`, section 6: three blocks of two GraphSAGE layers with mean
aggregation (Hamilton et al., NeurIPS 2017), sum pooling, five figures of the whole model beside it
(batch, MACs, convolutions, dense layers, rectifiers), three dense layers of 512, Huber loss on
scaled targets, Adam. In a chain every node has one neighbour, the node before it, so that the mean
over neighbours is a shift.

What differs, all in its favour: nodes are those of one image, so that a graph is encoded once a
step for all its rows (some ten times the epochs in the same time); inputs are scaled; one-hots of
the file stand beside the five figures, since it serves 18; learning rate and width are chosen for
the time given. `target` is 'ms' as described (milliseconds, outputs through -logsigmoid) or 'log'
(logarithm of the time an image, which a relative error wants).
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.cases import Cases
from benchmarks.baselines.chain import WIDTH

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_log = logging.getLogger(__name__)

BLOCKS, LAYERS_A_BLOCK = 3, 2
DENSE, DENSE_LAYERS = 512, 3
POOL_SCALE = 100.0  # nodes of a usual model: sums of hundreds start Adam badly
WARM_UP = 0.02


@dataclass(frozen=True, slots=True)
class Settings:
    """`hidden` width, peak learning `rate`, `graphs` a step, `target` 'ms' or 'log'."""

    hidden: int = 512
    rate: float = 1e-3
    graphs: int = 16
    target: str = "log"
    cpu_seconds: float = 600.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Network:
    own: Any
    before: Any
    head: Any


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Tensors: `nodes` [all nodes, WIDTH], `beside` [rows, 5 + files], `target` [rows]; `rows`:
    of each graph."""

    nodes: Any
    starts: list[int]
    beside: Any
    target: Any
    rows: list[list[int]]


def predict_held_out(cases: Cases, held_out: Mask, settings: Settings) -> Floats:
    """Return the predicted seconds of the held-out rows, learned from the others.

    Trains for `cpu_seconds` of this process, schedule included; steps, and so the result, depend
    on the machine.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    scale = _Scale.of(cases, held_out, settings.target)
    inputs = _inputs(cases, scale, ~held_out)
    network = _network(settings, inputs.beside.shape[1])
    steps = _train(network, inputs, settings)
    everything = _inputs(cases, scale, held_out)
    made = np.zeros(len(cases.batch))
    with torch.no_grad():
        for graphs in _batches(range(len(everything.rows)), everything, 64):
            out, rows = _outputs(network, everything, graphs, settings.target)
            made[rows] = out.numpy()
    _log.info("%d steps of %d graphs", steps, settings.graphs)
    return scale.seconds(made, cases)[held_out]


@dataclass(frozen=True, slots=True)
class _Scale:
    """What figures and targets are scaled by, of the training rows alone."""

    target: str
    mean: float
    spread: float
    beside_mean: Floats
    beside_spread: Floats

    @staticmethod
    def of(cases: Cases, held_out: Mask, target: str) -> "_Scale":
        logs = np.log(cases.measured_s / cases.batch)[~held_out]
        beside = _five(cases)[~held_out]
        spread = np.maximum(beside.std(axis=0), 1e-6)
        return _Scale(target, float(logs.mean()), float(logs.std()), beside.mean(axis=0), spread)

    def targets(self, cases: Cases) -> Floats:
        if self.target == "ms":
            return cases.measured_s * 1e3
        return np.asarray((np.log(cases.measured_s / cases.batch) - self.mean) / self.spread)

    def seconds(self, made: Floats, cases: Cases) -> Floats:
        if self.target == "ms":
            return np.maximum(made / 1e3, 1e-6)
        return np.asarray(np.exp(made * self.spread + self.mean) * cases.batch)

    def beside(self, cases: Cases) -> Floats:
        five = (_five(cases) - self.beside_mean) / self.beside_spread
        made: Floats = np.concatenate([five, cases.file_one_hot], axis=1)
        return made


def _five(cases: Cases) -> Floats:
    told = [cases.batch, cases.gmacs * cases.batch, *cases.counts[cases.graph].T]
    made: Floats = np.log1p(np.stack(told, axis=1))
    return made


def _inputs(cases: Cases, scale: _Scale, taken: Mask) -> _Inputs:
    import torch

    rows: list[list[int]] = [[] for _ in range(len(cases.starts) - 1)]
    for i in np.flatnonzero(taken).tolist():
        rows[cases.graph[i]].append(i)
    return _Inputs(
        torch.from_numpy(cases.nodes),
        cases.starts.tolist(),
        torch.from_numpy(scale.beside(cases).astype(np.float32)),
        torch.from_numpy(scale.targets(cases).astype(np.float32)),
        rows,
    )


def _network(settings: Settings, beside: int) -> _Network:
    from torch.nn import Linear, ModuleList, ReLU, Sequential

    layers = BLOCKS * LAYERS_A_BLOCK
    widths = [WIDTH, *[settings.hidden] * layers]
    own = ModuleList(Linear(widths[i], widths[i + 1]) for i in range(layers))
    before = ModuleList(Linear(widths[i], widths[i + 1], bias=False) for i in range(layers))
    sizes = [settings.hidden + beside, *[DENSE] * DENSE_LAYERS]
    dense = [
        part for i in range(DENSE_LAYERS) for part in (Linear(sizes[i], sizes[i + 1]), ReLU())
    ]
    return _Network(own, before, Sequential(*dense, Linear(DENSE, 1)))


def _train(network: _Network, inputs: _Inputs, settings: Settings) -> int:
    import torch
    from torch.nn.functional import huber_loss

    modules = (network.own, network.before, network.head)
    adam = torch.optim.Adam([each for module in modules for each in module.parameters()])
    rng = np.random.default_rng(settings.seed)
    known = [i for i, rows in enumerate(inputs.rows) if rows]
    start, steps = time.process_time(), 0
    while True:
        for graphs in _batches(rng.permutation(known).tolist(), inputs, settings.graphs):
            part = (time.process_time() - start) / settings.cpu_seconds
            if part >= 1.0:
                return steps
            for group in adam.param_groups:
                group["lr"] = settings.rate * _schedule(part)
            out, rows = _outputs(network, inputs, graphs, settings.target)
            loss = huber_loss(out, inputs.target[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
            steps += 1


def _schedule(part: float) -> float:
    """Return the part of the peak rate after a part of the time: a short rise, then a cosine."""
    if part < WARM_UP:
        return part / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP)))


def _batches(order: Sequence[int], inputs: _Inputs, size: int) -> list[list[int]]:
    its = [i for i in order if inputs.rows[i]]
    return [its[i : i + size] for i in range(0, len(its), size)]


def _outputs(
    network: _Network, inputs: _Inputs, graphs: Sequence[int], target: str
) -> tuple[Any, list[int]]:
    """Return the outputs of all rows of some graphs, and which rows these are."""
    import torch
    from torch.nn.functional import logsigmoid, relu

    starts = inputs.starts
    lengths = torch.tensor([starts[i + 1] - starts[i] for i in graphs])
    nodes = torch.cat([inputs.nodes[starts[i] : starts[i + 1]] for i in graphs])
    owner = torch.repeat_interleave(torch.arange(len(graphs)), lengths)
    for own, before in zip(network.own, network.before, strict=True):
        nodes = relu(own(nodes) + shifted(before(nodes), owner))
    pooled = torch.zeros(len(graphs), nodes.shape[1]).index_add(0, owner, nodes) / POOL_SCALE
    rows = [row for i in graphs for row in inputs.rows[i]]
    of = torch.repeat_interleave(
        torch.arange(len(graphs)), torch.tensor([len(inputs.rows[i]) for i in graphs])
    )
    out = network.head(torch.cat([pooled[of], inputs.beside[rows]], dim=1))[:, 0]
    return (-logsigmoid(out) if target == "ms" else out), rows


def shifted(nodes: Any, owner: Any) -> Any:
    """Return for each node the mean over its neighbours: what the node before it in the same
    graph holds, nothing for the first."""
    import torch

    moved = torch.cat([torch.zeros_like(nodes[:1]), nodes[:-1]])
    is_first = torch.cat([torch.ones_like(owner[:1], dtype=torch.bool), owner[1:] != owner[:-1]])
    return moved.masked_fill(is_first[:, None], 0.0)
