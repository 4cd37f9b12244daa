"""Which function proves which checked bound again, for `verify`."""

from collections.abc import Mapping

from slicewise.partition import bounds
from slicewise.partition.lattice import coarse, lattice_dp, lattice_proof
from slicewise.partition.prices import stage_prices
from slicewise.partition.verify import Recheck

RECHECKS: Mapping[str, Recheck] = {
    **dict.fromkeys(bounds.METHODS, bounds.recheck),
    lattice_dp.METHOD: lattice_proof.recheck,
    coarse.METHOD: coarse.recheck,
    stage_prices.METHOD: stage_prices.recheck,
}
