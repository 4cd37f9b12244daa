"""Device cards as JSON files: written whole or not at all, read with suspicion.

A folder holds one file a device, named after the device and the first digits of its digest, so
that cards of two machines, both called `cpu`, lie side by side. Plain JSON: a card is read by
whoever wants to know what was learned, and nothing in it is ever executed. Fitting is the business
of `calibrate.py`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from slicewise.core.device import Device
from slicewise.core.errors import StoreError
from slicewise.core.whole_file import whole_file
from slicewise.predict.correction import (
    Band,
    Card,
    Correction,
    EnergyCorrection,
    Errors,
    MemoryCorrection,
    Range,
)
from slicewise.predict.features import CLASS_NAMES, FEATURES
from slicewise.predict.fitting import LEVELS

SCHEMA = "slicewise.card/1"
Value = TypeVar("Value")
_LARGEST_BYTES = 10**8  # of a file that could be a card
_LARGEST_FIGURE = sys.float_info.max  # refuses infinity, NaN and whole numbers beyond it


def card_path(folder: Path, device: Device) -> Path:
    """Return where the card of `device` lies in `folder`, whether it is there or not."""
    return folder / _file_name(device.name, device.digest)


def _file_name(name: str, digest: str) -> str:
    plain = "".join(c if c.isalnum() or c in "-._@" else "_" for c in name)
    return f"{plain}.{digest[:12]}.json"


def save_card(card: Card, folder: Path) -> Path:
    """Write the card into `folder`, in place of an earlier one of the device; return its path.

    A reader sees the old card or the new one, never a part. `StoreError` where the folder cannot
    be written.
    """
    path = folder / _file_name(card.device, card.device_digest)
    text = json.dumps({"schema": SCHEMA, **asdict(card)}, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(f"{text}\n".encode())
    except OSError as err:
        raise StoreError(
            f"the card {str(path)!r} cannot be written: {err.strerror or err}; free the space or"
            " choose another folder"
        ) from err
    return path


def find_card(folder: Path, device: Device) -> Card | None:
    """Return the card of exactly this device, None where there is none.

    Looks for the whole device where a part is given. `StoreError` for a card that is there and
    cannot be read.
    """
    path = card_path(folder, device.whole)
    if not path.is_file():
        return None
    card = load_card(path)
    if card.device_digest != device.whole.digest:
        raise _damaged(path, f"device_digest {card.device_digest[:12]!r} is of another device")
    return card


def load_card(path: Path) -> Card:
    """Return the card in a file; `StoreError` for a file that is missing, damaged, of another
    schema, or holds a figure that no card can."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise _damaged(path, "it is too large")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as err:
        raise StoreError(
            f"the card {str(path)!r} cannot be read: {err.strerror or err}; run slicewise"
            " calibrate to make one"
        ) from err
    except (ValueError, RecursionError) as err:
        raise _damaged(path, f"it is no JSON: {err}") from err
    return _Reader(path).card(document)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no figure")


def _damaged(path: Path, why: str) -> StoreError:
    return StoreError(
        f"the card {str(path)!r} cannot be used: {why}; a card is what slicewise calibrate"
        f" writes ({SCHEMA}); calibrate again, delete it, or predict with --card none"
    )


