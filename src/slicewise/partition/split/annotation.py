"""Writes the stages of nodes into a whole ONNX model as the standard has it, and reads them.

ONNX IR version 11 (onnx 1.18) describes devices in `ModelProto.configuration` and the pipeline
stage of a node in `NodeProto.device_configurations`; `metadata_props` say the same for tools that
do not know these fields. No stage is decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.core.errors import ModelError

if TYPE_CHECKING:
    import onnx

CONFIGURATION = "slicewise-pipeline"
STAGE_KEY = "slicewise.stage"
STAGES_KEY = "slicewise.stages"
DIGEST_KEY = "slicewise.source_sha256"
_IR_VERSION = 11  # the first with multi-device data (docs/IR.md of onnx 1.18)


@dataclass(frozen=True, slots=True)
class Annotation:
    """What an annotated model says: devices of the stages, and the stage of each node.

    `stage_of` goes by the first output of a node that has a name: unique, as nodes' need not be.
    """

    devices: tuple[str, ...]
    stage_of: Mapping[str, int] = field(default_factory=dict)
    source_sha256: str = ""


def annotate(
    model: "onnx.ModelProto", stages: Sequence[Sequence[int]], *, devices: Sequence[str],
    digest: str,
) -> None:  # fmt: skip
    """Write the stages of each node of `model` into it; a copied node is told by its first one."""
    model.ir_version = max(model.ir_version, _IR_VERSION)
    kept = [each for each in model.configuration if each.name != CONFIGURATION]
    del model.configuration[:]
    model.configuration.extend(kept)
    model.configuration.add(name=CONFIGURATION, num_devices=len(devices), device=devices)
    set_property(model.metadata_props, STAGES_KEY, str(len(devices)))
    set_property(model.metadata_props, DIGEST_KEY, digest)
    for node, own in zip(model.graph.node, stages, strict=True):
        others = [e for e in node.device_configurations if e.configuration_id != CONFIGURATION]
        del node.device_configurations[:]
        node.device_configurations.extend(others)
        if own:
            node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=own[0])
            set_property(node.metadata_props, STAGE_KEY, ",".join(map(str, own)))


def read_annotation(path: Path) -> Annotation:
    """Return the stages that `annotate` wrote into the model at `path`, or another tool did.

    `ModelError` if the file is no ONNX model or has no pipeline stages.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    # What protobuf raises for a damaged file has no root of its own.
    except Exception as err:
        raise ModelError(
            f"model {str(path)!r} cannot be read: {err}; give a readable ONNX file"
        ) from err
    known = {each.name: tuple(each.device) for each in model.configuration}
    chosen = CONFIGURATION if CONFIGURATION in known else next(iter(known), "")
    stage_of = {
        next(filter(None, node.output)): each.pipeline_stage
        for node in model.graph.node
        for each in node.device_configurations
        if each.configuration_id == chosen and each.HasField("pipeline_stage") and any(node.output)
    }
    if not stage_of:
        raise ModelError(
            f"model {str(path)!r} has no pipeline stages; `slicewise partition MODEL --split DIR`"
            " writes a model that has"
        )
    digests = {entry.key: entry.value for entry in model.metadata_props}
    return Annotation(known[chosen], stage_of, digests.get(DIGEST_KEY, ""))


def set_property(
    properties: "onnx.protobuf_compat.RepeatedComposite", key: str, value: str
) -> None:
    """Set one entry of `metadata_props`, the others left as they are."""
    for entry in properties:
        if entry.key == key:
            entry.value = value
            return
    properties.add(key=key, value=value)
