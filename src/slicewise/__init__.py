"""slicewise: right-size deep-learning inference.

    import slicewise
    p = slicewise.predict("resnet50.onnx", device="a100-sxm4-80gb/2g.20gb", batch=8)
    p.latency_ms.value, p.latency_ms.low, p.latency_ms.high

Names are loaded on first use, so that importing the package stays light.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from slicewise._version import __version__

if TYPE_CHECKING:
    from slicewise.core.cost import Estimate, MemoryEstimate, NodeEstimate, Prediction, Work
    from slicewise.core.coverage import Support
    from slicewise.core.device import Device, SliceProfile
    from slicewise.core.document import ModelInfo, PredictionSet
    from slicewise.core.errors import (
        DeviceError,
        MeasureError,
        ModelError,
        PredictionError,
        SlicewiseError,
        UsageError,
    )
    from slicewise.core.exploration import Exploration, ExploredPoint
    from slicewise.core.graph import Graph, Node, Tensor
    from slicewise.core.measurement import Measurement
    from slicewise.core.notes import Note
    from slicewise.flows.calibrate import calibrate
    from slicewise.flows.check import check
    from slicewise.flows.collocate import CollocateResult, collocate
    from slicewise.flows.devices import device, devices
    from slicewise.flows.explore import ExploreOptions, explore
    from slicewise.flows.fit import FitOptions, fit, fit_many
    from slicewise.flows.fitting.result import FitResult, FitSet
    from slicewise.flows.load import load
    from slicewise.flows.measure import MeasureOptions, measure
    from slicewise.flows.pack import pack
    from slicewise.flows.packing.options import PackOptions
    from slicewise.flows.packing.result import PackResult
    from slicewise.flows.packing.workload import WorkloadSpec
    from slicewise.flows.partition import partition, partition_curve
    from slicewise.flows.partitioning.options import PartitionOptions
    from slicewise.flows.partitioning.result import PartitionCurve, PartitionResult
    from slicewise.flows.predict import PredictOptions, predict, predict_many
    from slicewise.flows.support import support
    from slicewise.flows.tune import tune
    from slicewise.flows.tune_matrix import tune_matrix
    from slicewise.flows.tuning.options import TuneOptions
    from slicewise.flows.tuning.result import MatrixResult, TuneResult

__all__ = [
    "CollocateResult",
    "Device",
    "DeviceError",
    "Estimate",
    "Exploration",
    "ExploreOptions",
    "ExploredPoint",
    "FitOptions",
    "FitResult",
    "FitSet",
    "Graph",
    "MatrixResult",
    "MeasureError",
    "MeasureOptions",
    "Measurement",
    "MemoryEstimate",
    "ModelError",
    "ModelInfo",
    "Node",
    "NodeEstimate",
    "Note",
    "PackOptions",
    "PackResult",
    "PartitionCurve",
    "PartitionOptions",
    "PartitionResult",
    "PredictOptions",
    "Prediction",
    "PredictionError",
    "PredictionSet",
    "SliceProfile",
    "SlicewiseError",
    "Support",
    "Tensor",
    "TuneOptions",
    "TuneResult",
    "UsageError",
    "Work",
    "WorkloadSpec",
    "__version__",
    "calibrate",
    "check",
    "collocate",
    "device",
    "devices",
    "explore",
    "fit",
    "fit_many",
    "load",
    "measure",
    "pack",
    "partition",
    "partition_curve",
    "predict",
    "predict_many",
    "support",
    "tune",
    "tune_matrix",
]

_HOME = {
    "CollocateResult": "flows.collocate",
    "Device": "core.device",
    "DeviceError": "core.errors",
    "Estimate": "core.cost",
    "Exploration": "core.exploration",
    "ExploreOptions": "flows.explore",
    "ExploredPoint": "core.exploration",
    "FitOptions": "flows.fit",
    "FitResult": "flows.fitting.result",
    "FitSet": "flows.fitting.result",
    "Graph": "core.graph",
    "MatrixResult": "flows.tuning.result",
    "MeasureError": "core.errors",
    "MeasureOptions": "flows.measure",
    "Measurement": "core.measurement",
    "MemoryEstimate": "core.cost",
    "ModelError": "core.errors",
    "ModelInfo": "core.document",
    "Node": "core.graph",
    "NodeEstimate": "core.cost",
    "Note": "core.notes",
    "PackOptions": "flows.packing.options",
    "PackResult": "flows.packing.result",
    "PartitionCurve": "flows.partitioning.result",
    "PartitionOptions": "flows.partitioning.options",
    "PartitionResult": "flows.partitioning.result",
    "PredictOptions": "flows.predict",
    "Prediction": "core.cost",
    "PredictionError": "core.errors",
    "PredictionSet": "core.document",
    "SliceProfile": "core.device",
    "SlicewiseError": "core.errors",
    "Support": "core.coverage",
    "Tensor": "core.graph",
    "TuneOptions": "flows.tuning.options",
    "TuneResult": "flows.tuning.result",
    "UsageError": "core.errors",
    "Work": "core.cost",
    "WorkloadSpec": "flows.packing.workload",
    "calibrate": "flows.calibrate",
    "check": "flows.check",
    "collocate": "flows.collocate",
    "device": "flows.devices",
    "devices": "flows.devices",
    "explore": "flows.explore",
    "fit": "flows.fit",
    "fit_many": "flows.fit",
    "load": "flows.load",
    "measure": "flows.measure",
    "pack": "flows.pack",
    "partition": "flows.partition",
    "partition_curve": "flows.partition",
    "predict": "flows.predict",
    "predict_many": "flows.predict",
    "support": "flows.support",
    "tune": "flows.tune",
    "tune_matrix": "flows.tune_matrix",
}


class _Package(ModuleType):
    """Keeps `slicewise.predict` the verb: importing the room of the same name would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            return  # `from slicewise.predict.slice import scale` works without this attribute
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'slicewise' has no attribute {name!r}")
    value: object = getattr(import_module(f"slicewise.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
