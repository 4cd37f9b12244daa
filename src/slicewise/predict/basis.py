"""The costs that a learned time is a sum over: seconds of each kernel on a device, by cause.

    time of a kernel = sum over causes f of theta_f(context, device, runtime) x basis_f

Every entry is a time at the data sheet's rates, none falls as sizes grow at the same alignment,
and none rises on a device that is faster in everything. Since theta never sees the batch and is
positive, more images are never faster, whatever was learned. Channels narrower than 64, padding,
waves, caches and ramps enter here, as time, for the same reason.
"""

import numpy as np

from slicewise.core.cost import Kind
from slicewise.core.device import UNIT_BYTES_PER_CLOCK, Device
from slicewise.predict import efficiency
from slicewise.predict.kernels import KINDS, Array, KernelTable, UnitCosts

# Rows and columns of outputs that libraries give one unit at a time (NVIDIA, "Matrix
# Multiplication Background User's Guide", DU-09799-001; smaller ones: names of fp32 kernels).
TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
SIDES = (128, 64)

BASIS = (
    # arithmetic: at the peak; in tiles and waves; padded to 64; of few outputs; of short sums; on
    # vector units; what is no multiply-add; one tile after another; in whole waves of one tile
    "matrix", "tiles", "padded", "few outputs", "short sums", "direct", "vector", "depth",
    *(f"wave {m}x{n}" for m, n in TILES),
    # bytes: read, written, of weights, beyond the cache, unrolled windows
    "read", "written", "weights", "beyond", "unrolled",
    # bytes through the cache: operands of the blocks of a tile, all of them once
    *(f"operands {side}" for side in SIDES), "cached",
    # both together: the roofline, the sum of squares, the geometric mean
    "roof", "hypotenuse", "mean",
    # what a kernel costs however small: launch, fill, dependent steps, groups or heads, ramps
    "launch", "fill", "steps", "products", "byte ramp", "tile ramp",
)  # fmt: skip
"""Names of the columns; a weights folder is refused where its own differ."""

NARROW = 64  # channels that matrix units want at least
DIRECT_LOSS = 4.0  # vector units reach a quarter of their peak on such a kernel
FILL_S = 1e-6
STEP_S = 5e-6
PRODUCT_S = 5e-9
_TILE = 128
_CONV = KINDS.index(Kind.CONV)


def basis_of(table: KernelTable, costs: UnitCosts, device: Device) -> Array:
    """Return the costs of each kernel by cause, in seconds: [kernels, len(BASIS)]."""
    count = len(table.kind)
    bandwidth = device.memory_bandwidth_bytes_per_s
    # what fits tiles badly, as depthwise convolutions do, runs on the vector units
    tiles = np.minimum(costs.matrix_s * costs.tile_loss, costs.direct_s * DIRECT_LOSS)
    read = (table.activation_bytes - table.write_bytes) / bandwidth
    written = table.write_bytes / bandwidth
    padded, few, short = costs.matrix_s.copy(), costs.matrix_s.copy(), costs.matrix_s.copy()
    unrolled, products, depth = np.zeros(count), np.zeros(count), np.zeros(count)
    waves, operands = np.zeros((count, len(TILES))), np.zeros((count, len(SIDES)))
    cache_rate = device.compute_units * UNIT_BYTES_PER_CLOCK * device.clock_hz
    if len(table.shapes):
        at = table.shaped
        batch, m, n, k = table.shapes.T
        wide, deep = (np.ceil(each / NARROW) * NARROW for each in (n, k))
        padded[at] *= (wide / n) * (deep / k)
        few[at] *= NARROW / n
        short[at] *= NARROW / k
        element = np.array([max(dtype.bits, 8) / 8 for dtype in table.dtypes])[table.dtype[at]]
        unrolled[at] = np.where(table.kind[at] == _CONV, batch * m * k * element, 0.0) / bandwidth
        products[at] = PRODUCT_S * batch
        blocks = batch * np.ceil(m / _TILE) * np.ceil(n / _TILE)
        depth[at] = np.ceil(blocks / device.compute_units) * k / device.clock_hz
        waves[at] = _waves(table, costs, device)
        operands[at] = _operands(table) * element[:, None] / cache_rate
    arithmetic = tiles + costs.vector_s
    traffic = read + written + costs.weight_s
    beyond = np.maximum(table.activation_bytes - device.cache_bytes / 2, 0.0) / bandwidth
    launch = np.full(count, device.launch_s)
    cached = (table.activation_bytes + table.weight_bytes) / cache_rate
    return np.stack(
        [
            costs.matrix_s, tiles, padded, few, short, costs.direct_s, costs.vector_s, depth,
            *waves.T,
            read, written, costs.weight_s, beyond, unrolled,
            *operands.T, cached,
            np.maximum(arithmetic, traffic), np.hypot(arithmetic, traffic),
            np.sqrt(arithmetic * traffic),
            launch, np.full(count, FILL_S), STEP_S * (table.steps - 1), products,
            np.sqrt(traffic * launch), np.sqrt(arithmetic * launch),
        ],
        axis=1,
    )  # fmt: skip


def _waves(table: KernelTable, costs: UnitCosts, device: Device) -> Array:
    """Return the seconds of each contraction in whole waves of each tile: [shaped, len(TILES)].

    ceil(blocks / units) x arithmetic of a tile / rate of a unit. Convolutions of fewer channels
    than matrix units take at once, as depthwise ones, take no longer than on the vector units.
    """
    at = table.shaped
    batch, m, n, _ = table.shapes.T[:, :, None]
    rows, columns = np.array(TILES, dtype=np.float64).T
    units = device.compute_units
    blocks = batch * np.ceil(m / rows) * np.ceil(n / columns)
    padded = np.ceil(blocks / units) * units * rows * columns / (batch * m * n)
    made = costs.matrix_s[at, None] * padded
    is_direct = (table.kind[at] == _CONV) & (table.shapes[:, 2] < efficiency.ROW)
    cap = np.where(is_direct, costs.direct_s[at] * DIRECT_LOSS, np.inf)
    return np.asarray(np.minimum(made, cap[:, None]))


def _operands(table: KernelTable) -> Array:
    """Return the elements of both operands that blocks of each side read: [shaped, len(SIDES)]."""
    batch, m, n, k = table.shapes.T[:, :, None]
    side = np.array(SIDES, dtype=np.float64)
    blocks = batch * np.ceil(m / side) * np.ceil(n / side)
    # what is multiplied more than once, as in the steps of a recurrent layer, is read as often
    often = table.macs[table.shaped, None] / (batch * m * n * k)
    return np.asarray(blocks * (np.minimum(m, side) + np.minimum(n, side)) * k * often)
