"""The wire reader keeps everything but long tensor contents, and never reads those."""

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slicewise.core.errors import ModelError
from slicewise.graph.frontends.onnx import wire as onnx_wire
from slicewise.graph.frontends.onnx.wire import KEPT_BYTES, looks_like_onnx, read_stripped
from slicewise.testing import onnx_models as tiny

_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def stripped(path: Path, data: bytes) -> onnx.ModelProto:
    path.write_bytes(data)
    return onnx.ModelProto.FromString(read_stripped(path))


def without_content(model: onnx.ModelProto, *, over: int) -> onnx.ModelProto:
    """Empty long contents the slow way, through the parsed message."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        for field in (*_CONTENT, "string_data"):
            alone = TensorProto()
            if field in ("raw_data",):
                alone.raw_data = tensor.raw_data
            else:
                getattr(alone, field).extend(getattr(tensor, field))
            if alone.ByteSize() > over + 4:
                tensor.ClearField(field)
    return copy


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    tensors = []
    for i in range(draw(st.integers(0, 4))):
        count = draw(st.sampled_from([0, 1, 7, 100, 511, 512, 513, 1024, 1025, 5000]))
        kind = draw(st.sampled_from(["raw", "float", "int64", "double", "int32", "string"]))
        name = f"t{i}"
        if kind == "raw":
            tensors.append(numpy_helper.from_array(np.ones(count, np.float32), name))
        elif kind == "string":
            tensors.append(helper.make_tensor(name, TensorProto.STRING, [count], [b"ab"] * count))
        else:
            dtype = {
                "float": TensorProto.FLOAT,
                "int64": TensorProto.INT64,
                "double": TensorProto.DOUBLE,
                "int32": TensorProto.INT32,
            }[kind]
            tensors.append(helper.make_tensor(name, dtype, [count], [1] * count))
    nodes = [
        helper.make_node("Relu", ["x"], [f"y{i}"], name=draw(st.text(max_size=5)), alpha=0.5)
        for i in range(draw(st.integers(0, 5)))
    ]
    model = tiny.model(nodes, inputs={"x": ["n", 3]}, outputs=["y0"], weights=tensors)
    model.doc_string = draw(st.text(max_size=50))
    return model


@settings(max_examples=60, deadline=None)
@given(model=models())
def test_stripping_keeps_everything_but_long_contents(
    model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("wire") / "m.onnx"
    assert stripped(path, model.SerializeToString()) == without_content(model, over=KEPT_BYTES)


@settings(max_examples=30, deadline=None)
@given(model=models())
def test_stripping_twice_changes_nothing(
    model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("wire") / "m.onnx"
    once = stripped(path, model.SerializeToString())
    assert stripped(path.with_name("again.onnx"), once.SerializeToString()) == once


def test_kept_constants_are_those_up_to_the_limit(tmp_path: Path) -> None:
    small, large = np.arange(512, dtype=np.int64), np.arange(513, dtype=np.int64)
    model = tiny.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        inputs={"x": [1]},
        weights=[numpy_helper.from_array(small, "s"), numpy_helper.from_array(large, "l")],
    )
    found = stripped(tmp_path / "m.onnx", model.SerializeToString())
    by_name = {tensor.name: tensor for tensor in found.graph.initializer}
    assert numpy_helper.to_array(by_name["s"]).tolist() == small.tolist()
    assert not by_name["l"].HasField("raw_data")
    assert list(by_name["l"].dims) == [513]


def test_contents_inside_attributes_bodies_and_functions_are_left_out(tmp_path: Path) -> None:
    big = numpy_helper.from_array(np.ones(50_000, np.float32), "")
    constant = helper.make_node("Constant", [], ["c"], value=big)
    body = helper.make_graph([constant], "body", [], [tiny.value("c", None)])
    branch = helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body)
    function = helper.make_function(
        "mine", "F", [], ["c"], [constant], [helper.make_opsetid("", 20)]
    )
    model = tiny.model(
        [branch, helper.make_node("F", [], ["z"], domain="mine"), constant],
        inputs={"cond": []},
        functions=[function],
    )
    model.training_info.add().algorithm.CopyFrom(body)
    data = model.SerializeToString()
    found = stripped(tmp_path / "m.onnx", data)
    assert len(data) > 5 * 200_000
    assert found.ByteSize() < 3000
    inner = found.graph.node[0].attribute[0].g.node[0].attribute[0].t
    assert list(inner.dims) == [50_000]
    assert inner.data_type == TensorProto.FLOAT


def test_sparse_initialisers_keep_their_shape(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.ones(4000, np.float32), "w")
    indices = numpy_helper.from_array(np.arange(4000, dtype=np.int64), "")
    model = tiny.small_cnn()
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [100, 100]))
    found = stripped(tmp_path / "m.onnx", model.SerializeToString()).graph.sparse_initializer[0]
    assert list(found.dims) == [100, 100]
    assert (list(found.values.dims), found.values.name) == ([4000], "w")
    assert not found.values.raw_data
    assert not found.indices.raw_data


def test_unpacked_repeated_numbers_are_read_and_dropped(tmp_path: Path) -> None:
    # field 4 (float_data) of a TensorProto, one element at a time: tag 4 << 3 | 5
    element = bytes([4 << 3 | 5]) + np.float32(1.5).tobytes()

    def tensor(count: int) -> bytes:
        body = bytes([2 << 3, 1, 8 << 3 | 2, 1]) + b"w" + element * count
        return bytes([5 << 3 | 2]) + onnx_wire._encode_varint(len(body)) + body

    for count, kept in ((10, 10), (5000, 0)):
        graph = tensor(count)
        data = bytes([7 << 3 | 2]) + onnx_wire._encode_varint(len(graph)) + graph
        found = stripped(tmp_path / f"{count}.onnx", data).graph.initializer[0]
        assert (found.name, len(found.float_data)) == ("w", kept)


def test_long_prose_is_left_out(tmp_path: Path) -> None:
    model = tiny.small_cnn()
    model.doc_string = "x" * 100_000
    model.producer_name = "kept"
    found = stripped(tmp_path / "m.onnx", model.SerializeToString())
    assert (found.doc_string, found.producer_name) == ("", "kept")


def write_with_hole(path: Path, hole_bytes: int, *, shape: tuple[int, ...]) -> None:
    """Write a CNN with one more initialiser whose raw data is a hole in the file."""
    model = tiny.small_cnn()
    head = TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=shape).SerializeToString()
    raw_tag = bytes([9 << 3 | 2]) + onnx_wire._encode_varint(hole_bytes)
    tensor_bytes = len(head) + len(raw_tag) + hole_bytes
    tensor_tag = bytes([5 << 3 | 2]) + onnx_wire._encode_varint(tensor_bytes)
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    graph_bytes = len(tensor_tag) + tensor_bytes + len(graph)
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(bytes([7 << 3 | 2]) + onnx_wire._encode_varint(graph_bytes))
        file.write(tensor_tag + head + raw_tag)
        file.seek(hole_bytes, os.SEEK_CUR)
        file.write(graph)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_file_over_two_gigabytes_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    write_with_hole(path, 3 * 2**30, shape=(3 * 2**18, 1024))
    assert path.stat().st_size > 2**31
    before = peak_bytes()
    found = onnx.ModelProto.FromString(read_stripped(path))
    assert peak_bytes() - before < 50 * 2**20
    assert [list(t.dims) for t in found.graph.initializer if t.name == "huge"] == [[786432, 1024]]
    assert len(found.graph.node) == 6


@pytest.mark.parametrize("cut", [1, 2, 10, 100, 300])
def test_a_truncated_file_is_one_clear_error(tmp_path: Path, cut: int) -> None:
    data = tiny.small_cnn().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[:-cut])
    with pytest.raises(ModelError, match=r"damaged: .*; an ONNX model is .*download it again"):
        read_stripped(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"\x1f\x8b\x08 gz", "gzip"),
        (b"PK\x03\x04 zip", "zip archive"),
        (b"\x80\x02}q", "pickle"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"  <html>", "web page"),
        (b'{"a": 1}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"import torch\nmodel = 1\n", "not an ONNX model"),
        (b"hello", "not an ONNX model"),
        (b"\0" * 100, "not an ONNX model"),
        (b"\xff" * 100, "not an ONNX model"),
        (b"\x08\x08", "it holds no graph"),
        (helper.make_tensor("t", TensorProto.INT64, [1], [1]).SerializeToString(), "ONNX model"),
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_stripped(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not looks_like_onnx(path)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_never_escape_as_another_error(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("random") / "m.onnx"
    path.write_bytes(data)
    try:
        read_stripped(path)
    except ModelError as err:
        assert str(path) in str(err)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    # graph -> node -> attribute -> graph ..., each level over the limit for a plain copy
    graph = tiny.model(
        [helper.make_node("Relu", ["x"], ["y"], name="n" * 5000)], inputs={"x": [1]}
    ).graph.SerializeToString()
    for _ in range(60):
        for field in (6, 5, 1):  # attribute.g, node.attribute, graph.node
            graph = bytes([field << 3 | 2]) + onnx_wire._encode_varint(len(graph)) + graph
    data = bytes([7 << 3 | 2]) + onnx_wire._encode_varint(len(graph)) + graph
    path = tmp_path / "deep.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="nested more than"):
        read_stripped(path)


def test_a_folder_a_missing_file_and_a_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a regular file"):
        read_stripped(tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        read_stripped(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        read_stripped(Path("/dev/null"))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    first = stripped(path, tiny.small_cnn().SerializeToString())
    second = stripped(path, tiny.small_decoder().SerializeToString())
    assert len(first.graph.node) != len(second.graph.node)
