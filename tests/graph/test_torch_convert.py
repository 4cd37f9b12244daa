"""What an exported module becomes: operators, wiring, storage, constants, names."""

# mypy: allow-subclassing-any

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as f

from slicewise.core.graph import Binding, Graph, Node, Role, reads_of
from slicewise.graph.frontends.torch import read_exported, read_module
from slicewise.graph.frontends.torch.export import quiet
from slicewise.graph.frontends.torch.strides import can_view
from slicewise.graph.work import count_work


def graph_of(module: Any, *args: Any, batch: int | None = None, **kwargs: Any) -> Graph:
    return read_module(
        module.eval(), args, kwargs, Binding(batch_size=batch), name="model", location="model"
    )


def node_of(graph: Graph, op_type: str) -> Node:
    (found,) = [node for node in graph.nodes if node.op_type == op_type]
    return found


class Calls(nn.Module):
    """A module made of one function and its parts."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def attention(m: Any, x: Any) -> Any:
    q, k, v = (each.transpose(1, 2) for each in m.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2))
    return m.out(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def transformer() -> Any:
    parts = {"qkv": nn.Linear(32, 96), "out": nn.Linear(32, 32)}
    return nn.Sequential(nn.LayerNorm(32), Calls(attention, **parts), nn.GELU(), nn.Linear(32, 8))


def small_cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


MODELS = {
    "cnn": (small_cnn, (3, 16, 16)),
    "transformer": (transformer, (6, 32)),
    "recurrent": (lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True), (4, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (6, 16)),
}


def built(name: str, batch: int) -> tuple[Any, Any]:
    make, shape = MODELS[name]
    with torch.device("meta"):
        return make().eval(), torch.empty(batch, *shape)


@pytest.mark.parametrize("name", MODELS)
def test_work_is_proportional_to_the_batch_and_the_digest_does_not_know_it(name: str) -> None:
    module, x = built(name, 1)
    one = graph_of(module, x)
    eight = one.bind(batch_size=8)
    assert (one.batch_size, eight.batch_size) == (1, 8)
    assert eight.tensors[eight.inputs[0]].shape == (8, *x.shape[1:])
    assert count_work(eight).total.macs == 8 * count_work(one).total.macs > 0
    assert eight.digest == one.digest
    assert [node.name for node in eight.nodes] == [node.name for node in one.nodes]


@pytest.mark.parametrize("name", MODELS)
def test_macs_are_those_of_pytorchs_own_counter(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, x = built(name, 2)
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (x,), strict=False)
        with FlopCounterMode(display=False) as counter:
            program.module()(x)
    assert 2 * count_work(graph_of(module, x)).total.macs == counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_module_and_names_are_unique(name: str) -> None:
    module, x = built(name, 1)
    graph = graph_of(module, x)
    assert graph.parameters == sum(p.numel() for p in module.parameters())
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert all(each in graph.tensors for node in graph.nodes for each in reads_of(node))


@pytest.mark.parametrize("name", MODELS)
def test_symbolic_and_static_exports_are_the_same_graph(name: str) -> None:
    module, x = built(name, 3)
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (x,), strict=False)
    static = read_exported(program, Binding(), name="model", location="model")
    assert static.digest == graph_of(module, x).digest


def test_one_operator_is_one_node_named_after_its_module() -> None:
    module, x = built("cnn", 1)
    graph = graph_of(module, x)
    assert [(node.name, node.op_type) for node in graph.nodes] == [
        ("0", "Conv"), ("1", "BatchNormalization"), ("2", "Relu"), ("3", "MaxPool"),
        ("4", "GlobalAveragePool"), ("5", "Reshape"), ("6", "Gemm"),
    ]  # fmt: skip
    assert all(node.origin == node.name for node in graph.nodes)


def test_attention_stays_whole_and_its_views_share_storage() -> None:
    module, x = built("transformer", 1)
    graph = graph_of(module, x)
    assert node_of(graph, "Attention").storage_of == ""
    assert node_of(graph, "Split").storage_of == node_of(graph, "Split").inputs[0]
    assert {n.storage_of == n.inputs[0] for n in graph.nodes if n.op_type == "Transpose"} == {True}


def test_statistics_are_buffers_and_a_tied_weight_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.table.weight
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("mask", torch.ones(4))

        def forward(self, ids: Any) -> Any:
            x = self.norm(self.table(ids).transpose(1, 2)).transpose(1, 2)
            return self.head(x * self.mask)

    graph = graph_of(Tied(), torch.zeros(1, 5, dtype=torch.long))
    assert graph.parameters == 11 * 4 + 2 * 4
    assert graph.buffers == 2 * 4
    assert graph.constants["mask"].role is Role.DATA
    assert graph.constants["table.weight"].stored_bytes == 11 * 4 * 4


def test_what_works_in_place_shares_the_storage_of_its_input_and_comes_before_later_readers() -> (
    None
):
    def forward(m: Any, x: Any) -> Any:
        y = m.linear(x)
        y.add_(1.0)
        return y * 2

    graph = graph_of(Calls(forward, linear=nn.Linear(4, 4)), torch.zeros(2, 4))
    add, double = node_of(graph, "Add"), node_of(graph, "Mul")
    assert add.storage_of == add.inputs[0]
    assert double.inputs == add.outputs


@pytest.mark.parametrize(
    ("function", "op_type", "shares"),
    [
        (lambda m, x: x.transpose(1, 2).contiguous(), "Identity", False),
        (lambda m, x: x.transpose(1, 2).reshape(x.shape[0], -1), "Reshape", False),
        (lambda m, x: x.reshape(x.shape[0], -1), "Reshape", True),
        (lambda m, x: x.clone(), "Identity", False),
        (lambda m, x: x.half(), "Cast", False),
        (lambda m, x: x[:, 1:], "Slice", True),
        (lambda m, x: x.repeat(1, 2, 1), "Tile", False),
    ],
)
def test_a_copy_owns_its_bytes_and_a_view_does_not(
    function: Any, op_type: str, shares: bool
) -> None:
    node = node_of(graph_of(Calls(function), torch.zeros(2, 4, 6)), op_type)
    assert node.storage_of == (node.inputs[0] if shares else "")


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_views_are_told_as_torch_tells_them(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    base = torch.zeros(shape).permute(*order)
    elements = math.prod(shape)
    new: list[int] = []
    while math.prod(new) < elements:
        rest = elements // math.prod(new)
        new.append(data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
        if len(new) > 4:
            new.append(elements // math.prod(new))
    shares = base.reshape(new).data_ptr() == base.data_ptr()
    assert can_view(tuple(base.shape), base.stride(), new) == shares


def test_nothing_runs_for_a_conversion_to_the_same_type_or_for_dropout() -> None:
    def forward(m: Any, x: Any) -> Any:
        return f.dropout(x.float().to(torch.float32), 0.5, m.training)[:] + 1

    assert [n.op_type for n in graph_of(Calls(forward), torch.zeros(2, 4)).nodes] == ["Add"]


def test_an_argument_of_a_module_call_is_held_until_the_call_returns() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    graph = graph_of(nn.Sequential(nn.Linear(4, 4), Block()), torch.zeros(1, 4))
    argument = graph.nodes[0].outputs[0]
    assert graph.held_to[argument] == "1.second"


def test_an_operator_in_no_table_is_kept_under_its_own_name_and_noted_once() -> None:
    def forward(m: Any, x: Any) -> Any:
        return torch.special.bessel_j0(torch.special.bessel_j0(x))

    graph = graph_of(Calls(forward), torch.zeros(1, 4))
    assert [(n.domain, n.op_type) for n in graph.nodes] == [
        ("torch.aten", "special_bessel_j0")
    ] * 2
    (note,) = count_work(graph).notes
    assert note.code == "op-unknown"
    assert "special_bessel_j0 (2 nodes)" in note.text
    assert count_work(graph).total.read_bytes == 2 * 16


def test_sizes_that_depend_on_data_take_their_upper_bound_with_a_note() -> None:
    graph = graph_of(Calls(lambda m, x: x[x > 0] * 2), torch.zeros(2, 4))
    assert graph.tensors[graph.outputs[0]].shape == (8,)
    assert "shape-upper-bound" in {note.code for note in graph.notes}


def test_branches_and_loops_keep_their_bodies() -> None:
    def forward(m: Any, x: Any) -> Any:
        x = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: m.linear(t), (x,))
        _, x = torch.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, m.linear(y)), (torch.tensor(0), x)
        )
        return x

    graph = graph_of(Calls(forward, linear=nn.Linear(4, 4)), torch.zeros(2, 4))
    branch, loop = node_of(graph, "If"), node_of(graph, "Loop")
    assert [[n.op_type for n in body.nodes] for body in branch.bodies] == [["Sin"], ["Gemm"]]
    assert [n.op_type for n in loop.bodies[0].nodes] == ["Add", "Gemm"]
    assert graph.parameters == 4 * 4 + 4
    assert count_work(graph).total.macs == 2 * 2 * 4 * 4
    assert graph.bind(batch_size=3).digest == graph.digest
    assert "trip-count-unknown" in {note.code for note in graph.notes}


def test_regions_that_set_a_mode_are_put_in_line() -> None:
    def forward(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = m.linear(x)
        return x.float()

    graph = graph_of(Calls(forward, linear=nn.Linear(4, 4)), torch.zeros(2, 4))
    assert {"Gemm", "Cast"} == {node.op_type for node in graph.nodes}
    assert graph.tensors[node_of(graph, "Gemm").outputs[0]].dtype == "bf16"


def test_complex_and_small_types_do_not_stop_the_reading() -> None:
    graph = graph_of(
        Calls(lambda m, x: torch.view_as_real(torch.fft.rfft(x)).to(torch.float8_e4m3fn)),
        torch.zeros(2, 8),
    )
    assert [t.dtype.value for n, t in graph.tensors.items() if n not in graph.inputs] == [
        "complex64", "fp32", "fp8",
    ]  # fmt: skip


# --- figures


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_counts_one_step_of_its_two_matrices(kind: Any) -> None:
    cell = kind(8, 16, device="meta")
    graph = graph_of(cell, torch.empty(3, 8, device="meta"))
    assert count_work(graph).total.macs == 3 * (cell.weight_ih.numel() + cell.weight_hh.numel())
    assert graph.bind(batch_size=9).digest == graph.digest


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (torch.inner, ((2, 4), (5, 4)), 2 * 4 * 5),
        (torch.vdot, ((4,), (4,)), 4),
        (torch.linalg.vecdot, ((2, 4), (2, 4)), 8),
    ],
)
def test_products_along_the_last_axis_count_what_meets(
    function: Any, shapes: tuple[tuple[int, ...], ...], macs: int
) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    graph = graph_of(Calls(lambda m, *args: function(*args)), *tensors)
    assert count_work(graph).total.macs == macs


def test_a_function_that_is_no_operator_is_kept_under_its_own_name() -> None:
    from slicewise.graph.frontends.torch.aten.row import Values
    from slicewise.graph.frontends.torch.convert import convert

    class PerItem(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.vmap(torch.exp)(x)

    program = torch.export.export(PerItem(), (torch.zeros(2, 8),), strict=False)
    kinds = [node.op_type for node in convert(program, Values({}), name="net").nodes]
    assert kinds == ["_add_batch_dim", "Exp", "_remove_batch_dim"]
