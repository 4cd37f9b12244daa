"""The network that scales the costs of kernels, its training and its export to ONNX.

    time of a kernel = sum over causes f of theta_f(context, conditions) x basis_f
    latency = (kernels^4 + launches^4)^(1/4) + host

theta is positive and knows neither batch nor size (`predict/context.py`, `predict/basis.py`).
Conditions are figures of the device's data sheet, runtime, layout and version, and learned
corrections for devices and runtimes that were seen. These are left out at random while training,
so that what the figures alone say is learned as well and serves a device never seen. The loss is
Huber's on the logarithm of predicted over measured: relative errors, outliers bounded. Several
networks from different seeds are averaged; a mean of sums is a sum, so nodes still add up.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slicewise.hardware.catalogue import find_device
from slicewise.predict.basis import BASIS
from slicewise.predict.conditions import FIGURES, figures_of
from slicewise.predict.context import CONTEXT
from training.samples import Samples

Indices = NDArray[np.int64]
EMBEDDED = 8
CONDITION = 32
# Where training starts from: the roofline, a microsecond for each kernel, hardly anything else.
_START = {"roof": 0.0, "fill": 0.0, "hypotenuse": -1.0, "launch": -3.0}
_FAINT = -4.0
HOST_US = 20.0
LAUNCH_SHARPNESS = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network is made and trained.

    `forget`: how often a learned correction is left out; `dropout`: how often a part of what the
    network makes of a context is; `condition_decay`: the weight decay of what conditions change.
    What keeps theta near what was seen on contexts unlike any seen: `is_bounded`, both layers of
    the trunk saturate; `reach`, how many deviations a column of a context counts for at most;
    `largest`, the logarithm of the greatest theta.
    """

    hidden: int = 96
    width: int = 64
    epochs: int = 12
    batch: int = 256
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    forget: float = 0.25
    huber: float = 0.1
    dropout: float = 0.2
    condition_decay: float = 0.5
    is_bounded: bool = False
    reach: float = 6.0
    largest: float = 6.0
    members: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The devices and the conditions (runtime, precision, layout, version) that were seen; number
    0 stands for all others."""

    devices: tuple[str, ...]
    conditions: tuple[str, ...]

    def device(self, name: str) -> int:
        """Return the number of a device."""
        return self.devices.index(name) + 1 if name in self.devices else 0

    def condition(self, name: str) -> int:
        """Return the number of a condition."""
        return self.conditions.index(name) + 1 if name in self.conditions else 0


class Slowdowns(nn.Module):  # type: ignore[misc]
    """theta for kernels under conditions, and the factors on launches and host."""

    def __init__(self, vocabulary: Vocabulary, settings: Settings, contexts: Tensor) -> None:
        super().__init__()
        hidden, width, causes = settings.hidden, settings.width, len(BASIS)
        self.settings = settings
        self.random = np.random.default_rng(torch.initial_seed())
        self.register_buffer("mean", contexts.mean(0))
        self.register_buffer("scale", contexts.std(0).clamp_min(0.05))
        self.first = nn.Linear(len(CONTEXT), hidden)
        self.second = nn.Linear(hidden, width)
        self.device = nn.Embedding(len(vocabulary.devices) + 1, EMBEDDED)
        self.under = nn.Embedding(len(vocabulary.conditions) + 1, EMBEDDED)
        self.condition = nn.Linear(len(FIGURES) + 2 * EMBEDDED, CONDITION)
        self.modulate = nn.Linear(CONDITION, 2 * width)
        self.theta = nn.Linear(width, causes)
        self.theta_condition = nn.Linear(CONDITION, causes, bias=False)
        self.launch = nn.Linear(CONDITION, 1)
        self.host = nn.Linear(CONDITION, 1)
        for layer in (self.modulate, self.launch, self.host):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.host.bias, -1.0)
        for table in (self.device, self.under, self.theta_condition):
            nn.init.zeros_(table.weight)
        nn.init.normal_(self.theta.weight, 0.0, 0.03)
        self.theta.bias.data = torch.tensor([_START.get(name, _FAINT) for name in BASIS])

    def conditions(self, figures: Tensor, device: Tensor, under: Tensor, forget: float) -> Tensor:
        """Return the conditions of samples as vectors; row 0 of either table stays zero."""
        one, two = self.device(device), self.under(under)
        one, two = one * (device > 0)[:, None], two * (under > 0)[:, None]
        if forget and self.training:
            one = one * (torch.rand(len(one), 1) > forget)
            two = two * (torch.rand(len(two), 1) > forget)
        return torch.nn.functional.silu(self.condition(torch.cat([figures, one, two], 1)))

    def trunk(self, contexts: Tensor) -> Tensor:
        """Return what the network makes of contexts."""
        curve = torch.tanh if self.settings.is_bounded else torch.nn.functional.silu
        reach = self.settings.reach
        scaled = ((contexts - self.mean) / self.scale).clamp(-reach, reach)
        made: Tensor = self._dropped(curve(self.first(scaled)))
        return self._dropped(curve(self.second(made)))

    def _dropped(self, made: Tensor) -> Tensor:
        """Return what is left after dropout; one random byte decides on each number, which is
        ten times as fast as torch's own."""
        cut = round(self.settings.dropout * 256)
        if not self.training or not cut:
            return made
        bytes_ = self.random.integers(0, 256, made.shape, dtype=np.uint8)
        return made * (torch.from_numpy(bytes_ >= cut) * (256 / (256 - cut)))

    def factors(self, made: Tensor, place: Tensor, conditions: Tensor, sample: Tensor) -> Tensor:
        """Return theta of kernels: [entries, causes].

        `made` has a row for each distinct context, `place` the row of each kernel; `conditions`
        has a row for each sample, `sample` the row of each kernel.
        """
        gain, shift = self.modulate(conditions).chunk(2, 1)
        modulated = torch.addcmul(
            shift.index_select(0, sample),
            made.index_select(0, place),
            (1 + gain).index_select(0, sample),
        )
        told = self.theta_condition(conditions).index_select(0, sample)
        theta: Tensor = self.theta(modulated) + told
        return torch.exp(theta.clamp(-12, self.settings.largest))

    def kernels_us(self, factors: Tensor, basis_us: Tensor) -> Tensor:
        """Return the time of kernels, given theta and costs: one row of both for each."""
        return (factors * basis_us).sum(1)


