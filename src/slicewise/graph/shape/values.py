"""Contents of small tensors: the shape arithmetic that exporters leave in a graph.

Shape -> Gather -> Concat -> Reshape chains, ranges, scales. Only tensors of at most `VALUE_LIMIT`
elements are followed. Each row follows the operator's page in the ONNX specification; integer
division truncates toward zero as in C, single precision stays single.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx

from slicewise.graph.shape import dependent, layout
from slicewise.graph.shape.facts import (
    BOOL,
    VALUE_LIMIT,
    Array,
    Contradiction,
    Fact,
    Op,
    Unknown,
    axis_of,
    constant_value,
    tensor_fact,
    words,
)

ValueRule: TypeAlias = Callable[[Op], Array | list[Array]]


def evaluate(op: Op) -> list[Fact]:
    """Return the outputs of `op` with their contents; `Unknown` where they cannot be told.

    Rules need every input's content, except those of `FROM_SHAPE`.
    """
    rule = VALUES.get(op.type)
    if rule is None:
        raise Unknown
    try:
        with np.errstate(all="ignore"):
            found = rule(op)
    except (Contradiction, ValueError, IndexError, TypeError, OverflowError, KeyError) as err:
        # the shape rule speaks next, and says what is wrong if anything is
        raise Unknown from err
    arrays = found if isinstance(found, list) else [found]
    if max(array.size for array in arrays) > VALUE_LIMIT:
        raise Unknown
    return [Fact(array.shape, _elem_type(op, array), array) for array in arrays]


def with_content(op: Op, facts: list[Fact]) -> list[Fact]:
    """Return `facts`, the outputs of `op`, able to tell their content when asked."""
    if op.type not in VALUES or any(
        f.shape is None or math.prod(f.shape) > VALUE_LIMIT for f in facts
    ):
        return facts
    if op.type in FROM_SHAPE:
        depth = 0
    else:
        # a chain is followed by recursion: where it gets long, its middle is worked out at once
        for fact in op.inputs:
            if fact is not None and fact.depth > _DEEPEST and fact.value is None:
                return facts
        depth = 1 + max((fact.depth for fact in op.inputs if fact is not None), default=0)
    return [
        Fact(fact.shape, fact.dtype, source=partial(_content, op, slot), depth=depth)
        for slot, fact in enumerate(facts)
    ]


def _content(op: Op, slot: int) -> Array | None:
    if op.type not in FROM_SHAPE and any(f is not None and f.value is None for f in op.inputs):
        return None
    try:
        return evaluate(op)[slot].value
    except Unknown:
        return None


_DEEPEST = 64


def _elem_type(op: Op, found: Array) -> int:
    if op.type in ("Cast", "CastLike", "Constant", "ConstantOfShape"):
        return _declared_type(op)
    if found.dtype == np.bool_:
        return BOOL
    inputs = op.inputs
    if op.type in _KEEPS_TYPE and inputs and inputs[0] is not None:
        slot = 1 if op.type == "Where" else 0
        return op.dtype(slot)
    return _number_of(found.dtype)


def _number_of(dtype: np.dtype[Any]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _declared_type(op: Op) -> int:
    if op.type == "Cast":
        return op.integer("to", 0)
    if op.type == "CastLike":
        return op.dtype(1)
    return constant_type(op)


def constant_type(op: Op) -> int:
    """Return the element type of a Constant or ConstantOfShape node."""
    for name, elem_type in _CONSTANT_TYPES.items():
        if op.attribute(name) is not None:
            return int(elem_type)
    value = op.attribute("value") or op.attribute("sparse_value")
    if value is None:
        return int(onnx.TensorProto.FLOAT)
    return int(value.t.data_type or value.sparse_tensor.values.data_type)


_CONSTANT_TYPES: Mapping[str, int] = {
    "value_int": onnx.TensorProto.INT64,
    "value_ints": onnx.TensorProto.INT64,
    "value_float": onnx.TensorProto.FLOAT,
    "value_floats": onnx.TensorProto.FLOAT,
    "value_string": onnx.TensorProto.STRING,
    "value_strings": onnx.TensorProto.STRING,
}


def constant_fact(op: Op) -> list[Fact]:
    """Return shape, type and, where small, content of a Constant node."""
    elem_type = constant_type(op)
    value = op.attribute("value")
    if value is not None:
        return [tensor_fact(value.t)]
    sparse = op.attribute("sparse_value")
    if sparse is not None:
        return [Fact(tuple(sparse.sparse_tensor.dims), elem_type)]
    for name in ("value_int", "value_float"):
        if (scalar := op.attribute(name)) is not None:
            number = scalar.i if name == "value_int" else np.float32(scalar.f)
            return [Fact((), elem_type, np.asarray(number))]
    if (listed := op.attribute("value_ints")) is not None:
        return [Fact((len(listed.ints),), elem_type, np.array(listed.ints, np.int64))]
    if (listed := op.attribute("value_floats")) is not None:
        return [Fact((len(listed.floats),), elem_type, np.array(listed.floats, np.float32))]
    if (listed := op.attribute("value_strings")) is not None:
        return [Fact((len(listed.strings),), elem_type)]
    if op.attribute("value_string") is not None:
        return [Fact((), elem_type)]
    raise Contradiction("none of its attributes holds a value")


def _values(op: Op) -> list[Array]:
    return [op.value(k) for k in range(len(op.inputs)) if op.has(k)]


def _ufunc(function: Callable[..., Any]) -> ValueRule:
    return lambda op: np.asarray(function(*_values(op)))


def _fold(function: Callable[..., Any]) -> ValueRule:
    def rule(op: Op) -> Array:
        values = _values(op)
        result = values[0]
        for value in values[1:]:
            result = function(result, value)
        return result

    return rule


def _divide(op: Op) -> Array:
    a, b = op.value(0), op.value(1)
    if not np.issubdtype(a.dtype, np.integer):
        return np.asarray(a / b)
    if not np.all(b):
        raise Unknown
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) == (b < 0), quotient, -quotient).astype(a.dtype))


def _modulo(op: Op) -> Array:
    a, b = op.value(0), op.value(1)
    if np.issubdtype(a.dtype, np.integer) and not np.all(b):
        raise Unknown
    return np.asarray(np.fmod(a, b) if op.integer("fmod", 0) else np.mod(a, b))


def _power(op: Op) -> Array:
    return np.power(op.value(0), op.value(1)).astype(op.value(0).dtype)


def _cast(op: Op) -> Array:
    target = onnx.helper.tensor_dtype_to_np_dtype(_declared_type(op))
    return op.value(0).astype(target)


def _shape(op: Op) -> Array:
    shape = op.shape()
    rank = len(shape)
    start, end = op.integer("start", 0), op.integer("end", rank)
    return np.array(shape[slice(start, end)], np.int64)


def _constant_of_shape(op: Op) -> Array:
    shape = layout.RULES["ConstantOfShape"](op)[0].shape or ()
    if math.prod(shape) > VALUE_LIMIT:
        raise Unknown
    value = op.attribute("value")
    filler = np.zeros(1, np.float32) if value is None else constant_value(value.t)
    if filler is None:
        raise Unknown
    return np.full(shape, filler.ravel()[0], filler.dtype)


def _reshaped(op: Op) -> Array:
    shape = layout.RULES[op.type](op)[0].shape
    return op.value(0).reshape(shape or ())


def _slice(op: Op) -> Array:
    picks: list[slice] = [slice(None)] * op.value(0).ndim
    for axis, start, end, step in layout.slice_parts(op):
        if start is None or end is None or step is None:
            raise Unknown
        picks[axis] = slice(*_python_slice(start, end, step, op.shape()[axis]))
    return op.value(0)[tuple(picks)]


def _python_slice(start: int, end: int, step: int, length: int) -> tuple[int, int | None, int]:
    first, last, stride = slice(start, end, step).indices(length)
    return first, None if last < 0 else last, stride


def _split(op: Op) -> list[Array]:
    value = op.value(0)
    axis = axis_of(op.integer("axis", 0), value.ndim)
    sizes = layout.split_sizes(op, value.shape[axis])
    return np.split(value, np.cumsum(sizes)[:-1], axis=axis)


def _gather(op: Op) -> Array:
    value = op.value(0)
    axis = axis_of(op.integer("axis", 0), value.ndim)
    return np.take(value, op.value(1).astype(np.int64), axis=axis)


def _gather_elements(op: Op) -> Array:
    return np.take_along_axis(op.value(0), op.value(1), axis=op.integer("axis", 0))


def _expand(op: Op) -> Array:
    shape = layout.RULES["Expand"](op)[0].shape or ()
    if math.prod(shape) > VALUE_LIMIT:
        raise Unknown
    return np.broadcast_to(op.value(0), shape)


def _range(op: Op) -> Array:
    (length,) = dependent.RULES["Range"](op)[0].shape or (0,)
    if length > VALUE_LIMIT:
        raise Unknown
    start, delta = op.value(0).ravel()[0], op.value(2).ravel()[0]
    return np.asarray((start + np.arange(length) * delta).astype(op.value(0).dtype))


def _tile(op: Op) -> Array:
    if math.prod(op.values(1)) * op.value(0).size > VALUE_LIMIT:
        raise Unknown
    return np.tile(op.value(0), op.values(1))


def _reduce(function: Callable[..., Any]) -> ValueRule:
    def rule(op: Op) -> Array:
        value = op.value(0)
        axes = op.ints_from("axes", 1) or None
        if axes is None and op.integer("noop_with_empty_axes", 0):
            return value
        places = None if axes is None else tuple(axes)
        keep = bool(op.integer("keepdims", 1))
        return np.asarray(function(value, axis=places, keepdims=keep)).astype(value.dtype)

    return rule


def _arg(function: Callable[..., Any]) -> ValueRule:
    def rule(op: Op) -> Array:
        if op.integer("select_last_index", 0):
            raise Unknown
        keep = bool(op.integer("keepdims", 1))
        return np.asarray(function(op.value(0), axis=op.integer("axis", 0), keepdims=keep))

    return rule


def _cumulative(op: Op) -> Array:
    if op.integer("exclusive", 0) or op.integer("reverse", 0):
        raise Unknown
    return np.cumsum(op.value(0), axis=int(op.values(1)[0])).astype(op.value(0).dtype)


def _clip(op: Op) -> Array:
    value = op.value(0)
    for slot, name, function in ((1, "min", np.maximum), (2, "max", np.minimum)):
        limit = op.attribute(name) if op.version < 11 else None
        if limit is not None:
            value = function(value, np.float32(limit.f))
        elif op.has(slot):
            value = function(value, op.value(slot))
    return np.asarray(value.astype(op.value(0).dtype))


def _scatter(op: Op) -> Array:
    if op.text("reduction", "none") != "none":
        raise Unknown
    value = op.value(0).copy()
    if op.type == "ScatterND":
        indices = op.value(1)
        value[tuple(np.moveaxis(indices, -1, 0))] = op.value(2)
    else:
        np.put_along_axis(value, op.value(1), op.value(2), axis=op.integer("axis", 0))
    return value


# Rules that need shapes, not contents, of their inputs.
FROM_SHAPE = frozenset({"Shape", "Size"})

# Operators whose output has the type of input 0 (Where: of input 1), whatever numpy makes of it.
_KEEPS_TYPE = frozenset(
    words("""Add Sub Mul Div Mod Pow Min Max Sum Neg Abs Floor Ceil Round Sqrt Sign Reciprocal Clip
    Relu Identity Where Reshape Squeeze Unsqueeze Flatten Transpose Slice Split Gather
    GatherElements Concat Expand Tile Range ReduceProd ReduceSum ReduceMax ReduceMin ReduceMean
    CumSum ScatterND ScatterElements""")
)

VALUES: Mapping[str, ValueRule] = {
    "Shape": _shape,
    "Size": lambda op: np.asarray(math.prod(op.shape()), np.int64),
    "Add": _ufunc(np.add),
    "Sub": _ufunc(np.subtract),
    "Mul": _ufunc(np.multiply),
    "Div": _divide,
    "Mod": _modulo,
    "Pow": _power,
    "Min": _fold(np.minimum),
    "Max": _fold(np.maximum),
    "Sum": _fold(np.add),
    "Neg": _ufunc(np.negative),
    "Abs": _ufunc(np.abs),
    "Relu": lambda op: np.maximum(op.value(0), 0).astype(op.value(0).dtype),
    "Floor": _ufunc(np.floor),
    "Ceil": _ufunc(np.ceil),
    "Round": _ufunc(np.rint),
    "Sqrt": _ufunc(np.sqrt),
    "Sign": _ufunc(np.sign),
    "Reciprocal": _ufunc(np.reciprocal),
    "Clip": _clip,
    "Equal": _ufunc(np.equal),
    "Greater": _ufunc(np.greater),
    "GreaterOrEqual": _ufunc(np.greater_equal),
    "Less": _ufunc(np.less),
    "LessOrEqual": _ufunc(np.less_equal),
    "And": _ufunc(np.logical_and),
    "Or": _ufunc(np.logical_or),
    "Xor": _ufunc(np.logical_xor),
    "Not": _ufunc(np.logical_not),
    "Where": _ufunc(np.where),
    "Identity": lambda op: op.value(0),
    "Cast": _cast,
    "CastLike": _cast,
    "ConstantOfShape": _constant_of_shape,
    "Reshape": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Flatten": _reshaped,
    "Transpose": lambda op: np.transpose(op.value(0), op.ints("perm")),
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": lambda op: np.concatenate(_values(op), axis=op.integer("axis", 0)),
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceMean": _reduce(np.mean),
    "ArgMax": _arg(np.argmax),
    "ArgMin": _arg(np.argmin),
    "CumSum": _cumulative,
    "NonZero": lambda op: np.array(np.nonzero(np.atleast_1d(op.value(0))), np.int64),
    "ScatterND": _scatter,
    "ScatterElements": _scatter,
}
