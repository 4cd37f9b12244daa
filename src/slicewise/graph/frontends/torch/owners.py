"""Tells for one call of an ATen operator who owns the bytes that come back.

Decided by the row of the operator and by the strides of what goes in and comes out.
"""

import math
from typing import Any

from slicewise.graph.frontends.torch.aten.row import Call, Row, Storage
from slicewise.graph.frontends.torch.strides import can_view, is_dense


def is_same(row: Row, call: Call, *, is_in_place: bool) -> bool:
    """True where nothing runs: the result is the first tensor itself."""
    if row.storage is Storage.SAME or _keeps_whole_axis(row, call):
        return True
    if is_in_place or row.storage is not Storage.IF_CONVERTED or call.given("copy"):
        return False
    before, after = _first(call), call.values.of(call.node)
    return before is not None and before.dtype == after.dtype and before.stride() == after.stride()


def _keeps_whole_axis(row: Row, call: Call) -> bool:
    """True for x[:]: eager code makes no view for it."""
    if row.aten != "slice" or call.given("start") not in (None, 0):
        return False
    end, step = call.given("end"), call.given("step")
    return (end is None or (isinstance(end, int) and end >= _NO_END)) and step in (None, 1)


_NO_END = 2**63 - 1


def _first(call: Call) -> Any:
    argument = next(iter(call.arguments.values()), None)
    return call.values.of(argument) if hasattr(argument, "meta") else None


def is_view(row: Row, call: Call) -> bool:
    """True where the result shares the storage of the first tensor."""
    if row.storage is Storage.VIEW:
        return True
    if row.storage not in (Storage.IF_STRIDED, Storage.IF_DENSE):
        return False
    before, after = _first(call), call.values.of(call.node)
    if before is None:
        return False
    shape, strides = call.values.shape(before), call.values.strides(before)
    if row.storage is Storage.IF_DENSE:
        wanted = call.values.strides(after)
        return is_dense(shape, strides, wanted)
    return math.prod(shape) == 0 or can_view(shape, strides, call.values.shape(after))
