"""The roofline: the laws of predictors, then what is its own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.cost import (
    Contraction,
    GraphWork,
    Kernel,
    Kind,
    NodeWork,
    Prediction,
    Work,
)
from slicewise.core.errors import DeviceError
from slicewise.core.graph import Graph
from slicewise.core.precision import PRECISIONS, DType
from slicewise.predict.kernels import kernels_ms
from slicewise.predict.roofline import predict_roofline, predict_roofline_on
from slicewise.predict.runtimes import RUNTIMES
from slicewise.testing.predictors import (
    PredictorLaws,
    as_graph,
    fused,
    pointwise,
    product,
    tiny_gpu,
    works,
)


def _convolution(dtype: DType = DType.FP32) -> NodeWork:
    return replace(product(64, 64, 64, dtype=dtype), kind=Kind.CONV, op_type="Conv")


class TestRoofline(PredictorLaws):
    predictor = staticmethod(predict_roofline_on)

    @given(works, st.sampled_from(sorted(RUNTIMES)))
    @settings(deadline=None)
    def test_latency_never_falls_below_kernels_times_launch(
        self, nodes: tuple[NodeWork, ...], runtime: str
    ) -> None:
        graph, work = as_graph(nodes)
        device = tiny_gpu()
        made = predict_roofline(graph, work, device, precision=PRECISIONS["fp32"], runtime=runtime)
        launched = len(nodes)  # each is a kernel of its own before `launch` has fused them
        launch_ms = device.launch_s * RUNTIMES[runtime].launch_factor * 1e3
        busy_ms = made.latency_ms.value - made.host_ms
        assert busy_ms >= launched * launch_ms * (1 - 1e-6)

    @given(works)
    @settings(deadline=None)
    def test_no_node_beats_the_data_sheet(self, nodes: tuple[NodeWork, ...]) -> None:
        device = tiny_gpu()
        made = self.predict(nodes)
        for node, work in zip(made.nodes, nodes, strict=True):
            assert node.latency_ms >= work.work.flops / device.peak_flop_per_s[DType.FP32] * 999
            assert node.latency_ms >= (
                work.work.weight_bytes / device.memory_bandwidth_bytes_per_s * 999
            )

    def test_a_partial_wave_costs_a_whole_one(self) -> None:
        full = self.predict((product(108 * 128, 128, 4096),))
        spill = self.predict((product(108 * 128 + 1, 128, 4096),))
        assert spill.latency_ms.value > full.latency_ms.value

    def test_views_cost_nothing_and_launch_nothing(self) -> None:
        view = NodeWork("reshape", "Reshape", Kind.VIEW, DType.FP32, Work())
        assert self.predict((view, pointwise(9))).nodes[0].latency_ms == 0
        assert self.predict((view, pointwise(9))).nodes[0].limit == "none"

    def test_a_loop_costs_its_body_times_its_trips(self) -> None:
        body = (pointwise(1 << 24), product(512, 512, 512))
        once = self.predict(body)
        total = (body[0].work + body[1].work) * 7
        loop = NodeWork("loop", "Loop", Kind.CONTROL, DType.FP32, total, body=body, repeats=7)
        looped = self.predict((loop,))
        expected_ms = 7 * (once.latency_ms.value - once.host_ms)
        assert looped.latency_ms.value - looped.host_ms == pytest.approx(expected_ms)

    def test_matrix_units_make_half_precision_faster(self) -> None:
        graph, work = as_graph((product(4096, 4096, 4096, dtype=DType.FP16),))
        half = predict_roofline(
            graph, work, tiny_gpu(), precision=PRECISIONS["fp16"], runtime="onnxruntime"
        )
        single = self.predict((product(4096, 4096, 4096),))
        assert half.latency_ms.value < single.latency_ms.value / 8

    def test_a_precision_that_the_device_lacks_is_refused_with_what_it_has(self) -> None:
        graph, work = as_graph((pointwise(9),))
        with pytest.raises(DeviceError, match=r"no fp8 arithmetic.*its data sheet gives bf16"):
            predict_roofline(
                graph, work, tiny_gpu(), precision=PRECISIONS["fp8"], runtime="onnxruntime"
            )

    def test_a_node_in_a_type_that_the_device_lacks_leaves_a_note(self) -> None:
        made = self.predict((product(64, 64, 64, dtype=DType.FP4),))
        assert "arithmetic-emulated" in {note.code for note in made.notes}

    @pytest.mark.parametrize(
        ("runtime", "nodes", "told"),
        [
            ("torch-eager", (_convolution(),), "fp32 convolutions in"),
            ("torch-eager", (product(64, 64, 64),), ""),
            ("torch-eager", (pointwise(9),), ""),
            ("onnxruntime", (_convolution(), product(64, 64, 64)), "convolutions and products in"),
            ("onnxruntime", (product(64, 64, 64), pointwise(9)), "fp32 products in"),
            ("onnxruntime", (product(64, 64, 64, dtype=DType.FP16), pointwise(9)), ""),
            ("tensorrt", (pointwise(9),), ""),
        ],
    )
    def test_tf32_is_named_only_where_the_runtime_would_compute_in_it(
        self, runtime: str, nodes: tuple[NodeWork, ...], told: str
    ) -> None:
        graph, work = as_graph(nodes)

        def note(vendor: str) -> str:
            device = replace(tiny_gpu(), vendor=vendor)
            made = predict_roofline(
                graph, work, device, precision=PRECISIONS["fp32"], runtime=runtime
            )
            return "".join(n.text for n in made.notes if n.code == "tf32-default")

        assert told in note("NVIDIA")
        assert bool(note("NVIDIA")) == bool(told)
        if runtime != "tensorrt":
            assert note("AMD") == ""

    def test_a_view_that_has_to_copy_is_a_movement(self) -> None:
        view = replace(pointwise(1 << 20), kind=Kind.VIEW, work=Work())
        copy = replace(
            view, kind=Kind.MOVEMENT, work=Work(read_bytes=1 << 22, write_bytes=1 << 22)
        )
        graph, work = as_graph((view, pointwise(1 << 20)))
        kernels = (Kernel((0,), copy), Kernel((1,), work.nodes[1]))
        made = predicted(graph, replace(work, kernels=kernels))
        assert [node.kind for node in made.nodes] == [Kind.MOVEMENT, Kind.ELEMENTWISE]
        assert made.nodes[0].latency_ms > 0 and made.nodes[0].moved_bytes == 1 << 23

    def test_tf32_asked_for_leaves_no_note(self) -> None:
        made = self.predict((_convolution(DType.TF32), product(64, 64, 64, dtype=DType.TF32)))
        assert "tf32-default" not in {note.code for note in made.notes}

    def test_depthwise_convolution_is_not_priced_as_a_padded_matrix_product(self) -> None:
        images, channels, positions, kernel = 64, 512, 28 * 28, 9
        macs = images * channels * positions * kernel
        bytes_each = images * channels * positions * 4
        depthwise = NodeWork(
            "dw", "Conv", Kind.CONV, DType.FP32,
            Work(macs, 2 * macs, bytes_each, bytes_each, channels * kernel * 4),
            Contraction(channels, images * positions, 1, kernel),
        )  # fmt: skip
        memory_ms = 2 * bytes_each / tiny_gpu().memory_bandwidth_bytes_per_s * 1e3
        assert self.predict((depthwise,)).nodes[0].latency_ms < 6 * memory_ms

    def test_a_sequence_of_steps_pays_for_each(self) -> None:
        lstm = replace(product(8, 512, 512), kind=Kind.RECURRENT, op_type="LSTM")
        one = self.predict((lstm,)).nodes[0].latency_ms
        many = self.predict((replace(lstm, steps=100),)).nodes[0].latency_ms
        assert many > 50 * 1e-3 + one

    @given(works, st.integers(2, 64))
    @settings(deadline=None)
    def test_the_saturated_time_of_an_item_does_not_depend_on_the_batch(
        self, nodes: tuple[NodeWork, ...], batch: int
    ) -> None:
        """saturation x (T - H) / b = t_sat, where the device is not full."""
        one, many = self.predict(nodes), self.predict(tuple(map(_times(batch), nodes)))
        if max(one.saturation, many.saturation) < 1:
            of_one = one.saturation * (one.latency_ms.value - one.host_ms)
            of_many = many.saturation * (many.latency_ms.value - many.host_ms)
            assert of_many == pytest.approx(of_one * batch, rel=1e-6)

    def test_a_large_batch_fills_the_device(self) -> None:
        small, large = (self.predict((product(b * 49, 512, 512),) * 4) for b in (1, 2**14))
        assert small.saturation < 0.3
        assert large.saturation > 0.6

    def test_own_work_of_a_node_with_a_body_is_priced_beside_the_body(self) -> None:
        body, own = (pointwise(1000),), product(4096, 4096, 4096)
        node = replace(own, body=body, work=own.work + body[0].work * 3, repeats=3)
        alone, looped = self.predict((own,)), self.predict((node,))
        assert looped.latency_ms.value > alone.latency_ms.value

    def test_matrix_times_vector_is_bound_by_its_weights(self) -> None:
        made = self.predict((product(1, 8192, 8192),))
        assert made.nodes[0].limit == "memory"
        weights_ms = 8192 * 8192 * 4 / tiny_gpu().memory_bandwidth_bytes_per_s * 1e3
        assert made.nodes[0].latency_ms == pytest.approx(weights_ms / 0.8, rel=0.05)

    def test_what_binds_is_named(self) -> None:
        limits = {
            "compute": product(8192, 8192, 8192),
            "waves": product(256, 64, 50_000),
            "memory": pointwise(10**8),
            "launch": pointwise(10),
        }
        for limit, node in limits.items():
            assert self.predict((node,)).nodes[0].limit == limit


def _times(batch: int) -> Callable[[NodeWork], NodeWork]:
    """Return the node at `batch` times the items; weights stay."""

    def grown(node: NodeWork) -> NodeWork:
        weight_bytes = node.work.weight_bytes
        shape = node.contraction
        return replace(
            node,
            work=replace(node.work * batch, weight_bytes=weight_bytes),
            contraction=None if shape is None else replace(shape, m=shape.m * batch),
        )

    return grown


def predicted(graph: Graph, work: GraphWork) -> Prediction:
    return predict_roofline(
        graph, work, tiny_gpu(), precision=PRECISIONS["fp32"], runtime="onnxruntime"
    )


class TestKernels:
    @given(works)
    @settings(deadline=None)
    def test_kernels_of_one_node_cost_what_nodes_without_kernels_do(
        self, nodes: tuple[NodeWork, ...]
    ) -> None:
        graph, work = as_graph(nodes)
        alone = fused(nodes, *((i,) for i in range(len(nodes))))
        assert predicted(*alone).nodes == predicted(graph, work).nodes

    @given(works)
    @settings(deadline=None)
    def test_the_nodes_of_a_kernel_share_its_time_and_number(
        self, nodes: tuple[NodeWork, ...]
    ) -> None:
        graph, work = fused(nodes, tuple(range(len(nodes))))
        made = predicted(graph, work)
        assert work.kernels is not None
        (whole_ms,) = kernels_ms([work.kernels[0].work], tiny_gpu(), RUNTIMES["onnxruntime"])
        assert sum(node.latency_ms for node in made.nodes) == pytest.approx(whole_ms)
        assert {node.kernel for node in made.nodes} == {0}
        assert made.host_ms + sum(n.latency_ms for n in made.nodes) == made.latency_ms.value
        assert len({node.limit for node in made.nodes}) == 1

    def test_time_is_split_by_what_each_node_would_take_alone(self) -> None:
        nodes = (pointwise(3 << 20), pointwise(1 << 20))
        first, second = predicted(*fused(nodes, (0, 1))).nodes
        assert first.latency_ms == pytest.approx(3 * second.latency_ms)

    def test_a_view_in_a_kernel_gets_its_number_and_no_time(self) -> None:
        view = NodeWork("reshape", "Reshape", Kind.VIEW, DType.FP32, Work())
        nodes = (pointwise(9), view, pointwise(9), view)
        made = predicted(*fused(nodes, (0, 1, 2)))
        assert [node.kernel for node in made.nodes] == [0, 0, 0, -1]
        assert [node.latency_ms > 0 for node in made.nodes] == [True, False, True, False]

    def test_a_cut_through_a_kernel_costs_another_launch_and_its_bytes(self) -> None:
        size = 64 * 2**20
        whole, front, back = (
            replace(pointwise(1), work=Work(0, 1, read, written, 0))
            for read, written in ((size, size), (size, size), (size, size))
        )
        runtime, device = RUNTIMES["tensorrt"], tiny_gpu()
        whole_ms, front_ms, back_ms = kernels_ms([whole, front, back], device, runtime)
        assert front_ms + back_ms >= whole_ms + device.launch_s * runtime.launch_factor * 1e3

    def test_kernels_inside_a_body_run_as_often_as_the_body(self) -> None:
        body = (pointwise(1 << 24), pointwise(1 << 24))
        joint = replace(body[0], work=body[0].work + body[1].work)
        loop = NodeWork(
            "loop", "Loop", Kind.CONTROL, DType.FP32, joint.work * 5, body=body, repeats=5,
            kernels=(Kernel((0, 1), joint),),
        )  # fmt: skip
        graph, work = as_graph((loop,))
        (joint_ms,) = kernels_ms([joint], tiny_gpu(), RUNTIMES["onnxruntime"])
        assert predicted(graph, work).nodes[0].latency_ms == pytest.approx(5 * joint_ms)
