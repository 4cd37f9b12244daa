"""A stage of a pipeline as an onnxruntime session on the CPU. Takes no time and binds nothing."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, MissingDependency
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.measure.runtimes.onnxruntime import session_settings
from slicewise.measure.runtimes.settings import first_line

Arrays = Mapping[str, NDArray[np.generic]]


def open_stage(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what runs the stage's ONNX model, with the stage's threads inside an operator.

    `MeasureError` where onnxruntime refuses the model, or fails on an item.
    """
    try:
        import onnxruntime
    except ImportError as err:
        raise MissingDependency("a pipeline", package="onnxruntime", extra=None) from err
    settings = session_settings(stage.threads)
    try:
        session = onnxruntime.InferenceSession(
            stage.model, settings, providers=["CPUExecutionProvider"]
        )
    # What onnxruntime raises has no root of its own.
    except Exception as err:
        raise MeasureError(f"onnxruntime refuses its model: {first_line(err)}") from err
    names = list(stage.outputs)

    def run(values: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, dict(values)), strict=True))
        except Exception as err:
            raise MeasureError(f"onnxruntime fails on it: {first_line(err)}") from err

    return run
