"""Arithmetic other than multiply-adds, per row of the operator table.

Convention (ours): what the formula of the ONNX operator specification writes down is counted. One
each: + - * / compare, min, max, negate, abs, round, a logic operation, and a function of the C
mathematical library (exp, log, sqrt, pow, sin, tanh, erf ...). So Relu is 1 for an element,
Sigmoid 1 / (1 + exp(-x)) is 4, Softmax 5 (max, subtract, exp, add, divide), batch normalisation at
inference 2 (its statistics fold into a scale and a shift). Copies and conversions are 0.
"""

import math

from slicewise.core.graph import Tensor
from slicewise.graph.operators.contraction import layer_weights, parse_equation, sequence_of
from slicewise.graph.operators.row import Flops, Seen

# element-wise functions by op_type, reused for the activations fused into other operators
FUNCTIONS = {
    "Abs": 1, "Neg": 1, "Sign": 1, "Ceil": 1, "Floor": 1, "Round": 1, "Reciprocal": 1,
    "Sqrt": 1, "Exp": 1, "Log": 1, "Erf": 1, "Not": 1, "BitwiseNot": 1, "IsNaN": 1, "IsInf": 1,
    "Sin": 1, "Cos": 1, "Tan": 1, "Asin": 1, "Acos": 1, "Atan": 1,
    "Sinh": 1, "Cosh": 1, "Tanh": 1, "Asinh": 1, "Acosh": 1, "Atanh": 1,
    "Relu": 1,                # max(0, x)
    "LeakyRelu": 2,           # compare, a x
    "ThresholdedRelu": 1,     # compare
    "Elu": 4,                 # compare, a (exp x - 1)
    "Selu": 5,                # Elu, times gamma
    "Celu": 7,                # max(0, x) + min(0, a (exp(x / a) - 1))
    "Sigmoid": 4,             # 1 / (1 + exp(-x))
    "HardSigmoid": 4,         # max(0, min(1, a x + b))
    "HardSwish": 5,           # x HardSigmoid(x)
    "Softplus": 3,            # log(exp x + 1); Mish multiplies x by the tanh of it
    "Softsign": 3,            # x / (1 + |x|)
    "Mish": 5,
    "Swish": 6,               # x Sigmoid(a x)
    "Gelu": 5,                # 0.5 x (1 + erf(x / sqrt 2))
    "FastGelu": 9,            # 0.5 x (1 + tanh(c (x + 0.044715 x x x)))
    "QuickGelu": 6,           # x Sigmoid(a x)
    "Clip": 2,                # min, max
    "Shrink": 3,              # two compares, a shift
    "Affine": 2, "ImageScaler": 2, "Scale": 1,
    "ScaledTanh": 3,          # a tanh(b x)
    "ParametricSoftplus": 5,  # a log(exp(b x) + 1)
}  # fmt: skip

QUANTIZE = 5  # saturate(round(x / s) + z): divide, round, add, min, max
DEQUANTIZE = 2  # (x - z) s
SOFTMAX = 5  # max, subtract, exp, add, divide
NORMALIZE = 5  # mean: add; deviation: subtract; variance: multiply, add; divide by the root
ROTATE = 3  # two multiplies and an add for each element turned
INTERPOLATE = 2  # a multiply and an add for each neighbour


def each_output(count: float, *, given: tuple[int, ...] = ()) -> Flops:
    """Return `count` for each element of the first output, + 1 for each slot of `given` present.

    `given` are inputs added or multiplied element-wise: a bias, a residual.
    """

    def flops(seen: Seen) -> int:
        return int((count + sum(seen.has(slot) for slot in given)) * seen.out_elements)

    return flops


def each_input(count: int, *, slot: int = 0, given: tuple[int, ...] = ()) -> Flops:
    """Return `count` for each element of the input `slot`, + 1 for each slot of `given`."""

    def flops(seen: Seen) -> int:
        return (count + sum(seen.has(other) for other in given)) * seen.elements(slot)

    return flops


