"""Makes ONNX attributes of the arguments of ATen calls.

Each function serves rows of the ATen table. None reads a size that may be the batch: the digest
of a graph must not depend on it.
"""

from slicewise.graph.frontends.torch.aten.row import Attrs, Call, MakeAttrs


def fixed(**attrs: int | float | str) -> MakeAttrs:
    """Return attributes that do not depend on the call."""
    return lambda call: attrs


def axis(argument: str = "dim", default: int = -1, of: str = "self") -> MakeAttrs:
    """Return `axis`, counted from 0."""

    def make(call: Call) -> Attrs:
        rank = len(call.tensor(of).shape)
        return {"axis": call.integer(argument, default) % max(1, rank)}

    return make


def new_axis(call: Call) -> Attrs:
    """Return the axis along which `stack` puts its tensors."""
    return {"axis": call.integer("dim") % (len(call.tensor("tensors").shape) + 1)}


def reduced(call: Call) -> Attrs:
    """Return `axes` and `keepdims` of a reduction; without axes all are reduced."""
    rank = max(1, len(call.tensor("self").shape))
    axes = tuple(sorted(each % rank for each in call.integers("dim")))
    return {**({"axes": axes} if axes else {}), "keepdims": int(bool(call.given("keepdim")))}


def permuted(call: Call) -> Attrs:
    """Return `perm` of permute, transpose, t, movedim and their like."""
    rank = len(call.tensor("self").shape)
    if call.given("dims") is not None:
        return {"perm": tuple(each % rank for each in call.integers("dims"))}
    order = list(range(rank))
    if call.given("source") is not None:
        pairs = zip(call.integers("source"), call.integers("destination"), strict=True)
        moved = {into % rank: out % rank for out, into in pairs}
        rest = iter([each for each in order if each not in moved.values()])
        return {"perm": tuple(moved[i] if i in moved else next(rest) for i in range(rank))}
    first, second = (-2, -1)
    for one, other in (("dim0", "dim1"), ("axis0", "axis1")):
        if call.given(one) is not None:
            first, second = call.integer(one), call.integer(other)
    if rank >= 2:
        order[first], order[second] = order[second], order[first]
    return {"perm": tuple(order)}


def _spread(values: tuple[int, ...], rank: int, default: int) -> tuple[int, ...]:
    if not values:
        return (default,) * rank
    return values * rank if len(values) == 1 else values


