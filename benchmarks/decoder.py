"""A large decoder graph, to measure how fast a graph of thousands of nodes is read and priced.

Llama-style (Touvron et al., arXiv 2302.13971; grouped-query attention, Ainslie et al.,
2305.13245; rotary embedding, Su et al., 2104.09864; SwiGLU, Shazeer, 2002.05202), written with
plain ONNX operators: free dimensions `batch` and `sequence`, weights declared in an external file
that is never written.
"""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

OPSET = 17
WEIGHT_FILE = "weights.bin"


@dataclass(frozen=True, slots=True)
class Decoder:
    """Widths of the decoder; the defaults are those of a 70 B parameter Llama 2."""

    layers: int = 80
    width: int = 8192
    heads: int = 64
    key_heads: int = 8
    hidden: int = 28672
    vocabulary: int = 32000

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads


class _Writer:
    """Nodes and initialisers of the graph so far."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._offset = 0

    def one(self, op_type: str, *inputs: str, **attrs: object) -> str:
        """Append a node with one result; return its name."""
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attrs))
        return name

    def weight(self, *dims: int) -> str:
        """Declare half-precision weights that lie in the external file."""
        name = f"weight_{len(self.constants)}"
        tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT16)
        tensor.data_location = TensorProto.EXTERNAL
        length = 2 * math.prod(dims)
        for key, value in (
            ("location", WEIGHT_FILE),
            ("offset", str(self._offset)),
            ("length", str(length)),
        ):
            tensor.external_data.add(key=key, value=value)
        self._offset += length
        self.constants.append(tensor)
        return name

    def values(self, name: str, dtype: int, dims: tuple[int, ...], values: Sequence[float]) -> str:
        """Store a small constant under `name`."""
        self.constants.append(helper.make_tensor(name, dtype, dims, values))
        return name


def decoder(kind: Decoder | None = None) -> onnx.ModelProto:
    """Return the decoder as a model; 80 layers give about 4,500 nodes."""
    kind = kind or Decoder()
    writer = _Writer()
    _shared_constants(writer, kind)
    x = writer.one("Gather", writer.weight(kind.vocabulary, kind.width), "input_ids")
    cosine, sine = _rotary_tables(writer, kind)
    mask = _causal_mask(writer)
    for _ in range(kind.layers):
        x = _layer(writer, x, (cosine, sine), mask, kind)
    x = _rms_norm(writer, x, kind)
    writer.nodes.append(
        helper.make_node(
            "MatMul", [x, writer.weight(kind.width, kind.vocabulary)], ["logits"], name="head"
        )
    )
    sizes = ["batch", "sequence"]
    graph = helper.make_graph(
        writer.nodes,
        "decoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, sizes)
            for name in ("input_ids", "position_ids")
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT16, [*sizes, kind.vocabulary])],
        writer.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def write_decoder(
    folder: Path, kind: Decoder | None = None, *, inline_weight_bytes: int = 0
) -> tuple[Path, dict[str, int]]:
    """Write the decoder into `folder`; return its path and the free dimension to bind.

    The external weight file is never written. With `inline_weight_bytes` the first weights are
    stored in the model file instead, as zeros, until they hold at least so many bytes; the file
    is sparse on the disk and may pass the 2 GiB that a protobuf library can serialise.
    """
    model = decoder(kind)
    weights = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    inline: list[onnx.TensorProto] = []
    for tensor in weights:
        if sum(_stored_bytes(t) for t in inline) >= inline_weight_bytes:
            break
        inline.append(tensor)
    path = folder / "decoder.onnx"
    _write_with_zeros(model, frozenset(t.name for t in inline), path)
    return path, {"sequence": 512}


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    return 2 * int(math.prod(tensor.dims))


def _write_with_zeros(model: onnx.ModelProto, inline: frozenset[str], path: Path) -> None:
    """Write `model` by hand with zeros as the raw data of the `inline` tensors.

    Wire format of protocol buffers: a length-delimited field is its tag, (number << 3) | 2, the
    length and the bytes. Numbers from onnx.proto: ModelProto.graph 7, GraphProto.initializer 5,
    TensorProto.raw_data 9.
    """
    pieces: list[tuple[bytes, int]] = []  # bytes, then so many zeros
    for tensor in model.graph.initializer:
        head, zeros = tensor.SerializeToString(), 0
        if tensor.name in inline:
            zeros = _stored_bytes(tensor)
            bare = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
            head = bare.SerializeToString() + _field_start(9, zeros)
        pieces.append((_field_start(5, len(head) + zeros) + head, zeros))
    rest = onnx.GraphProto()
    rest.CopyFrom(model.graph)
    del rest.initializer[:]
    pieces.append((rest.SerializeToString(), 0))
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    shell.ClearField("graph")
    total = sum(len(head) + zeros for head, zeros in pieces)
    with path.open("wb") as file:
        file.write(shell.SerializeToString() + _field_start(7, total))
        for head, zeros in pieces:
            file.write(head)
            file.seek(zeros, os.SEEK_CUR)
        file.truncate()


def _field_start(number: int, length: int) -> bytes:
    """Tag and length of a length-delimited field."""
    out = bytearray([number << 3 | 2])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*out, length])


def _shared_constants(writer: _Writer, kind: Decoder) -> None:
    size = kind.head_width
    whole = TensorProto.INT64
    repeat = kind.heads // kind.key_heads
    for name, values in (
        ("shape_queries", [0, 0, kind.heads, size]),
        ("shape_keys", [0, 0, kind.key_heads, size]),
        ("shape_repeated", [0, kind.heads, -1, size]),
        ("shape_merged", [0, 0, kind.width]),
        ("axis_1", [1]),
        ("axis_2", [2]),
        ("axis_3", [3]),
        ("start_0", [0]),
        ("middle", [size // 2]),
        ("end", [size]),
        ("repeats", [1, 1, repeat, 1, 1]),
    ):
        writer.values(name, whole, (len(values),), values)
    half = TensorProto.FLOAT16
    writer.values("two", half, (), [2.0])
    writer.values("epsilon", half, (), [1e-5])
    writer.values("scale", half, (), [size**-0.5])


def _rms_norm(writer: _Writer, x: str, kind: Decoder) -> str:
    """x / sqrt(mean(x^2) + epsilon) times a weight: six nodes."""
    mean = writer.one("ReduceMean", writer.one("Pow", x, "two"), axes=[-1], keepdims=1)
    root = writer.one("Sqrt", writer.one("Add", mean, "epsilon"))
    return writer.one("Mul", writer.one("Div", x, root), writer.weight(kind.width))


def _rotary_tables(writer: _Writer, kind: Decoder) -> tuple[str, str]:
    """Cosine and sine of position times frequency, [batch, 1, sequence, head width]."""
    size = kind.head_width
    frequencies = [10000.0 ** (-2 * i / size) for i in range(size // 2)]
    writer.values("frequencies", TensorProto.FLOAT, (1, 1, size // 2), frequencies)
    positions = writer.one("Cast", "position_ids", to=TensorProto.FLOAT)
    angles = writer.one("Mul", writer.one("Unsqueeze", positions, "axis_2"), "frequencies")
    both = writer.one("Unsqueeze", writer.one("Concat", angles, angles, axis=-1), "axis_1")
    cosine, sine = (
        writer.one("Cast", writer.one(op_type, both), to=TensorProto.FLOAT16)
        for op_type in ("Cos", "Sin")
    )
    return cosine, sine


def _causal_mask(writer: _Writer) -> str:
    """[sequence, sequence] of a large negative number above the diagonal."""
    length = writer.one("Slice", writer.one("Shape", "input_ids"), "axis_1", "axis_2", "start_0")
    square = writer.one("Concat", length, length, axis=0)
    low = helper.make_tensor("low", TensorProto.FLOAT16, (1,), [-65504.0])
    full = writer.one("ConstantOfShape", square, value=low)
    diagonal = writer.values("diagonal", TensorProto.INT64, (), [1])
    return writer.one("Trilu", full, diagonal, upper=1)


def _rotate(writer: _Writer, x: str, tables: tuple[str, str]) -> str:
    """x cos + (-second half, first half) sin: seven nodes."""
    first = writer.one("Slice", x, "start_0", "middle", "axis_3")
    second = writer.one("Slice", x, "middle", "end", "axis_3")
    turned = writer.one("Concat", writer.one("Neg", second), first, axis=-1)
    return writer.one("Add", writer.one("Mul", x, tables[0]), writer.one("Mul", turned, tables[1]))


def _heads(writer: _Writer, x: str, shape: str, out: int, kind: Decoder) -> str:
    """Linear layer, then heads before the sequence: three nodes."""
    flat = writer.one("MatMul", x, writer.weight(kind.width, out))
    return writer.one("Transpose", writer.one("Reshape", flat, shape), perm=[0, 2, 1, 3])


def _repeated(writer: _Writer, x: str) -> str:
    """Each key head as often as query heads share it: three nodes."""
    tiled = writer.one("Tile", writer.one("Unsqueeze", x, "axis_2"), "repeats")
    return writer.one("Reshape", tiled, "shape_repeated")


def _attention(writer: _Writer, x: str, tables: tuple[str, str], mask: str, kind: Decoder) -> str:
    narrow = kind.key_heads * kind.head_width
    q = _rotate(writer, _heads(writer, x, "shape_queries", kind.width, kind), tables)
    k = _rotate(writer, _heads(writer, x, "shape_keys", narrow, kind), tables)
    v = _repeated(writer, _heads(writer, x, "shape_keys", narrow, kind))
    keys = writer.one("Transpose", _repeated(writer, k), perm=[0, 1, 3, 2])
    scores = writer.one("Mul", writer.one("MatMul", q, keys), "scale")
    weights = writer.one("Softmax", writer.one("Add", scores, mask), axis=-1)
    mixed = writer.one("Transpose", writer.one("MatMul", weights, v), perm=[0, 2, 1, 3])
    merged = writer.one("Reshape", mixed, "shape_merged")
    return writer.one("MatMul", merged, writer.weight(kind.width, kind.width))


def _layer(writer: _Writer, x: str, tables: tuple[str, str], mask: str, kind: Decoder) -> str:
    """One decoder layer: attention and SwiGLU, each on a normalised residual."""
    normed = _rms_norm(writer, x, kind)
    x = writer.one("Add", x, _attention(writer, normed, tables, mask, kind))
    normed = _rms_norm(writer, x, kind)
    gate = writer.one("MatMul", normed, writer.weight(kind.width, kind.hidden))
    up = writer.one("MatMul", normed, writer.weight(kind.width, kind.hidden))
    silu = writer.one("Mul", gate, writer.one("Sigmoid", gate))
    inner = writer.one("Mul", silu, up)
    return writer.one(
        "Add", x, writer.one("MatMul", inner, writer.weight(kind.hidden, kind.width))
    )


def main() -> None:
    """Write the decoder into the folder given on the command line."""
    parser = argparse.ArgumentParser(description="Write the decoder graph as an ONNX file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=Decoder().layers)
    options = parser.parse_args()
    path, _ = write_decoder(options.folder, Decoder(layers=options.layers))
    print(path)


if __name__ == "__main__":
    main()
