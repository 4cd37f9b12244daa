"""How much of a data sheet's peak each kind of kernel reaches, and how kernels are tiled.

Two tables, GPU and CPU. A row: part of the arithmetic peak, part of the memory bandwidth.
`benchmarks/fit_efficiency.py` fits the rows to open whole-model measurements under permissive
licences (timm results, Apache-2.0, and others it names) and prints them in this form.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.core.cost import Kind


@dataclass(frozen=True, slots=True)
class Efficiency:
    """`compute`: part of the peak that a large kernel of this kind reaches; `memory`: part of the
    bandwidth."""

    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class Tile:
    """An output tile of a matrix kernel and the part of the large-tile rate that it reaches."""

    m: int
    n: int
    efficiency: float


GPU_EFFICIENCY = {
    Kind.CONV: Efficiency(0.94, 0.95),
    Kind.MATMUL: Efficiency(0.88, 0.28),
    Kind.ATTENTION: Efficiency(1.00, 0.74),
    Kind.RECURRENT: Efficiency(0.40, 0.60),
    Kind.NORM: Efficiency(0.50, 0.95),
    Kind.SOFTMAX: Efficiency(0.50, 0.31),
    Kind.POOL: Efficiency(0.40, 0.19),
    Kind.REDUCTION: Efficiency(0.40, 0.95),
    Kind.ELEMENTWISE: Efficiency(0.50, 0.58),
    Kind.MOVEMENT: Efficiency(0.50, 0.95),
    Kind.SORT: Efficiency(0.10, 0.20),
    Kind.QUANTIZE: Efficiency(0.50, 0.75),
    Kind.OPAQUE: Efficiency(0.30, 0.50),
}
CPU_EFFICIENCY = {
    Kind.CONV: Efficiency(0.86, 0.28),
    Kind.MATMUL: Efficiency(0.83, 0.53),
    Kind.ATTENTION: Efficiency(0.44, 0.60),
    Kind.RECURRENT: Efficiency(0.50, 0.60),
    Kind.NORM: Efficiency(0.40, 0.95),
    Kind.SOFTMAX: Efficiency(0.25, 0.15),
    Kind.POOL: Efficiency(0.30, 0.15),
    Kind.REDUCTION: Efficiency(0.30, 0.95),
    Kind.ELEMENTWISE: Efficiency(0.30, 0.95),
    Kind.MOVEMENT: Efficiency(0.50, 0.15),
    Kind.SORT: Efficiency(0.05, 0.10),
    Kind.QUANTIZE: Efficiency(0.30, 0.50),
    Kind.OPAQUE: Efficiency(0.20, 0.40),
}

# Output tiles that vendor libraries choose among; a small tile re-reads its operands more often,
# so it reaches less of the peak. The sizes are those that kernel names show in the NeuSight
# collection (32 to 256 a side); an efficiency follows the arithmetic for each operand element, the
# harmonic mean of the sides.
GPU_TILES = (
    Tile(256, 128, 1.00),
    Tile(128, 256, 1.00),
    Tile(128, 128, 0.96),
    Tile(128, 64, 0.84),
    Tile(64, 128, 0.84),
    Tile(64, 64, 0.70),
    Tile(128, 32, 0.58),
    Tile(32, 128, 0.58),
    Tile(64, 32, 0.50),
    Tile(32, 64, 0.50),
    Tile(32, 32, 0.34),
    Tile(16, 128, 0.32),
    Tile(128, 16, 0.32),
    Tile(16, 32, 0.20),
)
# Register blocks of CPU matrix kernels, grouped to the share one core takes at a time.
CPU_TILES = (
    Tile(64, 64, 1.00),
    Tile(16, 64, 0.85),
    Tile(64, 16, 0.85),
    Tile(6, 16, 0.60),
    Tile(1, 16, 0.35),
)
# No runtime's kernels get more of the bandwidth.
MOST_MEMORY = 0.95
# A kernel on the vector units keeps the results of so many rows of a product at once.
ROWS_AT_ONCE = 8
# The contraction axis may be split over compute units when there are too few tiles; each halving
# costs a second pass over partial sums, taken as this factor. A part is never charged as shallower
# than the least depth, which keeps the price monotone in k.
SPLITS = (1, 2, 4, 8, 16)
SPLIT_PENALTY = 0.92
SPLIT_MIN_DEPTH = 128

# Matrix units take rows of 16 bytes, 8 elements of 16 bits; other lengths are padded to them.
ROW = 8
# So much of the cache holds the tensors of one kernel; its neighbours' take the rest.
CACHE_USABLE = 0.5


@dataclass(frozen=True, slots=True)
class Rules:
    """The figures of one class of devices.

    `direct` prices kinds that run on the vector units where matrix tiles fit badly: convolutions
    with few channels per group (depthwise), products with few rows (matrix x vector).
    `kernel_s` is fill, drain and synchronisation of one kernel, with `kernel_per_unit_s` more for
    each compute unit (a CPU wakes and joins its threads one by one); `step_s` one dependent step
    of a recurrent layer, a launch and a device-wide wait. All efficiencies are divided by
    1 + `parallel_loss` (units - 1). `cache_speedup`: bandwidth of the last cache over memory's.
    """

    by_kind: Mapping[Kind, Efficiency]
    tiles: tuple[Tile, ...]
    direct: Mapping[Kind, Efficiency]
    kernel_s: float
    step_s: float
    kernel_per_unit_s: float = 0.0
    parallel_loss: float = 0.0
    cache_speedup: float = 2.3

    def parallel_part(self, units: int) -> float:
        """Return the part of the efficiencies left when `units` work together."""
        return 1 / (1 + self.parallel_loss * (units - 1))


# Cache: A100 reads 5120 B/clk from its L2 (NVIDIA A100 white paper), 7.2 TB/s against 1.56 TB/s of
# memory; half of the ratio is taken as reached, on other devices too.
# Matrix x vector: bound by bytes; 0.8 of the bandwidth is what aiconfigurator takes for kernels of
# this sort, the arithmetic part is our estimate.
_MATRIX_VECTOR = Efficiency(0.50, 0.80)
RULES: Mapping[str, Rules] = {
    # Fill: floor of graph-replayed kernels in the aiconfigurator collection, 1.5-2.5 us.
    "gpu": Rules(
        GPU_EFFICIENCY,
        GPU_TILES,
        {Kind.CONV: Efficiency(0.05, 0.95), Kind.MATMUL: _MATRIX_VECTOR},
        kernel_s=8.3e-7,
        step_s=5e-6,
    ),
    # Loss: onnxruntime reaches 0.8 to 0.9 of the peak on two cores, open rows 0.3 to 0.4 on 14.
    "cpu": Rules(
        CPU_EFFICIENCY,
        CPU_TILES,
        {Kind.CONV: Efficiency(0.17, 0.27), Kind.MATMUL: _MATRIX_VECTOR},
        kernel_s=4e-6,
        step_s=2e-6,
        kernel_per_unit_s=1.5e-6,
        parallel_loss=0.1,
    ),
}
