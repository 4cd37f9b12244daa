"""The ATen table: its rows name real ATen operators and operators that can be counted."""

import pytest
import torch

from slicewise.graph.frontends.torch.aten import all_rows, find_row
from slicewise.graph.frontends.torch.aten.row import Row, Storage
from slicewise.graph.ops import operator


def _exists(name: str) -> bool:
    if "::" in name:
        return True  # another library registers it when it is imported
    return hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, f"{name}_")


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.aten)
def test_every_row_names_an_operator_of_aten_and_one_that_is_counted(row: Row) -> None:
    assert _exists(row.aten), f"ATen has no operator {row.aten}"
    if isinstance(row.op_type, str) and row.storage is not Storage.NOTHING:
        assert operator(row.domain, row.op_type) is not None


def test_arguments_that_become_inputs_are_arguments_of_the_schema() -> None:
    for row in all_rows():
        packet = getattr(torch.ops.aten, row.aten, None)
        if packet is None or not row.inputs:
            continue
        overloads = [getattr(packet, name) for name in packet.overloads()]
        names = {each.name for overload in overloads for each in overload._schema.arguments}
        assert names & set(row.inputs), f"{row.aten} has none of {row.inputs}"


def test_an_operator_in_place_has_the_row_of_its_twin() -> None:
    assert find_row("aten::add_") is find_row("aten::add")
    assert find_row("aten::__and__") is not None
    assert find_row("elsewhere::add") is None
