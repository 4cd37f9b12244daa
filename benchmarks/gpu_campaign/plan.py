"""What a campaign measures, in the order in which an early stop leaves a balanced set.

Tables and seeded draws only: no framework is imported and nothing is run.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SEED = 20240
# Nominal shares of the SMs in percent; the whole first, since the others are compared with it.
SHARES = (100, 25, 50, 12, 75)


@dataclass(frozen=True, slots=True)
class ModelPoint:
    """One model under one set of conditions; `location` is a zoo name of slicewise.

    `share_percent` None is a point without a bound share.
    """

    location: str
    family: str
    batch: int
    precision: str
    runtime: str = "torch-eager"
    share_percent: int | None = None


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One kernel in bf16: `kind` is gemm, conv, attention or elementwise, `sizes` its shape."""

    kind: str
    op: str
    sizes: Mapping[str, int] = field(default_factory=dict)


# (location, family), neighbours of different families.
MODELS: tuple[tuple[str, str], ...] = (
    ("timm:resnet50", "cnn"),
    ("transformers:bert?seq=128", "bert"),
    ("timm:vit_base_patch16_224", "vit"),
    ("timm:mobilenetv3_large_100", "depthwise"),
    ("timm:swin_tiny_patch4_window7_224", "swin"),
    ("transformers:llama?num_hidden_layers=4&seq=256", "llm"),
    ("timm:convnext_tiny", "convnext"),
    ("timm:mixer_b16_224", "mlp"),
    ("transformers:gpt2?seq=128", "gpt"),
    ("timm:efficientnet_b0", "depthwise"),
    ("transformers:t5?seq=128", "encoder-decoder"),
    ("timm:regnety_016", "cnn"),
    ("transformers:whisper", "speech"),
    ("timm:densenet121", "cnn"),
    ("timm:deit_small_patch16_224", "vit"),
    ("transformers:distilbert?seq=256", "bert"),
    ("timm:coatnet_0_rw_224", "hybrid"),
    ("transformers:opt?seq=64", "llm"),
    ("timm:vgg16", "cnn"),
    ("timm:poolformer_s12", "mlp"),
    ("transformers:wav2vec2", "speech"),
    ("timm:mobilevit_s", "hybrid"),
    ("timm:resnext50_32x4d", "cnn"),
    ("transformers:bert?seq=512&num_hidden_layers=6", "bert"),
    ("timm:efficientnetv2_rw_s", "depthwise"),
    ("transformers:clip", "two towers"),
    ("timm:maxvit_tiny_tf_224", "hybrid"),
    ("transformers:mistral?num_hidden_layers=2&seq=512", "llm"),
    ("timm:resmlp_12_224", "mlp"),
    ("timm:inception_v3", "cnn"),
    ("transformers:segformer", "hybrid"),
    ("timm:convnextv2_nano", "convnext"),
    ("timm:ghostnet_100", "depthwise"),
    ("transformers:electra?seq=128", "bert"),
    ("timm:vit_large_patch16_224", "vit"),
    ("timm:resnet18", "cnn"),
    ("timm:beit_base_patch16_224", "vit"),
    ("transformers:bart?seq=64", "encoder-decoder"),
    ("timm:levit_256", "hybrid"),
    ("timm:resnet152", "cnn"),
)
# Conditions of a model, one row after the other down the list of models. Floating-point types go
# from wide to narrow, so that one set of weights is cast in place.
CONDITIONS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("fp32", 8), ("tf32", 32), ("fp16", 1), ("bf16", 1), ("bf16", 32), ("bf16", 128)),
    (("fp32", 1), ("amp", 8), ("fp16", 32), ("bf16", 1), ("bf16", 8), ("bf16", 64)),
    (("fp32", 32), ("tf32", 1), ("amp", 1), ("bf16", 2), ("bf16", 16), ("bf16", 128)),
    (("tf32", 8), ("amp", 64), ("fp16", 8), ("bf16", 1), ("bf16", 4), ("bf16", 32)),
)
COMPILED = (
    "timm:resnet50", "transformers:bert?seq=128", "timm:vit_base_patch16_224",
    "timm:mobilenetv3_large_100", "transformers:gpt2?seq=128", "timm:convnext_tiny",
    "timm:mixer_b16_224", "transformers:llama?num_hidden_layers=4&seq=256",
    "timm:swin_tiny_patch4_window7_224", "timm:efficientnet_b0", "timm:regnety_016",
    "timm:deit_small_patch16_224",
)  # fmt: skip
COMPILED_CONDITIONS = (
    ("bf16", 32), ("bf16", 1), ("fp16", 8), ("bf16", 128), ("tf32", 16), ("amp", 32),
)  # fmt: skip
SHARED = (
    "timm:resnet50", "transformers:bert?seq=128", "timm:vit_base_patch16_224",
    "timm:mobilenetv3_large_100", "transformers:gpt2?seq=128", "timm:convnext_tiny",
    "timm:swin_tiny_patch4_window7_224", "timm:mixer_b16_224",
    "transformers:llama?num_hidden_layers=4&seq=256", "timm:efficientnet_b0",
    "transformers:t5?seq=128", "timm:densenet121",
)  # fmt: skip
SMOKE_MODELS = (
    ("timm:test_resnet", "cnn"),
    (
        "transformers:bert?num_hidden_layers=1&hidden_size=64&num_attention_heads=2&intermediate_size=128&seq=16",
        "bert",
    ),
    ("timm:no_such_model", "cnn"),  # a row with an error text is part of the claim
)


