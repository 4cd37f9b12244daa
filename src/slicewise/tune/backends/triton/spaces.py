"""Which configurations of a kernel are worth trying on a device: values, rules, neighbours.

Nothing is compiled here. The rules throw out what cannot run (shared memory, registers, threads)
and what cannot be good (blocks far larger than the operator, most of the share idle).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import (
    LEAST_DOT,
    PARAMETERS,
    Config,
    count_programs,
    power_of_two,
)

WARP = 32  # threads
# Shared memory that one block of threads can have, in bytes, by compute capability: CUDA C++
# Programming Guide, Technical Specifications per Compute Capability.
_SHARED_BYTES = {
    70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10,
    90: 227 << 10, 100: 227 << 10, 103: 227 << 10, 110: 227 << 10, 120: 99 << 10, 121: 99 << 10,
}  # fmt: skip
# Same table: registers of 32 bits for a thread, and for an SM (and so for a block).
_THREAD_REGISTERS = 255
_SM_REGISTERS = 64 << 10
# Part of a thread's registers that sums may take: addresses, loop state and operands need the
# rest. More than that spills to memory.
_SUMS_PART = 0.75
# A product without matrix units is unrolled into single multiply-adds: beyond this many in a
# thread and step of the loop the compiler takes minutes.
_MOST_UNROLLED = 2048
# A configuration that keeps less than this part of the share's SMs busy is left out where another
# keeps more busy.
_LEAST_BUSY = 0.25
# Values of a row that one thread holds.
_MOST_ROW_VALUES = 64

_VALUES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "matmul": {
        "block_m": (16, 32, 64, 128, 256), "block_n": (16, 32, 64, 128, 256),
        "block_k": (16, 32, 64, 128), "group": (1, 8), "stages": (1, 2, 4), "warps": (2, 4, 8),
    },
    "conv": {
        "block_m": (16, 32, 64, 128, 256), "block_n": (16, 32, 64, 128, 256),
        "block_k": (16, 32, 64), "group": (1, 8), "stages": (1, 2, 4), "warps": (2, 4, 8),
    },
    "attention": {
        "block_q": (16, 32, 64, 128, 256), "block_kv": (16, 32, 64, 128),
        "stages": (1, 2, 4), "warps": (2, 4, 8),
    },
    "softmax": {
        "block_r": (1, 2, 4, 8, 16), "block_c": tuple(1 << n for n in range(5, 17)),
        "stages": (1, 2, 4), "warps": (1, 2, 4, 8, 16),
    },
    "norm": {
        "block_r": (1, 2, 4, 8, 16), "block_c": tuple(1 << n for n in range(5, 17)),
        "stages": (1, 2, 4), "warps": (1, 2, 4, 8, 16),
    },
}  # fmt: skip
# What a kernel runs with where nobody has tuned it: the middle of each row above that is known
# to run on every device; moved to the nearest allowed one where an operator is small.
_DEFAULTS: Mapping[str, Config] = {
    "matmul": {"block_m": 64, "block_n": 64, "block_k": 32, "group": 8, "stages": 2, "warps": 4},
    "conv": {"block_m": 64, "block_n": 64, "block_k": 32, "group": 8, "stages": 2, "warps": 4},
    "attention": {"block_q": 64, "block_kv": 32, "stages": 2, "warps": 4},
    "softmax": {"block_r": 1, "block_c": 1024, "stages": 1, "warps": 4},
    "norm": {"block_r": 1, "block_c": 1024, "stages": 1, "warps": 4},
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is compiled for: compute capability (90 is 9.0) and the share's SMs."""

    capability: int
    sms: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block can have; of an unknown capability that of the next lower."""
        known = [each for each in _SHARED_BYTES if each <= self.capability]
        return _SHARED_BYTES[max(known, default=min(_SHARED_BYTES))]


def space_of(op: Operation, target: Target) -> tuple[Config, ...]:
    """Return the configurations worth trying, in a fixed order; never empty."""
    able = [config for config in _every(op) if not why_not(op, config, target)]
    if not able:
        return (_DEFAULTS[op.kind],)
    programs = [count_programs(op, config) for config in able]
    wanted = min(max(programs), target.sms)
    kept = [c for c, count in zip(able, programs, strict=True) if count >= _LEAST_BUSY * wanted]
    return tuple(kept)


def why_not(op: Operation, config: Config, target: Target) -> str:
    """Return why a configuration cannot run or cannot be good there, '' where it may."""
    shared = estimate_shared_bytes(op, config)
    if shared > target.shared_bytes:
        return f"it needs {shared} bytes of shared memory, a block has {target.shared_bytes}"
    return _RULES[op.kind](op, config)


def default_config(op: Operation, target: Target) -> Config:
    """Return the configuration of an untuned kernel: that of the space nearest to the default."""
    space = space_of(op, target)
    middle = _DEFAULTS[op.kind]
    return min(space, key=lambda config: _distance(config, middle))


def neighbours(config: Config, space: Sequence[Config]) -> list[Config]:
    """Return those of the space that differ by one step in one parameter, or in two at most."""
    near = [(_distance(config, each), i) for i, each in enumerate(space)]
    return [space[i] for apart, i in sorted(near) if 0 < apart <= 2]


def _distance(one: Config, other: Config) -> float:
    """Return the steps from one to the other, a doubling being one."""
    return sum(abs(math.log2(one[name]) - math.log2(other[name])) for name in one)


def spread(space: Sequence[Config], count: int, order: Sequence[int]) -> list[Config]:
    """Return `count` configurations far from each other, the first one being `order[0]`.

    The greedy farthest-point choice (Gonzalez, Theor. Comput. Sci. 38, 1985) among those that
    `order` lists.
    """
    left = list(order)
    chosen = [left.pop(0)] if left else []
    apart = [_distance(space[i], space[chosen[0]]) for i in left] if chosen else []
    while left and len(chosen) < count:
        place = max(range(len(left)), key=apart.__getitem__)
        chosen.append(left.pop(place))
        apart.pop(place)
        taken = space[chosen[-1]]
        apart = [min(a, _distance(space[i], taken)) for a, i in zip(apart, left, strict=True)]
    return [space[i] for i in chosen]


def estimate_shared_bytes(op: Operation, config: Config) -> int:
    """Return the shared memory of a block in bytes: tiles of both operands in each stage.

    The compiler may need more (a change of layout); then the build says so.
    """
    each = op.bytes_each
    if op.kind in ("matmul", "conv"):
        tiles = (config["block_m"] + config["block_n"]) * config["block_k"]
        return tiles * each * config["stages"]
    if op.kind == "attention":
        depth = max(LEAST_DOT, power_of_two(op["depth"]))
        return (config["block_q"] + 2 * config["block_kv"] * config["stages"]) * depth * each
    return 0


def _every(op: Operation) -> Iterator[Config]:
    values = _VALUES[op.kind]
    names = PARAMETERS[op.kind]
    for row in itertools.product(*(values[name] for name in names)):
        yield dict(zip(names, row, strict=True))


def _too_large(block: int, size: int) -> bool:
    """True if a block is over the least that covers the size."""
    return block > max(LEAST_DOT, power_of_two(size))


def _sums(values: int, config: Config) -> str:
    """Return why so many sums of 32 bits do not fit the registers of a block's threads."""
    threads = config["warps"] * WARP
    allowed = _SUMS_PART * min(_THREAD_REGISTERS, _SM_REGISTERS / threads)
    if values / threads > allowed:
        return f"{values // threads} sums a thread are more than {allowed:.0f} registers"
    return ""


