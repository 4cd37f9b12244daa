"""Which inputs a class of transformers takes, and their shapes, as tables over its configuration.

Rows are read by the names of the arguments of `forward`; a class is never asked for by name. A
row says how the shape follows from fields of the configuration, which are looked for in the whole
and then in its parts. Without a row for a required argument there is a `ModelError`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slicewise.core.errors import ModelError
from slicewise.graph.frontends.zoo.constants import Numbers, fix_arguments
from slicewise.graph.frontends.zoo.model import InputSpec, ZooName

# Length of text where the user gives none (and the model is not made for less).
_TEXT_LENGTH = 128
# One second of sound at the 16 kHz of speech models, and ten seconds of 10 ms frames.
_SAMPLES = 16_000
_FRAMES = 1_000
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


@dataclass(frozen=True, slots=True)
class Facts:
    """The configuration of a model, the lengths that the user asked for, and the model itself."""

    config: Any
    lengths: Mapping[str, int]
    module: Any = None

    def find(self, *keys: str, parts: tuple[str, ...] = ()) -> Any:
        """Return the first of the fields that is set, in `parts`, the whole, then any part."""
        for holder in (*self._parts(parts), self.config, *_parts_of(self.config)):
            for key in keys:
                if (value := getattr(holder, key, None)) is not None:
                    return value
        return None

    def number(self, *keys: str, default: int, parts: tuple[str, ...] = ()) -> int:
        """Return the same as a whole number; the first of a sequence; `default` where none is."""
        value = self.find(*keys, parts=parts)
        if isinstance(value, tuple | list) and value:
            value = value[0]
        return value if isinstance(value, int) and value > 0 else default

    def takes_channels(self, channels: int) -> bool:
        """True if the very first layer is a convolution over time from so many channels, in a
        model that does not name them as features of a frame."""
        if self.find("input_feat_per_channel") is not None:
            return False
        for layer in self.module.modules():
            if hasattr(layer, "weight"):
                return type(layer).__name__ == "Conv1d" and layer.weight.shape[1] == channels
        return False

    def _parts(self, names: tuple[str, ...]) -> Iterator[Any]:
        for name in names:
            if (part := getattr(self.config, name, None)) is not None:
                yield part


def _parts_of(config: Any) -> Iterator[Any]:
    for key in getattr(config, "sub_configs", {}):
        if (part := getattr(config, key, None)) is not None:
            yield part
            yield from _parts_of(part)


_VISION = ("vision_config", "backbone_config", "image_encoder_config")
_TEXT = ("text_config", "decoder")
_AUDIO = ("audio_config", "encoder_config", "audio_encoder_config")


def _ids(symbol: str) -> Callable[[Facts], InputSpec]:
    def row(facts: Facts) -> InputSpec:
        longest = facts.number(*_POSITIONS, default=_TEXT_LENGTH, parts=_TEXT)
        length = facts.lengths.get(symbol, min(_TEXT_LENGTH, longest))
        return InputSpec("", (1, length), "int64", {1: symbol})

    return row


def _size(facts: Facts) -> tuple[int, int]:
    """Return height and width of the pictures that the model was made for."""
    size = facts.find("image_size", "img_size", "input_size", parts=_VISION)
    if isinstance(size, Mapping):
        size = (size.get("height", 224), size.get("width", 224))
    if isinstance(size, tuple | list) and size:
        size = [each for each in size if isinstance(each, int)] or [224]
        return (size[0], size[-1])
    return (size, size) if isinstance(size, int) and size > 0 else (224, 224)


def _channels(facts: Facts) -> int:
    return facts.number("num_channels", "in_channels", "in_chans", default=3, parts=_VISION)


def _picture(facts: Facts) -> InputSpec:
    frames = facts.find("num_frames")
    clip = (frames,) if isinstance(frames, int) else ()
    return InputSpec("", (1, *clip, _channels(facts), *_size(facts)))


def _video(facts: Facts) -> InputSpec:
    frames = facts.number("frames_per_clip", "num_frames", default=16, parts=_VISION)
    size = facts.number("crop_size", default=_size(facts)[0], parts=_VISION)
    return InputSpec("", (1, frames, _channels(facts), size, size))


def _sound(facts: Facts) -> InputSpec:
    """Return the samples of a wave, or the spectrogram of a model that takes one."""
    bins = facts.find("num_mel_bins", parts=_AUDIO)
    if bins is not None and facts.find("conv_dim") is None:
        return InputSpec("", (1, facts.number("max_length", default=1024), bins))
    channels = facts.find("audio_channels")
    if channels is not None:
        return InputSpec("", (1, channels, _SAMPLES))
    is_codec = facts.find("conv_dim", "conv_kernel") is None
    if is_codec and not getattr(facts.config, "is_encoder_decoder", False):  # with a channel axis
        return InputSpec("", (1, 1, _SAMPLES))
    return InputSpec("", (1, _SAMPLES))


def _features(facts: Facts) -> InputSpec:
    """Return (frames, features), or (mel bins, frames) where a convolution halves the frames."""
    positions = facts.find("max_source_positions", parts=_AUDIO)
    bins = facts.find("num_mel_bins", parts=_AUDIO)
    if positions is not None and bins is not None:
        return InputSpec("", (1, bins, 2 * positions))
    if isinstance(bins, int) and facts.takes_channels(bins):
        return InputSpec("", (1, bins, _FRAMES))
    stacked = facts.number("num_stacked_frames", default=1, parts=_AUDIO)
    width = facts.number("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins",
                         "input_dim", "feature_size", default=80, parts=_AUDIO)  # fmt: skip
    return InputSpec("", (1, _FRAMES, width * stacked))


def _mask_of_features(facts: Facts) -> InputSpec:
    return InputSpec("", (1, max(_features(facts).shape[1:])), "int64")  # time is the longer axis


def _series(facts: Facts) -> InputSpec:
    length = facts.number("context_length", default=512)
    channels = facts.find("num_input_channels")
    return InputSpec("", (1, length, channels) if isinstance(channels, int) else (1, length))


def _patches(facts: Facts) -> InputSpec:
    # row and column number in front of the pixels of a patch
    size, channels = facts.number("patch_size", default=16, parts=_VISION), _channels(facts)
    return InputSpec("", (1, 2048, size * size * channels + 2))


def _boxes(facts: Facts) -> InputSpec:
    text = _ids("seq")(facts)
    return replace(text, shape=(*text.shape, 4))


def _grid(facts: Facts) -> tuple[int, int, int]:
    """Return frames, rows and columns of patches of one picture, whole groups that are merged."""
    patch = facts.number("patch_size", default=14, parts=_VISION)
    merge = facts.number("spatial_merge_size", default=2, parts=_VISION)
    rows, columns = (max(1, size // (patch * merge)) * merge for size in _size(facts))
    return 1, rows, columns


def _grid_patches(facts: Facts) -> InputSpec:
    frames, rows, columns = _grid(facts)
    patch = facts.number("patch_size", default=14, parts=_VISION)
    depth = facts.number("temporal_patch_size", default=2, parts=_VISION)
    pixels = _channels(facts) * depth * patch * patch
    return InputSpec("", (frames * rows * columns, pixels), has_batch=False)


# Arguments whose values decide about shapes, for one picture of the size of the configuration.
_FIXED: Mapping[str, Callable[[Facts], Numbers]] = {
    "grid_thw": lambda facts: (_grid(facts),),
}

# Argument of `forward` -> its shape.
_ROWS: Mapping[str, Callable[[Facts], InputSpec]] = {
    "input_ids": _ids("seq"),
    "qformer_input_ids": _ids("seq"),
    "decoder_input_ids": _ids("decoder_seq"),
    "attention_mask": _ids("seq"),
    "bbox": _boxes,
    "pixel_values": _picture,
    "pixel_values_videos": _video,
    "input_values": _sound,
    "input_features": _features,
    "input_features_mask": _mask_of_features,
    "past_values": _series,
    "flattened_patches": _patches,
    "hidden_states": _grid_patches,
    "inputs": lambda facts: InputSpec(
        "", (1, _TEXT_LENGTH, facts.number("d_model", "hidden_size", default=768))
    ),
}
# What goes in beside the main input: (argument that is there, argument to add, needed?).
_TOGETHER = (
    ("pixel_values", "input_ids", True),  # two towers: pictures beside text
    ("pixel_values_videos", "input_ids", True),
    ("input_values", "input_ids", True),
    ("input_ids", "pixel_values", False),  # a language model that pictures or sound may enter
    ("input_ids", "input_features", False),
    ("input_ids", "input_values", False),
)
# Beside these, pictures come as a list of patches whose layout is in the values of the argument:
# no example on the meta device has values.
_LAYOUTS = frozenset({
    "image_grid_thw", "image_grid_hws", "grid_thw", "image_sizes", "pixel_attention_mask",
    "spatial_shapes", "aspect_ratio_ids", "target_sizes", "pixel_position_ids", "tgt_sizes",
    "image_position_ids", "patch_attention_mask", "image_spatial_crop", "num_patches",
})  # fmt: skip
_PICTURES = frozenset({"pixel_values", "pixel_values_videos"})
_BOXES = "bbox"  # where each word stands on the page, for models of documents
_DECODER = "decoder_input_ids"


def example_inputs(
    name: ZooName, module: Any, lengths: Mapping[str, int]
) -> tuple[tuple[InputSpec, ...], tuple[str, ...]]:
    """Return the inputs of a module of transformers, for one item, and what is left out.

    The main input, every required argument, the decoder's text where there is a decoder, and the
    other modality of a model that has parts for two; left out is one that no example is known of.
    """
    facts = Facts(module.config, lengths, module)
    required = set(_required(inspect.signature(module.forward).parameters))
    if fixed := {key: make(facts) for key, make in _FIXED.items() if key in required}:
        fix_arguments(module, fixed)
    parameters = inspect.signature(module.forward).parameters
    needed, beside, left_out = _wanted(module, parameters)
    known = _ROWS if fixed else {k: row for k, row in _ROWS.items() if k != "hidden_states"}
    missing = [each for each in needed if each not in known]
    if missing or not needed:
        raise ModelError(
            f"{name.label} takes {', '.join(missing) or 'no inputs'}, for which there are no"
            " example inputs here; build it in Python and give them:"
            " slicewise.load(module, example_inputs={...})"
        )
    made = [replace(_ROWS[each](facts), name=each) for each in needed]
    made += [replace(_ROWS[each](facts), name=each, may_be_left_out=True) for each in beside]
    # pictures and sound come in the type that the weights have
    own = str(module.dtype).removeprefix("torch.")
    typed = [replace(spec, dtype=own) if spec.dtype == "float32" else spec for spec in made]
    return tuple(typed), left_out


def _wanted(
    module: Any, parameters: Mapping[str, inspect.Parameter]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the arguments needed, those that may go in beside them, and those left out."""
    main = module.main_input_name
    mains = (main,) if isinstance(main, str) else tuple(main)
    needed = [key for key in (*mains, *_required(parameters)) if key in parameters]
    beside: list[str] = []
    if _is_mixed(module):
        for key, other, is_needed in _TOGETHER:
            if key in needed and other in parameters and other not in needed:
                (needed if is_needed else beside).append(other)
    if module.config.is_encoder_decoder and _DECODER in parameters:
        needed.append(_DECODER)
    if "input_ids" in needed and hasattr(module.config, "local_radius"):
        # attention in blocks makes its mask of this one; without it only eager code gets along
        needed.append("attention_mask")
    if "input_ids" in needed and _BOXES in parameters:
        needed.append(_BOXES)
        needed += [key for key in ("pixel_values",) if key in parameters]  # the page itself
    has_layout = not _LAYOUTS.isdisjoint(parameters)
    left_out = [each for each in beside if has_layout and each in _PICTURES]
    return (
        tuple(dict.fromkeys(needed)),
        tuple(each for each in dict.fromkeys(beside) if each not in left_out),
        tuple(left_out),
    )


def _required(parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    for key, each in parameters.items():
        is_variadic = each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        if each.default is each.empty and not is_variadic and key != "self":
            yield key


def _is_mixed(module: Any) -> bool:
    """True if the model has a tower for text and one for pictures, or such, or one for both."""
    if {"vocab_size", "image_size", "patch_size"} <= vars(module.config).keys():
        return True
    parts = getattr(module.config, "sub_configs", {})
    return sum(getattr(module.config, key, None) is not None for key in parts) > 1