def eager_points(*, smoke: bool) -> list[ModelPoint]:
    """Return the points of torch eager: 40 models, 6 conditions each (2 in a smoke test)."""
    if smoke:
        return [
            ModelPoint(location, family, batch, precision)
            for location, family in SMOKE_MODELS
            for precision, batch in (("fp32", 1), ("bf16", 2))
        ]
    return [
        ModelPoint(location, family, batch, precision)
        for i, (location, family) in enumerate(MODELS)
        for precision, batch in CONDITIONS[i % len(CONDITIONS)]
    ]


def compiled_points(*, smoke: bool) -> list[list[ModelPoint]]:
    """Return the points of torch.compile, a list for each model and so for each process."""
    families = dict(SMOKE_MODELS if smoke else MODELS)
    locations = (SMOKE_MODELS[0][0],) if smoke else COMPILED
    conditions = (("fp32", 1),) if smoke else COMPILED_CONDITIONS
    return [
        [
            ModelPoint(location, families[location], batch, precision, "torch-compile")
            for precision, batch in conditions
        ]
        for location in locations
    ]


def share_points(*, smoke: bool) -> list[ModelPoint]:
    """Return 12 models x batch 32 and 1 x shares in bf16, all shares of a model in a row."""
    families = dict(SMOKE_MODELS if smoke else MODELS)
    locations = tuple(families)[:2] if smoke else SHARED
    return [
        ModelPoint(location, families[location], batch, "bf16", share_percent=share)
        for location in locations
        for batch in ((1,) if smoke else (32, 1))
        for share in SHARES
    ]


# --- kernels

MOST_FLOPS = 3e12  # about 4 ms at 790 TFLOP/s
MOST_BYTES = 4e9
_COUNTS = {"gemm": 60, "conv": 60, "attention": 40, "elementwise": 40}


def kernel_points(*, smoke: bool, seed: int = SEED) -> list[KernelPoint]:
    """Return 200 kernels, shapes spread log-uniformly, kinds by turns; the same for one seed."""
    dice = random.Random(seed)
    made = {
        kind: [_drawn(kind, dice, smoke=smoke) for _ in range(2 if smoke else count)]
        for kind, count in _COUNTS.items()
    }
    return list(_by_turns(list(made.values())))


def _drawn(kind: str, dice: random.Random, *, smoke: bool) -> KernelPoint:
    """Return a kernel that is not over the limits: about a millisecond at most, 4 GB at most."""
    flops, moved = (1e7, 1e6) if smoke else (MOST_FLOPS, MOST_BYTES)
    while True:
        point = _DRAWS[kind](dice)
        cost = work_of(point)
        if cost[0] <= flops and cost[1] <= moved:
            return point


def _log_uniform(dice: random.Random, low: int, high: int, *, step: int = 1) -> int:
    drawn = math.exp(dice.uniform(math.log(low), math.log(high)))
    return max(step, round(drawn / step) * step)


