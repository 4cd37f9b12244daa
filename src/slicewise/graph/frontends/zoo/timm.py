"""The zoo of timm: every architecture by name, built without weights on the meta device.

Options are arguments of `timm.create_model`. Nothing is downloaded: `pretrained` stays false.
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

# Arguments of create_model that would fetch something or have no meaning for a prediction.
_REFUSED = ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay",
            "cache_dir")  # fmt: skip
# Arguments that every architecture takes although its class need not list them.
_COMMON = ("num_classes", "in_chans", "global_pool", "drop_rate", "scriptable", "exportable",
           "features_only", "out_indices")  # fmt: skip


def names() -> list[str]:
    """Return every architecture of the installed timm."""
    import timm

    found: list[str] = timm.list_models()
    return found


def is_known(model: str) -> bool:
    """True for an architecture of the installed timm, under its name or one that it had once."""
    import timm

    found: bool = timm.is_model(model.partition(".")[0])
    return found


def build(name: ZooName) -> ZooModel:
    """Return the architecture in evaluation mode, with the input of its own configuration."""
    if "/" in name.model:
        raise ModelError(
            f"{name.label} is a name of the hub, whose configuration would be downloaded; give the"
            f" architecture, such as timm:{name.model.rpartition('/')[2] or 'resnet50'}"
        )
    if not is_known(name.model):
        refuse_unknown(ZooName(name.zoo, name.model.partition(".")[0], name.options), names())
    options = literals(name, refused=_REFUSED)
    module = _created(name, options)
    return ZooModel(
        module,
        (InputSpec("x", (1, *_input_size(module, options))),),
        hint=f"build it for another size, as in {name.zoo}:{name.model}?img_size=384",
    )


def _created(name: ZooName, options: Mapping[str, object]) -> Any:
    import timm

    try:
        with warnings.catch_warnings():
            # an old name is the same architecture: no news for who reads a prediction
            warnings.filterwarnings("ignore", "Mapping deprecated model name")
            return built_on_meta(
                lambda: timm.create_model(name.model, pretrained=False, **options)
            )
    except Exception as err:
        if options:
            _refuse_options(name, options, err)
        architecture, dot, tag = name.model.partition(".")
        if dot and "tag" in str(err):
            raise ModelError(
                f"{name.label} has a tag {tag!r} that timm does not know for {architecture}; tags"
                f" name weights and change no figure; give timm:{architecture}"
            ) from err
        raise ModelError(
            f"{name.label} cannot be built without weights: {type(err).__name__}: {err}; update"
            " timm, or give another architecture"
        ) from err


def _refuse_options(name: ZooName, options: Mapping[str, object], err: Exception) -> None:
    """Raise the `UsageError` that names the option at fault, if the plain model can be built."""
    arguments = inspect.signature(type(_created(ZooName(name.zoo, name.model), {}))).parameters
    for key, value in options.items():
        if key not in arguments and key not in _COMMON:
            raise refuse_option(name, key, (*arguments, *_COMMON)) from err
        default = arguments[key].default if key in arguments else None
        if isinstance(value, str) and isinstance(default, int | float | tuple):
            raise UsageError(
                f"{name.label}: option {key}={value!r} is text; give a value like {default!r}"
            ) from err
    raise UsageError(
        f"{name.label} cannot be built with {', '.join(options)}:"
        f" {type(err).__name__}: {err}; give other values"
    ) from err


def _input_size(module: Any, options: Mapping[str, object]) -> tuple[int, ...]:
    """Return channels, height and width: the options', else those of the configuration."""
    size = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    channels, height, width = size.get("input_size", (3, 224, 224))
    asked = options.get("img_size")
    if isinstance(asked, int):
        height = width = asked
    elif isinstance(asked, tuple | list) and len(asked) == 2:
        height, width = asked
    asked_channels = options.get("in_chans")
    return (asked_channels if isinstance(asked_channels, int) else channels, height, width)