def _product_rule(op: Operation, config: Config) -> str:
    block_m, block_n, block_k = config["block_m"], config["block_n"], config["block_k"]
    if op.kind == "matmul":
        m, n, k, rows = op["m"], op["n"], op["k"], op["m"]
    else:
        m, n = op["n"] * op["out_h"] * op["out_w"], op["o"]
        k, rows = op["c"] * op["kh"] * op["kw"], m
    for name, block, size in (("m", block_m, m), ("n", block_n, n), ("k", block_k, k)):
        if _too_large(block, size):
            return f"block_{name}={block} is over the {size} there are"
    if config["group"] > 1 and rows <= block_m:
        return "one band of tiles needs no groups"
    if config["stages"] > 1 and k <= block_k * (config["stages"] - 1):
        return "the loop is shorter than its pipeline"
    threads = config["warps"] * WARP
    if block_m * block_n < 4 * threads:
        return f"{config['warps']} warps have under 4 results a thread"
    if op.precision == "fp32" and block_m * block_n * block_k / threads > _MOST_UNROLLED:
        return "an fp32 product of this size is unrolled too far"
    return _sums(block_m * block_n, config)


def _attention_rule(op: Operation, config: Config) -> str:
    block_q, block_kv = config["block_q"], config["block_kv"]
    for name, block, size in (("q", block_q, op["q"]), ("kv", block_kv, op["kv"])):
        if _too_large(block, size):
            return f"block_{name}={block} is over the {size} there are"
    if config["stages"] > 1 and op["kv"] <= block_kv * (config["stages"] - 1):
        return "the loop is shorter than its pipeline"
    depth = max(LEAST_DOT, power_of_two(op["depth"]))
    threads = config["warps"] * WARP
    if block_q < 16 * min(config["warps"], 4) and block_q < op["q"]:
        return f"{block_q} queries do not feed {config['warps']} warps"
    if op.precision == "fp32" and block_q * block_kv * depth / threads > _MOST_UNROLLED:
        return "an fp32 product of this size is unrolled too far"
    return _sums(block_q * (depth + block_kv), config)


def _row_rule(op: Operation, config: Config) -> str:
    block_r, block_c = config["block_r"], config["block_c"]
    widest = power_of_two(op["columns"])
    if block_c > max(WARP, widest):
        return f"block_c={block_c} is over the {op['columns']} there are"
    if block_r > power_of_two(op["rows"]):
        return f"block_r={block_r} is over the {op['rows']} there are"
    if block_c >= widest and config["stages"] > 1:
        return "there is no loop to pipeline"
    threads = config["warps"] * WARP
    if block_r * block_c < threads and config["warps"] > 1:
        return f"{config['warps']} warps have under one value a thread"
    if block_r * block_c > _MOST_ROW_VALUES * threads:
        return f"over {_MOST_ROW_VALUES} values a thread"
    if block_c < widest and block_c < 8 * WARP and op["columns"] > 16 * WARP:
        return f"chunks of {block_c} of {op['columns']} columns are too short"
    return ""


_RULES: Mapping[str, Callable[[Operation, Config], str]] = {
    "matmul": _product_rule,
    "conv": _product_rule,
    "attention": _attention_rule,
    "softmax": _row_rule,
    "norm": _row_rule,
}
