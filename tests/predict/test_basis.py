"""Costs by cause: they grow with the work, fall with a faster device, and are seconds."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.cost import NodeWork
from slicewise.core.device import Device
from slicewise.core.precision import DType
from slicewise.predict.basis import BASIS, basis_of
from slicewise.predict.kernels import Array, tabulate, unit_costs
from slicewise.testing.predictors import pointwise, product, tiny_gpu, works

sizes = st.integers(1, 40).map(lambda blocks: 64 * blocks)


def costs(*kernels: NodeWork, device: Device | None = None) -> Array:
    """Return the costs of kernels on a device."""
    its = device or tiny_gpu()
    table = tabulate(kernels)
    return basis_of(table, unit_costs(table, its)[0], its)


@given(works)
def test_every_cost_is_finite_and_not_negative(nodes: tuple[NodeWork, ...]) -> None:
    made = costs(*nodes)
    assert made.shape == (len(nodes), len(BASIS))
    assert np.isfinite(made).all()
    assert (made >= 0).all()


@given(sizes, sizes, sizes, st.integers(0, 2), st.integers(1, 8))
def test_a_larger_product_of_the_same_alignment_costs_no_less(
    m: int, n: int, k: int, axis: int, growth: int
) -> None:
    larger = [m, n, k]
    larger[axis] += 64 * growth
    small, large = costs(product(m, n, k)), costs(product(*larger))
    assert (large >= small * (1 - 1e-9)).all(), [
        name for name, one, two in zip(BASIS, small[0], large[0], strict=True) if two < one
    ]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000))
def test_more_images_cost_no_less(m: int, more: int, n: int, k: int) -> None:
    small, large = costs(product(m, n, k)), costs(product(m + more, n, k))
    assert (large >= small * (1 - 1e-9)).all()


@given(st.integers(1, 10**8), st.integers(0, 10**8))
def test_more_elements_cost_no_less(elements: int, more: int) -> None:
    small, large = costs(pointwise(elements)), costs(pointwise(elements + more))
    assert (large >= small).all()


@given(works, st.floats(1.0, 8.0))
def test_a_device_faster_in_everything_costs_no_more(
    nodes: tuple[NodeWork, ...], factor: float
) -> None:
    slow = tiny_gpu()
    fast = replace(
        slow,
        peak_flop_per_s={d: rate * factor for d, rate in slow.peak_flop_per_s.items()},
        memory_bandwidth_bytes_per_s=slow.memory_bandwidth_bytes_per_s * factor,
    )
    assert (costs(*nodes, device=fast) <= costs(*nodes, device=slow) * (1 + 1e-9)).all()


def test_depthwise_like_products_are_not_charged_whole_tiles() -> None:
    narrow = replace(product(4096, 1, 9, batch=256, dtype=DType.FP16), op_type="Conv")
    made = dict(zip(BASIS, costs(narrow)[0], strict=True))
    assert made["tiles"] <= 4.0 * made["direct"] * (1 + 1e-9)
