"""What a prediction is asked under beside device, batch and precision: layout, runtime's version.

Types and how people write them; what a condition changes is the business of predictors.
"""

import re
from dataclasses import dataclass

from slicewise.core.errors import UsageError
from slicewise.core.plugins import did_you_mean

# Memory formats of the activations of image tensors; `nhwc` is PyTorch's channels_last.
LAYOUTS = ("nchw", "nhwc")
# Four numbers, as TensorRT has them, are the most that a known runtime counts.
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a predictor may take into account beside precision and name of the runtime.

    `layout` is the memory format of the activations of image tensors. `runtime_version` is (2, 4)
    for 2.4; None is the newest version that the predictor knows. `UsageError` for another layout.

    >>> asked = Conditions(layout="nhwc", runtime_version=(2, 4))
    >>> asked == Conditions(), Conditions().layout
    (False, 'nchw')
    """

    layout: str = "nchw"
    runtime_version: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        layout_named(self.layout)


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """A runtime as it is asked for: its plain name, and a version or None.

    >>> str(RuntimeChoice("torch-eager", (2, 4))), str(RuntimeChoice("tensorrt"))
    ('torch-eager@2.4', 'tensorrt')
    """

    name: str
    version: tuple[int, ...] | None = None

    def __str__(self) -> str:
        version = version_text(self.version)
        return self.name if version is None else f"{self.name}@{version}"


def runtime_choice(text: str) -> RuntimeChoice:
    """Return name and version of a runtime written 'torch-eager@2.4', or 'torch-eager'.

    `UsageError` for what is no version; whether there is such a runtime is not looked at.

    >>> runtime_choice("torch-eager@2.4")
    RuntimeChoice(name='torch-eager', version=(2, 4))
    >>> runtime_choice("onnxruntime").version is None
    True
    """
    name, sign, version = text.partition("@")
    if not sign:
        return RuntimeChoice(name)
    if not _VERSION.fullmatch(version):
        raise UsageError(
            f"runtime {text!r} has no version behind the @ but {version!r}; a version is one to"
            f" four numbers with points between; write {name or 'torch-eager'}@2.4, or leave the @"
            " out for the newest"
        )
    return RuntimeChoice(name, tuple(int(number) for number in version.split(".")))


def version_text(version: tuple[int, ...] | None) -> str | None:
    """Return a version as people write it; None stays None.

    >>> version_text((8, 6, 1))
    '8.6.1'
    """
    return None if version is None else ".".join(map(str, version))


def layout_named(name: str) -> str:
    """Return the layout called `name`; `UsageError` lists the known ones.

    >>> layout_named("nhwc")
    'nhwc'
    """
    if name not in LAYOUTS:
        raise UsageError(
            f"layout {name!r} is unknown; known are {', '.join(LAYOUTS)}"
            f"{did_you_mean(str(name), LAYOUTS)}"
        )
    return name


# What is predicted where nothing else is asked.
USUAL = Conditions()