def activated(*, given: tuple[int, ...] = ()) -> Flops:
    """Return 1 an output for each slot of `given`, + the `activation` fused into the operator."""

    def flops(seen: Seen) -> int:
        name = seen.text("activation", "")
        each = FUNCTIONS.get(name, 0) + sum(seen.has(slot) for slot in given)
        return each * seen.out_elements

    return flops


def variadic(extra: int = 0) -> Flops:
    """Return inputs - 1 + `extra` for each output element (Sum, Max, Mean ...)."""

    def flops(seen: Seen) -> int:
        return max(0, len(seen.reads) - 1 + extra) * seen.out_elements

    return flops


def window(count: int = 1) -> Flops:
    """Return `count` for each element under the kernel, at each output."""

    def flops(seen: Seen) -> int:
        return count * math.prod(seen.integers("kernel_shape")) * seen.out_elements

    return flops


def local_response(seen: Seen) -> int:
    """Count LRN: square, `size` adds, multiply, add, pow, divide for each output."""
    return (seen.integer("size", 1) + 5) * seen.out_elements


def batch_normalization(seen: Seen) -> int:
    """Count BatchNormalization: 2 an element; in training the statistics are computed too."""
    each = 2 + (NORMALIZE if seen.integer("training_mode", 0) else 0)
    return each * seen.out_elements


def causal_conv(seen: Seen) -> int:
    """Count what CausalConvWithState adds to its products: a bias and SiLU (5)."""
    activation = seen.text("activation", "none")
    each = seen.has(2) + (5 if activation in ("silu", "swish") else 0)
    return each * seen.out_elements


def gelu(seen: Seen) -> int:
    """Count Gelu in the form its `approximate` attribute names."""
    fast = seen.text("approximate", "none") == "tanh"
    return FUNCTIONS["FastGelu" if fast else "Gelu"] * seen.out_elements


def top_k(seen: Seen) -> int:
    """Count TopK: each input meets a heap of k, log2(k + 1) comparisons."""
    axis = seen.integer("axis", -1)
    return seen.elements(0) * max(1, math.ceil(math.log2(seen.out_shape()[axis] + 1)))


def sort(slot: int = 0) -> Flops:
    """Return n log2 n comparisons of the n elements of the input `slot`."""

    def flops(seen: Seen) -> int:
        elements = seen.elements(slot)
        return elements * max(1, math.ceil(math.log2(elements))) if elements else 0

    return flops


def resize(seen: Seen) -> int:
    """Count Resize and Upsample: 2 for each neighbour; 1, 2 or 4 along each axis that changes.

    The nearest neighbour is a copy, 0.
    """
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(seen.text("mode", "nearest"), 0)
    changed = sum(a != b for a, b in zip(seen.shape(0), seen.out_shape(), strict=True))
    return INTERPOLATE * taps**changed * seen.out_elements if taps and changed else 0


def grid_sample(seen: Seen) -> int:
    """Count GridSample: 2 for each neighbour of a sampled point; the nearest is a copy."""
    mode = seen.text("mode", "linear")
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode, 0)
    return INTERPOLATE * taps ** (len(seen.shape(0)) - 2) * seen.out_elements if taps else 0


def roi_align(seen: Seen) -> int:
    """Count RoiAlign: bilinear samples (4 neighbours) and their mean.

    `sampling_ratio` 0 adapts to the region, unknown here: 2 x 2, the usual choice (Mask R-CNN,
    arXiv 1703.06870, section 3).
    """
    ratio = seen.integer("sampling_ratio", 0) or 2
    return ratio * ratio * (4 * INTERPOLATE + 1) * seen.out_elements


