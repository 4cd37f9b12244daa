"""Tiny graphs built by hand, and hypothesis strategies that draw random ones.

They need no model file and no onnx. hypothesis is imported when a strategy is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slicewise.core.graph import AttrValue, Constant, Graph, Node, Role, Tensor
from slicewise.core.precision import DType

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Shape = tuple[int, ...]


@dataclass(slots=True)
class Sketch:
    """A graph being written down, one tensor or node at a time; `graph()` freezes it.

    Every method that adds a tensor returns its name, so that calls nest like the formula does.
    """

    name: str = "sketch"
    dtype: DType = DType.FP32
    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def _named(self, stem: str, shape: Shape | None, dtype: DType | None) -> str:
        name = f"{stem}_{len(self.tensors)}"
        self.tensors[name] = Tensor(shape, self.dtype if dtype is None else dtype)
        return name

    def input(self, *shape: int, dtype: DType | None = None) -> str:
        """Add an input of the graph."""
        name = self._named("x", shape, dtype)
        self.inputs.append(name)
        return name

    def constant(
        self,
        *shape: int,
        role: Role = Role.PARAMETER,
        dtype: DType | None = None,
        stored_bytes: int | None = None,
    ) -> str:
        """Add a constant; `stored_bytes` is given where it is kept compressed."""
        name = self._named("w", shape, dtype)
        stored = self.tensors[name].size_bytes if stored_bytes is None else stored_bytes
        self.constants[name] = Constant(role, stored)
        return name

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        *outputs: Shape | None,
        dtype: DType | None = None,
        attrs: Mapping[str, AttrValue] | None = None,
        domain: str = "",
        bodies: tuple[Graph, ...] = (),
        repeats: int = 1,
    ) -> str:
        """Add a node with outputs of the given shapes; return the name of the first."""
        names = tuple(self._named("y", shape, dtype) for shape in outputs)
        self.nodes.append(
            Node(
                f"{op_type.lower()}_{len(self.nodes)}",
                op_type,
                tuple(inputs),
                names,
                attrs or {},
                domain,
                bodies,
                repeats,
            )
        )
        return names[0] if names else ""

    def conv(self, x: str, channels: int, kernel: int = 1, *, group: int = 1) -> str:
        """Add a convolution with bias, stride 1, output as large as the input."""
        batch, depth, *space = self.shape(x)
        weight = self.constant(channels, depth // group, *([kernel] * len(space)))
        attrs: dict[str, AttrValue] = {
            "group": group,
            "kernel_shape": (kernel,) * len(space),
            "pads": (kernel // 2,) * (2 * len(space)),
        }
        inputs = (x, weight, self.constant(channels))
        return self.node("Conv", inputs, (batch, channels, *space), attrs=attrs)

    def matmul(self, x: str, width: int) -> str:
        """Add a product of the last axis of `x` with a weight."""
        *rows, depth = self.shape(x)
        return self.node("MatMul", (x, self.constant(depth, width)), (*rows, width))

    def relu(self, x: str) -> str:
        """Add a Relu."""
        return self.node("Relu", (x,), self.shape(x), dtype=self.tensors[x].dtype)

    def add(self, x: str, y: str) -> str:
        """Add the sum of two tensors of one shape."""
        return self.node("Add", (x, y), self.shape(x))

    def concat(self, *xs: str) -> str:
        """Add the concatenation of tensors along axis 1."""
        batch, _, *rest = self.shape(xs[0])
        width = sum(self.shape(x)[1] for x in xs)
        return self.node("Concat", xs, (batch, width, *rest), attrs={"axis": 1})

    def pool(self, x: str) -> str:
        """Add a global average pool."""
        batch, channels, *space = self.shape(x)
        return self.node("GlobalAveragePool", (x,), (batch, channels, *([1] * len(space))))

    def flatten(self, x: str) -> str:
        """Add a Flatten to [batch, rest]."""
        batch, *rest = self.shape(x)
        size = 1
        for extent in rest:
            size *= extent
        return self.node("Flatten", (x,), (batch, size))

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor of this sketch."""
        shape = self.tensors[name].shape
        assert shape is not None, f"{name} has no shape"
        return shape

    def graph(self, *outputs: str) -> Graph:
        """Return the frozen graph; without `outputs`, those that no node reads."""
        read = {name for node in self.nodes for name in node.inputs}
        made = [name for node in self.nodes for name in node.outputs]
        first = self.tensors[self.inputs[0]].shape if self.inputs else None
        return Graph(
            name=self.name,
            nodes=tuple(self.nodes),
            tensors=dict(self.tensors),
            inputs=tuple(self.inputs),
            outputs=outputs or tuple(name for name in made if name not in read),
            constants=dict(self.constants),
            batch_size=first[0] if first else 1,
            batch_axes={name: 0 for name in self.inputs if self.tensors[name].shape},
        )


def single(
    op_type: str,
    inputs: Sequence[Shape | None],
    *outputs: Shape | None,
    constants: Sequence[int] = (),
    dtype: DType = DType.FP32,
    attrs: Mapping[str, AttrValue] | None = None,
    domain: str = "",
) -> Graph:
    """Return a graph of one node; the inputs at the positions `constants` are parameters.

    A shape of None is an omitted input.
    """
    sketch = Sketch(op_type, dtype)
    names = [
        "" if shape is None
        else sketch.constant(*shape) if i in constants
        else sketch.input(*shape)
        for i, shape in enumerate(inputs)
    ]  # fmt: skip
    sketch.node(op_type, names, *outputs, attrs=attrs, domain=domain)
    return sketch.graph()


