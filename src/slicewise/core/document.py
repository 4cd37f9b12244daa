"""What a verb gives back as a whole: the frozen forms of the JSON documents."""

from dataclasses import dataclass

from slicewise.core.cost import Prediction
from slicewise.core.display import as_html


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Who the model is. `digest` is `Graph.digest`, the same for every batch.

    >>> import slicewise
    >>> info = slicewise.support(model).model
    >>> info.parameters, info.buffers
    (25557032, 53120)
    """

    name: str
    source: str
    digest: str
    parameters: int
    buffers: int


@dataclass(frozen=True, slots=True)
class PredictionSet:
    """Predictions of several models on several devices and batches, in the order asked.

    >>> import slicewise
    >>> found = slicewise.predict_many([model], devices=["t4", "l4"], batches=[1])
    >>> len(found.models), [made.device for made in found.predictions]
    (1, ['t4', 'l4'])
    """

    models: tuple[ModelInfo, ...]
    predictions: tuple[Prediction, ...]

    def _repr_html_(self) -> str:
        """Return the card that notebooks show."""
        return as_html("prediction set", self)
