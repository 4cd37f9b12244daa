"""What a verb gives back as a whole: the frozen forms of the JSON documents."""

from dataclasses import dataclass

from slicewise.core.cost import Prediction
from slicewise.core.display import as_html


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Who the model is. `digest` is `Graph.digest`, the same for every batch."""

    name: str
    source: str
    digest: str
    parameters: int
    buffers: int


@dataclass(frozen=True, slots=True)
class PredictionSet:
    """Predictions of several models on several devices and batches, in the order asked."""

    models: tuple[ModelInfo, ...]
    predictions: tuple[Prediction, ...]

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("prediction set", self)
