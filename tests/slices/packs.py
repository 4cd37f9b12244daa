"""What tests of packing share: all layouts of cards, answers that are verified, no ortools."""

import builtins
from collections.abc import Sequence
from typing import Any

import pytest

from slicewise.core.device import Device
from slicewise.core.packing import Packing, PackProblem
from slicewise.slices.layouts import multisets
from slicewise.slices.pack import pack
from slicewise.slices.verify import verify
from slicewise.testing.packings import Layouts


def layouts_of(devices: Sequence[Device]) -> Layouts:
    return {
        device.name: [
            {None: 1}, *(dict[str | None, int](m) for m in _multisets(device))
        ]
        for device in devices
    }  # fmt: skip


def _multisets(device: Device) -> Sequence[Sequence[tuple[str, int]]]:
    return multisets(device) if device.profiles else ()


def solved(problem: PackProblem, **options: Any) -> Packing:
    found = pack(problem, time_limit_s=120.0, workers=1, **options)
    verify(problem, found)
    return found


def without_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "ortools":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
