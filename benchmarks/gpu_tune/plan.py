"""Which kernels, which configurations, on how many SMs, and who tunes what.

Kernels are those of real models in bf16: ResNet-50 at batch 8, BERT-base at batch 8 and 128 words,
a Llama layer of width 4096 at 512 words.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import write_config
from slicewise.tune.backends.triton.spaces import Target, default_config, space_of, spread

SMS = (16, 32, 64, 96, 128)
LANE_SMS = 32  # of a tuner: four of them fit on 132 SMs
TUNERS = ((1, 4), (2, 8), (4, 16), (1, 16))  # (tuners, compiling processes in all)
CONFIGS = 32  # of a kernel in the sweep
MOST_TUNED, LEAST_TUNED = 24, 6  # of a kernel in a tuners' run
COMPILERS = 16
SEED = 20


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a model; `count` is how often the model has it."""

    name: str
    op: Operation
    count: int


def _conv(
    c: int, o: int, side: int, kernel: int, *, stride: int = 1, residual: int = 0, n: int = 8
) -> Operation:
    pad = kernel // 2
    out = (side + 2 * pad - kernel) // stride + 1
    return Operation.make(
        "conv", "bf16", n=n, c=c, h=side, w=side, o=o, kh=kernel, kw=kernel, stride_h=stride,
        stride_w=stride, pad_h=pad, pad_w=pad, out_h=out, out_w=out, dilation_h=1, dilation_w=1,
        bias=1, residual=residual, activation=1,
    )  # fmt: skip


def _linear(m: int, k: int, n: int, **more: int) -> Operation:
    return Operation.make("matmul", "bf16", batch=1, m=m, n=n, k=k, trans_b=1, **more)


def _attention(heads: int, words: int, depth: int, *, batch: int, causal: int) -> Operation:
    return Operation.make(
        "attention", "bf16", number=depth**-0.5, batch=batch, heads=heads, kv_heads=heads,
        q=words, kv=words, depth=depth, causal=causal,
    )  # fmt: skip


_KERNELS = (
    Kernel("resnet50 conv1 7x7/2 3-64", _conv(3, 64, 224, 7, stride=2), 1),
    Kernel("resnet50 3x3 64-64 56", _conv(64, 64, 56, 3), 3),
    Kernel("resnet50 1x1 64-256 56 +res", _conv(64, 256, 56, 1, residual=1), 4),
    Kernel("resnet50 3x3 128-128 28", _conv(128, 128, 28, 3), 3),
    Kernel("resnet50 1x1 1024-256 14", _conv(1024, 256, 14, 1), 5),
    Kernel("bert 768-3072 gelu", _linear(1024, 768, 3072, bias=1, activation=2), 12),
    Kernel("bert 3072-768 +res", _linear(1024, 3072, 768, bias=1, residual=1), 12),
    Kernel("bert attention 12x128", _attention(12, 128, 64, batch=8, causal=0), 12),
    Kernel("bert layernorm 768", Operation.make(
        "norm", "bf16", number=1e-12, rows=1024, columns=768, scale=1, bias=1), 25),
    Kernel("llama 4096-11008", _linear(512, 4096, 11008), 2),
    Kernel("llama attention 32x512 causal", _attention(32, 512, 128, batch=1, causal=1), 1),
    Kernel("softmax 12288x512", Operation.make("softmax", "bf16", rows=12288, columns=512), 1),
)  # fmt: skip
_TINY = (
    Kernel("tiny product", Operation.make("matmul", "bf16", batch=1, m=40, n=24, k=32), 2),
    Kernel("tiny softmax", Operation.make("softmax", "bf16", rows=8, columns=70), 1),
    Kernel("tiny convolution", _conv(4, 8, 6, 3, n=1), 1),
)


def kernels(*, smoke: bool) -> tuple[Kernel, ...]:
    """Return the kernels of the run."""
    return _TINY if smoke else _KERNELS


def configs(op: Operation, count: int, *, capability: int, smallest_sms: int) -> tuple[str, ...]:
    """Return the default and configurations far from each other, `count` in all if there are.

    The space is that of the smallest share: what is good on many SMs is in it, too.
    """
    target = Target(capability, smallest_sms)
    space = space_of(op, target)
    default = write_config(default_config(op, target))
    order = random.Random(SEED).sample(range(len(space)), len(space))[:512]
    first = [i for i, config in enumerate(space) if write_config(config) == default]
    chosen = spread(space, count, [*first, *(i for i in order if i not in first)])
    return tuple(write_config(config) for config in chosen)


@dataclass(frozen=True, slots=True)
class Item:
    """A kernel with a configuration."""

    kernel: int
    config: str


def in_turn(chosen: Sequence[Sequence[str]]) -> list[Item]:
    """Return all items, kernels taking turns: every prefix is balanced."""
    longest = max(map(len, chosen), default=0)
    return [
        Item(number, each[place])
        for place in range(longest)
        for number, each in enumerate(chosen)
        if place < len(each)
    ]


def share_out(items: Sequence[Item], tuners: int, cost_s: Mapping[int, float]) -> list[list[Item]]:
    """Return each tuner's items: whole kernels, the dearest first to whoever has least."""
    own: list[set[int]] = [set() for _ in range(tuners)]
    loads = [0.0] * tuners
    for kernel in sorted(cost_s, key=lambda each: (-cost_s[each], each)):
        least = loads.index(min(loads))
        own[least].add(kernel)
        loads[least] += cost_s[kernel]
    return [[item for item in items if item.kernel in mine] for mine in own]


def tuned_count(seconds: float, kernel_count: int, compile_s: float) -> int:
    """Return how many configurations of a kernel the tuners' runs have time for."""
    a_config_s = kernel_count * max(compile_s, 1e-3) * sum(1 / clients for _, clients in TUNERS)
    return max(LEAST_TUNED, min(MOST_TUNED, int(seconds / a_config_s)))
