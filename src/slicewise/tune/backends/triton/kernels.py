"""The kernels: products with an epilogue, softmax, norms, attention, convolution.

Every size is a constant of the compiled kernel; only pointers are passed. Sums are kept in fp32
whatever is stored. Importing this needs Triton; `launch.py` does so when it must. Of
`triton.language` only what is built in is called, no function of its Python part: those would be
compiled functions even where this module is loaded for the interpreter. Annotations of pointers
are quoted because Triton looks up every name that it meets.
"""

# Constants of a compiled kernel are written in capitals, as Triton programs do.
# ruff: noqa: N803

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def jit(function: Callable[..., None]) -> Any:
    """Return the function as a kernel: compiled, or run by the interpreter if that is on."""
    return triton.jit(function)


def jit_part(function: Callable[..., Any]) -> Any:
    """Return the function as a part of kernels."""
    return triton.jit(function)


@jit_part
def activated(x: "Any", ACTIVATION: tl.constexpr) -> "Any":
    # numbers of operations.ACTIVATIONS
    if ACTIVATION == 1:
        x = tl.maximum(x, 0.0)
    if ACTIVATION == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACTIVATION == 3:
        # tanh(u) = 1 - 2 / (exp(2 u) + 1), which neither end lets overflow
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * u) + 1.0))
    if ACTIVATION == 4:
        x = x / (1.0 + tl.exp(-x))
    return x


@jit_part
def product(left: "Any", right: "Any", total: "Any", DOT: tl.constexpr) -> "Any":
    # 'wide' is for the interpreter, which multiplies the bit patterns of bf16
    if DOT == "wide":
        left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    else:
        total = tl.dot(left, right, total, input_precision=DOT)
    return total


