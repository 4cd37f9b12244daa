"""The operator table: for every operator known, what it computes, moves, and what its weights are.

One row an operator: `operators/standard.py` (ai.onnx and what ONNX Runtime adds to it),
`operators/contrib.py` (com.microsoft) and `operators/aten.py` (torch.aten). Looking up is all that
happens here; counting is done in `work.py`. An operator in no row is unknown: `operator` returns
None and the caller notes it.
"""

from collections.abc import Iterator

from slicewise.core.cost import Kind
from slicewise.core.graph import Role
from slicewise.core.precision import DType
from slicewise.graph.operators import aten, contrib, standard
from slicewise.graph.operators.row import Operator, Product, Seen, Slot

__all__ = ["Operator", "Product", "Seen", "Slot", "operator", "operators", "role_of_slot"]

# Where a domain has no row of its own for an operator, the row is looked for in these domains. The
# formulas do not depend on the layout of images, so layout domains share them.
_FALLBACK = {
    "ai.onnx": ("",),
    "com.microsoft": ("",),
    "com.ms.internal.nhwc": ("", "com.microsoft"),
    "com.microsoft.nchwc": ("", "com.microsoft"),
}


def _all_rows() -> Iterator[Operator]:
    yield from standard.ROWS
    yield from contrib.ROWS
    yield from aten.ROWS
    for listing in (standard.BYTES_ONLY, contrib.BYTES_ONLY, aten.BYTES_ONLY):
        for domain, names in listing.items():
            for name in names.split():
                yield Operator(name, Kind.OPAQUE, domain, is_bytes_only=True)


def _build() -> dict[tuple[str, str], Operator]:
    table: dict[tuple[str, str], Operator] = {}
    for row in _all_rows():
        key = (row.domain, row.op_type)
        assert key not in table, f"two rows for {key}"
        table[key] = row
    own = dict(table)
    for domain, others in _FALLBACK.items():
        for other in others:
            for (row_domain, op_type), row in own.items():
                if row_domain == other:
                    table.setdefault((domain, op_type), row)
    return table


_TABLE = _build()
_SMALL_INTEGERS = frozenset(
    {DType.INT8, DType.UINT8, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
)
_INTEGERS = _SMALL_INTEGERS | {
    DType.INT64, DType.INT32, DType.INT16, DType.UINT64, DType.UINT32, DType.UINT16,
}  # fmt: skip


def operator(domain: str, op_type: str) -> Operator | None:
    """Return the row of an operator, None if it is in no table.

    `domain` '' is ai.onnx.

    >>> operator("", "Conv").kind, operator("ai.onnx", "Conv") is operator("", "Conv")
    (<Kind.CONV: 'conv'>, True)
    >>> operator("com.example", "Conv") is None
    True
    """
    return _TABLE.get((domain, op_type))


def operators() -> tuple[Operator, ...]:
    """Return every row once, standard operators first."""
    return tuple(_all_rows())


def role_of_slot(
    domain: str, op_type: str, input_index: int, *, dtype: DType, elements: int
) -> Role:
    """Return what a constant of `elements` elements of type `dtype` is when read in an input slot.

    Floats that carry data are parameters where they have more than one element, or any size where
    the slot is a weight's; running statistics are buffers; scales, zero points, masks, limits and
    all other integers are data. A quantised weight is a parameter. An unknown operator's inputs
    are taken to carry data.

    >>> role_of_slot("", "Conv", 1, dtype=DType.FP32, elements=9)
    <Role.PARAMETER: 'parameter'>
    >>> role_of_slot("", "Mul", 1, dtype=DType.FP32, elements=1)
    <Role.DATA: 'data'>
    """
    row = _TABLE.get((domain, op_type))
    slot = Slot.FLOW if row is None else row.slots.get(input_index, row.other_slots)
    if slot is Slot.DATA:
        return Role.DATA
    if slot is Slot.BUFFER:
        return Role.BUFFER if dtype.is_float else Role.DATA
    if dtype.is_float:
        is_parameter = elements > 1 or slot in (Slot.WEIGHT, Slot.QWEIGHT, Slot.PARAM)
    elif slot is Slot.QWEIGHT:
        is_parameter = dtype in _INTEGERS
    else:
        is_parameter = slot is Slot.QFLOW and dtype in _SMALL_INTEGERS and elements > 1
    return Role.PARAMETER if is_parameter else Role.DATA
