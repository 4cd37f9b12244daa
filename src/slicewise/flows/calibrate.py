"""`calibrate`: the records of this device -> a device card that `predict` uses."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.core.device import Device
from slicewise.core.errors import MeasureError, SlicewiseError, StoreError
from slicewise.core.graph import Graph
from slicewise.core.measurement import Measurement
from slicewise.core.notes import Note
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.flows.measure import is_usable, part_of, target_here
from slicewise.flows.operators import operator_times
from slicewise.flows.predict import cards_folder, ready_graph, target_named

if TYPE_CHECKING:
    from slicewise.predict.calibrate import CalibrationCase
    from slicewise.predict.correction import Card

FamilyOf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A card, where it is kept ('' where it is not), and what of the records it was made from.

    `used` of `found` records went in; notes say why others did not.
    """

    card: "Card"
    path: str
    used: int
    found: int
    notes: tuple[Note, ...] = ()


def calibrate(
    *,
    device: str | None = None,
    store: Path | None = None,
    campaign: str | None = None,
    keep: bool = True,
    family_of: FamilyOf | None = None,
    progress: Callable[[str], None] | None = None,
) -> Calibration:
    """Return the card of this machine's device, learned from its records, and keep it.

    Of repeats of one case the median goes in; records of another device of the same name are left
    out. `family_of` groups models that resemble each other by where they come from; they are held
    out together when errors are told. `MeasureError` where no record can be used.

    >>> import slicewise
    >>> try:
    ...     found = slicewise.calibrate(device="cpu", keep=False)
    ... except slicewise.MeasureError as err:
    ...     print(str(err).partition(" from,")[0])
    no record of cpu to calibrate
    """
    from slicewise.predict.calibrate import fit_card
    from slicewise.predict.cards import save_card

    its = _device_named(device)
    records = _records(its, store, campaign)
    usable, notes = _teaching(records, its)
    cases, more = cases_of(
        usable, its, family_of=family_of or family_of_location, progress=progress
    )
    if not cases:
        reasons = "; ".join(note.text for note in (*notes, *more))
        given = f"{len(records)} records" if records else "none"
        given += f" in campaign {campaign!r}" if campaign is not None else ""
        raise MeasureError(
            f"no record of {its.name} to calibrate from, given {given}"
            f"{f' ({reasons})' if reasons else ''}; measure some models first, as in `slicewise"
            " measure timm:resnet18`, or run a campaign"
        )
    card = fit_card(
        cases,
        device=its,
        environment=usable[-1].environment,
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        progress=progress,
    )
    card, useless = _useful(card)
    notes = (*notes, *useless)
    path = ""
    if keep:
        folder = cards_folder()
        if folder is None:
            raise StoreError("there is no folder to keep the card in; set SLICEWISE_HOME to one")
        path = str(save_card(card, folder))
    return Calibration(card, path, len(cases), len(records), (*notes, *more))


def _useful(card: "Card") -> "tuple[Card, tuple[Note, ...]]":
    """Return the card without corrections that predict no better than none at all.

    `MeasureError` where not one is left.
    """
    notes = [
        Note(
            "correction-useless",
            f"{each.case}: the {each.measurements} cases are predicted no better with a"
            " correction; none is kept",
        )
        for each in card.corrections
        if not each.is_useful
    ]
    kept = tuple(each for each in card.corrections if each.is_useful)
    if not kept:
        raise MeasureError(
            f"{'; '.join(note.text for note in notes)}; measure more models, on a quiet machine"
        )
    return replace(card, corrections=kept), tuple(notes)


def _device_named(device: str | None) -> Device:
    """Return this machine's device, or one of the catalogue or of a file: its records may have
    come from the machine that has it."""
    if device is None or re.fullmatch(r"\s*|cpu|gpu:[0-9]{1,4}", device.strip().lower()):
        return target_here(device).device
    return target_named(device).whole


def _records(device: Device, store: Path | None, campaign: str | None) -> list[Measurement]:
    """Return the measurements of devices of this name, oldest first."""
    from slicewise.flows.records import default_store
    from slicewise.store.records import RecordStore

    path = store or default_store()
    if store is None and not path.exists():
        return []
    with RecordStore(path, read_only=True) as records:
        found = records.find(device=device.name, campaign=campaign)
        return [record.measurement for record in found]


