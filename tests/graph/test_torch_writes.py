"""Writes into shared storage: who reads a tensor later waits for them, and none is lost."""

# mypy: allow-subclassing-any

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slicewise.core.graph import Binding, Graph, reads_of
from slicewise.graph.frontends.torch import read_module
from slicewise.graph.frontends.torch.versions import Versions
from slicewise.graph.work import count_work


class Does(nn.Module):
    """A module made of one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def graph_of(function: Any, *shape: int) -> Graph:
    x = torch.empty(*(shape or (2, 8)), device="meta")
    return read_module(Does(function).eval(), (x,), {}, Binding(), name="net", location="net")


def behind(graph: Graph, name: str) -> set[str]:
    """Return the operators that a tensor depends on, through any number of nodes."""
    maker = {out: node for node in graph.nodes for out in node.outputs}
    found: set[str] = set()
    todo = [name]
    while todo:
        node = maker.get(todo.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            todo += reads_of(node)
    return {node.op_type for node in graph.nodes if node.name in found}


def through_a_column(x: Any) -> Any:
    y = x * 1
    y[:, 0].add_(1)
    return y.exp()


def through_the_base(x: Any) -> Any:
    y = x * 1
    column = y[:, 0]
    y.add_(1)
    return column.exp()


def by_assignment(x: Any) -> Any:
    y = x * 1
    y[:, 2:4] = x[:, :2] + 1
    return y.exp()


def piece_by_piece(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[:, :4].copy_(x[:, 4:] + 1)
    y[:, 4:].copy_(x[:, :4].sin())
    return y.exp()


@pytest.mark.parametrize(
    ("function", "waits_for"),
    [
        (through_a_column, {"Add"}),
        (through_the_base, {"Add"}),
        (by_assignment, {"Add"}),
        (piece_by_piece, {"Add", "Sin"}),
    ],
)
def test_a_reader_waits_for_every_write_into_the_storage(
    function: Any, waits_for: set[str]
) -> None:
    graph = graph_of(function)
    assert waits_for <= behind(graph, graph.outputs[0])


def test_a_returned_tensor_shows_what_was_written_through_its_views() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        y[:, 0].add_(1)
        return y

    graph = graph_of(function)
    assert "Add" in behind(graph, graph.outputs[0])
    assert graph.tensors[graph.outputs[0]].shape == (2, 8)


def test_the_edge_of_a_write_costs_nothing_and_holds_no_bytes_of_its_own() -> None:
    graph = graph_of(through_a_column)
    works = count_work(graph).nodes
    (i,) = [k for k, node in enumerate(graph.nodes) if node.op_type == "Identity"]
    work = works[i].work
    assert (work.macs, work.flops, work.read_bytes, work.write_bytes) == (0, 0, 0, 0)
    assert graph.nodes[i].storage_of


def test_without_writes_there_are_no_versions() -> None:
    graph = graph_of(lambda x: (x[:, 0] + x[:, 1]).relu_())
    assert "Identity" not in {node.op_type for node in graph.nodes}


def test_a_digest_does_not_depend_on_the_batch_where_views_are_written_to() -> None:
    graph = graph_of(piece_by_piece)
    assert graph.bind(batch_size=5).digest == graph.digest


def test_a_custom_operator_that_only_writes_is_not_lost() -> None:
    @torch.library.custom_op("slicewise_tests::doubled_inside", mutates_args=("x",))  # type: ignore[untyped-decorator]
    def doubled(x: torch.Tensor) -> None:
        x.mul_(2)

    @doubled.register_fake  # type: ignore[untyped-decorator]
    def _(x: torch.Tensor) -> None:
        return None

    def function(x: Any) -> Any:
        y = x * 1
        doubled(y)
        return y.exp()

    graph = graph_of(function)
    assert "doubled_inside" in behind(graph, graph.outputs[0])


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["view", "write", "read"]), st.integers(0, 9)), max_size=20)
)
def test_a_read_name_shows_every_write_before_it(events: list[tuple[str, int]]) -> None:
    """Any program of views, writes and reads on one storage: who reads comes after all writes."""
    versions = Versions()
    names, step, written = ["x"], 0, 0
    shows = {"x": 0}  # how many writes a name waits for

    def read(name: str) -> str:
        nonlocal step
        name = versions.latest(name)
        if result := versions.write_since(name):
            new = versions.new_name(name)
            shows[new] = max(shows[name], shows[result])
            versions.made(new, of=name, step=(step := step + 1))
            versions.replaced(name, new)
            name = new
        return name

    for k, (kind, pick) in enumerate(events):
        source = read(names[pick % len(names)])
        assert shows[source] == written
        if kind == "read":
            continue
        name, step = f"t{k}", step + 1
        versions.made(name, of=source, step=step)
        names.append(name)
        shows[name] = shows[source]
        if kind == "write":
            written += 1
            shows[name] = written
            versions.wrote(source, result=name, step=step)
            versions.replaced(source, name)
