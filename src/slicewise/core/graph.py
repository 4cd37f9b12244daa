"""A model as a frozen graph with every shape bound; no weights, no framework.

A front-end makes it, every room reads it. Names of operators are ONNX operator names, whatever
the source. It must never hold weight values.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.core.precision import DType

AttrValue: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape and element type. `shape` is None where no rule could tell it (a Note says so).

    >>> Tensor((8, 3, 224, 224), DType.FP32).size_bytes
    4816896
    """

    shape: tuple[int, ...] | None
    dtype: DType

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 where the shape is unknown."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Storage in bytes, sub-byte types packed."""
        return (self.elements * self.dtype.bits + 7) // 8


class Role(StrEnum):
    """What a constant is to the model."""

    PARAMETER = "parameter"  # trainable: counted in `parameters`
    BUFFER = "buffer"  # running statistics: counted in `buffers`
    DATA = "data"  # shapes, axes, scales, masks, tables: counted in neither


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor known before the run. `stored_bytes` differs from the tensor's own size where the
    weight is kept compressed (DequantizeLinear of a constant). `trainable` is the number of
    elements behind it where that is not its own: rows picked from a larger table, or 0 for a
    weight that another constant was made from too."""

    role: Role
    stored_bytes: int
    trainable: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. An omitted optional input is the empty string.

    `domain` is '' for ai.onnx. `bodies` are the sub-graphs of If, Loop and Scan, `repeats` how
    often a body runs for one run of the node. `origin` points into the source model: a node of the
    file, or the path of the module. `storage_of` says where the source tells it: the name of the
    input whose storage the outputs share (a view, or an operator in place), '' where they own
    theirs; None where the source does not tell, and the kind of the operator decides.

    >>> import slicewise
    >>> first = slicewise.load(model).nodes[0]
    >>> first.op_type, first.attrs["kernel_shape"], len(first.inputs)
    ('Conv', (7, 7), 2)
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    domain: str = ""
    bodies: "tuple[Graph, ...]" = ()
    repeats: int = 1
    origin: str = ""
    storage_of: str | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.op_type, self.outputs))


# Runtimes hold a dimension in 32 bits (TensorRT: nvinfer1::Dims).
LARGEST_DIMENSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Binding:
    """What a user fixes about a model: the batch, free dimensions, whole input shapes.

    `batch_size` None keeps the model's own batch (1 where it is free). `batch_axes` says which
    axis of an input is the batch, from the end where negative; None: it has no batch; the name ''
    stands for every input that has such an axis. `optional_dims` are names of `dims` that the
    model may lack.
    """

    batch_size: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    optional_dims: frozenset[str] = frozenset()


class Source(Protocol):
    """Where a graph came from; able to give it again under another binding."""

    @property
    def location(self) -> str:
        """Path or zoo name, as the user gave it."""

    @property
    def runtime(self) -> str:
        """The runtime that models from here run on unless the user names one."""

    def bind(self, binding: Binding) -> "Graph":
        """Return the graph with every dimension bound; `ModelError` if some stay free."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order, each tensor by name, and which tensors are constant.

    `batch_axes` gives the axis that is the batch, from 0, for each input that has one. `binding`
    holds what of the user's figures this model has. `held_to` names for a tensor the last node
    during whose run an eager program still refers to it, where that is later than its last reader:
    what a module was called with lives until the call returns.

    >>> import slicewise
    >>> graph = slicewise.load(model, batch=4)
    >>> graph.inputs, graph.batch_size, graph.digest == slicewise.load(model).digest
    (('gpu_0/data_0',), 4, True)
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    batch_size: int = 1
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    held_to: Mapping[str, str] = field(default_factory=dict, repr=False)
    source: Source | None = field(default=None, compare=False, repr=False)
    binding: Binding = field(default_factory=Binding, compare=False, repr=False)

    @property
    def batch_inputs(self) -> frozenset[str]:
        """The inputs that have the batch as one of their axes."""
        return frozenset(self.batch_axes)

    @property
    def parameters(self) -> int:
        """Trainable elements, each tensor counted once, bodies included."""
        return self._count(Role.PARAMETER)

    @property
    def buffers(self) -> int:
        """Elements of running statistics."""
        return self._count(Role.BUFFER)

    def _count(self, role: Role) -> int:
        own = sum(
            self.tensors[name].elements if constant.trainable is None else constant.trainable
            for name, constant in self.constants.items()
            if constant.role is role
        )
        return own + sum(body._count(role) for node in self.nodes for body in node.bodies)

    @property
    def edges(self) -> tuple[tuple[int, int, str], ...]:
        """(producer index, consumer index, tensor name), once per consumer, in node order.

        A tensor read inside a body counts as read by the node that holds the body.
        """
        producer = {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}
        return tuple(
            (producer[name], j, name)
            for j, node in enumerate(self.nodes)
            for name in dict.fromkeys(reads_of(node))
            if name in producer
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the computation: operators, attributes, wiring, shapes and types.

        Names of nodes and tensors do not enter, nor does the batch: that axis of the batch
        inputs is left out and activations follow from inputs. 64 hexadecimal digits.
        """
        sha = hashlib.sha256()
        for line in _canonical_lines(self, {}):
            sha.update(line.encode())
            sha.update(b"\n")
        return sha.hexdigest()

    def bind(
        self,
        *,
        batch_size: int | None = None,
        dims: Mapping[str, int] | None = None,
        inputs: Mapping[str, tuple[int, ...]] | None = None,
        batch_axes: Mapping[str, int | None] | None = None,
    ) -> "Graph":
        """Return the same model under another binding, read again from its source.

        What is not given stays as it was bound before.
        """
        if self.source is None:
            raise ModelError(f"graph {self.name!r} has no source to bind again from; load it anew")
        return self.source.bind(
            replace(
                self.binding,
                batch_size=self.binding.batch_size if batch_size is None else batch_size,
                dims={**self.binding.dims, **(dims or {})},
                inputs={**self.binding.inputs, **(inputs or {})},
                batch_axes={**self.binding.batch_axes, **(batch_axes or {})},
            )
        )

    def __hash__(self) -> int:
        return hash((self.name, len(self.nodes), self.batch_size))


def reads_of(node: Node) -> Iterator[str]:
    """Yield the tensors a node reads, those captured by its bodies included."""
    yield from (name for name in node.inputs if name)
    for body in node.bodies:
        yield from captured_by(body)


def captured_by(body: Graph) -> Iterator[str]:
    """Yield the tensors that a body reads from outside itself."""
    known = {*body.inputs, *body.constants}
    for node in body.nodes:
        yield from (name for name in reads_of(node) if name not in known)
        known.update(node.outputs)
    yield from (name for name in body.outputs if name and name not in known)


def _canonical_lines(graph: Graph, outer: Mapping[str, str]) -> Iterator[str]:
    number = dict(outer)
    weights = 0
    for i, name in enumerate(graph.inputs):
        tensor = graph.tensors[name]
        shape = tensor.shape
        axis = graph.batch_axes.get(name)
        if axis is not None and shape is not None:
            shape = (*shape[:axis], -1, *shape[axis + 1 :])
        number[name] = f"i{len(outer)}.{i}"
        yield f"input {shape} {tensor.dtype}"
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            if name in graph.constants and name not in number:
                if graph.constants[name].role is Role.DATA:
                    # Masks, targets, initial states follow the inputs, and whether two nodes share
                    # one depends on the batch: only the type enters.
                    number[name] = f"data {graph.tensors[name].dtype}"
                    continue
                weights += 1
                number[name] = f"c{len(outer)}.{weights}"
                yield f"constant {_constant_line(graph, name)}"
        reads = " ".join(number.get(name, "?") if name else "-" for name in node.inputs)
        attrs = sorted(node.attrs.items())
        yield f"node {node.domain}:{node.op_type} {reads} {attrs} {len(node.outputs)}"
        for body in node.bodies:
            yield "body"
            yield from _canonical_lines(body, number)
        for j, name in enumerate(node.outputs):
            if name:
                number[name] = f"n{len(outer)}.{i}.{j}"
    yield "outputs " + " ".join(number.get(name, "?") for name in graph.outputs)


def _constant_line(graph: Graph, name: str) -> str:
    """Describe a weight without the batch: one that was widened to it as it is stored."""
    tensor, constant = graph.tensors[name], graph.constants[name]
    shape = list(tensor.shape or ())
    widened = constant.trainable is not None and graph.batch_size in shape
    if widened and tensor.elements == (constant.trainable or 0) * graph.batch_size:
        shape[shape.index(graph.batch_size)] = 1
    return f"{tuple(shape)} {tensor.dtype} {constant.role}"