def residual_cnn(batch: int = 1, *, channels: int = 8, size: int = 8, blocks: int = 2) -> Graph:
    """Return a small residual CNN: a stem, `blocks` with a skip connection each, a classifier."""
    sketch = Sketch("residual-cnn")
    x = sketch.relu(sketch.conv(sketch.input(batch, 3, size, size), channels, 3))
    for _ in range(blocks):
        y = sketch.conv(sketch.relu(sketch.conv(x, channels, 3)), channels, 3)
        x = sketch.relu(sketch.add(x, y))
    sketch.matmul(sketch.flatten(sketch.pool(x)), 10)
    return sketch.graph()


def mlp(batch: int = 1, *, widths: Sequence[int] = (16, 32, 10)) -> Graph:
    """Return a chain of matrix products with a Relu between them."""
    sketch = Sketch("mlp")
    x = sketch.input(batch, widths[0])
    for i, width in enumerate(widths[1:]):
        x = sketch.matmul(sketch.relu(x) if i else x, width)
    return sketch.graph()


def transformer(
    batch: int = 1, *, tokens: int = 16, width: int = 32, heads: int = 4, layers: int = 2
) -> Graph:
    """Return encoder layers: normalisation, self-attention, a feed-forward net, two residuals."""
    sketch = Sketch("transformer")
    x = sketch.input(batch, tokens, width)
    flat = (batch, tokens, width)
    for _ in range(layers):
        gain = (sketch.constant(width), sketch.constant(width))
        y = sketch.node("LayerNormalization", (x, *gain), flat, attrs={"axis": -1})
        q, k, v = (sketch.matmul(y, width) for _ in range(3))
        attrs: dict[str, AttrValue] = {"q_num_heads": heads, "kv_num_heads": heads}
        a = sketch.node("Attention", (q, k, v), flat, attrs=attrs)
        x = sketch.add(x, sketch.matmul(a, width))
        x = sketch.add(x, sketch.matmul(sketch.relu(sketch.matmul(x, 4 * width)), width))
    return sketch.graph()


def renamed(graph: Graph, prefix: str = "r_") -> Graph:
    """Return the same graph with `prefix` before the name of every node and tensor."""

    def new(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(prefix + name if name else "" for name in names)

    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                name=prefix + node.name,
                inputs=new(node.inputs),
                outputs=new(node.outputs),
                bodies=tuple(renamed(body, prefix) for body in node.bodies),
            )
            for node in graph.nodes
        ),
        tensors={prefix + name: tensor for name, tensor in graph.tensors.items()},
        inputs=new(graph.inputs),
        outputs=new(graph.outputs),
        constants={prefix + name: constant for name, constant in graph.constants.items()},
        batch_axes={prefix + name: axis for name, axis in graph.batch_axes.items()},
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """A random graph written down without its batch, so that it can be made at any batch.

    `steps` are (operation, sources, number): sources pick among the tensors made so far.
    """

    channels: int
    size: int
    steps: tuple[tuple[str, tuple[int, int], int], ...]

    def graph(self, batch: int, *, dtype: DType = DType.FP32) -> Graph:
        """Return the graph of this recipe at a batch."""
        sketch = Sketch("random", dtype)
        made = [sketch.input(batch, self.channels, self.size, self.size)]
        for operation, (first, second), number in self.steps:
            x, y = made[first % len(made)], made[second % len(made)]
            made.append(_step(sketch, operation, x, y, number))
        return sketch.graph()


OPERATIONS = ("conv", "depthwise", "relu", "add", "concat", "sigmoid", "norm", "transpose")


def _step(sketch: Sketch, operation: str, x: str, y: str, number: int) -> str:
    shape = sketch.shape(x)
    if operation == "conv":
        return sketch.conv(x, number, 1 + 2 * (number % 2))
    if operation == "depthwise":
        return sketch.conv(x, shape[1], 3, group=shape[1])
    if operation == "add" and sketch.shape(y) == shape:
        return sketch.add(x, y)
    if operation == "concat" and sketch.shape(y)[2:] == shape[2:]:
        return sketch.concat(x, y)
    if operation == "norm":
        scale = [sketch.constant(shape[1]) for _ in range(2)]
        statistics = [sketch.constant(shape[1], role=Role.BUFFER) for _ in range(2)]
        return sketch.node("BatchNormalization", (x, *scale, *statistics), shape)
    if operation == "transpose":
        turned = (*shape[:2], shape[3], shape[2])
        return sketch.node("Transpose", (x,), turned, attrs={"perm": (0, 1, 3, 2)})
    # also what becomes of an addition or concatenation whose operands do not match
    return sketch.node("Sigmoid" if operation == "sigmoid" else "Relu", (x,), shape)


def recipes(*, max_nodes: int = 12) -> "SearchStrategy[Recipe]":
    """Return a strategy of random CNN-like graphs with branches, as recipes."""
    from hypothesis import strategies as st

    @st.composite
    def draw_recipe(draw: "DrawFn") -> Recipe:
        index = st.integers(0, 10**6)
        step = st.tuples(st.sampled_from(OPERATIONS), st.tuples(index, index), st.integers(1, 6))
        steps = draw(st.lists(step, min_size=1, max_size=max_nodes))
        return Recipe(draw(st.integers(1, 5)), draw(st.integers(1, 6)), tuple(steps))

    return draw_recipe()


def graphs(*, max_nodes: int = 12, dtype: DType = DType.FP32) -> "SearchStrategy[Graph]":
    """Return a strategy of random graphs of up to `max_nodes` nodes, batch 1 to 4."""
    from hypothesis import strategies as st

    return st.builds(
        lambda recipe, batch: recipe.graph(batch, dtype=dtype),
        recipes(max_nodes=max_nodes),
        st.integers(1, 4),
    )