def _gemm(dice: random.Random) -> KernelPoint:
    is_batched = dice.random() < 0.2
    top = 1024 if is_batched else 16384
    sizes = {
        "b": _log_uniform(dice, 4, 512) if is_batched else 1,
        "m": _log_uniform(dice, 1, top),
        "n": _log_uniform(dice, 64, top, step=8),
        "k": _log_uniform(dice, 64, top, step=8),
    }
    return KernelPoint("gemm", "bmm" if is_batched else "linear", sizes)


def _conv(dice: random.Random) -> KernelPoint:
    channels = _log_uniform(dice, 16, 1024, step=8)
    is_depthwise = dice.random() < 0.25
    kernel = dice.choice((3, 5, 7) if is_depthwise else (1, 1, 3, 3, 5, 7))
    sizes = {
        "n": _log_uniform(dice, 1, 128),
        "c": channels,
        "out": channels if is_depthwise else _log_uniform(dice, 16, 1024, step=8),
        "hw": _log_uniform(dice, 7, 224),
        "kernel": kernel,
        "stride": dice.choice((1, 1, 1, 2)),
        "groups": channels if is_depthwise else 1,
    }
    return KernelPoint("conv", "depthwise" if is_depthwise else "conv2d", sizes)


def _attention(dice: random.Random) -> KernelPoint:
    keys = _log_uniform(dice, 32, 8192)
    is_decode = dice.random() < 0.25
    sizes = {
        "b": _log_uniform(dice, 1, 64),
        "heads": _log_uniform(dice, 4, 32),
        "q": 1 if is_decode else keys,
        "kv": keys,
        "d": dice.choice((32, 64, 64, 128)),
        "causal": 0 if is_decode else dice.choice((0, 1)),
    }
    return KernelPoint("attention", "decode" if is_decode else "sdpa", sizes)


# Tensors of the output's size that are read or written, and arithmetic per element.
ELEMENTWISE: Mapping[str, tuple[int, int]] = {
    "relu": (2, 1), "gelu": (2, 8), "silu": (2, 5), "add": (3, 1), "mul": (3, 1),
    "layer_norm": (2, 8), "softmax": (2, 5), "sum": (1, 1), "transpose": (2, 0),
}  # fmt: skip


def _elementwise(dice: random.Random) -> KernelPoint:
    op = dice.choice(sorted(ELEMENTWISE))
    columns = _log_uniform(dice, 64, 16384, step=8)
    rows = _log_uniform(dice, 16, 500_000)
    return KernelPoint("elementwise", op, {"rows": rows, "columns": columns})


_DRAWS = {"gemm": _gemm, "conv": _conv, "attention": _attention, "elementwise": _elementwise}


def work_of(point: KernelPoint) -> tuple[int, int]:
    """Return flops (a multiply-add is 2) and bytes of inputs and outputs, each counted once."""
    s = point.sizes
    if point.kind == "gemm":
        flops = 2 * s["b"] * s["m"] * s["n"] * s["k"]
        cells = s["b"] * (s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"])
    elif point.kind == "conv":
        side = (s["hw"] - 1) // s["stride"] + 1  # padding kernel // 2
        weights = s["out"] * s["c"] // s["groups"] * s["kernel"] ** 2
        flops = 2 * s["n"] * side**2 * weights
        cells = s["n"] * (s["c"] * s["hw"] ** 2 + s["out"] * side**2) + weights
    elif point.kind == "attention":
        pairs = s["b"] * s["heads"] * s["q"] * s["kv"]
        # a causal mask leaves a little over half of the pairs
        flops = 4 * pairs * s["d"] // (2 if s["causal"] else 1)
        cells = 2 * s["b"] * s["heads"] * s["d"] * (s["q"] + s["kv"])
    else:
        tensors, per_element = ELEMENTWISE[point.op]
        cells = tensors * s["rows"] * s["columns"]
        flops = per_element * s["rows"] * s["columns"]
    return flops, 2 * cells


def _by_turns(groups: Sequence[Sequence[KernelPoint]]) -> Iterator[KernelPoint]:
    """Yield from all groups in proportion to their length, so that any prefix is balanced."""
    placed = [
        ((i + 0.5) / len(group), j, each)
        for j, group in enumerate(groups)
        for i, each in enumerate(group)
    ]
    yield from (each for _, _, each in sorted(placed, key=lambda row: row[:2]))
