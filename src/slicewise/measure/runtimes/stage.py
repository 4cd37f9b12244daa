"""A stage of a pipeline as an onnxruntime session on the CPU. Takes no time and binds nothing."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError, MissingDependency
from slicewise.core.pipeline_measurement import StageSpec

Arrays = Mapping[str, NDArray[np.generic]]


def open_stage(stage: StageSpec) -> Callable[[Arrays], Arrays]:
    """Return what runs the stage's ONNX model, with the stage's threads inside an operator.

    `MeasureError` where onnxruntime refuses the model, or fails on an item.
    """
    try:
        import onnxruntime
    except ImportError as err:
        raise MissingDependency("a pipeline", package="onnxruntime", extra=None) from err
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = stage.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            stage.model, options, providers=["CPUExecutionProvider"]
        )
    # What onnxruntime raises has no root of its own.
    except Exception as err:
        raise MeasureError(f"onnxruntime refuses its model: {_reason(err)}") from err
    names = list(stage.outputs)

    def run(values: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, dict(values)), strict=True))
        except Exception as err:
            raise MeasureError(f"onnxruntime fails on it: {_reason(err)}") from err

    return run


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