@dataclass(slots=True)
class Inputs:
    """Samples as tensors."""

    samples: Samples
    contexts: Tensor
    context: Tensor
    basis_us: Tensor
    count: Tensor
    figures: Tensor
    device: Tensor
    under: Tensor
    launches_us: Tensor
    is_alone: Tensor
    measured_us: Tensor


def condition_name(runtime: str, precision: str, layout: str, version: Sequence[int]) -> str:
    """Return how a condition is called in a vocabulary."""
    return f"{runtime} {precision} {layout} {'.'.join(map(str, version[:2])) or '-'}"


def vocabulary_of(samples: Samples) -> Vocabulary:
    """Return the devices and conditions of samples."""
    return Vocabulary(
        tuple(sorted({row.device for row in samples.rows})),
        tuple(sorted({condition_name(r.runtime, r.precision, r.layout, r.version)
                      for r in samples.rows})),
    )  # fmt: skip


def inputs_of(samples: Samples, vocabulary: Vocabulary) -> Inputs:
    """Return samples as tensors."""
    rows = samples.rows
    devices = {row.device: find_device(row.device) for row in rows}
    figures = {
        key: figures_of(devices[key[0]], runtime=key[1], layout=key[2], version=key[3])
        for key in {(row.device, row.runtime, row.layout, row.version) for row in rows}
    }
    launch = np.array([devices[row.device].launch_s * 1e6 for row in rows])
    number = np.add.reduceat(samples.count, samples.starts[:-1])

    def floats(values: object) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    return Inputs(
        samples,
        floats(samples.contexts),
        torch.tensor(samples.context),
        floats(samples.basis),
        floats(samples.count),
        floats([figures[row.device, row.runtime, row.layout, row.version] for row in rows]),
        torch.tensor([vocabulary.device(row.device) for row in rows]),
        torch.tensor([
            vocabulary.condition(condition_name(r.runtime, r.precision, r.layout, r.version))
            for r in rows
        ]),
        floats(launch * number),
        floats([row.runtime in ALONE for row in rows]),
        floats([row.latency_s * 1e6 for row in rows]),
    )  # fmt: skip


# Ways in which kernels are measured alone: no host time is in them.
ALONE = frozenset({"replayed", "library"})


def latency_us(network: Slowdowns, inputs: Inputs, which: Indices, forget: float = 0.0) -> Tensor:
    """Return the latency of some samples."""
    return _timed(network, inputs, which, forget).total_us


@dataclass(slots=True)
class _Timed:
    """Latencies of samples; the kernels' own times, each with its sample and entry; and by how
    much launches stretch those of a sample."""

    total_us: Tensor
    kernels_us: Tensor
    sample: Tensor
    entry: Tensor
    stretch: Tensor
    host_us: Tensor


