"""Tells views from copies by shapes and strides, as PyTorch's tensor library does."""

from collections.abc import Sequence


def is_dense(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return True if strides are the wanted ones on every axis of more than one element.

    >>> is_dense((4, 1, 3), (3, 99, 1), (3, 3, 1)), is_dense((4, 3), (1, 4), (3, 1))
    (True, False)
    """
    return all(
        size == 1 or own == other for size, own, other in zip(shape, strides, wanted, strict=True)
    )


def can_view(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> bool:
    """Return True if a tensor can be given the shape `new` without moving a byte.

    Both have as many elements. The rule (at::detail::computeStride, ATen/TensorUtils.cpp): axes
    that lie behind one another form chunks, and new axes must not cross the border of a chunk.

    >>> can_view((4, 6), (6, 1), (2, 2, 6)), can_view((4, 6), (1, 4), (24,))
    (True, False)
    """
    axes = [(size, step) for size, step in zip(shape, strides, strict=True) if size != 1]
    chunks: list[int] = []
    for i, (size, step) in enumerate(axes):
        joins = i > 0 and axes[i - 1][1] == size * step
        if joins:
            chunks[-1] *= size
        else:
            chunks.append(size)
    sizes = iter([size for size in new if size != 1])
    for chunk in chunks:
        filled = 1
        while filled < chunk:
            filled *= next(sizes, chunk + 1)
        if filled != chunk:
            return False
    return True