def conv(call: Call) -> Attrs:
    """Return the attributes of a convolution, transposed or not."""
    kernel = call.shape("weight")[2:]
    rank = len(kernel)
    dilations = _spread(call.integers("dilation"), rank, 1)
    padding = call.given("padding")
    if isinstance(padding, str):
        total = [
            0 if padding == "valid" else d * (k - 1)
            for d, k in zip(dilations, kernel, strict=True)
        ]
        pads = (*(each // 2 for each in total), *(each - each // 2 for each in total))
    else:
        pads = _spread(call.integers("padding"), rank, 0) * 2
    return {
        "kernel_shape": kernel,
        "strides": _spread(call.integers("stride"), rank, 1),
        "pads": pads,
        "dilations": dilations,
        "group": call.integer("groups", 1),
    }


def pool(call: Call) -> Attrs:
    """Return the attributes of a pooling with a kernel."""
    kernel = call.integers("kernel_size")
    rank = len(call.out_shape) - (1 if call.node.target._schema.name.endswith("1d") else 0)
    rank = next(
        (n for n in (1, 2, 3) if call.node.target._schema.name.rstrip("_").find(f"{n}d") > 0), rank
    )
    kernel = _spread(kernel, rank, 1)
    return {
        "kernel_shape": kernel,
        "strides": _spread(call.integers("stride"), rank, 1)
        if call.integers("stride")
        else kernel,
        "pads": _spread(call.integers("padding"), rank, 0) * 2,
        "dilations": _spread(call.integers("dilation"), rank, 1),
        "ceil_mode": int(bool(call.given("ceil_mode"))),
    }


def adaptive(call: Call) -> Attrs:
    """Return the kernel of an adaptive pooling: the largest bin of each axis; none if global."""
    sizes, inside = call.integers("output_size"), call.shape("self")
    if all(size == 1 for size in sizes):
        return {}
    before = inside[-len(sizes) :]
    kernel = tuple(-(-n // max(1, m)) for n, m in zip(before, sizes, strict=True))
    strides = tuple(max(1, n // max(1, m)) for n, m in zip(before, sizes, strict=True))
    return {"kernel_shape": kernel, "strides": strides, "pads": (0,) * (2 * len(sizes))}


def attention(call: Call) -> Attrs:
    """Return the attributes of scaled dot-product attention [..., heads, queries, size]."""
    attrs: dict[str, int | float] = {"is_causal": int(bool(call.given("is_causal")))}
    if call.given("scale") is not None:
        attrs["scale"] = call.number("scale")
    if len(call.tensor("query").shape) < 4:
        attrs |= {"q_num_heads": 1, "kv_num_heads": 1}
    return attrs


def recurrent(call: Call) -> Attrs:
    """Return direction, layers and layout of lstm, gru and rnn."""
    return {
        "direction": "bidirectional" if call.given("bidirectional") else "forward",
        "layout": int(bool(call.given("batch_first"))),
        "num_layers": call.integer("num_layers", 1),
    }


def equation(call: Call) -> Attrs:
    """Return the equation of einsum."""
    return {"equation": str(call.given("equation"))}


def gelu(call: Call) -> Attrs:
    """Return which form of Gelu is meant."""
    return {"approximate": str(call.given("approximate") or "none")}


def grid(call: Call) -> Attrs:
    """Return the interpolation of grid_sampler: 0 bilinear, 1 nearest, 2 bicubic."""
    return {"mode": ("linear", "nearest", "cubic")[call.integer("interpolation_mode")]}


def normalised(call: Call) -> Attrs:
    """Return the first axis that layer_norm and rms_norm run over, from the end, and epsilon."""
    return {"axis": -len(call.integers("normalized_shape")), "epsilon": call.number("eps", 1e-5)}


def groups(call: Call) -> Attrs:
    """Return the groups of group_norm."""
    return {"num_groups": call.integer("num_groups", 1), "epsilon": call.number("eps", 1e-5)}


def epsilon(call: Call) -> Attrs:
    """Return epsilon of a normalisation."""
    return {"epsilon": call.number("eps", 1e-5)}


def converted(call: Call) -> Attrs:
    """Return the type that a conversion gives."""
    return {"to": str(call.values.of(call.node).dtype).removeprefix("torch.")}


def block(argument: str) -> MakeAttrs:
    """Return the block size of pixel_shuffle and its reverse."""
    return lambda call: {"blocksize": call.integer(argument, 1)}


def triangle(upper: int) -> MakeAttrs:
    """Return which triangle is kept."""
    return lambda call: {"upper": upper}


def roi_align(call: Call) -> Attrs:
    """Return the sampling of roi_align."""
    return {
        "sampling_ratio": max(0, call.integer("sampling_ratio")),
        "output_height": call.integer("pooled_height", 1),
        "output_width": call.integer("pooled_width", 1),
    }


def deform_conv(call: Call) -> Attrs:
    """Return the attributes of torchvision's deform_conv2d."""
    return {
        "kernel_shape": call.shape("weight")[2:],
        "strides": (call.integer("stride_h", 1), call.integer("stride_w", 1)),
        "pads": (call.integer("pad_h"), call.integer("pad_w")) * 2,
        "dilations": (call.integer("dilation_h", 1), call.integer("dilation_w", 1)),
        "group": call.integer("groups", 1),
        "offset_group": call.integer("offset_groups", 1),
    }