def _timed(network: Slowdowns, inputs: Inputs, which: Indices, forget: float) -> _Timed:
    starts = inputs.samples.starts
    lengths = starts[which + 1] - starts[which]
    ends = np.cumsum(lengths)
    entries = np.repeat(starts[which] - (ends - lengths), lengths) + np.arange(ends[-1])
    sample = torch.tensor(np.repeat(np.arange(len(which)), lengths))
    entry, its = torch.tensor(entries), torch.tensor(which)
    distinct, place = torch.unique(inputs.context[entry], return_inverse=True)
    made = network.trunk(inputs.contexts.index_select(0, distinct))
    conditions = network.conditions(
        inputs.figures[its], inputs.device[its], inputs.under[its], forget
    )
    factors = network.factors(made, place, conditions, sample)
    kernels = network.kernels_us(factors, inputs.basis_us.index_select(0, entry))
    kernels = kernels * inputs.count[entry]
    busy = torch.zeros(len(which)).index_add_(0, sample, kernels)
    launches = inputs.launches_us[its] * torch.exp(network.launch(conditions)[:, 0])
    host = HOST_US * torch.exp(network.host(conditions)[:, 0])
    seen = 1 - inputs.is_alone[its]
    power = LAUNCH_SHARPNESS
    together = (busy**power + (launches * seen) ** power) ** (1 / power)
    host = host * seen
    return _Timed(together + host, kernels, sample, entry, together / busy, host)


def classes_us(
    networks: Sequence[Slowdowns], inputs: Inputs, which: Indices, class_of: Indices, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the time of the kernels of each class, [samples, count], and that of the host, means
    over the members. `class_of` is the class of each distinct context."""
    made, host = np.zeros((len(which), count)), np.zeros(len(which))
    with torch.no_grad():
        for start in range(0, len(which), 512):
            its = which[start : start + 512]
            for network in networks:
                timed = _timed(network, inputs, its, 0.0)
                of = class_of[inputs.context[timed.entry].numpy()]
                place = timed.sample.numpy() * count + of
                stretched = (timed.kernels_us * timed.stretch[timed.sample]).numpy()
                sums = np.bincount(place, weights=stretched, minlength=len(its) * count)
                made[start : start + 512] += sums.reshape(len(its), count) / len(networks)
                host[start : start + 512] += timed.host_us.numpy() / len(networks)
    return made, host


def fit(
    inputs: Inputs, which: Indices, vocabulary: Vocabulary, settings: Settings, *,
    weights: NDArray[np.float64] | None = None, told: Callable[[str], None] = lambda text: None,
) -> list[Slowdowns]:  # fmt: skip
    """Return the networks trained on some of the samples; `weights` are those of all samples."""
    members = []
    for member in range(settings.members):
        started = time.process_time()
        network = _fit_one(inputs, which, vocabulary, settings, settings.seed + member, weights)
        members.append(network)
        told(f"member {member + 1}: {time.process_time() - started:.0f} CPU s")
    return members


def _fit_one(
    inputs: Inputs, which: Indices, vocabulary: Vocabulary, settings: Settings, seed: int,
    weights: NDArray[np.float64] | None,
) -> Slowdowns:  # fmt: skip
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = Slowdowns(vocabulary, settings, inputs.contexts)
    weight = torch.ones(len(inputs.samples.rows))
    if weights is not None:
        weight = torch.tensor(weights, dtype=torch.float32)
    # rows of one model follow each other, so that a step needs few distinct contexts
    keys = np.array([inputs.samples.rows[i].key for i in which])
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
    groups = np.split(which[order], cuts)
    steps = settings.epochs * math.ceil(len(which) / settings.batch)
    told = [network.modulate, network.theta_condition, network.device, network.under]
    ids = {id(each) for layer in told for each in layer.parameters()}
    optimiser = torch.optim.AdamW(
        [
            {"params": [each for each in network.parameters() if id(each) not in ids]},
            {
                "params": [each for layer in told for each in layer.parameters()],
                "weight_decay": settings.condition_decay,
            },
        ],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.learning_rate, total_steps=steps + 1, pct_start=0.15
    )
    for _ in range(settings.epochs):
        network.train()
        shuffled = np.concatenate([groups[i] for i in random.permutation(len(groups))])
        for start in range(0, len(shuffled), settings.batch):
            its = shuffled[start : start + settings.batch]
            made = latency_us(network, inputs, its, settings.forget)
            error = torch.log(made) - torch.log(inputs.measured_us[torch.tensor(its)])
            losses = torch.nn.functional.huber_loss(
                error, torch.zeros_like(error), delta=settings.huber, reduction="none"
            )
            loss = (losses * weight[torch.tensor(its)]).mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    network.eval()
    return network


def predict_us(
    networks: Sequence[Slowdowns], inputs: Inputs, which: Indices, *, step: int = 512
) -> NDArray[np.float64]:
    """Return the latency of each member for some samples: [members, samples]."""
    made = []
    with torch.no_grad():
        for network in networks:
            parts = [
                latency_us(network, inputs, which[start : start + step]).numpy()
                for start in range(0, len(which), step)
            ]
            made.append(np.concatenate(parts))
    return np.stack(made).astype(np.float64)