class _Reader:
    """Turns the document of one file into a card; every refusal names the file and the field."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def card(self, document: object) -> Card:
        its = self._object(document, "the document")
        if its.get("schema") != SCHEMA:
            raise _damaged(self.path, f"its schema is {its.get('schema')!r}, not {SCHEMA!r}")
        return Card(
            device=self._text(its, "device"),
            device_digest=self._text(its, "device_digest"),
            corrections=tuple(
                self._correction(self._object(each, "corrections"))
                for each in self._list(its, "corrections")
            ),
            made_at=self._text(its, "made_at"),
            environment_digest=self._text(its, "environment_digest"),
            packages=self._texts(its, "packages"),
        )

    def _correction(self, its: Mapping[str, Any]) -> Correction:
        part = its.get("slice")
        level = self._text(its, "level")
        if level not in LEVELS:
            raise _damaged(self.path, f"level {level!r} is none of {', '.join(LEVELS)}")
        return Correction(
            runtime=self._text(its, "runtime"),
            precision=self._text(its, "precision"),
            slice=None if part is None else self._text(its, "slice"),
            level=level,
            theta=self._theta(its),
            host=self._figure(its, "host"),
            band=self._band(its),
            range=self._range(self._object(its.get("range"), "range")),
            measurements=self._count(its, "measurements"),
            families=self._count(its, "families"),
            before=self._errors(its, "before"),
            after=self._errors(its, "after"),
            memory=self._optional(its, "memory", self._memory),
            energy=self._optional(its, "energy", self._energy),
            # cards of before there were learned weights have no such field
            base=self._text(its, "base") if "base" in its else "roofline",
        )

    def _theta(self, its: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        table = self._object(its.get("theta"), "theta")
        for name, row in table.items():
            unknown = {name} - set(CLASS_NAMES) or set(self._object(row, name)) - set(FEATURES)
            if unknown:
                raise _damaged(self.path, f"theta has {min(unknown)!r}, which is no class or cost")
        return {name: self._figures(table, name) for name in table}

    def _range(self, its: Mapping[str, Any]) -> Range:
        batches, latencies = self._list(its, "batches"), self._list(its, "latencies_ms")
        if len(batches) != 2 or len(latencies) != 2:
            raise _damaged(self.path, "range needs two batches and two latencies_ms")
        low, high = (self._count({"batches": each}, "batches") for each in batches)
        fastest, slowest = (self._figure({"latencies_ms": x}, "latencies_ms") for x in latencies)
        classes = tuple(str(each) for each in self._list(its, "classes"))
        return Range((low, high), (fastest, slowest), classes)

    def _memory(self, its: Mapping[str, Any]) -> MemoryCorrection:
        return MemoryCorrection(
            runtime_bytes=self._count(its, "runtime_bytes"),
            weights=self._figure(its, "weights"),
            activations=self._figure(its, "activations"),
            workspace=self._figure(its, "workspace"),
            band=self._band(its),
            before=self._errors(its, "before"),
            after=self._errors(its, "after"),
        )

    def _energy(self, its: Mapping[str, Any]) -> EnergyCorrection:
        return EnergyCorrection(
            factor=self._figure(its, "factor"),
            band=self._band(its),
            before=self._errors(its, "before"),
            after=self._errors(its, "after"),
        )

    def _errors(self, its: Mapping[str, Any], name: str) -> Errors:
        row = self._object(its.get(name), name)
        return Errors(
            median=self._figure(row, "median"),
            mean=self._figure(row, "mean"),
            p90=self._figure(row, "p90"),
            bias=self._figure(row, "bias", least=-1.0),
            by_family=self._figures(row, "by_family"),
            by_batch=self._figures(row, "by_batch"),
        )

    def _figures(self, its: Mapping[str, Any], name: str) -> dict[str, float]:
        table = self._object(its.get(name), name)
        return {key: self._figure(table, key) for key in table}

    def _band(self, its: Mapping[str, Any]) -> Band:
        row = self._object(its.get("band"), "band")
        band = Band(self._figure(row, "low"), self._figure(row, "high"))
        if not 0 < band.low <= 1 <= band.high:
            raise _damaged(self.path, f"band {band.low:g} to {band.high:g} must hold 1")
        return band

    def _optional(
        self, its: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], Value]
    ) -> Value | None:
        return None if its.get(name) is None else read(self._object(its[name], name))

    def _object(self, value: object, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise _damaged(self.path, f"{name} is no object")
        return value

    def _list(self, its: Mapping[str, Any], name: str) -> list[Any]:
        value = its.get(name)
        if not isinstance(value, list):
            raise _damaged(self.path, f"{name} is no list")
        return value

    def _text(self, its: Mapping[str, Any], name: str) -> str:
        value = its.get(name)
        if not isinstance(value, str):
            raise _damaged(self.path, f"{name} {value!r} is no text")
        return value

    def _texts(self, its: Mapping[str, Any], name: str) -> dict[str, str]:
        table = self._object(its.get(name), name)
        return {key: self._text(table, key) for key in table}

    def _figure(self, its: Mapping[str, Any], name: str, *, least: float = 0.0) -> float:
        value: Any = its.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and least <= value <= _LARGEST_FIGURE:
            return float(value)
        raise _damaged(self.path, f"{name} {value!r} is no finite number from {least:g}")

    def _count(self, its: Mapping[str, Any], name: str) -> int:
        value = its.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _damaged(self.path, f"{name} {value!r} is no whole number from 1")
        return value
