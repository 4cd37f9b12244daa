"""The verb with the real search on public problem files: values that are known to be optimal."""

from pathlib import Path

import pytest

from slicewise.flows.partition import partition
from slicewise.flows.partitioning.options import PartitionOptions

# By an ideal-lattice program of its own: prototype_open.csv beside the workloads.
KNOWN = (
    ("dnnp-layer-bert24", 4, 24.91690625),
    ("dnnp-layer-bert24", 16, 7.19590625),
    ("pd-resnet50", 4, 80.50448267),
)


@pytest.mark.parametrize(("name", "stages", "optimum"), KNOWN)
def test_a_known_optimum_is_found_and_proven(
    data: Path, name: str, stages: int, optimum: float
) -> None:
    path = data / "partition" / "workloads" / "open" / f"{name}.json"
    made = partition(str(path), stages=stages, options=PartitionOptions(time_limit_s=20))
    assert made.partition.value == pytest.approx(optimum, rel=1e-6)
    assert made.partition.is_optimal
    assert made.partition.bound <= optimum * (1 + 1e-9)
    for baseline in made.baselines:
        assert baseline.value is None or baseline.value >= optimum * (1 - 1e-9)
