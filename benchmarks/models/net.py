"""A small language for writing networks as ONNX graphs without weight bytes.

`Net` appends nodes and tracks shapes; composites (convolution + normalisation + activation,
attention, ...) are in `blocks.py`, families in their own files. Weights have dimensions and type
but no bytes, so a file of a 7 B parameter model is a few hundred kB. Nothing here is executed.

Opset 23 of the ONNX operator specification: LayerNormalization, Gelu and Attention are one node
each, as current exporters write them and as frameworks run them; SiLU is written out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

OPSET = 23
BATCH = -1
"""Leading axis of a value whose length follows the batch (or a multiple of it)."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its name and shape, `BATCH` for the free leading axis."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Length of axis 1 (images are N, C, H, W)."""
        return self.shape[1]

    @property
    def width(self) -> int:
        """Length of the last axis (sequences are N, L, C)."""
        return self.shape[-1]


def window_output(
    size: int, *, kernel: int, stride: int, pads: int, dilation: int = 1, ceil: bool = False
) -> int:
    """Return output positions of a sliding window; `pads` is begin plus end.

    Law of the ONNX Conv and pooling operators; with `ceil` the last window must start inside the
    image or its leading pad.
    """
    reach = size + pads - dilation * (kernel - 1) - 1
    count = reach // stride + 1
    if ceil and reach % stride and count * stride < size + pads // 2:
        return count + 1
    return count


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an element-wise result (multidirectional broadcasting of ONNX)."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    for x, y in zip(left, right, strict=True):
        assert x == y or 1 in (x, y), (a, b)
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


class Net:
    """A graph under construction. Methods append nodes and return the new value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._known: dict[tuple[object, ...], str] = {}
        self._count: dict[str, int] = {}

    # --- sources -------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """Return a name that is not yet used in the graph."""
        self._count[stem] = self._count.get(stem, -1) + 1
        return f"{stem}_{self._count[stem]}"

    def input(
        self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT
    ) -> Value:
        """Declare a graph input; a string is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return Value(name, tuple(BATCH if isinstance(d, str) else d for d in shape))

    def image(self, size: int, *, channels: int = 3) -> Value:
        """Declare the image input of a vision model: free batch, square image."""
        return self.input("input", ("batch", channels, size, size))

    def weight(self, *shape: int, stem: str = "weight", dtype: int = TensorProto.FLOAT) -> Value:
        """Add a constant with dimensions and type but no bytes.

        `stem` 'buffer' marks what is not trained (running statistics, masks, index tables).
        """
        name = self.fresh(stem)
        self._constants.append(TensorProto(name=name, dims=shape, data_type=dtype))
        return Value(name, shape)

    def ints(self, *values: int) -> Value:
        """Return a 1-D int64 constant that holds `values` (shapes, axes, starts)."""
        return self._constant(TensorProto.INT64, (len(values),), values)

    def scalar(self, value: float) -> Value:
        """Return a float constant without axes."""
        return self._constant(TensorProto.FLOAT, (), (value,))

    def _constant(self, dtype: int, dims: tuple[int, ...], values: tuple[float, ...]) -> Value:
        key = (dtype, dims, values)
        if key not in self._known:
            self._known[key] = self.fresh("constant")
            self._constants.append(helper.make_tensor(self._known[key], dtype, dims, values))
        return Value(self._known[key], dims)

    # --- nodes ---------------------------------------------------------------------------------

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        shapes: Sequence[tuple[int, ...]],
        **attrs: object,
    ) -> tuple[Value, ...]:
        """Append one node with several results of the given shapes."""
        name = self.fresh(op_type.lower())
        outputs = [name if len(shapes) == 1 else f"{name}.{i}" for i in range(len(shapes))]
        reads = ["" if value is None else value.name for value in inputs]
        self._nodes.append(helper.make_node(op_type, reads, outputs, name=name, **attrs))
        return tuple(Value(o, tuple(s)) for o, s in zip(outputs, shapes, strict=True))

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        shape: tuple[int, ...],
        **attrs: object,
    ) -> Value:
        """Append one node with one result."""
        return self.nodes(op_type, inputs, [shape], **attrs)[0]

    def unary(self, op_type: str, x: Value, **attrs: object) -> Value:
        """Append an element-wise node of one input."""
        return self.node(op_type, [x], x.shape, **attrs)

    def binary(self, op_type: str, a: Value, b: Value) -> Value:
        """Append an element-wise node of two inputs, broadcasting."""
        return self.node(op_type, [a, b], broadcast(a.shape, b.shape))

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self.binary("Add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """a * b."""
        return self.binary("Mul", a, b)

    def conv(
        self,
        x: Value,
        out: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        pads: tuple[int, int, int, int] | None = None,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
    ) -> Value:
        """Convolution of images; `pads` (top, left, bottom, right), 'same' if None."""
        kernel_h, kernel_w = (kernel, kernel) if isinstance(kernel, int) else kernel
        if pads is None:
            half_h, half_w = dilation * (kernel_h - 1) // 2, dilation * (kernel_w - 1) // 2
            pads = (half_h, half_w, half_h, half_w)
        assert x.channels % groups == 0 and out % groups == 0, (x.shape, out, groups)
        weights = [self.weight(out, x.channels // groups, kernel_h, kernel_w)]
        weights += [self.weight(out, stem="bias")] if bias else []
        height, width = (
            window_output(size, kernel=k, stride=stride, pads=p, dilation=dilation)
            for size, k, p in (
                (x.shape[2], kernel_h, pads[0] + pads[2]),
                (x.shape[3], kernel_w, pads[1] + pads[3]),
            )
        )
        return self.node(
            "Conv",
            [x, *weights],
            (x.shape[0], out, height, width),
            kernel_shape=[kernel_h, kernel_w],
            strides=[stride, stride],
            pads=list(pads),
            dilations=[dilation, dilation],
            group=groups,
        )

    def pool(
        self,
        op_type: str,
        x: Value,
        kernel: int,
        *,
        stride: int | None = None,
        pad: int | None = None,
        ceil: bool = False,
        count_include_pad: bool = True,
    ) -> Value:
        """MaxPool or AveragePool; `pad` on every side, half the kernel if None."""
        stride = kernel if stride is None else stride
        pad = (kernel - 1) // 2 if pad is None else pad
        sizes = [
            window_output(size, kernel=kernel, stride=stride, pads=2 * pad, ceil=ceil)
            for size in x.shape[2:]
        ]
        extra = {"count_include_pad": int(count_include_pad)} if op_type == "AveragePool" else {}
        return self.node(
            op_type,
            [x],
            (*x.shape[:2], *sizes),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            ceil_mode=int(ceil),
            **extra,
        )

    def max_pool(self, x: Value, kernel: int, **how: int | None) -> Value:
        """Largest of each window."""
        return self.pool("MaxPool", x, kernel, **how)  # type: ignore[arg-type]

    def avg_pool(self, x: Value, kernel: int, **how: int | None) -> Value:
        """Mean of each window."""
        return self.pool("AveragePool", x, kernel, **how)  # type: ignore[arg-type]

    def global_pool(self, x: Value) -> Value:
        """Mean over the image, kept as 1 x 1."""
        return self.node("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))

    def mean(self, x: Value, *axes: int, keepdims: bool = False) -> Value:
        """Mean over `axes`."""
        gone = {axis % len(x.shape) for axis in axes}
        shape = tuple(
            1 if i in gone else d for i, d in enumerate(x.shape) if keepdims or i not in gone
        )
        return self.node("ReduceMean", [x, self.ints(*axes)], shape, keepdims=int(keepdims))

    def batch_norm(self, x: Value) -> Value:
        """Batch normalisation with running statistics, not folded into the convolution."""
        c = x.channels
        learned = [self.weight(c, stem="scale"), self.weight(c, stem="bias")]
        running = [self.weight(c, stem="buffer"), self.weight(c, stem="buffer")]
        return self.node("BatchNormalization", [x, *learned, *running], x.shape, epsilon=1e-5)

    def layer_norm(self, x: Value, *, bias: bool = True) -> Value:
        """Layer normalisation over the last axis."""
        weights = [self.weight(x.width, stem="scale")]
        weights += [self.weight(x.width, stem="bias")] if bias else []
        return self.node("LayerNormalization", [x, *weights], x.shape, axis=-1, epsilon=1e-6)

    def linear(self, x: Value, out: int, *, bias: bool = True) -> Value:
        """x W + b over the last axis: Gemm for matrices, MatMul and Add above, as exporters do."""
        if len(x.shape) == 2:
            weights = [self.weight(out, x.width)]
            weights += [self.weight(out, stem="bias")] if bias else []
            return self.node("Gemm", [x, *weights], (x.shape[0], out), transB=1)
        result = self.matmul(x, self.weight(x.width, out))
        return self.add(self.weight(out, stem="bias"), result) if bias else result

    def matmul(self, a: Value, b: Value) -> Value:
        """Matrix product over the last two axes, leading axes broadcast."""
        assert a.shape[-1] == b.shape[-2], (a.shape, b.shape)
        lead = broadcast(a.shape[:-2], b.shape[:-2])
        return self.node("MatMul", [a, b], (*lead, a.shape[-2], b.shape[-1]))

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """Softmax over one axis."""
        return self.unary("Softmax", x, axis=axis)

    # --- layout --------------------------------------------------------------------------------

    def reshape(self, x: Value, *shape: int) -> Value:
        """Reshape; -1 is the batch axis (or what remains), as in the operator."""
        fixed = math.prod(d for d in shape if d != BATCH)
        own = math.prod(d for d in x.shape if d != BATCH)
        assert BATCH in x.shape or BATCH not in shape, (x.shape, shape)
        assert own % fixed == 0 or fixed % own == 0, (x.shape, shape)
        return self.node("Reshape", [x, self.ints(*shape)], shape)

    def flatten(self, x: Value) -> Value:
        """Keep the batch axis, merge the rest."""
        return self.node("Flatten", [x], (x.shape[0], math.prod(x.shape[1:])), axis=1)

    def transpose(self, x: Value, *perm: int) -> Value:
        """Permute the axes."""
        return self.node("Transpose", [x], tuple(x.shape[i] for i in perm), perm=list(perm))

    def concat(self, parts: Sequence[Value], axis: int = 1) -> Value:
        """Join along one axis."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", list(parts), tuple(shape), axis=axis)

    def split(self, x: Value, sizes: Sequence[int], axis: int = 1) -> tuple[Value, ...]:
        """Cut along one axis into pieces of the given sizes."""
        axis %= len(x.shape)
        assert sum(sizes) == x.shape[axis], (x.shape, sizes)
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        return self.nodes("Split", [x, self.ints(*sizes)], shapes, axis=axis)

    def slice(self, x: Value, axis: int, start: int, end: int) -> Value:
        """Take positions start..end of one axis."""
        shape = list(x.shape)
        shape[axis] = end - start
        bounds = [self.ints(start), self.ints(end), self.ints(axis)]
        return self.node("Slice", [x, *bounds], tuple(shape))

    def take(self, x: Value, axis: int, index: int) -> Value:
        """Take one position of one axis, which goes away (Gather with a scalar index)."""
        at = self._constant(TensorProto.INT64, (), (index,))
        return self.node("Gather", [x, at], (*x.shape[:axis], *x.shape[axis + 1 :]), axis=axis)

    def pad(self, x: Value, top: int, left: int, bottom: int, right: int) -> Value:
        """Pad an image with zeros."""
        pads = self.ints(0, 0, top, left, 0, 0, bottom, right)
        n, c, h, w = x.shape
        return self.node("Pad", [x, pads], (n, c, h + top + bottom, w + left + right))

    def resize(self, x: Value, factor: int, mode: str = "nearest") -> Value:
        """Enlarge an image by a whole factor."""
        scales = self._constant(TensorProto.FLOAT, (4,), (1.0, 1.0, float(factor), float(factor)))
        n, c, h, w = x.shape
        return self.node("Resize", [x, None, scales], (n, c, h * factor, w * factor), mode=mode)

    def expand_batch(self, constant: Value, like: Value) -> Value:
        """Repeat a constant [1, ...] to the batch of `like`, by shape arithmetic."""
        whole = self.node("Shape", [like], (len(like.shape),))
        batch = self.node("Slice", [whole, self.ints(0), self.ints(1)], (1,))
        target = self.node(
            "Concat", [batch, self.ints(*constant.shape[1:])], (len(constant.shape),), axis=0
        )
        return self.node("Expand", [constant, target], (BATCH, *constant.shape[1:]))

    # --- end -----------------------------------------------------------------------------------

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """Return the finished model with `outputs` as graph outputs."""
        declared = [
            helper.make_tensor_value_info(
                o.name, TensorProto.FLOAT, ["batch" if d == BATCH else d for d in o.shape]
            )
            for o in outputs
        ]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, declared, self._constants)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="slicewise-benchmarks",
            ir_version=8,
        )
