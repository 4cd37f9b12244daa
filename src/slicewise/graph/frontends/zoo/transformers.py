"""The zoo of transformers: a model type with its default configuration, no weights, no hub.

Options are fields of the configuration (`text_config.hidden_size` reaches a nested one), and two
words of our own: `head` chooses the class (`AutoModelFor...`), `seq` the length of text. What goes
into which class is in `zoo/modalities.py`.
"""

import contextlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from slicewise.core.errors import ModelError, UsageError
from slicewise.graph.frontends.zoo.meta import built_on_meta
from slicewise.graph.frontends.zoo.modalities import example_inputs
from slicewise.graph.frontends.zoo.model import (
    ZooModel,
    ZooName,
    literal,
    refuse_option,
    refuse_unknown,
)

# Our own words among the options; no configuration has fields of these names.
_HEAD, _SEQ, _DECODER_SEQ = "head", "seq", "decoder_seq"
# A type with one of these heads encodes; one with CausalLM alone is a decoder-only language model.
_ENCODERS = frozenset({"MaskedLM", "Seq2SeqLM", "SpeechSeq2Seq", "MaskedImageModeling"})
_OTHER_MODALITIES = ("vision_config", "audio_config", "speech_config", "image_config")


def names() -> list[str]:
    """Return every model type that an auto class can build."""
    return sorted(set().union(*_heads().values()))


def build(name: ZooName) -> ZooModel:
    """Return the class of the type in evaluation mode, with inputs after its forward method."""
    _refuse_unknown_type(name)
    options = dict(name.options)
    asked_head = options.pop(_HEAD, None)
    lengths = {key: _length(name, key, options.pop(key)) for key in (_SEQ, _DECODER_SEQ)
               if key in options}  # fmt: skip
    config = _config(name, options)
    head = _default_head(name.model, config) if asked_head is None else asked_head
    auto = _auto_class(name, head)
    module = _built(name, auto, config)
    inputs, left_out = example_inputs(name, module, lengths)
    return ZooModel(
        module,
        inputs,
        by_name=True,
        left_out=left_out,
        hint=f"change the configuration, as in {name.zoo}:{name.model}?image_size=384",
    )


def _refuse_unknown_type(name: ZooName) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    known = names()
    if name.model in CONFIG_MAPPING_NAMES and name.model not in known:
        whole = [each for each in known if name.model.startswith(f"{each}_")]
        near = f", such as {max(whole, key=len)}" if whole else ""
        raise ModelError(
            f"{name.label} is a part of another model and no model of its own in transformers;"
            f" name a whole model{near}"
        )
    refuse_unknown(name, known)


@cache
def _heads() -> Mapping[str, Mapping[str, object]]:
    """Return for each auto class, without its 'AutoModel' or 'AutoModelFor', types it can build.

    `Model` is the plain AutoModel.
    """
    from transformers.models.auto import modeling_auto

    return {
        key.removeprefix("AutoModelFor").removeprefix("Auto"): value._model_mapping._model_mapping
        for key, value in vars(modeling_auto).items()
        if key.startswith("AutoModel") and hasattr(value, "_model_mapping")
    }


def _default_head(model_type: str, config: Any) -> str:
    """Return CausalLM for a decoder-only language model, else the base model, else the first."""
    own = [head for head, known in _heads().items() if model_type in known]
    is_mixed = any(getattr(config, key, None) is not None for key in _OTHER_MODALITIES)
    if "CausalLM" in own and not is_mixed and not _ENCODERS.intersection(own):
        return "CausalLM"
    return "Model" if "Model" in own else own[0]


def _auto_class(name: ZooName, head: str) -> Any:
    from transformers.models.auto import modeling_auto

    own = [each for each, known in _heads().items() if name.model in known]
    if head not in own:
        error = refuse_option(name, f"{_HEAD}={head}", (f"{_HEAD}={each}" for each in own))
        raise error
    return getattr(modeling_auto, "AutoModel" if head == "Model" else f"AutoModelFor{head}")


