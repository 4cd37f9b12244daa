"""Peak memory: tensor lifetimes under the habits of each runtime, and what lies beside them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import Contraction, GraphWork, Kernel, Kind, NodeWork, Work
from slicewise.core.graph import AttrValue, Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType
from slicewise.graph.launch import launch
from slicewise.graph.work import count_work
from slicewise.predict import workspace
from slicewise.predict.lifetimes import Habits, trace
from slicewise.predict.memory import Footprint, estimate_memory, measure_footprint, weight_bytes
from slicewise.predict.runtimes import RUNTIMES
from slicewise.testing.graphs import Recipe, recipes, transformer
from slicewise.testing.predictors import tiny_gpu

KIB, MIB = 1024, 2**20
PLAIN = Habits()
EAGER = workspace.HABITS["torch-eager"]
PLANNED = Habits(writes_into_inputs=True)


def _tensor(kib: int) -> Tensor:
    return Tensor((kib * KIB // 4,), DType.FP32)


def _graph(edges: list[tuple[str, str]], sizes: dict[str, int], outputs: tuple[str, ...]) -> Graph:
    """Build a graph of one-output nodes 'inputs>output' over tensors of these KiB."""
    return Graph(
        name="lifetimes",
        nodes=tuple(Node(out, "Add", tuple(ins.split("+")), (out,)) for ins, out in edges),
        tensors={name: _tensor(kib) for name, kib in sizes.items()},
        inputs=("x",),
        outputs=outputs,
        constants={},
    )


def _chain(*kib: int) -> Graph:
    """Build x -> a -> b -> ... of these KiB; the last is the output."""
    names = ["x", *"abcdefgh"[: len(kib) - 1]]
    edges = list(pairwise(names))
    return _graph(edges, dict(zip(names, kib, strict=True)), (names[-1],))


def _work(graph: Graph, kinds: dict[str, Kind] | None = None) -> tuple[NodeWork, ...]:
    named = kinds or {}
    return tuple(
        NodeWork(n.name, n.op_type, named.get(n.name, Kind.CONV), DType.FP32, Work())
        for n in graph.nodes
    )


def _sharing(graph: Graph, **storage_of: str) -> Graph:
    """Return the graph with `storage_of` set on the nodes named."""
    nodes = (replace(n, storage_of=storage_of.get(n.name, n.storage_of)) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _kernels(work: Sequence[NodeWork], *groups: tuple[int, ...]) -> tuple[Kernel, ...]:
    return tuple(Kernel(nodes, work[nodes[0]]) for nodes in groups)


def _peak(
    graph: Graph,
    habits: Habits = PLAIN,
    *,
    work: Sequence[NodeWork] | None = None,
    kernels: Sequence[Kernel] | None = None,
) -> int:
    """Return the peak in KiB."""
    counted = _work(graph) if work is None else work
    bytes_ = trace(graph, counted, kernels, habits).peak_bytes
    assert bytes_ % KIB == 0
    return bytes_ // KIB


# what lives how long


def test_a_chain_holds_two_tensors_at_a_time_and_its_input() -> None:
    assert _peak(_chain(1, 10, 20, 5)) == 1 + 10 + 20


def test_the_input_is_held_by_the_caller_to_the_end() -> None:
    assert _peak(_chain(40, 1, 10, 20)) == 40 + 10 + 20


def test_a_skip_connection_keeps_its_tensor_alive() -> None:
    sizes = {"x": 1, "a": 10, "b": 20, "c": 20, "y": 5}
    skip = _graph([("x", "a"), ("a", "b"), ("b", "c"), ("c+a", "y")], sizes, ("y",))
    assert _peak(_chain(1, 10, 20, 20, 5)) == 41
    assert _peak(skip) == 51


def test_a_view_owns_no_bytes_and_keeps_its_owner_alive() -> None:
    graph = _chain(1, 10, 10, 10)
    work = _work(graph, {"b": Kind.VIEW})
    assert _peak(graph, work=work) == 1 + 20
    assert _peak(replace(graph, outputs=("b",)), work=work) == 1 + 20


def test_an_output_lives_to_the_end() -> None:
    graph = _graph(
        [("x", "a"), ("x", "b"), ("b", "y")], {"x": 1, "a": 50, "b": 10, "y": 10}, ("a", "y")
    )
    assert _peak(graph) == 1 + 50 + 20


def test_a_result_that_nobody_reads_dies_at_once() -> None:
    graph = _graph([("x", "unused"), ("x", "y")], {"x": 1, "unused": 50, "y": 60}, ("y",))
    assert _peak(graph) == 1 + 60


def test_each_node_tells_what_is_alive_while_it_runs() -> None:
    graph = _chain(1, 10, 20, 5)
    alive = trace(graph, _work(graph), None, PLAIN).alive_bytes
    assert [bytes_ // KIB for bytes_ in alive] == [1 + 10, 1 + 10 + 20, 1 + 20 + 5]


# a torch program says what is a view, what runs in place and what it holds


def test_a_transpose_is_a_view_in_torch_and_a_copy_elsewhere() -> None:
    graph = _sharing(_chain(1, 10, 10, 5), b="a")
    work = _work(graph, {"b": Kind.MOVEMENT})
    assert _peak(graph, EAGER, work=work) == 1 + 10 + 5
    assert _peak(graph, PLAIN, work=work) == 1 + 10 + 10


def test_a_reshape_that_copies_owns_its_bytes_in_torch_only() -> None:
    graph = _sharing(_chain(1, 10, 10, 5), b="")
    work = _work(graph, {"b": Kind.VIEW})
    assert _peak(graph, EAGER, work=work) == 1 + 10 + 10
    assert _peak(graph, PLAIN, work=work) == 1 + 10 + 5


def test_an_operator_in_place_owns_no_bytes_in_torch_only() -> None:
    graph = _sharing(_chain(1, 10, 10, 5), b="a")
    assert _peak(graph, EAGER) == 1 + 10 + 5
    assert _peak(graph, PLAIN) == 1 + 10 + 10


def test_the_argument_of_a_module_lives_until_the_call_returns() -> None:
    graph = replace(_chain(1, 10, 20, 20, 5), held_to={"a": "c"})
    assert _peak(graph, EAGER) == 1 + 10 + 20 + 20
    assert _peak(graph, PLAIN) == 1 + 20 + 20


def test_a_held_view_holds_its_owner() -> None:
    graph = replace(_sharing(_chain(1, 10, 10, 20, 20, 5), b="a"), held_to={"b": "d"})
    assert _peak(graph, EAGER) == 1 + 10 + 20 + 20


def test_max_pool_makes_indices_and_attention_a_log_sum_exp_in_torch() -> None:
    pool = _chain(1, 8, 2)
    pool = replace(pool, nodes=(pool.nodes[0], replace(pool.nodes[1], op_type="MaxPool")))
    assert _peak(pool, EAGER) == 1 + 8 + 2 + 2 * 2
    assert _peak(pool, PLAIN) == 1 + 8 + 2
    attention = replace(pool, nodes=(pool.nodes[0], replace(pool.nodes[1], op_type="Attention")))
    work = list(_work(attention))
    work[1] = replace(work[1], contraction=Contraction(batch=4, m=256, n=64, k=256))
    assert _peak(attention, EAGER, work=work) == 1 + 8 + 2 + 4


def test_a_stack_of_recurrent_layers_makes_results_between_them_in_torch() -> None:
    graph = _chain(1, 8, 2)

    def peak(**attrs: AttrValue) -> int:
        last = replace(graph.nodes[1], op_type="LSTM", attrs=attrs)
        return _peak(replace(graph, nodes=(graph.nodes[0], last)), EAGER)

    assert peak() == 1 + 8 + 2
    assert peak(num_layers=2) == 1 + 8 + 2 + 2
    assert peak(num_layers=2, direction="bidirectional") == 1 + 8 + 2 + 4
    assert peak(layout=1) == 1 + 8 + 2 + 8


# runtimes that plan


def test_results_inside_a_kernel_own_no_bytes() -> None:
    graph = _chain(1, 10, 30, 30, 5)
    work = _work(graph)
    assert _peak(graph, work=work) == 1 + 60
    assert _peak(graph, kernels=_kernels(work, (0,), (1, 2), (3,))) == 1 + 10 + 30


def test_a_result_that_another_kernel_reads_too_is_written() -> None:
    sizes = {"x": 1, "a": 10, "b": 10, "y": 5}
    graph = _graph([("x", "a"), ("a", "b"), ("b+a", "y")], sizes, ("y",))
    assert _peak(graph, kernels=_kernels(_work(graph), (0, 1), (2,))) == 1 + 10 + 10 + 5
    told = replace(graph, outputs=("a", "y"))
    assert _peak(told, kernels=_kernels(_work(told), (0, 1, 2))) == 1 + 10 + 5


def test_an_elementwise_kernel_writes_into_an_input_that_dies_there() -> None:
    graph = _chain(1, 20, 20, 5)
    work = _work(graph, {"b": Kind.ELEMENTWISE})
    assert _peak(graph, PLANNED, work=work) == 1 + 20 + 5
    assert _peak(graph, PLAIN, work=work) == 1 + 20 + 20


def test_nothing_is_written_into_an_input_of_the_model_or_one_still_needed() -> None:
    graph = _chain(20, 20)
    assert _peak(graph, PLANNED, work=_work(graph, {"a": Kind.ELEMENTWISE})) == 40
    sizes = {"x": 1, "a": 20, "b": 20, "y": 5}
    skip = _graph([("x", "a"), ("a", "b"), ("b+a", "y")], sizes, ("y",))
    assert _peak(skip, PLANNED, work=_work(skip, {"b": Kind.ELEMENTWISE})) == 1 + 45


def test_outputs_that_the_caller_binds_are_there_from_the_start() -> None:
    assert _peak(_chain(1, 10, 20, 7), Habits(binds_outputs=True)) == 1 + 7 + 30


# bodies, quantised values


def test_a_body_adds_its_own_peak() -> None:
    body = _graph([("x", "a"), ("a", "y")], {"x": 5, "a": 30, "y": 5}, ("y",))
    outer = _chain(5, 5, 5)
    loop = replace(outer.nodes[0], op_type="Loop", bodies=(body,), repeats=4)
    graph = replace(outer, nodes=(loop, outer.nodes[1]))
    work = list(_work(graph))
    work[0] = replace(work[0], kind=Kind.CONTROL, body=_work(body), repeats=4)
    assert _peak(graph, work=work) == 10 + 35
    work[0] = replace(work[0], kernels=_kernels(_work(body), (0, 1)))
    kernels = _kernels(work, (0,), (1,))
    assert _peak(graph, work=work, kernels=kernels) == 10 + 10


def _branch(wide: int, op_type: str = "Add") -> Graph:
    """Build a branch of two nodes that makes `wide` KiB, and 5 KiB of it."""
    graph = _chain(5, wide, 5)
    first, last = graph.nodes
    return replace(graph, inputs=(), nodes=(first, replace(last, op_type=op_type)))


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("widths", [(30, 80), (80, 30)])
def test_the_peak_of_an_if_is_that_of_its_larger_branch_whichever_is_priced(
    kept: int, widths: tuple[int, int]
) -> None:
    branches = (_branch(widths[0]), _branch(widths[1]))
    outer = _chain(5, 5, 5)
    choice = replace(outer.nodes[0], op_type="If", bodies=branches)
    graph = replace(outer, nodes=(choice, outer.nodes[1]))
    work = list(_work(graph))
    work[0] = replace(work[0], kind=Kind.CONTROL, body=_work(branches[kept]), body_index=kept)
    assert _peak(graph, work=work) == 10 + 80 + 5


def test_in_a_branch_that_is_not_priced_no_node_is_taken_for_a_view() -> None:
    branch = _branch(30, "Identity")
    priced = trace(branch, _work(branch, {"b": Kind.VIEW}), None, PLAIN, is_body=True)
    other = trace(branch, None, None, PLAIN, is_body=True)
    assert (priced.peak_bytes, other.peak_bytes) == (30 * KIB, 35 * KIB)


def test_what_an_int8_kernel_writes_is_held_in_int8() -> None:
    # a is a convolution that writes what the QuantizeLinear behind it gives: a float tensor of
    # 40 KiB never exists
    graph = _chain(1, 40, 40, 40, 40)
    tensors = {**graph.tensors, "b": replace(graph.tensors["b"], dtype=DType.INT8)}
    graph = replace(graph, tensors=tensors)
    fused = _work(graph, {"b": Kind.VIEW, "c": Kind.VIEW})
    assert _peak(graph, work=fused) == 1 + 10 + 40
    assert _peak(graph) == 1 + 80


# laws


ANY_HABITS = st.sampled_from([PLAIN, *workspace.HABITS.values()])


@given(recipes(), st.integers(1, 3), ANY_HABITS)
@settings(deadline=None)
def test_the_peak_holds_every_node_and_never_exceeds_all_tensors(
    recipe: Recipe, batch: int, habits: Habits
) -> None:
    graph = recipe.graph(batch)
    work = count_work(graph).nodes
    lives = trace(graph, work, None, habits)
    sizes = {n: t.size_bytes for n, t in graph.tensors.items() if n not in graph.constants}
    assert lives.peak_bytes <= sum(sizes.values())
    assert len(lives.alive_bytes) == len(graph.nodes)
    for node, alive in zip(graph.nodes, lives.alive_bytes, strict=True):
        touched = {name for name in (*node.inputs, *node.outputs) if name in sizes}
        in_place = habits.writes_into_inputs and node.op_type in ("Relu", "Sigmoid", "Add")
        made = 0 if in_place else sum(sizes[name] for name in node.outputs)
        assert sum(sizes[name] for name in touched.intersection(node.inputs)) + made <= alive
        assert alive <= lives.peak_bytes


@given(recipes(), ANY_HABITS)
@settings(deadline=None)
def test_the_peak_grows_with_the_batch(recipe: Recipe, habits: Habits) -> None:
    peaks = []
    for batch in (1, 2, 5):
        graph = recipe.graph(batch)
        peaks.append(trace(graph, count_work(graph).nodes, None, habits).peak_bytes)
    assert peaks == [peaks[0], 2 * peaks[0], 5 * peaks[0]]


@given(recipes(), st.data(), st.sampled_from([PLAIN, EAGER]))
@settings(deadline=None)
def test_a_view_put_in_never_changes_the_peak(
    recipe: Recipe, data: st.DataObject, habits: Habits
) -> None:
    graph = recipe.graph(1)
    work = count_work(graph).nodes
    i = data.draw(st.integers(0, len(graph.nodes) - 1))
    name = graph.nodes[i].inputs[0]
    view = Node("view", "Reshape", (name,), ("viewed",), storage_of=name)
    reader = replace(
        graph.nodes[i], inputs=tuple("viewed" if n == name else n for n in graph.nodes[i].inputs)
    )
    grown = replace(
        graph,
        nodes=(*graph.nodes[:i], view, reader, *graph.nodes[i + 1 :]),
        tensors={**graph.tensors, "viewed": graph.tensors[name]},
    )
    free = NodeWork("view", "Reshape", Kind.VIEW, DType.FP32, Work())
    before = trace(graph, work, None, habits).peak_bytes
    after = trace(grown, (*work[:i], free, *work[i:]), None, habits).peak_bytes
    assert after == before


@given(recipes(), st.data())
@settings(deadline=None)
def test_what_a_program_holds_only_raises_the_peak(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph(1)
    work = count_work(graph).nodes
    names = st.sampled_from(sorted(set(graph.tensors) - set(graph.constants)))
    nodes = st.sampled_from([node.name for node in graph.nodes])
    held = replace(graph, held_to=data.draw(st.dictionaries(names, nodes, max_size=4)))
    plain = trace(graph, work, None, replace(EAGER, holds_arguments=False)).peak_bytes
    assert trace(held, work, None, EAGER).peak_bytes >= plain
    assert trace(held, work, None, PLAIN).peak_bytes == plain


@given(st.lists(st.integers(1, 50), min_size=3, max_size=8), st.data())
@settings(deadline=None)
def test_fusing_what_follows_into_a_kernel_of_the_same_size_never_raises_the_peak(
    sizes: list[int], data: st.DataObject
) -> None:
    i = data.draw(st.integers(1, len(sizes) - 2))
    sizes[i + 1] = sizes[i]
    graph = _chain(*sizes)
    work = _work(graph)
    single = [(k,) for k in range(len(work))]
    fused = [*single[: i - 1], (i - 1, i), *single[i + 1 :]]
    assert _peak(graph, kernels=_kernels(work, *fused)) <= _peak(graph, work=work)


@given(recipes(), st.sampled_from(sorted(RUNTIMES)))
@settings(deadline=None, max_examples=50)
def test_fusing_raises_the_peak_by_no_more_than_one_kernel_touches(
    recipe: Recipe, runtime: str
) -> None:
    """Against the same nodes in the same order, each a kernel of its own: what lives across a
    kernel lives across all of its nodes."""
    graph = recipe.graph(1)
    work = launch(graph, count_work(graph), runtime=runtime)
    kernels = work.kernels or ()
    apart = tuple(Kernel((i,), work.nodes[i]) for kernel in kernels for i in kernel.nodes)
    habits = workspace.HABITS[runtime]
    alone = trace(graph, work.nodes, apart, habits).peak_bytes
    sizes = {n: t.size_bytes for n, t in graph.tensors.items() if n not in graph.constants}
    touched = [
        {
            n
            for i in k.nodes
            for n in (*graph.nodes[i].inputs, *graph.nodes[i].outputs)
            if n in sizes
        }
        for k in kernels
        if len(k.nodes) > 1
    ]
    most = max((sum(sizes[n] for n in names) for names in touched), default=0)
    assert trace(graph, work.nodes, kernels, habits).peak_bytes <= alone + most


def test_fusing_can_raise_the_peak_where_a_kernel_has_two_results() -> None:
    sizes = {"x": 1, "a": 10, "b": 10, "c": 10, "d": 5, "y": 1}
    graph = _graph([("x", "a"), ("a", "b"), ("b", "c"), ("b", "d"), ("c+d", "y")], sizes, ("y",))
    work = _work(graph)
    single = _kernels(work, (0,), (1,), (2,), (3,), (4,))
    assert _peak(graph, kernels=single) == 1 + 10 + 10 + 5
    assert _peak(graph, kernels=_kernels(work, (0,), (1, 2), (3,), (4,))) == 1 + 10 + 10 + 10


@given(recipes(), st.sampled_from(sorted(RUNTIMES)))
@settings(deadline=None, max_examples=50)
def test_every_kernel_has_room_for_what_it_reads_and_for_outputs(
    recipe: Recipe, runtime: str
) -> None:
    graph = recipe.graph(2)
    work = launch(graph, count_work(graph), runtime=runtime)
    lives = trace(graph, work.nodes, work.kernels, workspace.HABITS[runtime])
    sizes = {n: t.size_bytes for n, t in graph.tensors.items() if n not in graph.constants}
    assert lives.peak_bytes <= sum(sizes.values())
    assert len(lives.alive_bytes) == len(graph.nodes)
    launched = work.kernels or ()
    for step, kernel in enumerate(launched):
        for i in kernel.nodes:
            given_by_caller = {name for name in graph.nodes[i].inputs if name in graph.inputs}
            assert lives.step_bytes[step] >= sum(sizes[name] for name in given_by_caller)


def test_what_launches_nothing_owns_nothing() -> None:
    graph = _chain(1, 10, 10, 5)
    work = _work(graph, {"b": Kind.MOVEMENT})
    assert _peak(graph, work=work) == 1 + 20
    assert _peak(graph, work=work, kernels=_kernels(work, (0,), (2,))) == 1 + 10 + 5


@given(st.integers(1, 4096), recipes())
@settings(deadline=None)
def test_rounding_adds_less_than_a_block_for_each_tensor(block_bytes: int, recipe: Recipe) -> None:
    graph = recipe.graph(1)
    work = count_work(graph).nodes
    exact = trace(graph, work, None, PLAIN).peak_bytes
    rounded = trace(graph, work, None, PLAIN, block_bytes=block_bytes).peak_bytes
    assert exact <= rounded < exact + block_bytes * len(graph.tensors)
    assert rounded % block_bytes == 0


# the whole estimate


def _footprint(runtime: str, device_kind: str) -> Footprint:
    graph = transformer(2)
    return measure_footprint(graph, count_work(graph), runtime=runtime, device_kind=device_kind)


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_the_parts_add_up_within_the_interval_for_every_runtime(runtime: str) -> None:
    device = tiny_gpu()
    footprint = _footprint(runtime, "gpu")
    made = estimate_memory(footprint, device, RUNTIMES[runtime])
    assert made.value == made.weights + made.activations + made.workspace + made.runtime
    assert made.low <= made.value <= made.high
    assert len(footprint.alive_bytes) == len(transformer(2).nodes)
    assert max(footprint.alive_bytes) == footprint.activation_bytes


def test_torch_holds_the_buffers_of_cublas_in_whole_segments() -> None:
    torch = RUNTIMES["torch-eager"]
    footprint = _footprint("torch-eager", "gpu")
    for architecture, least in (("Ampere GA100", 8 * MIB), ("Hopper GH100", 32 * MIB)):
        device = replace(tiny_gpu(), architecture=architecture)
        made = estimate_memory(footprint, device, torch)
        assert least < made.workspace < least + 3 * MIB
        assert (made.activations + made.workspace) % (2 * MIB) == 0


def test_scratch_memory_counts_only_where_it_raises_the_peak() -> None:
    conv = NodeWork("conv", "Conv", Kind.CONV, DType.FP32, Work(weight_bytes=30 * KIB))
    graph = _chain(1, 10, 100, 5)
    nodes = list(_work(graph, {"b": Kind.ELEMENTWISE, "c": Kind.ELEMENTWISE}))

    def scratch(place: int) -> int:
        work = GraphWork(
            tuple(conv if i == place else node for i, node in enumerate(nodes)), Work()
        )
        return measure_footprint(
            graph, work, runtime="torch-eager", device_kind="cpu"
        ).scratch_bytes

    assert scratch(0) == 0
    assert scratch(1) == 30 * KIB


def test_every_row_of_the_workspace_tables_says_where_it_is_from() -> None:
    rows: list[workspace.Scratch | workspace.LibraryBuffer] = [
        *workspace.SCRATCH,
        *workspace.LIBRARY_BUFFERS,
    ]
    for row in rows:
        assert len(row.source) > 20
        assert row.runtimes <= set(RUNTIMES)
    assert set(workspace.HABITS) == set(workspace.ACTIVATIONS) == set(RUNTIMES)


def test_weights_count_as_stored_those_of_bodies_included() -> None:
    body = replace(
        _graph([("x", "y")], {"x": 1, "y": 1}, ("y",)),
        constants={"w": Constant(Role.PARAMETER, 100)},
    )
    outer = _graph([("x", "y")], {"x": 1, "y": 1}, ("y",))
    looped = replace(outer.nodes[0], bodies=(body,))
    graph = replace(outer, nodes=(looped,), constants={"v": Constant(Role.DATA, 7)})
    assert weight_bytes(graph) == pytest.approx(107)
