"""Ways to serve a workload that was measured: its rows as they stand, other slices scaled."""

from collections.abc import Sequence

from slicewise.core.cost import Estimate
from slicewise.core.device import Device
from slicewise.core.errors import PredictionError
from slicewise.core.notes import Note
from slicewise.core.packing import Serving
from slicewise.flows.packing.fleet import Part
from slicewise.flows.packing.profile_file import Profile, ProfileRow
from slicewise.flows.packing.ways import MEASURED, SCALED, Way
from slicewise.flows.packing.workload import WorkloadSpec


def measured_ways(
    spec: WorkloadSpec, profile: Profile, parts: Sequence[Part], *, tells_energy: bool = True
) -> tuple[list[Way], list[Note]]:
    """Return every way to serve a workload that its profile tells, and what to note, with
    `tells_energy` what is assumed of energy, too.

    Parts that were not measured are scaled where the workload allows it. `UsageError` where the
    workload asks for a batch or a number of processes that stands in no row, or the profile is of
    none of the cards.
    """
    _refuse_unmeasured(spec, profile)
    cards = list(dict.fromkeys(part.card for part in parts))
    ways: list[Way] = []
    notes = list(profile.notes)
    for card in cards:
        rows = profile.on(card, only=len(cards) == 1)
        if not rows:
            text = f"the profile of workload {spec.name!r} has no rows of {card.name}"
            notes.append(Note("card-left-out", text))
            continue
        own = [part for part in parts if part.card == card]
        asked = [row for row in rows if _is_asked(spec, row)]
        by_slice = {part.profile: part for part in own}
        found = [
            Way(by_slice[row.slice], _as_measured(row, by_slice[row.slice].device))
            for row in asked
            if row.slice in by_slice
        ]
        found += _scaled(spec, rows, asked, own)
        if any(row.memory_bytes is None for row in rows):
            text = (
                f"the profile of workload {spec.name!r} does not tell the memory of every row;"
                " where it does not, the workload is taken to fit"
            )
            notes.append(Note("profile-memory-unknown", text))
        ways += found
    if not ways:
        names = ", ".join(card.name for card in cards)
        raise spec.mistake(
            f"the profile of workload {spec.name!r} has rows of none of {names}; give the cards"
            " that it was measured on"
        )
    if tells_energy:
        text = (
            f"energy of workload {spec.name!r} is not in its profile; a busy part is taken to draw"
            " its part of the power between idle and limit"
        )
        notes.append(Note("profile-energy-assumed", text))
    return ways, notes


def _refuse_unmeasured(spec: WorkloadSpec, profile: Profile) -> None:
    rows = profile.rows
    for what, asked, known in (
        ("batch", spec.batches, {row.batch for row in rows}),
        ("processes", spec.processes, {row.processes for row in rows}),
    ):
        for value in asked:
            if value not in known:
                raise spec.mistake(
                    f"{what} {value} of workload {spec.name!r} stands in no row of"
                    f" {profile.path}; it has {', '.join(map(str, sorted(known)))}"
                )


def _is_asked(spec: WorkloadSpec, row: ProfileRow) -> bool:
    if spec.batches and row.batch not in spec.batches:
        return False
    if spec.processes or spec.processes_tried == (1,):
        return row.processes in spec.processes_tried
    return True


def _as_measured(row: ProfileRow, device: Device) -> Serving:
    return Serving(
        batch=row.batch,
        processes=row.processes,
        service_ms=Estimate(row.latency_ms, row.latency_ms, row.latency_ms, MEASURED),
        throughput_per_s=row.throughput_per_s,
        memory_bytes=row.memory_bytes or 0.0,
        energy_j=busy_item_j(device, row.throughput_per_s),
        source=MEASURED,
    )


def busy_item_j(device: Device, throughput_per_s: float) -> float:
    """Return what an item costs beyond idle power if a busy part draws up to its limit, in J."""
    return max(0.0, device.max_power_w - device.idle_power_w) / throughput_per_s


def _scaled(
    spec: WorkloadSpec,
    rows: Sequence[ProfileRow],
    asked: Sequence[ProfileRow],
    parts: Sequence[Part],
) -> list[Way]:
    """Return the ways on parts without a row, at the batches and processes of the others."""
    measured = {row.slice for row in rows}
    scales = len(measured) == 1 if spec.scales_missing is None else spec.scales_missing
    missing = [part for part in parts if part.profile not in measured]
    if not scales or not missing:
        return []
    from slicewise.predict.measured import MeasuredRow, measured_curve

    curve = measured_curve(
        [
            MeasuredRow(row.batch, row.latency_ms, row.slice, row.memory_bytes, row.processes)
            for row in rows
        ],
        missing[0].card,
        model=spec.name,
    )
    known_bytes = {
        (row.batch, row.processes): row.memory_bytes for row in rows if row.memory_bytes
    }
    ways = []
    for part in missing:
        for batch, processes in sorted({(row.batch, row.processes) for row in asked}):
            try:
                made = curve.on(part.device, batch, processes)
            except PredictionError as err:
                raise PredictionError(
                    f"{spec.where}workload {spec.name!r} on {part.device.name}: {err}"
                ) from err
            serving = Serving(
                batch=batch,
                processes=processes,
                service_ms=made.latency_ms,
                throughput_per_s=made.throughput_per_s,
                memory_bytes=known_bytes.get((batch, processes)) or made.memory_bytes.value,
                energy_j=busy_item_j(part.device, made.throughput_per_s),
                source=SCALED,
            )
            sources = ", ".join(sorted(each or "the whole card" for each in measured))
            text = (
                f"workload {spec.name!r} was not measured on {part.device.name}; its latency there"
                f" is scaled from {sources}"
            )
            ways.append(Way(part, serving, made, (Note("slice-scaled", text),)))
    return ways
