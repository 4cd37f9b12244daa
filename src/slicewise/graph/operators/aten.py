"""The rows of the operator table for ATen operators that no ONNX operator says in one.

The domain is `torch.aten`, the name is ATen's without overload. Definitions: torch 2.13,
documentation of the function of the same name. Inputs are the tensors among the arguments, in the
order of the schema, but where `graph/frontends/torch/aten/` says otherwise.
"""

from slicewise.core.cost import Contraction, Kind
from slicewise.graph.operators import arithmetic as plus
from slicewise.graph.operators.contraction import matmul
from slicewise.graph.operators.row import (
    Flops,
    Operator,
    Product,
    Seen,
    Slot,
    product,
)

ATEN = "torch.aten"


def _plain(names: str, kind: Kind, flops: Flops | None = None) -> tuple[Operator, ...]:
    return tuple(Operator(name, kind, ATEN, flops=flops) for name in names.split())


def _grouped(seen: Seen) -> Product:
    """Count grouped_mm: every row of A [M, K] meets one of the matrices B [groups, K, N].

    With both of two axes the K of each group is summed apart: as many products as a plain one.
    """
    left, right = seen.shape(0), seen.shape(1)
    if len(left) == 3 and len(right) == 3:
        return Product.of(left[0], left[1], right[2], left[2])
    if len(left) == 2 and len(right) == 2:
        return Product.of(1, left[0], right[1], left[1])
    k, n = (left[-1], right[-1])
    rows = left[0] if len(left) == 2 else left[1]
    groups = min(max(left[0], 1), right[0]) if len(right) == 3 else left[0]
    macs = rows * k * n
    return Product(macs, Contraction(groups, -(-rows // max(1, groups)), n, k))


def _experts_read(seen: Seen) -> int:
    """Return the elements of the matrices that some row meets: at most one for each row."""
    matrices = seen.shape(1)
    if len(matrices) != 3 or len(seen.shape(0)) != 2:
        return product(matrices)
    return min(matrices[0], seen.shape(0)[0]) * product(matrices[1:])


def _bilinear(seen: Seen) -> Product:
    """Count bilinear: x1 [.., a], x2 [.., b], weight [out, a, b]; x1 W first, then times x2."""
    out, a, b = seen.shape(2, rank=3)
    rows = product(seen.shape(0)[:-1])
    return Product(rows * out * b * (a + 1), Contraction(1, rows, out * b, a))


def _distances(seen: Seen) -> int:
    """Count cdist: for each pair of points subtract, square, add along their size; a root."""
    return (3 * seen.shape(0)[-1] + 1) * seen.out_elements


def _bagged(seen: Seen) -> int:
    """Return the elements of the rows that embedding_bag looks up."""
    return seen.tensor(1).elements * seen.shape(0)[-1]


def _tensordot(seen: Seen) -> Product:
    """Count tensordot: with a contracted size c, |A| |B| = outputs c^2."""
    outputs = seen.out_elements
    both = seen.tensor(0).elements * seen.tensor(1).elements
    inner = round((both / outputs) ** 0.5) if outputs else 0
    return Product(outputs * inner, Contraction(1, outputs, 1, inner))


def _along(seen: Seen) -> Product:
    """Count linalg_vecdot: one multiply-add for each pair of elements that meet."""
    outputs = max(1, seen.out_elements)
    inner = max(seen.tensor(0).elements, seen.tensor(1).elements) // outputs
    return Product(outputs * inner, Contraction(outputs, 1, 1, inner))


def _cell(seen: Seen) -> Product:
    """Count one step of a recurrence: x [.., I] and h [.., H] times W [gates H, I], R [.., H]."""
    rows = product(seen.shape(0)[:-1])
    gates, inputs = seen.shape(1, rank=2)
    width = inputs + seen.shape(2, rank=2)[1]
    return Product.of(1, rows, gates, width)


def _cell_flops(each: int, gates: int) -> Flops:
    """Return `each` for a hidden unit, and three sums (X W + H R, two biases) for each gate."""

    def flops(seen: Seen) -> int:
        units = product(seen.shape(0)[:-1]) * (seen.shape(1, rank=2)[0] // gates)
        return units * (each + 3 * gates)

    return flops


_CELL_SLOTS = {1: Slot.WEIGHT, 2: Slot.WEIGHT, 3: Slot.PARAM, 4: Slot.PARAM}

ROWS = (
    Operator("_grouped_mm", Kind.MATMUL, ATEN, _grouped, None,
             {0: Slot.FLOW, 1: Slot.WEIGHT, 2: Slot.DATA}, reads={1: _experts_read}),
    Operator("_scaled_mm", Kind.MATMUL, ATEN, matmul(), None, {0: Slot.WEIGHT, 1: Slot.WEIGHT}),
    Operator("addbmm", Kind.MATMUL, ATEN, matmul(1, 2), None, other_slots=Slot.WEIGHT),
    Operator("bilinear", Kind.MATMUL, ATEN, _bilinear, None, {2: Slot.WEIGHT, 3: Slot.PARAM}),
    Operator("tensordot", Kind.MATMUL, ATEN, _tensordot, None, other_slots=Slot.WEIGHT),
    Operator("linalg_vecdot", Kind.MATMUL, ATEN, _along, None, other_slots=Slot.WEIGHT),
    # `each` as for the sequences in `standard.py`
    *(Operator(f"{name}_cell", Kind.MATMUL, ATEN, _cell, _cell_flops(each, gates), _CELL_SLOTS)
      for name, each, gates in (("lstm", 18, 4), ("gru", 14, 3), ("rnn_tanh", 1, 1),
                                ("rnn_relu", 1, 1))),
    *_plain("kron", Kind.ELEMENTWISE, plus.each_output(1)),
    *_plain("cdist _cdist_forward", Kind.REDUCTION, _distances),
    # one function of the mathematical library, or one operation, an element
    *_plain("log2 log10 isfinite erfinv special_erfcx lgamma digamma heaviside angle complex",
            Kind.ELEMENTWISE, plus.each_output(1)),
    *_plain("rsqrt log1p expm1 lerp atan2 hypot nan_to_num polar sinc", Kind.ELEMENTWISE,
            plus.each_output(2)),
    *_plain("addcmul addcdiv", Kind.ELEMENTWISE, plus.each_output(3)),
    *_plain("log_sigmoid logaddexp", Kind.ELEMENTWISE, plus.each_output(4)),
    # v g / |v|: square, add; multiply, divide
    *_plain("_weight_norm", Kind.NORM, plus.each_input(4)),
    # half of the input times the sigmoid (4) of the other half
    *_plain("glu", Kind.ELEMENTWISE, plus.each_output(5)),
    # mean: add; deviation: subtract; multiply, add
    *_plain("var var_mean std std_mean", Kind.REDUCTION, plus.each_input(4)),
    *_plain("bincount histc", Kind.REDUCTION, plus.each_input(1)),
    *_plain("bucketize searchsorted multinomial", Kind.SORT, plus.sort()),
    *_plain("roll flip fliplr flipud rot90 im2col channel_shuffle meshgrid broadcast_tensors"
            " tril_indices triu_indices diag diag_embed block_diag cartesian_prod"
            " fft_fftshift fft_ifftshift",
            Kind.MOVEMENT),
    *_plain("affine_grid_generator", Kind.ELEMENTWISE, plus.each_output(4)),
    Operator("embedding_bag", Kind.REDUCTION, ATEN, None, _bagged, {0: Slot.WEIGHT},
             reads={0: _bagged}),
)  # fmt: skip

BYTES_ONLY = {
    ATEN: (
        "_fft_r2c _fft_c2r _fft_c2c fft_rfft fft_irfft fft_fft fft_ifft fft_rfft2 fft_irfft2"
        " fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn stft istft"
    )
}
