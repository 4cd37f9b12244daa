"""What a kernel computes: kind, sizes and epilogue, as plain data with one way to write it.

Nothing is computed and no framework is known here; `reading.py` makes them of a model's nodes.
Copied into every artefact, so it imports the standard library alone.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# The activations that an epilogue can end with, by the number that the kernels know.
ACTIVATIONS = ("none", "relu", "gelu", "gelu-tanh", "silu")
# Storage of a value in bytes; `tf32` is stored as fp32 and multiplied with 10 bits of fraction.
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
# Greatest difference that counts as equal, relative to the largest output. Half a unit in the last
# place is 2^-11 (fp16, tf32: 10 bits of fraction) and 2^-8 (bf16: 7 bits); inputs, products of a
# softmax and the output are each rounded, so several of them are allowed.
TOLERANCE = {"fp32": 1e-4, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2}
# Offsets inside a tensor are 32-bit numbers in the kernels.
MOST_ELEMENTS = 2**31 - 1
_MOST_BLOCKS_Y = 65535  # CUDA C++ Programming Guide, y-dimension of a grid
# Names of sizes by kind; a flag is 0 or 1. `mask` is 0 none, 1 boolean, 2 added to the scores.
SIZES: Mapping[str, tuple[str, ...]] = {
    "matmul": ("batch", "m", "n", "k", "a_batched", "b_batched", "trans_a", "trans_b", "bias",
               "residual", "activation"),
    "softmax": ("rows", "columns"),
    "norm": ("rows", "columns", "rms", "scale", "bias"),
    "attention": ("batch", "heads", "kv_heads", "q", "kv", "depth", "causal", "mask",
                  "mask_batched", "mask_heads", "mask_rows"),
    "conv": ("n", "c", "h", "w", "o", "kh", "kw", "stride_h", "stride_w", "pad_h", "pad_w",
             "out_h", "out_w", "dilation_h", "dilation_w", "bias", "residual", "activation"),
}  # fmt: skip
_MAY_BE_ZERO = frozenset(
    {"a_batched", "b_batched", "trans_a", "trans_b", "bias", "residual", "activation", "rms",
     "scale", "causal", "mask", "mask_batched", "mask_heads", "mask_rows", "pad_h", "pad_w"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel's task. `sizes` has the names of `SIZES[kind]`, in that order.

    `number` is the one real parameter: epsilon of a norm, scale of an attention, else 0.

    >>> op = Operation.make("softmax", "fp16", rows=4, columns=8)
    >>> op.text
    'softmax fp16 rows=4 columns=8'
    >>> Operation.parse(op.text) == op
    True
    """

    kind: str
    precision: str
    sizes: tuple[tuple[str, int], ...]
    number: float = 0.0
    _by_name: Mapping[str, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in SIZES or self.precision not in BYTES:
            raise ValueError(f"no kernel for {self.kind!r} in {self.precision!r}")
        if tuple(name for name, _ in self.sizes) != SIZES[self.kind]:
            raise ValueError(f"{self.kind} has the sizes {SIZES[self.kind]}, not {self.sizes}")
        for name, value in self.sizes:
            if value < (0 if name in _MAY_BE_ZERO else 1):
                raise ValueError(f"{self.kind}: {name}={value} is too small")
        object.__setattr__(self, "_by_name", dict(self.sizes))

    @staticmethod
    def make(kind: str, precision: str, *, number: float = 0.0, **sizes: int) -> "Operation":
        """Return an operation; sizes left out are 0. `ValueError` for an impossible one."""
        names = SIZES.get(kind, ())
        if unknown := set(sizes) - set(names):
            raise ValueError(f"{kind} has no {sorted(unknown)}; it has {names}")
        return Operation(
            kind, precision, tuple((name, sizes.get(name, 0)) for name in names), number
        )

    def __getitem__(self, name: str) -> int:
        """Return a size by name."""
        return self._by_name[name]

    def __reduce__(self) -> tuple[object, ...]:
        return Operation, (self.kind, self.precision, self.sizes, self.number)

    @property
    def text(self) -> str:
        """The one way to write it; sizes that are 0 are left out."""
        told = [f"{name}={value}" for name, value in self.sizes if value]
        number = [f"number={json.dumps(self.number)}"] if self.number else []
        return " ".join([self.kind, self.precision, *told, *number])

    @staticmethod
    def parse(text: str) -> "Operation":
        """Return the operation that `text` names; `ValueError` if it names none."""
        kind, precision, *told = text.split()
        values = dict(part.split("=", 1) for part in told)
        number = float(values.pop("number", "0"))
        return Operation.make(
            kind, precision, number=number, **{name: int(value) for name, value in values.items()}
        )

    @property
    def activation(self) -> str:
        """The activation at the end, 'none' where there is none."""
        return ACTIVATIONS[self._by_name.get("activation", 0)]

    @property
    def bytes_each(self) -> int:
        """Storage of a value in bytes."""
        return BYTES[self.precision]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor that a launch takes, in the kernel's order; `out` is last."""
        return _SHAPES[self.kind](self)

    @property
    def flops(self) -> int:
        """Operations of the products, a multiply-add is 2; of a row kernel those per value."""
        if self.kind == "matmul":
            return 2 * self["batch"] * self["m"] * self["n"] * self["k"]
        if self.kind == "conv":
            taps = self["c"] * self["kh"] * self["kw"]
            return 2 * self["n"] * self["o"] * self["out_h"] * self["out_w"] * taps
        if self.kind == "attention":
            seen = self["q"] * self["kv"]
            if self["causal"]:
                short = min(self["q"], self["kv"])
                seen = short * (short + 1) // 2 + max(0, self["q"] - self["kv"]) * self["kv"]
            return 4 * self["batch"] * self["heads"] * seen * self["depth"]
        return 5 * self["rows"] * self["columns"]

    @property
    def moved_bytes(self) -> int:
        """Bytes of all tensors, each moved once."""
        return sum(
            math.prod(shape) * (1 if name == "mask" and self["mask"] == 1 else self.bytes_each)
            for name, shape in self.shapes.items()
        )

    @property
    def refusal(self) -> str:
        """Why no kernel takes it, '' where one does."""
        for name, shape in self.shapes.items():
            if math.prod(shape) > MOST_ELEMENTS:
                return f"its {name} has over 2^31 - 1 values"
        most = {"matmul": "batch", "attention": "batch heads"}.get(self.kind, "")
        blocks = math.prod(self[name] for name in most.split())
        if most and blocks > _MOST_BLOCKS_Y:
            return f"{blocks} products side by side are over {_MOST_BLOCKS_Y}"
        if self.kind == "attention" and self["depth"] > 256:
            return f"heads of {self['depth']} values do not fit a block; 256 is the most"
        if self.kind == "attention" and self["heads"] % self["kv_heads"]:
            return f"{self['heads']} heads do not share {self['kv_heads']} evenly"
        return ""


def _matmul_shapes(op: Operation) -> dict[str, tuple[int, ...]]:
    a = (op["k"], op["m"]) if op["trans_a"] else (op["m"], op["k"])
    b = (op["n"], op["k"]) if op["trans_b"] else (op["k"], op["n"])
    out = (op["batch"], op["m"], op["n"])
    shapes: dict[str, tuple[int, ...]] = {
        "a": (op["batch"], *a) if op["a_batched"] else a,
        "b": (op["batch"], *b) if op["b_batched"] else b,
    }
    if op["bias"]:
        shapes["bias"] = (op["n"],)
    if op["residual"]:
        shapes["residual"] = out
    return shapes | {"out": out}


def _softmax_shapes(op: Operation) -> dict[str, tuple[int, ...]]:
    return {"x": (op["rows"], op["columns"]), "out": (op["rows"], op["columns"])}


def _norm_shapes(op: Operation) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"x": (op["rows"], op["columns"])}
    for name in ("scale", "bias"):
        if op[name]:
            shapes[name] = (op["columns"],)
    return shapes | {"out": (op["rows"], op["columns"])}


