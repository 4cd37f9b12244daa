"""The large decoder graph."""

from pathlib import Path

import onnx
import pytest

from benchmarks.decoder import WEIGHT_FILE, Decoder, decoder, write_decoder


def test_eighty_layers_give_about_4500_nodes() -> None:
    model = decoder()
    assert 4400 <= len(model.graph.node) <= 4800
    assert len(model.SerializeToString()) < 1_000_000


def test_shapes_follow_from_batch_and_sequence() -> None:
    model = decoder(Decoder(layers=2))
    for value in (*model.graph.input, *model.graph.output):
        for dim, length in zip(value.type.tensor_type.shape.dim, (3, 16), strict=False):
            dim.dim_value = length
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    known = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in inferred.graph.value_info
    }
    assert all(all(known[node.output[0]]) for node in inferred.graph.node[:-1])
    scores = [known[n.output[0]] for n in inferred.graph.node if n.op_type == "Softmax"]
    assert scores == [[3, 64, 16, 16]] * 2


def test_parameters_are_those_of_the_70b_model() -> None:
    model = decoder()
    weights = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    elements = 0
    for tensor in weights:
        count = 1
        for dim in tensor.dims:
            count *= dim
        elements += count
    assert elements == 68_976_648_192  # Llama 2 70B without its (untied, counted) rounding: 69.0 B


def test_weights_are_named_but_not_written(tmp_path: Path) -> None:
    path, dims = write_decoder(tmp_path, Decoder(layers=1))
    assert set(dims) == {"sequence"}
    assert not (tmp_path / WEIGHT_FILE).exists()
    assert onnx.load(path, load_external_data=False) == decoder(Decoder(layers=1))


@pytest.mark.parametrize("wanted", [1, 600 << 20])
def test_inline_weights_are_whole_and_sparse(tmp_path: Path, wanted: int) -> None:
    path, _ = write_decoder(tmp_path, Decoder(layers=1), inline_weight_bytes=wanted)
    assert path.stat().st_size > wanted
    assert path.stat().st_blocks * 512 < 1 << 20
    if wanted == 1:
        small = Decoder(layers=1, width=64, heads=4, key_heads=2, hidden=96, vocabulary=32)
        path, _ = write_decoder(tmp_path, small, inline_weight_bytes=1 << 30)
        model = onnx.load(path, load_external_data=False)
        assert [n.name for n in model.graph.node] == [n.name for n in decoder(small).graph.node]
        inline = [t for t in model.graph.initializer if t.name.startswith("weight")]
        assert all(len(t.raw_data) == 2 * onnx.numpy_helper.to_array(t).size for t in inline)