@jit
def matmul(
    a_ptr: "Any", b_ptr: "Any", bias_ptr: "Any", residual_ptr: "Any", out_ptr: "Any",
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A_BATCH: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_BATCH: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    DOT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """out[batch] = activation(a[batch] b[batch] + bias + residual); a grid of (tiles, batch)."""
    tiles_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tile, batch = tl.program_id(0), tl.program_id(1)
    # Programs that run at the same time share rows of a and columns of b: bands of GROUP tiles,
    # walked down first, keep both in the cache.
    band = tile // (GROUP * tiles_n)
    first = band * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    place = tile % (GROUP * tiles_n)
    m = (first + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (place // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = a_ptr + batch * A_BATCH + m[:, None] * A_M + k[None, :] * A_K
    b = b_ptr + batch * B_BATCH + k[:, None] * B_K + n[None, :] * B_N
    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN:
            left = tl.load(a)
            right = tl.load(b)
        else:
            left = tl.load(a, mask=(m[:, None] < M) & (k[None, :] < K - start), other=0.0)
            right = tl.load(b, mask=(k[:, None] < K - start) & (n[None, :] < N), other=0.0)
        total = product(left, right, total, DOT)
        a += BLOCK_K * A_K
        b += BLOCK_K * B_K
    inside = (m[:, None] < M) & (n[None, :] < N)
    at = batch * M * N + m[:, None] * N + n[None, :]
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = activated(total, ACTIVATION)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def softmax(
    x_ptr: "Any", out_ptr: "Any",
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """Softmax over the columns of BLOCK_R rows: at once, or in chunks read twice."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_C)
    at = row[:, None] * COLUMNS + column[None, :]
    inside = row[:, None] < ROWS
    lowest = float("-inf")
    if BLOCK_C >= COLUMNS:
        inside = inside & (column[None, :] < COLUMNS)
        x = tl.load(x_ptr + at, mask=inside, other=lowest).to(tl.float32)
        top = tl.reduce(x, 1, tl.standard._elementwise_max)
        e = tl.exp(x - top[:, None])
        total = tl.reduce(e, 1, tl.standard._sum_combine)
        tl.store(out_ptr + at, (e / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        # The running maximum and sum of Milakov and Gimelshein, arXiv 1805.02867.
        top = tl.full((BLOCK_R,), lowest, tl.float32)
        total = tl.full((BLOCK_R,), 0.0, tl.float32)
        for start in range(0, COLUMNS, BLOCK_C):
            here = inside & (column[None, :] < COLUMNS - start)
            x = tl.load(x_ptr + at + start, mask=here, other=lowest).to(tl.float32)
            new = tl.maximum(top, tl.reduce(x, 1, tl.standard._elementwise_max))
            base = tl.where(new == lowest, 0.0, new)  # nothing but -inf so far
            e = tl.exp(x - base[:, None])
            total = total * tl.exp(top - base) + tl.reduce(e, 1, tl.standard._sum_combine)
            top = new
        for start in range(0, COLUMNS, BLOCK_C):
            here = inside & (column[None, :] < COLUMNS - start)
            x = tl.load(x_ptr + at + start, mask=here, other=lowest).to(tl.float32)
            y = tl.exp(x - top[:, None]) / total[:, None]
            tl.store(out_ptr + at + start, y.to(out_ptr.dtype.element_ty), mask=here)


@jit
def norm(
    x_ptr: "Any", scale_ptr: "Any", bias_ptr: "Any", out_ptr: "Any",
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EPSILON: tl.constexpr,
    RMS: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
) -> None:  # fmt: skip
    """(x - mean) / deviation x scale + bias over the columns; RMS: no mean is taken off."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_C)
    at = row[:, None] * COLUMNS + column[None, :]
    in_rows = row[:, None] < ROWS
    mean = tl.full((BLOCK_R,), 0.0, tl.float32)
    square = tl.full((BLOCK_R,), 0.0, tl.float32)
    if BLOCK_C >= COLUMNS:
        inside = in_rows & (column[None, :] < COLUMNS)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if not RMS:
            mean = tl.reduce(x, 1, tl.standard._sum_combine) / COLUMNS
        off = tl.where(inside, x - mean[:, None], 0.0)
        square = tl.reduce(off * off, 1, tl.standard._sum_combine)
        y = off * (1.0 / tl.sqrt(square / COLUMNS + EPSILON))[:, None]
        if SCALE:
            scale = tl.load(scale_ptr + column, mask=column < COLUMNS, other=0.0)
            y = y * scale.to(tl.float32)[None, :]
        if BIAS:
            bias = tl.load(bias_ptr + column, mask=column < COLUMNS, other=0.0)
            y = y + bias.to(tl.float32)[None, :]
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        # Mean first, then the deviation from it: the sum of squares alone would lose digits.
        if not RMS:
            for start in range(0, COLUMNS, BLOCK_C):
                inside = in_rows & (column[None, :] < COLUMNS - start)
                x = tl.load(x_ptr + at + start, mask=inside, other=0.0).to(tl.float32)
                mean += tl.reduce(x, 1, tl.standard._sum_combine)
            mean = mean / COLUMNS
        for start in range(0, COLUMNS, BLOCK_C):
            inside = in_rows & (column[None, :] < COLUMNS - start)
            x = tl.load(x_ptr + at + start, mask=inside, other=0.0).to(tl.float32)
            off = tl.where(inside, x - mean[:, None], 0.0)
            square += tl.reduce(off * off, 1, tl.standard._sum_combine)
        factor = 1.0 / tl.sqrt(square / COLUMNS + EPSILON)
        for start in range(0, COLUMNS, BLOCK_C):
            here = column < COLUMNS - start
            inside = in_rows & here[None, :]
            x = tl.load(x_ptr + at + start, mask=inside, other=0.0).to(tl.float32)
            y = (x - mean[:, None]) * factor[:, None]
            if SCALE:
                scale = tl.load(scale_ptr + start + column, mask=here, other=0.0)
                y = y * scale.to(tl.float32)[None, :]
            if BIAS:
                bias = tl.load(bias_ptr + start + column, mask=here, other=0.0)
                y = y + bias.to(tl.float32)[None, :]
            tl.store(out_ptr + at + start, y.to(out_ptr.dtype.element_ty), mask=inside)


@jit
def attention(
    query_ptr: "Any", key_ptr: "Any", value_ptr: "Any", mask_ptr: "Any", out_ptr: "Any",
    HEADS: tl.constexpr, SHARED_BY: tl.constexpr, Q: tl.constexpr, KV: tl.constexpr,
    DEPTH: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    MASK: tl.constexpr, MASK_B: tl.constexpr, MASK_H: tl.constexpr, MASK_Q: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Softmax(q k^T x scale) v of BLOCK_Q queries of a head, without the matrix of scores.

    A grid of (tiles of queries, batch x heads). Method: Dao et al., arXiv 2205.14135, forward.
    """
    tile, sequence = tl.program_id(0), tl.program_id(1)
    item, head = sequence // HEADS, sequence % HEADS
    # q of batch x heads; SHARED_BY heads read one head of keys and values
    other = item * (HEADS // SHARED_BY) + head // SHARED_BY
    q = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    kv = tl.arange(0, BLOCK_KV)
    d = tl.arange(0, BLOCK_D)
    lowest = float("-inf")
    own = sequence * Q * DEPTH + q[:, None] * DEPTH + d[None, :]
    in_own = (q[:, None] < Q) & (d[None, :] < DEPTH)
    queries = tl.load(query_ptr + own, mask=in_own, other=0.0)
    keys = key_ptr + other * KV * DEPTH + kv[None, :] * DEPTH + d[:, None]
    values = value_ptr + other * KV * DEPTH + kv[:, None] * DEPTH + d[None, :]
    top = tl.full((BLOCK_Q,), lowest, tl.float32)
    total = tl.full((BLOCK_Q,), 0.0, tl.float32)
    result = tl.full((BLOCK_Q, BLOCK_D), 0.0, tl.float32)
    end = KV
    if CAUSAL:  # keys after the last query of the tile are seen by none of it
        end = tl.minimum(KV, (tile + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_KV):
        here = start + kv
        k = tl.load(keys, mask=(here[None, :] < KV) & (d[:, None] < DEPTH), other=0.0)
        # exp2 is what the hardware has: exp(x) = 2^(x log2 e)
        score = tl.full((BLOCK_Q, BLOCK_KV), 0.0, tl.float32)
        score = product(queries, k, score, DOT) * (SCALE * 1.4426950408889634)
        seen = here[None, :] < KV
        if CAUSAL:
            seen = seen & (here[None, :] <= q[:, None])
        if MASK > 0:
            at = item * MASK_B + head * MASK_H + q[:, None] * MASK_Q + here[None, :]
            in_mask = (q[:, None] < Q) & (here[None, :] < KV)
            told = tl.load(mask_ptr + at, mask=in_mask, other=0)
            if MASK == 1:
                seen = seen & (told != 0)
            if MASK == 2:
                score += told.to(tl.float32) * 1.4426950408889634
        score = tl.where(seen, score, lowest)
        new = tl.maximum(top, tl.reduce(score, 1, tl.standard._elementwise_max))
        base = tl.where(new == lowest, 0.0, new)  # no key was seen so far
        part = tl.exp2(score - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.reduce(part, 1, tl.standard._sum_combine)
        v = tl.load(values, mask=(here[:, None] < KV) & (d[None, :] < DEPTH), other=0.0)
        result = product(part.to(v.dtype), v, result * fade[:, None], DOT)
        top = new
        keys += BLOCK_KV * DEPTH
        values += BLOCK_KV * DEPTH
    result = result / total[:, None]
    tl.store(out_ptr + own, result.to(out_ptr.dtype.element_ty), mask=in_own)


@jit
def conv(
    x_ptr: "Any", weight_ptr: "Any", bias_ptr: "Any", residual_ptr: "Any", out_ptr: "Any",
    IMAGES: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, FILTERS: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, DOT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """Convolution as a product that is never laid out: pixels x (channels, taps) x filters.

    NCHW in and out, one group. Method: implicit GEMM (Chetlur et al., arXiv 1410.0759, 3.1).
    """
    pixels: tl.constexpr = OUT_H * OUT_W
    depth: tl.constexpr = C * KH * KW
    tiles_m: tl.constexpr = (IMAGES * pixels + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (FILTERS + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0)
    band = tile // (GROUP * tiles_n)
    first = band * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    place = tile % (GROUP * tiles_n)
    m = (first + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = (place // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    image, pixel = m // pixels, m % pixels
    top = (pixel // OUT_W) * STRIDE_H - PAD_H
    left = (pixel % OUT_W) * STRIDE_W - PAD_W
    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c, tap = k // (KH * KW), k % (KH * KW)
        y = top[:, None] + ((tap // KW) * DILATION_H)[None, :]
        x = left[:, None] + ((tap % KW) * DILATION_W)[None, :]
        inside = (m[:, None] < IMAGES * pixels) & (k[None, :] < depth)
        inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        at = image[:, None] * (C * H * W) + c[None, :] * (H * W) + y * W + x
        values = tl.load(x_ptr + at, mask=inside, other=0.0)
        in_weight = (k[:, None] < depth) & (o[None, :] < FILTERS)
        filters = tl.load(weight_ptr + o[None, :] * depth + k[:, None], mask=in_weight, other=0.0)
        total = product(values, filters, total, DOT)
    inside = (m[:, None] < IMAGES * pixels) & (o[None, :] < FILTERS)
    at = image[:, None] * (FILTERS * pixels) + o[None, :] * pixels + pixel[:, None]
    if BIAS:
        total += tl.load(bias_ptr + o, mask=o < FILTERS, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = activated(total, ACTIVATION)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)
