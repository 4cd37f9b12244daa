"""The card with the recommended slice in it, as the drawings of text and page take it."""

from slicewise.app.words import clean
from slicewise.core.packing import PlacedGpu, PlacedSlice
from slicewise.flows.fitting.result import FitResult
from slicewise.slices.layouts import place


def placed(made: FitResult) -> PlacedGpu | None:
    """Return the card with the recommended slice where it leaves the largest profile free.

    None where no slice is recommended.
    """
    fit = made.recommended
    if fit is None or fit.profile is None:
        return None
    found = place(made.device, {fit.profile.name: 1})
    if not found:
        return None
    name = clean(made.model.name)
    slices = tuple(
        PlacedSlice(each.profile, each.start, workload=name, rate_per_s=0.0) for each in found
    )
    return PlacedGpu(made.device.name, 0, slices)
