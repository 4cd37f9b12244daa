"""The conformance suite of predictors: inherit it, say which predictor, and run pytest.

class TestMine(PredictorLaws):
    predictor = staticmethod(predict_mine)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slicewise.core.conditions import LAYOUTS, Conditions
from slicewise.core.cost import Contraction, GraphWork, Kernel, Kind, NodeWork, Prediction, Work
from slicewise.core.device import Device, SliceProfile
from slicewise.core.errors import DeviceError, UsageError
from slicewise.core.graph import Graph, Node, Tensor
from slicewise.core.precision import PRECISIONS, DType

GIB = 2**30


def tiny_gpu() -> Device:
    """Return a made-up card with two slices, for tests without a catalogue."""

    def profile(name: str, units: int, memory_gib: int, slots: int, starts: int) -> SliceProfile:
        return SliceProfile(
            name, units, memory_gib * GIB, units // 14, slots, tuple(range(starts)), slots, starts
        )

    return Device(
        name="tiny-gpu", kind="gpu", vendor="NVIDIA", architecture="test", compute_units=108,
        peak_flop_per_s={
            DType.FP32: 19.5e12, DType.TF32: 156e12, DType.FP16: 312e12, DType.BF16: 312e12,
            DType.INT8: 624e12,
        },
        memory_bytes=80 * GIB, memory_bandwidth_bytes_per_s=2e12, cache_bytes=40 * 2**20,
        clock_hz=1.41e9, idle_power_w=60.0, max_power_w=400.0, launch_s=5e-6, host_s=2e-5,
        memory_slots=8,
        profiles=(profile("1g.10gb", 14, 10, 1, 7), profile("3g.40gb", 42, 39, 4, 2)),
    )  # fmt: skip


def product(m: int, n: int, k: int, *, batch: int = 1, dtype: DType = DType.FP32) -> NodeWork:
    """Return the work of `batch` products [m, k] x [k, n] with a constant right side."""
    macs = batch * m * n * k
    size = dtype.bits // 8
    work = Work(macs, 2 * macs, batch * m * k * size, batch * m * n * size, batch * k * n * size)
    return NodeWork("product", "MatMul", Kind.MATMUL, dtype, work, Contraction(batch, m, n, k))


def pointwise(elements: int, *, dtype: DType = DType.FP32) -> NodeWork:
    """Return the work of an elementwise node."""
    size = elements * dtype.bits // 8
    return NodeWork("relu", "Relu", Kind.ELEMENTWISE, dtype, Work(0, elements, size, size, 0))


def as_graph(nodes: tuple[NodeWork, ...], *, batch: int = 1) -> tuple[Graph, GraphWork]:
    """Return a chain graph of these nodes, renamed apart, and its work."""
    named = tuple(replace(node, name=f"{node.name}_{i}") for i, node in enumerate(nodes))
    tensors = {f"t{i}": Tensor((batch, 8), DType.FP32) for i in range(len(named) + 1)}
    graph = Graph(
        name="chain",
        nodes=tuple(
            Node(node.name, node.op_type, (f"t{i}",), (f"t{i + 1}",))
            for i, node in enumerate(named)
        ),
        tensors=tensors,
        inputs=("t0",),
        outputs=(f"t{len(named)}",),
        constants={},
        batch_size=batch,
        batch_axes={"t0": 0},
    )
    total = sum((node.work for node in named), Work())
    return graph, GraphWork(named, total)


def fused(nodes: tuple[NodeWork, ...], *members: tuple[int, ...]) -> tuple[Graph, GraphWork]:
    """Return a chain graph with these kernels, each with the work of its nodes added up."""
    graph, work = as_graph(nodes)

    def joint(its: tuple[int, ...]) -> Kernel:
        whole = sum((work.nodes[i].work for i in its), Work())
        return Kernel(its, replace(work.nodes[its[0]], work=whole))

    return graph, replace(work, kernels=tuple(joint(its) for its in members))


def _ends(nodes: tuple[NodeWork, ...]) -> dict[str, int]:
    """Return what a chain moves whose inner results stay inside."""
    return {
        "read_bytes": nodes[0].work.read_bytes,
        "write_bytes": nodes[-1].work.write_bytes,
    }


_SIZES = st.integers(1, 3000)
works = st.lists(
    st.one_of(
        st.builds(product, _SIZES, _SIZES, _SIZES, batch=st.integers(1, 16)),
        st.builds(pointwise, st.integers(1, 10**8)),
    ),
    min_size=1,
    max_size=8,
).map(tuple)

# Several predictors inherit the suite.
_law = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class PredictorLaws:
    """What holds for every predictor. Set `predictor` to the function under test, and `runtime` to
    one that it covers. `growing` are the sizes of a product along which more is never faster: a
    predictor that knows alignment may find 1024 columns faster than 1023, as hardware does, but
    never fewer rows slower."""

    predictor: ClassVar[Callable[..., tuple[Prediction, ...]]]
    runtime: ClassVar[str] = "onnxruntime"
    growing: ClassVar[frozenset[str]] = frozenset({"m", "n", "k"})

    def predict(
        self, nodes: tuple[NodeWork, ...], device: Device | None = None, *, batch: int = 1
    ) -> Prediction:
        """Predict a chain of these nodes in fp32."""
        graph, work = as_graph(nodes, batch=batch)
        (made,) = type(self).predictor(
            graph,
            work,
            [device or tiny_gpu()],
            precision=PRECISIONS["fp32"],
            runtime=self.runtime,
        )
        return made

    @given(works)
    @_law
    def test_node_latencies_and_host_add_up_exactly(self, nodes: tuple[NodeWork, ...]) -> None:
        made = self.predict(nodes)
        total = made.host_ms + sum(node.latency_ms for node in made.nodes)
        assert total == made.latency_ms.value
        assert sum(node.latency_ms for node in reversed(made.nodes)) + made.host_ms == total

    @given(works)
    @_law
    def test_every_interval_holds_its_value(self, nodes: tuple[NodeWork, ...]) -> None:
        made = self.predict(nodes)
        for estimate in (made.latency_ms, made.energy_j, made.memory_bytes):
            assert 0 < estimate.low <= estimate.value <= estimate.high
        assert 0 < made.saturation <= 1
        assert 0 <= made.compute_utilisation <= 1
        parts = made.memory_bytes
        summed = parts.weights + parts.activations + parts.workspace + parts.runtime
        assert summed == parts.value

    @given(works, works)
    @_law
    def test_more_nodes_are_never_faster(
        self, some: tuple[NodeWork, ...], more: tuple[NodeWork, ...]
    ) -> None:
        whole = self.predict(some + more)
        part = self.predict(some)
        assert whole.latency_ms.value >= part.latency_ms.value
        assert whole.energy_j.value >= part.energy_j.value

    @given(st.integers(1, 10**8), st.integers(2, 6))
    @_law
    def test_one_kernel_for_a_chain_is_never_slower(self, elements: int, length: int) -> None:
        nodes = (pointwise(elements),) * length
        graph, work = fused(nodes, tuple(range(length)))
        assert work.kernels is not None
        inside = replace(work.kernels[0].work.work, **_ends(nodes))
        kernel = replace(work.kernels[0].work, work=inside)
        work = replace(work, kernels=(Kernel(work.kernels[0].nodes, kernel),))
        (joint,) = type(self).predictor(
            graph, work, [tiny_gpu()], precision=PRECISIONS["fp32"], runtime=self.runtime
        )
        assert joint.latency_ms.value <= self.predict(nodes).latency_ms.value
        assert {node.kernel for node in joint.nodes} == {0}

    @given(_SIZES, _SIZES, _SIZES, st.sampled_from("mnk"), st.integers(0, 300))
    @_law
    def test_a_larger_product_is_never_faster(
        self, m: int, n: int, k: int, axis: str, growth: int
    ) -> None:
        assume(axis in self.growing)
        sizes = {"m": m, "n": n, "k": k}
        small = self.predict((product(m, n, k),)).latency_ms.value
        sizes[axis] += growth
        larger = product(sizes["m"], sizes["n"], sizes["k"])
        assert self.predict((larger,)).latency_ms.value >= small

    @given(works, st.floats(1.0, 8.0))
    @_law
    def test_a_faster_device_is_never_slower(
        self, nodes: tuple[NodeWork, ...], factor: float
    ) -> None:
        slow = tiny_gpu()
        fast = replace(
            slow,
            peak_flop_per_s={d: rate * factor for d, rate in slow.peak_flop_per_s.items()},
            memory_bandwidth_bytes_per_s=slow.memory_bandwidth_bytes_per_s * factor,
        )
        slow_ms = self.predict(nodes, slow).latency_ms.value
        assert self.predict(nodes, fast).latency_ms.value <= slow_ms

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("version", [None, (1, 0), (8, 6, 1)])
    def test_the_conditions_asked_come_back(
        self, layout: str, version: tuple[int, ...] | None
    ) -> None:
        graph, work = as_graph((product(64, 64, 64), pointwise(8)))
        (made,) = type(self).predictor(
            graph,
            work,
            [tiny_gpu()],
            precision=PRECISIONS["fp32"],
            runtime="onnxruntime",
            conditions=Conditions(layout, version),
        )
        assert (made.layout, made.runtime_version) == (layout, version)
        assert made.runtime == "onnxruntime"

    def test_a_part_of_a_device_is_refused(self) -> None:
        with pytest.raises(DeviceError, match="is a part"):
            self.predict((pointwise(8),), tiny_gpu().slice("1g.10gb"))

    def test_an_unknown_runtime_is_refused_with_the_known_ones(self) -> None:
        graph, work = as_graph((pointwise(8),))
        predict = type(self).predictor
        with pytest.raises(UsageError, match=r"'onnxrt' is unknown; known are torch-eager"):
            predict(graph, work, [tiny_gpu()], precision=PRECISIONS["fp32"], runtime="onnxrt")
