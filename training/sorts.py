"""Which sorts of kernels the training graphs hold; what else a model has is told as unseen."""

from functools import cache

from slicewise.core.precision import Precision
from slicewise.graph.launch import launch
from slicewise.graph.precision import cast
from slicewise.graph.work import count_work
from slicewise.predict.kernels import kernels_of
from slicewise.predict.weights import sort_of
from training import graphs

# A sort of one odd model is not known.
LEAST_MODELS = 3


@cache
def sorts_seen() -> list[str]:
    """Return the sorts that at least three of the kept graphs have, in order."""
    precision = Precision.named("amp")
    models: dict[str, int] = {}
    for kept in graphs.kept():
        ready = cast(kept.graphs[0], precision)
        counted = count_work(ready, precision.compute)
        its: set[str] = set()
        for runtime in ("torch-eager", "torch-compile"):
            work = launch(ready, counted, runtime=runtime)
            its |= {sort_of(ready, row) for row in kernels_of(work)}
        for sort in its:
            models[sort] = models.get(sort, 0) + 1
    return sorted(sort for sort, count in models.items() if count >= LEAST_MODELS)
