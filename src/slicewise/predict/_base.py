"""What a predictor is, which ones exist, and which runtimes they know.

A predictor turns a graph's work and some whole devices into a `Prediction` each. Laws that every
one keeps (`slicewise.testing.predictors` checks them): the latencies of the nodes plus `host_ms`
add up to `latency_ms.value` exactly; more work is never faster; low <= value <= high.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from slicewise.core.conditions import USUAL, Conditions
from slicewise.core.cost import GraphWork, Prediction
from slicewise.core.device import Device
from slicewise.core.graph import Graph
from slicewise.core.plugins import PluginTable
from slicewise.core.precision import Precision
from slicewise.predict.correction import Card


class Predictor(Protocol):
    """Predict one graph on whole devices. The graph is already cast to `precision`.

    `cards` are what calibration learned, by name of device; `source` names the card that was used.
    `conditions` come back in the prediction; one that was asked and changes nothing leaves a Note.
    """

    def __call__(
        self,
        graph: Graph,
        work: GraphWork,
        devices: Sequence[Device],
        *,
        precision: Precision,
        runtime: str,
        cards: Mapping[str, Card] = ...,
        conditions: Conditions = USUAL,
    ) -> tuple[Prediction, ...]: ...


PREDICTORS = PluginTable(
    what="predictor",
    rows={
        "learned": "slicewise.predict.network:predict_network_on",
        "roofline": "slicewise.predict.roofline:predict_roofline_on",
    },
)


def load_predictor(name: str) -> Predictor:
    """Return the predictor called `name`."""
    return cast(Predictor, PREDICTORS.load(name))
