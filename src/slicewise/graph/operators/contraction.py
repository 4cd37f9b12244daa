"""Multiply-adds of convolutions, matrix products, attention and recurrence, from shapes alone.

Each public function returns a formula for a row of the operator table. Conventions: a product is
counted dense (zeros, causal masks and padding are not subtracted); a sliding window is, since
kernels skip what lies outside it. Definitions are those of the ONNX operator specification
(onnx 1.23, opset 28) and of ONNX Runtime's contrib operators (ContribOperators.md, 1.32).
"""

import math
from functools import lru_cache

from slicewise.core.cost import Contraction
from slicewise.graph.operators.row import Macs, Product, Seen, product


def conv(weight: int = 1) -> Macs:
    """Return the formula of a convolution with its kernel [M, C/group, k...] in slot `weight`.

    Any rank, any layout of the images: m = outputs / M.
    """

    def count(seen: Seen) -> Product:
        kernel = seen.shape(weight)
        group = seen.integer("group", 1)
        channels = kernel[0]
        if group < 1 or channels % group:
            raise ValueError(f"group {group} does not divide the {channels} output channels")
        positions = seen.out_elements // channels if channels else 0
        return Product.of(group, positions, channels // group, product(kernel[1:]))

    return count


def depthwise(seen: Seen) -> Product:
    """Count CausalConvWithState: every channel with its own kernel [C, 1, k]."""
    kernel = seen.shape(1)
    channels = kernel[0]
    positions = product(seen.out_shape()) // channels if channels else 0
    return Product.of(channels, positions, 1, product(kernel[1:]))


def conv_transpose(weight: int = 1) -> Macs:
    """Return the formula of a transposed convolution, kernel [C, M/group, k...] in `weight`.

    Every input meets its whole kernel, whether or not the result is cropped.
    """

    def count(seen: Seen) -> Product:
        kernel = seen.shape(weight)
        group = seen.integer("group", 1)
        channels = kernel[0]
        if group < 1 or channels % group:
            raise ValueError(f"group {group} does not divide the {channels} input channels")
        positions = seen.tensor(0).elements // channels if channels else 0
        return Product.of(group, positions, product(kernel[1:]), channels // group)

    return count


def matmul(a: int = 0, b: int = 1) -> Macs:
    """Return the formula of numpy's matmul of slots `a` and `b`, with broadcast batches.

    transA, transB, transBatchA and transBatchB are honoured where the operator has them.
    """

    def count(seen: Seen) -> Product:
        left = _oriented(seen.shape(a), seen, "A")
        right = _oriented(seen.shape(b), seen, "B")
        rows = left if len(left) > 1 else (1, *left)
        columns = right if len(right) > 1 else (*right, 1)
        if rows[-1] != columns[-2]:
            raise ValueError(f"inner sizes {rows[-1]} and {columns[-2]} differ")
        batch = _broadcast(rows[:-2], columns[:-2])
        if product(columns[:-2]) == 1:
            # one right factor for the whole batch: the rows of all batches make one tall matrix
            return Product.of(1, batch * rows[-2], columns[-1], rows[-1])
        return Product.of(batch, rows[-2], columns[-1], rows[-1])

    return count


def _oriented(shape: tuple[int, ...], seen: Seen, side: str) -> tuple[int, ...]:
    if not shape:
        raise ValueError(f"factor {side} is a scalar")
    if not seen.node.attrs or len(shape) < 2:
        return shape
    if seen.integer(f"transBatch{side}", 0):
        shape = (*shape[1:-1], shape[0], shape[-1])
    if seen.integer(f"trans{side}", 0):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    total = 1
    for i in range(1, max(len(left), len(right)) + 1):
        a = left[-i] if i <= len(left) else 1
        b = right[-i] if i <= len(right) else 1
        if a != b and 1 not in (a, b):
            raise ValueError(f"batch sizes {a} and {b} cannot be broadcast")
        total *= b if a == 1 else a
    return total


def linear(factor: int = 1) -> Macs:
    """Return the formula of a layer whose packed weight hides its shape.

    m n is what is written, k the last axis of the first input; `factor` products of that size.
    """

    def count(seen: Seen) -> Product:
        k = seen.shape(0)[-1]
        widths = [tensor.shape[-1] for tensor in seen.writes if tensor and tensor.shape]
        n = widths[0] * factor
        rows = seen.out_elements // widths[0] if widths[0] else 0
        return Product.of(1, rows, n, k)

    return count


def query_key_value(seen: Seen) -> Product:
    """Count MatMulNBitsQkv: three products of one input, one for each of the outputs."""
    k = seen.shape(0)[-1]
    rows = seen.tensor(0).elements // k if k else 0
    n = sum(tensor.shape[-1] for tensor in seen.writes[:3] if tensor and tensor.shape)
    return Product.of(1, rows, n, k)


def einsum(seen: Seen) -> Product:
    """Count Einsum as pairwise products from left to right.

    Labels of one operand alone are summed before the product, as torch.einsum does. Without a
    contracted label it is no contraction: 0 macs (`arithmetic.einsum_other` counts it).
    """
    shapes = [seen.shape(i) for i in range(len(seen.reads))]
    terms, target = parse_equation(seen.text("equation", ""), tuple(map(len, shapes)))
    sizes = _label_sizes(terms, shapes)
    macs, best = 0, None
    left = terms[0]
    for i in range(1, len(terms)):
        later = set(target).union(*terms[i + 1 :])
        contraction = _pair(left, terms[i], later, sizes)
        if contraction is not None:
            own = contraction.batch * contraction.m * contraction.n * contraction.k
            best = contraction if own >= macs or best is None else best
            macs += own
        left = tuple(dict.fromkeys(x for x in (*left, *terms[i]) if x in later))
    return Product(macs, best)


def _pair(
    left: tuple[str, ...], right: tuple[str, ...], later: set[str], sizes: dict[str, int]
) -> Contraction | None:
    both = set(left) & set(right)
    inner = both - later
    if not inner:
        return None

    def size(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    return Contraction(
        batch=size(both & later),
        m=size((set(left) - both) & later),
        n=size((set(right) - both) & later),
        k=size(inner),
    )


@lru_cache(maxsize=1024)
def parse_equation(
    equation: str, ranks: tuple[int, ...]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the labels of each operand and of the result; '...' becomes '.0', '.1' from right.

    Without '->' the result holds the ellipsis, then the labels met once, in alphabetical order.
    """
    source, arrow, result = equation.replace(" ", "").partition("->")
    parts = source.split(",")
    if len(parts) != len(ranks):
        raise ValueError(f"equation {equation!r} has {len(parts)} terms for {len(ranks)} inputs")
    terms = tuple(_labels(part, rank) for part, rank in zip(parts, ranks, strict=True))
    wide = max((tuple(x for x in term if x[0] == ".") for term in terms), key=len)
    if arrow:
        head, dots, tail = result.partition("...")
        return terms, (*head, *(wide if dots else ()), *tail)
    everything = [label for term in terms for label in term if label[0] != "."]
    return terms, (*wide, *sorted(x for x in set(everything) if everything.count(x) == 1))


def _labels(part: str, rank: int) -> tuple[str, ...]:
    head, dots, tail = part.partition("...")
    free = rank - len(head) - len(tail)
    if free < 0 or (free and not dots):
        raise ValueError(f"term {part!r} does not fit an input of rank {rank}")
    return (*head, *(f".{i}" for i in reversed(range(free))), *tail)


def _label_sizes(
    terms: tuple[tuple[str, ...], ...], shapes: list[tuple[int, ...]]
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            known = sizes.get(label, 1)
            if known != size and 1 not in (known, size):
                raise ValueError(f"label {label!r} is {known} and {size}")
            # 1 broadcasts; otherwise the sizes agree (0 included)
            sizes[label] = size if known == 1 else known
    return sizes


def recurrent(gates: int) -> Macs:
    """Return the formula of RNN (1 gate), GRU (3), LSTM (4): T dependent steps.

    W [dirs, gates H, I] and R [dirs, gates H, H] are both applied at each of T steps for each of
    B sequences; sequence lengths are not looked at. Seen as T dirs products [B, I+H] x [I+H, gH].
    PyTorch's weights have two axes, and there are those of all its layers and directions.
    """

    def count(seen: Seen) -> Product:
        if len(seen.shape(1)) == 2:
            return _layers(seen)
        sequence = seen.shape(0)
        steps, batch = sequence_of(seen)
        inputs, recurrence = seen.tensor(1).elements, seen.tensor(2).elements
        directions = seen.shape(2)[0]
        width = inputs + recurrence
        hidden = math.isqrt(recurrence // (directions * gates)) if directions else 0
        k = sequence[-1] + hidden
        return Product(
            steps * batch * width,
            Contraction(directions * steps, batch, gates * hidden, k),
            max(1, steps),
        )

    return count


def _layers(seen: Seen) -> Product:
    """Count all layers of PyTorch's lstm, gru and rnn: W [gates H, I], R [gates H, H] of each.

    Layers depend on one another, step by step; the two directions of a layer do not.
    """
    steps, batch = sequence_of(seen)
    width = sum(math.prod(shape) for shape in layer_weights(seen))
    wide = layer_weights(seen)[0][0]
    return Product(
        steps * batch * width,
        Contraction(max(1, steps), batch, wide, width // max(1, wide)),
        max(1, steps * seen.integer("num_layers", 1)),
    )


def layer_weights(seen: Seen) -> list[tuple[int, ...]]:
    """Return the shapes of the matrices of PyTorch's recurrent layers: W, R, W, R ..."""
    known = (t.shape for t in seen.reads[1:] if t is not None and t.shape is not None)
    return [shape for shape in known if len(shape) == 2]


def sequence_of(seen: Seen) -> tuple[int, int]:
    """Return (steps, batch) of the sequence that a recurrent node reads, whatever its layout."""
    shape = seen.shape(0)
    if len(shape) == 2:  # packed: the steps of all sequences behind one another
        return shape[0], 1
    first, second, _ = seen.shape(0, rank=3)
    return (second, first) if seen.integer("layout", 0) else (first, second)


def experts(seen: Seen) -> Product:
    """Count MoE and QMoE: each row goes through `k` experts of two or three layers.

    Weights are [E, out, in]; where several values are packed in one element, each is counted.
    """
    weights = [seen.tensor(slot) for slot in expert_slots(seen)]
    rows = seen.tensor(0).elements // max(1, seen.shape(0)[-1])
    routed = rows * seen.integer("k", 1)
    bits = seen.integer("expert_weight_bits", 4)
    values = 0
    for weight in weights:
        quantised = seen.node.op_type == "QMoE"
        packed = max(1, weight.dtype.bits // bits) if quantised else 1
        values += weight.elements // max(1, weight.shape[0] if weight.shape else 1) * packed
    active = active_experts(seen)
    k = seen.shape(0)[-1]
    n = values // k if k else 0
    return Product(routed * values, Contraction(active, -(-routed // max(1, active)), n, k))


def expert_slots(seen: Seen) -> tuple[int, ...]:
    """Return the slots that hold the experts' weights."""
    slots = (2, 5, 8) if seen.node.op_type == "QMoE" else (2, 4, 6)
    return tuple(slot for slot in slots if seen.has(slot))


def active_experts(seen: Seen) -> int:
    """Return how many experts are used at most: all, or one for each routed row."""
    rows = seen.tensor(0).elements // max(1, seen.shape(0)[-1])
    return min(seen.shape(2)[0], rows * seen.integer("k", 1))
