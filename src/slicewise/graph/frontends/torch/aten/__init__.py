"""The ATen table: for every ATen operator known, what it is in a Graph.

One row an operator; `find_row` looks it up by its name without overload. Anything not found is
kept under ATen's own name, and counted by its bytes.
"""

from slicewise.graph.frontends.torch.aten import arithmetic, contractions, movement
from slicewise.graph.frontends.torch.aten.row import Row

__all__ = ["all_rows", "find_row"]


def _build() -> dict[str, Row]:
    table: dict[str, Row] = {}
    for row in (*contractions.ROWS, *arithmetic.ROWS, *movement.ROWS):
        assert row.aten not in table, f"two rows for {row.aten}"
        table[row.aten] = row
    return table


_TABLE = _build()


def find_row(schema_name: str) -> Row | None:
    """Return the row of an operator, None if it is in no table.

    `schema_name` is 'aten::relu' or 'library::operator'; the twin in place, 'aten::relu_', has
    the same row.

    >>> find_row("aten::relu_").op_type, find_row("aten::nothing") is None
    ('Relu', True)
    """
    name = schema_name.removeprefix("aten::")
    row = _TABLE.get(name)
    if row is None and name.endswith("_") and not name.endswith("__"):
        row = _TABLE.get(name[:-1])
    return row


def all_rows() -> tuple[Row, ...]:
    """Return every row once."""
    return tuple(_TABLE.values())