def deformed(seen: Seen) -> int:
    """Count what DeformConv adds to its products: bilinear samples, modulation, bias."""
    kernel = seen.shape(1)
    samples = math.prod(kernel[1:]) * seen.integer("group", 1) * seen.out_elements
    samples //= max(1, kernel[0])
    return samples * (4 * INTERPOLATE + seen.has(4)) + seen.has(3) * seen.out_elements


def fourier(seen: Seen) -> int:
    """Count DFT: 5 n log2 n for a complex transform of n points, half for a real one.

    The usual figure of the radix-2 algorithm (Frigo and Johnson, The Design and Implementation of
    FFTW3, Proc. IEEE 93(2), 2005, section on benchmarking).
    """
    return _transforms(seen.tensor(0), seen.out_shape(), seen.integer("axis", -2))


def _transforms(signal: Tensor, spectrum: tuple[int, ...], axis: int) -> int:
    shape = signal.shape or ()
    points = max(shape[axis], spectrum[axis]) if shape else 0
    if points < 2:
        return 0
    rows = math.prod(spectrum[:-1]) // max(1, spectrum[axis])
    is_real = shape[-1] == 1
    return round(5 * rows * points * math.log2(points) * (0.5 if is_real else 1.0))


def short_fourier(seen: Seen) -> int:
    """Count STFT: each frame times its window, then a transform of the frame."""
    frames, bins = math.prod(seen.out_shape()[:-2]), seen.out_shape()[-2]
    points = (bins - 1) * 2 if seen.integer("onesided", 1) else bins
    windowed = frames * points if seen.has(2) else 0
    if points < 2:
        return windowed
    is_complex = seen.shape(0)[-1] == 2 and len(seen.shape(0)) == 3
    scale = 5.0 if is_complex else 2.5
    return windowed + round(scale * frames * points * math.log2(points))


def determinant(seen: Seen) -> int:
    """Count Det: 2 n^3 / 3 for the LU factors (Golub and Van Loan, Matrix Computations, 3.2)."""
    n = seen.shape(0)[-1]
    return 2 * n * seen.elements(0) // 3


def inverse(seen: Seen) -> int:
    """Count Inverse: 2 n^3 (Golub and Van Loan, Matrix Computations, 3.2 and 3.4)."""
    return 2 * seen.shape(0)[-1] * seen.elements(0)


def einsum_other(seen: Seen) -> int:
    """Count what Einsum does beside contractions: products without a sum, sums of one operand."""
    shapes = [seen.shape(i) for i in range(len(seen.reads))]
    terms, target = parse_equation(seen.text("equation", ""), tuple(map(len, shapes)))
    summed = 0
    for i, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        elsewhere = set(target).union(*(term for j, term in enumerate(terms) if j != i))
        if not set(labels) <= elsewhere:
            summed += math.prod(shape)
    contracted = any(
        label not in target
        for i, term in enumerate(terms)
        for label in term
        if any(label in other for other in terms[i + 1 :])
    )
    plain = 0 if contracted else (len(terms) - 1) * seen.out_elements
    return summed + plain


def cells(gates: int, each: int) -> Flops:
    """Return the cell arithmetic of RNN, GRU, LSTM: `each` for a hidden unit and step.

    Each gate also adds X W to H R (1), and its two biases (2) where B is given; peepholes of LSTM
    add 3 multiply and add pairs.
    """

    def flops(seen: Seen) -> int:
        steps, batch = sequence_of(seen)
        if len(seen.shape(1)) == 2:  # PyTorch's layers; their biases are taken to be there
            units = sum(shape[0] // gates for shape in layer_weights(seen)[::2])
            return steps * batch * units * (each + 3 * gates)
        weights = seen.tensor(2)
        directions = weights.shape[0] if weights.shape else 0
        hidden = math.isqrt(weights.elements // (directions * gates)) if directions else 0
        biased = 2 if seen.has(3) else 0
        peephole = 6 if seen.has(7) and gates == 4 else 0
        return steps * batch * directions * hidden * (each + gates * (1 + biased) + peephole)

    return flops
