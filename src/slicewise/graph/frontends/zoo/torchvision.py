"""The zoo of torchvision: every builder by name, without weights, on the meta device.

Options are arguments of the builder. Nothing is downloaded: `weights` and `weights_backbone` stay
None. The package itself is imported in `zoo.import_torchvision`.
"""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from slicewise.core.errors import ModelError, UsageError
from slicewise.graph.frontends.zoo.meta import built_on_meta
from slicewise.graph.frontends.zoo.model import (
    InputSpec,
    ZooModel,
    ZooName,
    literals,
    refuse_option,
    refuse_unknown,
)

# Input of the families, by the package inside torchvision.models that a builder lives in. The
# classifiers and video models have a size in the transforms of their weights; the segmenters are
# resized to 520 there, and optical flow is shown with 520x960 in torchvision's documentation.
_SIZE_OF_FAMILY: Mapping[str, tuple[int, ...]] = {
    "segmentation": (3, 520, 520),
    "optical_flow": (3, 520, 960),
    "video": (3, 16, 112, 112),
}
# Clip lengths of the video models that were not trained on 16 frames (their papers and the
# `min_temporal_size` of their weights).
_FRAMES = {"s3d": 16, "swin3d_t": 32, "swin3d_s": 32, "swin3d_b": 32}
_INPUT_NAMES = {"optical_flow": ("image1", "image2"), "video": ("x",)}
_WEIGHTS = ("weights", "weights_backbone", "pretrained", "pretrained_backbone", "progress")


def names() -> list[str]:
    """Return every builder that torchvision registers."""
    from torchvision.models import list_models

    found: list[str] = list_models()
    return found


def build(name: ZooName) -> ZooModel:
    """Return the model in evaluation mode with inputs of its family."""
    from torchvision.models import get_model_builder

    refuse_unknown(name, names())
    builder = get_model_builder(name.model)
    family = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    if family == "detection":
        raise ModelError(
            f"{name.label} is a detector, which chooses boxes by their values between layers"
            " (torchvision.models.detection); such a program cannot be exported as one graph; give"
            " its backbone, or an .onnx file made with torch.onnx.export(dynamo=False)"
        )
    options = literals(name, refused=_WEIGHTS)
    module = _created(name, builder, options)
    shape = (1, *_input_size(name, family, options, module))
    keys = _INPUT_NAMES.get(family, ("input" if family == "segmentation" else "x",))
    return ZooModel(
        module,
        tuple(InputSpec(key, shape) for key in keys),
        hint=f"build it for another size, as in {name.zoo}:{name.model}?image_size=384",
    )


def _created(name: ZooName, builder: Any, options: Mapping[str, object]) -> Any:
    parameters = inspect.signature(builder).parameters
    fixed = {key: None for key in ("weights", "weights_backbone") if key in parameters}
    try:
        with warnings.catch_warnings():
            # Inception and GoogLeNet announce that their initial weights will change: of no matter
            warnings.simplefilter("ignore", FutureWarning)
            return built_on_meta(lambda: builder(**fixed, **options))
    except Exception as err:
        if not options:
            raise ModelError(
                f"{name.label} cannot be built without weights: {type(err).__name__}: {err};"
                " update torchvision, or give another model"
            ) from err
        plain = _created(ZooName(name.zoo, name.model), builder, {})
        known = {*parameters, *inspect.signature(type(plain)).parameters} - {"kwargs", *_WEIGHTS}
        for key in options:
            if key not in known:
                raise refuse_option(name, key, known) from err
        raise UsageError(
            f"{name.label} cannot be built with {', '.join(options)}: {type(err).__name__}: {err};"
            " give other values"
        ) from err


def _input_size(
    name: ZooName, family: str, options: Mapping[str, object], module: Any
) -> tuple[int, ...]:
    """Return the axes behind the batch: the options', the one size that the module takes, else
    the size that weights were made for."""
    from torchvision.models import get_model_weights

    size = _SIZE_OF_FAMILY.get(family, (3, 224, 224))
    if family in ("segmentation", "optical_flow"):
        return size
    transforms = next(iter(get_model_weights(name.model))).transforms
    crop = getattr(transforms, "keywords", {}).get("crop_size", size[-1])
    height, width = (crop, crop) if isinstance(crop, int) else tuple(crop)
    # some weights go with another size than the builder's own: those of vit_h_14 with 518
    asked = options.get("image_size", getattr(module, "image_size", None))
    if isinstance(asked, int):
        height = width = asked
    frames = (_FRAMES.get(name.model, size[1]),) if family == "video" else ()
    return (size[0], *frames, height, width)
