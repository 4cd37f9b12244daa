"""Cuts of small models made without a solver: by the place at which each stage begins."""

from pathlib import Path

import numpy as np

from slicewise.core.pipeline import Partition
from slicewise.flows.load import load
from slicewise.flows.partitioning.pipeline_material import Material
from slicewise.flows.partitioning.pipeline_model import model_material
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.wishes import Wishes, parse_link
from slicewise.flows.predict import PredictOptions
from slicewise.partition.evaluate import like_devices, objective_of, stage_loads
from slicewise.testing import onnx_models


def material_of(model: str, *, batch: int | None = None) -> Material:
    """Return a model as material of pipelines on the device t4."""
    return model_material(load(model, batch=batch), devices=["t4"], options=PredictOptions())


def cut(material: Material, *places: float) -> PartitionResult:
    """Return the cut at these parts of the nodes, in their order, 0.5 for two halves."""
    stages = len(places) + 1
    case = assemble(material, Wishes(links=(parse_link("10GB/s"),)), stages=stages)
    count = case.problem.nodes
    stage_of = [sum(i >= place * count for place in places) for i in range(count)]
    assignment = like_devices(case.problem, stage_of)
    loads = stage_loads(case.problem, assignment)
    made = Partition(
        assignment, loads, objective_of(case.problem, loads), (), "by hand", seed=0, seconds=0.0
    )
    return PartitionResult(case, made)


def save_cnn(folder: Path) -> str:
    """Save a small network with weights and return its file."""
    model = onnx_models.filled(onnx_models.small_cnn())
    for tensor in model.graph.initializer:
        if tensor.name == "bn.v":  # a variance below zero makes no numbers
            tensor.raw_data = np.ones(8, np.float32).tobytes()
    return onnx_models.save(model, folder / "cnn.onnx")
