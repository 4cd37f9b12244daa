"""What a campaign measures: the spec as a user writes it, and its points in a balanced order."""

import hashlib
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from slicewise.core.errors import UsageError
from slicewise.core.graph import LARGEST_DIMENSION
from slicewise.core.measurement import Protocol
from slicewise.core.precision import Precision
from slicewise.flows.spec_file import Entry, read_entries


@dataclass(frozen=True, slots=True)
class CampaignModel:
    """A model of a campaign, with the dimensions that it is bound to. `family` '' is unknown."""

    location: str
    family: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What tells the model from others: of a file its place, size and time of change too."""
        try:
            told = os.stat(self.location)
        except (OSError, ValueError):
            return self.location
        return f"{os.path.realpath(self.location)} {told.st_size} {told.st_mtime_ns}"


@dataclass(frozen=True, slots=True)
class CampaignPoint:
    """One measurement of a campaign: a model under conditions, and which repeat of it.

    `share` and `threads` None are the whole device; `precision` None the model's own.
    """

    model: CampaignModel
    batch: int
    runtime: str | None = None
    threads: int | None = None
    share: str | None = None
    precision: str | None = None
    repeat: int = 0
    device: str | None = None

    @property
    def id(self) -> str:
        """16 hexadecimal digits that tell the point from all others, the same in every run.

        A file that has changed is another model.
        """
        told = (
            self.model.identity, sorted(self.model.dims.items()), self.batch, self.runtime,
            self.threads, self.share, self.precision, self.repeat, self.device,
        )  # fmt: skip
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class CampaignSpec:
    """Models x batches x runtimes x threads x shares x precisions, `repeats` times each."""

    name: str
    models: tuple[CampaignModel, ...]
    batches: tuple[int, ...] = (1,)
    runtimes: tuple[str | None, ...] = (None,)
    threads: tuple[int | None, ...] = (None,)
    shares: tuple[str | None, ...] = (None,)
    precisions: tuple[str | None, ...] = (None,)
    repeats: int = 1
    device: str | None = None
    profile: bool = False
    protocol: Protocol = field(default_factory=Protocol)


_FIELDS = (
    "name", "models", "batch", "runtime", "threads", "share", "precision", "repeats", "device",
    "profile", "protocol",
)  # fmt: skip
_MODEL_FIELDS = ("model", "family", "dims")
_MOST_REPEATS = 10_000


def read_spec(path: Path) -> CampaignSpec:
    """Return the campaign that a YAML file describes.

    `UsageError` with file and line for a name that is unknown, with the nearest known one.
    """
    entry = read_entries(path, what="campaign")
    given = entry.fields(_FIELDS, needed=("models",))
    models = tuple(_model(item) for item in given["models"].items())
    if not models:
        raise given["models"].mistake("models is empty; name one, as in [timm:resnet50]")
    name = given["name"].text() if "name" in given else path.stem
    if not name.strip():
        raise given["name"].mistake("name is empty; write one, under which records are filed")
    spec = CampaignSpec(name, models)
    protocol = spec.protocol
    if "protocol" in given:
        protocol = _protocol(given["protocol"])
    for option, several in (("batch", "batches"), ("threads", "threads")):
        if option in given:
            numbers = tuple(item.whole(most=LARGEST_DIMENSION) for item in _some(given[option]))
            spec = replace(spec, **{several: numbers})  # type: ignore[arg-type]
    for option in ("runtime", "share", "precision"):
        if option in given:
            texts = tuple(item.text() for item in _some(given[option]))
            if option == "precision":
                _check_precisions(given[option])
            spec = replace(spec, **{f"{option}s": texts})  # type: ignore[arg-type]
    if "repeats" in given:
        spec = replace(spec, repeats=given["repeats"].whole(most=_MOST_REPEATS))
    if "device" in given:
        spec = replace(spec, device=given["device"].text())
    if "profile" in given:
        if not isinstance(given["profile"].value, bool):
            raise given["profile"].mistake("profile is neither true nor false; write one")
        spec = replace(spec, profile=given["profile"].value)
    return replace(spec, protocol=protocol)


def _some(entry: Entry) -> list[Entry]:
    items = entry.items()
    if not items:
        raise entry.mistake(f"{entry.what} is an empty list; name one, or leave it out")
    return items


def _check_precisions(entry: Entry) -> None:
    for item in entry.items():
        try:
            Precision.named(item.text())
        except UsageError as err:
            raise item.mistake(str(err)) from err


def _model(entry: Entry) -> CampaignModel:
    if not isinstance(entry.value, dict):
        return CampaignModel(entry.text())
    given = entry.fields(_MODEL_FIELDS, needed=("model",))
    dims: dict[str, int] = {}
    if "dims" in given:
        if not isinstance(given["dims"].value, dict):
            raise given["dims"].mistake("dims is no mapping; write {seq: 128}")
        dims = {
            name: item.whole(most=LARGEST_DIMENSION) for name, item in given["dims"].value.items()
        }
    family = given["family"].text() if "family" in given else ""
    return CampaignModel(given["model"].text(), family, dims)


def _protocol(entry: Entry) -> Protocol:
    known = tuple(each.name for each in fields(Protocol))
    made = Protocol()
    for name, item in entry.fields(known).items():
        is_whole = name in ("warmup_runs", "min_samples", "max_samples", "memory_limit_bytes")
        value = item.whole() if is_whole else item.number(most=1 if "width" in name else None)
        made = replace(made, **{name: value})  # type: ignore[arg-type]
    if made.min_samples > made.max_samples:
        raise entry.mistake(
            f"min_samples {made.min_samples} is over max_samples {made.max_samples}; lower it"
        )
    return made


def points_of(spec: CampaignSpec, *, seed: int = 0) -> tuple[CampaignPoint, ...]:
    """Return every point once, in an order that leaves a balanced set wherever it is cut.

    Rounds over all models: in a round each model stands once, under conditions that shift from
    model to model (a Latin square), so that after r rounds each model has r points and each set of
    conditions an equal number, give or take one. Models are in a random order of the seed.
    """
    by_key = {_key(model): model for model in spec.models}
    models = list(by_key.values())
    random.Random(seed).shuffle(models)
    conditions = [
        (batch, runtime, threads, share, precision, repeat)
        for repeat in range(spec.repeats)
        for batch in dict.fromkeys(spec.batches)
        for runtime in dict.fromkeys(spec.runtimes)
        for threads in dict.fromkeys(spec.threads)
        for share in dict.fromkeys(spec.shares)
        for precision in dict.fromkeys(spec.precisions)
    ]
    return tuple(
        CampaignPoint(model, *conditions[(r + m) % len(conditions)], device=spec.device)
        for r in range(len(conditions))
        for m, model in enumerate(models)
    )


def _key(model: CampaignModel) -> tuple[str, tuple[tuple[str, int], ...]]:
    return (model.location, tuple(sorted(model.dims.items())))