def _is_predicted(runtime: str) -> bool:
    from slicewise.predict.runtimes import RUNTIMES

    return runtime in RUNTIMES


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why records teach nothing about this device, as a Note tells it after their number."""

    code: str
    text: str
    holds: Callable[[Measurement, Device], bool]


# The first that holds is told.
_REASONS = (
    _Reason(
        "records-of-another-device",
        "are of another machine's device of the same name",
        lambda made, device: made.device_digest != device.digest,
    ),
    _Reason(
        "records-without-latency",
        "have no latency (crashed, refused ...)",
        lambda made, device: not is_usable(made),
    ),
    _Reason(
        "records-unpredicted",
        "ran with a runtime that can be measured and not predicted",
        lambda made, device: not _is_predicted(made.runtime),
    ),
    _Reason(
        "records-with-options",
        "ran with options of the runtime, of which predictions know nothing",
        lambda made, device: bool(made.options),
    ),
    _Reason(
        "records-crowded",
        "had more threads than the device has cores",
        lambda made, device: device.kind == "cpu" and made.threads > device.compute_units,
    ),
)


def _teaching(
    measurements: Sequence[Measurement], device: Device
) -> tuple[list[Measurement], tuple[Note, ...]]:
    """Return the measurements that something can be learned from; Notes count the others."""
    usable: list[Measurement] = []
    counts: Counter[_Reason] = Counter()
    for made in measurements:
        reason = next((each for each in _REASONS if each.holds(made, device)), None)
        if reason is None:
            usable.append(made)
        else:
            counts[reason] += 1
    notes = [
        Note(each.code, f"{counts[each]} records {each.text}; left out")
        for each in _REASONS
        if counts[each]
    ]
    usable, disturbed = _undisturbed(usable)
    return usable, (*notes, *disturbed)


def cases_of(
    measurements: Sequence[Measurement],
    device: Device,
    *,
    family_of: FamilyOf,
    progress: Callable[[str], None] | None = None,
) -> "tuple[list[CalibrationCase], tuple[Note, ...]]":
    """Return a case for each set of repeats: the graph read again, its kernels counted, the
    operators of its profile found among them.

    A model that cannot be read any more, or is another one by now, is left out with a Note.
    """
    from slicewise.predict.calibrate import CalibrationCase
    from slicewise.predict.correction import as_whole

    cases: list[CalibrationCase] = []
    notes: list[Note] = []
    for made, graph in _with_graphs(_middle_of_repeats(measurements), notes, progress):
        precision = Precision.named(made.precision)
        part = part_of(device, made)
        try:
            ready, work = ready_graph(graph, precision, runtime=made.runtime)
        except SlicewiseError as err:
            notes.append(Note("record-unusable", f"{made.model}: {err}"))
            continue
        assert made.latency_ms is not None
        cases.append(
            CalibrationCase(
                ready,
                work,
                as_whole(part),
                part.slice_name,
                made.runtime,
                precision,
                made.latency_ms.value,
                made.memory,
                made.energy_j,
                family_of(made.location),
                operator_times(ready, work, made.nodes),
            )
        )
    return cases, tuple(notes)


# Beyond these a record says more of its neighbours than of the model: threads waited for a core
# for over a twentieth of the time, or busy loops got less than half of the cores.
_MOST_WAITED, _LEAST_SHARE = 0.05, 0.5


def _is_disturbed(made: Measurement) -> bool:
    around = made.environment
    waited = around.waited is not None and around.waited > _MOST_WAITED
    return waited or (around.core_share is not None and around.core_share < _LEAST_SHARE)


def _undisturbed(
    measurements: Sequence[Measurement],
) -> tuple[list[Measurement], tuple[Note, ...]]:
    """Return the measurements that had the machine to themselves, or all where none had."""
    calm = [each for each in measurements if not _is_disturbed(each)]
    count = len(measurements) - len(calm)
    if not count:
        return calm, ()
    what = "left out" if calm else "all there is, so the card is made of them"
    text = f"{count} records were taken while others used the cores: {what}; measure them again"
    return calm or list(measurements), (Note("records-disturbed", text),)


def _middle_of_repeats(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return one measurement for each case: of repeats the one with the middle latency.

    Versions of packages do not tell cases apart: the newest environment wins.
    """
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for each in measurements:
        case = (
            each.digest, each.location, each.slice, each.mechanism, each.runtime, each.batch,
            each.precision, each.threads,
        )  # fmt: skip
        groups.setdefault(case, []).append(each)
    chosen = []
    for repeats in groups.values():
        newest = repeats[-1].environment.digest
        alike = [each for each in repeats if each.environment.digest == newest]
        chosen.append(sorted(alike, key=_latency_ms)[(len(alike) - 1) // 2])
    return chosen


def _latency_ms(made: Measurement) -> float:
    assert made.latency_ms is not None
    return made.latency_ms.value


def _with_graphs(
    measurements: Sequence[Measurement],
    notes: list[Note],
    progress: Callable[[str], None] | None,
) -> Iterable[tuple[Measurement, Graph]]:
    """Yield each measurement with its graph; measurements of one graph come together."""
    ordered = sorted(measurements, key=lambda each: (each.location, each.digest, each.batch))
    last: tuple[object, ...] | None = None
    graph: Graph | None = None
    for made in ordered:
        asked = (made.location, made.digest, made.batch)
        if asked != last:
            last = asked
            if progress is not None:
                progress(f"reading {made.model}, batch {made.batch}")
            graph = _graph_of(made, notes)
        if graph is not None:
            yield made, graph


def _graph_of(made: Measurement, notes: list[Note]) -> Graph | None:
    """Return the graph of a record, None with a Note where it is not to be had."""
    try:
        graph = load(
            made.location,
            batch=made.batch,
            dims=made.binding.dims,
            inputs=made.binding.inputs,
            batch_axes=made.binding.batch_axes,
        )
    except SlicewiseError as err:
        notes.append(Note("record-unusable", f"{made.model} cannot be read again: {err}"))
        return None
    if graph.digest != made.digest:
        text = f"{made.model} is another model now than when it was measured; left out"
        notes.append(Note("record-stale", text))
        return None
    return graph


def family_of_location(location: str) -> str:
    """Return what models of one family have in common in their names: its letters before a digit.

    >>> [family_of_location(n) for n in ("timm:resnet50", "timm:vit_base_patch16", "a/net-2.onnx")]
    ['resnet', 'vit', 'net']
    """
    name = re.split(r"[:/\\\\]", location.partition("?")[0])[-1].lower()
    found = re.match(r"[a-z]+", name.removeprefix("tf_").removeprefix("legacy_"))
    return found[0] if found is not None else name


def families(table: Mapping[str, str]) -> FamilyOf:
    """Return a function that looks families up by location, and goes by the name where absent."""
    return lambda location: table.get(location) or family_of_location(location)
