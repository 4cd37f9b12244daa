"""From an operation and a configuration to a launch: kernel, constants, grid. Plain data.

A configuration is a mapping of names to numbers; as text it is JSON with sorted names and no
blanks, so that equal text is equal configuration. Copied into every artefact.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from slicewise.tune.backends.triton.operations import Operation

Config = Mapping[str, int]
# What a configuration of each kind says; `warps` (of 32 threads) and `stages` (of the software
# pipeline of loads) are options of the compiler, the rest are constants of the kernel.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("block_m", "block_n", "block_k", "group", "stages", "warps"),
    "conv": ("block_m", "block_n", "block_k", "group", "stages", "warps"),
    "attention": ("block_q", "block_kv", "stages", "warps"),
    "softmax": ("block_r", "block_c", "stages", "warps"),
    "norm": ("block_r", "block_c", "stages", "warps"),
}
LEAST_DOT = 16  # each side of a tl.dot operand is at least 16 (Triton, language/semantic.py)


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch. `pointers` names the tensor behind each pointer of the kernel, in order; one that
    the kernel does not read is stood in for by another. `constants` are all other parameters."""

    kernel: str
    pointers: tuple[str, ...]
    constants: Mapping[str, int | float | bool | str]
    grid: tuple[int, int]
    warps: int
    stages: int


def write_config(config: Config) -> str:
    """Return the one way to write a configuration.

    >>> write_config({"warps": 4, "block_r": 1})
    '{"block_r":1,"warps":4}'
    """
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def read_config(kind: str, text: str) -> Config:
    """Return the configuration that `text` is; `ValueError` if it is none for this kind."""
    found = json.loads(text)
    names = PARAMETERS[kind]
    if not isinstance(found, dict) or set(found) != set(names):
        raise ValueError(f"a configuration of {kind} has {', '.join(names)}; this is {text}")
    for name, value in found.items():
        if type(value) is not int or value < 1 or value & (value - 1):
            raise ValueError(f"{name} of {text} is no power of two")
    return {name: cast(int, found[name]) for name in names}


def make_plan(op: Operation, config: Config) -> Plan:
    """Return the launch of an operation with a configuration."""
    kernel, constants, tiles, side = _PLANS[op.kind](op, config)
    blocks = {
        name.upper(): config[name]
        for name in PARAMETERS[op.kind]
        if name not in ("warps", "stages")
    }
    present = op.shapes
    first = next(iter(present))
    pointers = tuple(name if name in present else first for name in _POINTERS[op.kind])
    return Plan(
        kernel=kernel,
        pointers=pointers,
        constants={**constants, **blocks},
        grid=(tiles, side),
        warps=config["warps"],
        stages=config["stages"],
    )


def count_programs(op: Operation, config: Config) -> int:
    """Return how many programs (blocks of threads) a launch has."""
    _, _, tiles, side = _PLANS[op.kind](op, config)
    return tiles * side


_POINTERS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("a", "b", "bias", "residual", "out"),
    "conv": ("x", "weight", "bias", "residual", "out"),
    "attention": ("query", "key", "value", "mask", "out"),
    "softmax": ("x", "out"),
    "norm": ("x", "scale", "bias", "out"),
}
_Constants = dict[str, int | float | bool | str]
_Parts = tuple[str, _Constants, int, int]


def _tiles(size: int, block: int) -> int:
    return -(-size // block)


def _dot(op: Operation) -> str:
    """Return how Triton is to multiply: 16-bit types know one way only."""
    return "ieee" if op.precision == "fp32" else "tf32"


def _matmul(op: Operation, config: Config) -> _Parts:
    m, n, k = op["m"], op["n"], op["k"]
    block_m, block_n, block_k = config["block_m"], config["block_n"], config["block_k"]
    constants: _Constants = {
        "M": m, "N": n, "K": k,
        "A_BATCH": m * k if op["a_batched"] else 0,
        "A_M": 1 if op["trans_a"] else k, "A_K": m if op["trans_a"] else 1,
        "B_BATCH": n * k if op["b_batched"] else 0,
        "B_K": 1 if op["trans_b"] else n, "B_N": k if op["trans_b"] else 1,
        "BIAS": bool(op["bias"]), "RESIDUAL": bool(op["residual"]),
        "ACTIVATION": op["activation"], "DOT": _dot(op),
        "EVEN": m % block_m == 0 and n % block_n == 0 and k % block_k == 0,
    }  # fmt: skip
    return "matmul", constants, _tiles(m, block_m) * _tiles(n, block_n), op["batch"]


def _conv(op: Operation, config: Config) -> _Parts:
    constants: _Constants = {
        "IMAGES": op["n"], "C": op["c"], "H": op["h"], "W": op["w"], "FILTERS": op["o"],
        "KH": op["kh"], "KW": op["kw"],
        "STRIDE_H": op["stride_h"], "STRIDE_W": op["stride_w"],
        "PAD_H": op["pad_h"], "PAD_W": op["pad_w"],
        "OUT_H": op["out_h"], "OUT_W": op["out_w"],
        "DILATION_H": op["dilation_h"], "DILATION_W": op["dilation_w"],
        "BIAS": bool(op["bias"]), "RESIDUAL": bool(op["residual"]),
        "ACTIVATION": op["activation"], "DOT": _dot(op),
    }  # fmt: skip
    pixels = op["n"] * op["out_h"] * op["out_w"]
    tiles = _tiles(pixels, config["block_m"]) * _tiles(op["o"], config["block_n"])
    return "conv", constants, tiles, 1


def _attention(op: Operation, config: Config) -> _Parts:
    rows = op["q"] if op["mask_rows"] else 1
    heads = op["heads"] if op["mask_heads"] else 1
    constants: _Constants = {
        "HEADS": op["heads"], "SHARED_BY": op["heads"] // op["kv_heads"],
        "Q": op["q"], "KV": op["kv"], "DEPTH": op["depth"], "SCALE": op.number,
        "CAUSAL": bool(op["causal"]), "MASK": op["mask"],
        "MASK_B": heads * rows * op["kv"] if op["mask_batched"] else 0,
        "MASK_H": rows * op["kv"] if op["mask_heads"] else 0,
        "MASK_Q": op["kv"] if op["mask_rows"] else 0,
        "DOT": _dot(op), "BLOCK_D": max(LEAST_DOT, power_of_two(op["depth"])),
    }  # fmt: skip
    return "attention", constants, _tiles(op["q"], config["block_q"]), op["batch"] * op["heads"]


def _softmax(op: Operation, config: Config) -> _Parts:
    constants: _Constants = {"ROWS": op["rows"], "COLUMNS": op["columns"]}
    return "softmax", constants, _tiles(op["rows"], config["block_r"]), 1


def _norm(op: Operation, config: Config) -> _Parts:
    constants: _Constants = {
        "ROWS": op["rows"], "COLUMNS": op["columns"], "EPSILON": op.number,
        "RMS": bool(op["rms"]), "SCALE": bool(op["scale"]), "BIAS": bool(op["bias"]),
    }  # fmt: skip
    return "norm", constants, _tiles(op["rows"], config["block_r"]), 1


_PLANS: Mapping[str, Callable[[Operation, Config], _Parts]] = {
    "matmul": _matmul,
    "conv": _conv,
    "attention": _attention,
    "softmax": _softmax,
    "norm": _norm,
}


def power_of_two(size: int) -> int:
    """Return the least power of two that is not under `size`.

    >>> power_of_two(1), power_of_two(100)
    (1, 128)
    """
    return 1 << max(0, size - 1).bit_length()