def _built(name: ZooName, auto: Any, config: Any) -> Any:
    try:
        with _offline():  # on the meta device transformers itself leaves weights as they are
            return built_on_meta(lambda: auto.from_config(config))
    except ImportError as err:
        raise ModelError(
            f"{name.label} needs another package: {_first_line(err)}; install it, or give another"
            " model"
        ) from err
    except Exception as err:
        raise ModelError(
            f"{name.label} cannot be built from its configuration: {type(err).__name__}:"
            f" {_first_line(err)}; give the fields that it needs, as in"
            f" {name.zoo}:{name.model}?FIELD=VALUE"
        ) from err


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep configurations that name a checkpoint from asking the hub for it; make them quiet."""
    import huggingface_hub.constants
    import transformers

    before = huggingface_hub.constants.HF_HUB_OFFLINE
    verbosity = transformers.logging.get_verbosity()
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before
        transformers.logging.set_verbosity(verbosity)


# --- the configuration


def _config(name: ZooName, options: Mapping[str, str]) -> Any:
    """Return the default configuration with the given fields changed."""
    from transformers import AutoConfig

    with _offline():
        default = _made(name, lambda: AutoConfig.for_model(name.model))
        given: dict[str, Any] = {}
        for key, text in options.items():
            value = _field_value(name, default, key, text)
            *outer, last = key.split(".")
            target = given
            for part in outer:
                target = target.setdefault(part, {})
            target[last] = value
        if hasattr(default, "use_cache"):
            given.setdefault("use_cache", False)  # the plain forward, without a cache to return
        config = _made(name, lambda: AutoConfig.for_model(name.model, **given))
    for each in _nested(config):
        if hasattr(each, "use_cache") and "use_cache" not in options:
            each.use_cache = False
    return config


def _made(name: ZooName, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as err:
        raise UsageError(
            f"{name.label}: transformers refuses the configuration: {_last_line(err)}; give fields"
            " that go together"
        ) from err


def _nested(config: Any) -> Iterator[Any]:
    yield config
    for key in getattr(config, "sub_configs", {}):
        if (inner := getattr(config, key, None)) is not None:
            yield from _nested(inner)


def _field_value(name: ZooName, config: Any, key: str, text: str) -> object:
    """Return the value of an option in the type of its field; `UsageError` if it is of another."""
    *outer, last = key.split(".")
    holder = config
    for i, part in enumerate(outer):
        inner = getattr(holder, part, None)
        if part not in getattr(holder, "sub_configs", {}) or inner is None:
            parts = [".".join((*outer[:i], each)) for each in getattr(holder, "sub_configs", {})]
            raise refuse_option(name, ".".join(outer[: i + 1]), parts)
        holder = inner
    known = {each for each in vars(holder) if not each.startswith("_")}
    known |= {*getattr(type(holder), "attribute_map", {}), "num_labels"}
    if last not in known:
        own = (_HEAD, _SEQ, _DECODER_SEQ) if not outer else ()
        prefix = "".join(f"{part}." for part in outer)
        raise refuse_option(name, key, (*(f"{prefix}{each}" for each in known), *own))
    value = literal(text)
    return _as_declared(name, key, text, value, holder=holder, field=last)


def _as_declared(
    name: ZooName, key: str, text: str, value: object, *, holder: Any, field: str
) -> object:
    """Return the value in the declared type of the field, or in the type of its default."""
    kind_of_config: Any = type(holder)
    field = getattr(kind_of_config, "attribute_map", {}).get(field, field)
    default = getattr(holder, field, None)
    if isinstance(value, int) and value < 0 < _number(default) and not field.endswith("_id"):
        raise UsageError(
            f"{name.label}: option {key}={text} is negative; its default is {default!r}; give a"
            " number of 0 or more"
        )
    allowed = _plain_types(_hints(kind_of_config).get(field))
    if not allowed and default is not None:
        allowed = {type(default)}
    for kind, converted in (
        (type(value), value),
        # a list where the field has one, a float for a whole number, the text of anything else
        (list, list(value) if isinstance(value, tuple) else value),
        (float, float(value) if type(value) is int else value),
        (str, text),
    ):
        if type(converted) is kind and (kind in allowed or not allowed):
            return converted
    wanted = " or ".join(sorted(each.__name__ for each in allowed - {types.NoneType}))
    raise UsageError(
        f"{name.label}: option {key}={text} is no {wanted or 'value'} as the field takes; its"
        f" default is {default!r}; give such a value"
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@cache
def _hints(kind: Any) -> Mapping[str, object]:
    """Return the annotations of a configuration class; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError):
        return {}


def _plain_types(declared: object) -> set[type]:
    """Return the plain types of an annotation, those of a union and of containers by origin."""
    if declared is None:
        return set()
    origin = typing.get_origin(declared)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_plain_types(each) for each in typing.get_args(declared)))
    if origin is typing.Literal:
        return {type(each) for each in typing.get_args(declared)}
    kind = origin or declared
    return {kind} if isinstance(kind, type) else set()


def _length(name: ZooName, key: str, text: str) -> int:
    value = literal(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            f"{name.label}: option {key}={text} is not a positive whole number; give {key}=128"
        )
    return value


def _first_line(err: Exception) -> str:
    return next((line.strip() for line in str(err).splitlines() if line.strip()), "")


def _last_line(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[-1] if lines else type(err).__name__
