"""A model as material: its times, bytes and weights are those of predict, cut by kernels."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from slicewise.core.graph import Graph
from slicewise.flows.load import load
from slicewise.flows.partitioning.pipeline_model import model_material
from slicewise.flows.predict import PredictOptions, predict
from slicewise.testing import onnx_models

Light = Callable[[str], Path]
A100 = "a100-sxm4-80gb"


@pytest.fixture(scope="module")
def resnet(light: Light) -> Graph:
    return load(str(light("resnet50")), batch=8)


@pytest.mark.parametrize("device", [A100, f"{A100}/2g.20gb", "t4@50%"])
def test_one_stage_is_the_prediction(resnet: Graph, device: str) -> None:
    made = predict(resnet, device=device)
    material = model_material(resnet, devices=[device], options=PredictOptions())
    kind = material.devices[device]
    assert math.fsum(kind.work_ms) == pytest.approx(made.latency_ms.value, rel=1e-9)
    whole = math.fsum(material.memory_bytes) + kind.reserve_bytes
    assert whole == pytest.approx(made.memory_bytes.value, rel=1e-3)
    energy = math.fsum(kind.energy_j) + kind.static_w * made.latency_ms.value * 1e-3
    assert energy == pytest.approx(made.energy_j.value, rel=1e-6)


def test_every_node_is_in_one_group_and_every_tensor_goes_forward(resnet: Graph) -> None:
    material = model_material(resnet, devices=[A100], options=PredictOptions())
    assert sorted(i for group in material.groups for i in group) == list(range(len(resnet.nodes)))
    assert len(material.groups) < len(resnet.nodes)
    for tensor in material.tensors:
        assert all(node > tensor.producer for node in tensor.consumers)
    assert not {tensor.name for tensor in material.tensors} & set(resnet.constants)
    assert "kernels-kept" in {note.code for note in material.notes}


@pytest.mark.parametrize("name", ["densenet121", "squeezenet", "shufflenet", "inception_v2"])
def test_an_edge_of_the_model_is_inside_a_group_or_a_tensor(light: Light, name: str) -> None:
    graph = load(str(light(name)))
    material = model_material(graph, devices=["l4"], options=PredictOptions())
    home = {i: node for node, group in enumerate(material.groups) for i in group}
    arcs = {(t.producer, node, t.name) for t in material.tensors for node in t.consumers}
    wanted = {
        (home[u], home[v], tensor)
        for u, v, tensor in graph.edges
        if home[u] != home[v] and tensor not in graph.constants
    }
    assert arcs == wanted


def test_a_decoder_shares_what_its_layers_share(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx_models.save(onnx_models.small_decoder(layers=2), path)
    graph = load(str(path), dims={"seq": 16})
    material = model_material(graph, devices=["l4"], options=PredictOptions())
    assert math.fsum(material.memory_bytes) >= sum(
        constant.stored_bytes for name, constant in graph.constants.items()
        if any(name in node.inputs for node in graph.nodes)
    )  # fmt: skip


def test_devices_are_known_by_the_names_under_which_they_were_asked_for(resnet: Graph) -> None:
    material = model_material(resnet, devices=["t4", "l4"], options=PredictOptions())
    assert list(material.devices) == list(material.links) == ["t4", "l4"]
    assert sum(material.devices["t4"].work_ms) > sum(material.devices["l4"].work_ms)


def test_a_runtime_with_a_version_is_cut_into_the_kernels_of_its_name(resnet: Graph) -> None:
    plain, asked = (
        model_material(resnet, devices=["l4"], options=PredictOptions(runtime=runtime))
        for runtime in ("onnxruntime", "onnxruntime@1.17")
    )
    assert (asked.runtime, asked.groups) == (plain.runtime, plain.groups)
    assert "version-ignored" in {note.code for note in asked.notes}