def _attention_shapes(op: Operation) -> dict[str, tuple[int, ...]]:
    own = (op["batch"], op["heads"], op["q"], op["depth"])
    other = (op["batch"], op["kv_heads"], op["kv"], op["depth"])
    shapes: dict[str, tuple[int, ...]] = {"query": own, "key": other, "value": other}
    if op["mask"]:
        shapes["mask"] = (
            op["batch"] if op["mask_batched"] else 1,
            op["heads"] if op["mask_heads"] else 1,
            op["q"] if op["mask_rows"] else 1,
            op["kv"],
        )
    return shapes | {"out": own}


def _conv_shapes(op: Operation) -> dict[str, tuple[int, ...]]:
    out = (op["n"], op["o"], op["out_h"], op["out_w"])
    shapes: dict[str, tuple[int, ...]] = {
        "x": (op["n"], op["c"], op["h"], op["w"]),
        "weight": (op["o"], op["c"], op["kh"], op["kw"]),
    }
    if op["bias"]:
        shapes["bias"] = (op["o"],)
    if op["residual"]:
        shapes["residual"] = out
    return shapes | {"out": out}


_SHAPES = {
    "matmul": _matmul_shapes,
    "softmax": _softmax_shapes,
    "norm": _norm_shapes,
    "attention": _attention_shapes,
    "conv": _conv_shapes,
}
