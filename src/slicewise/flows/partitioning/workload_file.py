"""A problem file (`pipeline-workload/1`) read into `Material`: nodes, costs, edges, groups.

The schema is that of the public workloads: f(S) = work + each tensor sent once + each received
once. Nodes may stand in any order and ids may be numbers or texts; what the file says of
colocation and limits counts only where it is honoured.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.core.errors import DeviceError, PartitionError, UsageError
from slicewise.core.notes import Note
from slicewise.core.pipeline import StageDevice
from slicewise.core.plugins import did_you_mean
from slicewise.flows.partitioning.pipeline_material import CutTensor, Material
from slicewise.flows.partitioning.topological import parts, topological

SCHEMA = "pipeline-workload/1"
HONOURED = ("colocate", "limits")
_LARGEST_BYTES = 2**30
_LARGEST_COST = 1e300
DEFAULT_DEVICE = "accel"


def is_workload(path: str) -> bool:
    """True for what is taken as a problem file and not as a model."""
    return path.lower().endswith(".json")


@dataclass(frozen=True, slots=True)
class _Row:
    """A node of the file, checked."""

    label: str
    time_ms: Mapping[str, float]
    energy_j: Mapping[str, float]
    transfer_ms: float
    output_bytes: float | None
    memory_bytes: float | None
    param_bytes: float
    colocate: object
    accel_ok: bool


# All that the schema has, read here or not.
_FIELDS = (
    "schema", "name", "source", "kind", "limits", "comm_model", "totals", "notes", "nodes",
    "edges",
)  # fmt: skip
_COLUMNS = (
    "id", "orig_id", "name", "op", "time_ms", "energy_j", "param_bytes", "memory_bytes",
    "output_bytes", "comm_ms", "colocate", "accel_ok", "data_loading_ms",
)  # fmt: skip


def read_workload(
    path: Path, *, devices: Sequence[str] = (), honour: Collection[str] = ()
) -> Material:
    """Return a problem file as material for the devices named (default: `accel`).

    `honour` of `HONOURED` says what counts of `colocate` groups, and of `limits` (memory and
    number of accelerators) with `accel_ok`. `PartitionError` with the place in the file for what
    cannot be, `DeviceError` for a device without times.
    """
    document = _document(path)
    told = str(path)
    rows, place = _rows(document, told)
    edges = _edges(document, told, place)
    labels = _unique([row.label for row in rows])
    order = topological(
        len(rows), edges, describe=lambda loop: _cycle(told, [labels[node] for node in loop])
    )
    rank = {node: index for index, node in enumerate(order)}
    wanted = tuple(dict.fromkeys(devices)) or (DEFAULT_DEVICE,)
    limits = _limits(document, told) if "limits" in honour else None
    ordered = [rows[node] for node in order]
    consumers: list[list[int]] = [[] for _ in rows]
    for u, v in edges:
        consumers[rank[u]].append(rank[v])
    notes = [*_unread(document), *_notes(ordered, edges, rank)]
    return Material(
        name=str(document.get("name") or path.stem),
        source=told,
        labels=tuple(labels),
        groups=tuple((node,) for node in order),
        names=tuple(labels[node] for node in order),
        tensors=tuple(
            CutTensor(
                labels[node],
                index,
                tuple(sorted(consumers[index])),
                rows[node].output_bytes,
                rows[node].transfer_ms,
            )
            for index, node in enumerate(order)
        ),
        devices={name: _device(name, ordered, limits, told=told) for name in wanted},
        memory_bytes=tuple(row.memory_bytes or 0.0 for row in ordered),
        weight_bytes=tuple(row.param_bytes for row in ordered),
        together=_colocated(ordered) if "colocate" in honour else (),
        most_stages=_accelerators(limits, wanted),
        notes=tuple(notes),
    )


def _document(path: Path) -> dict[str, Any]:
    shown = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise PartitionError(f"problem {shown!r} is over 1 GiB; give a smaller one")
        document = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise PartitionError(f"there is no problem file {shown!r}; check the path") from err
    except OSError as err:
        raise PartitionError(
            f"problem {shown!r} cannot be read: {err.strerror or err}; give a JSON file"
        ) from err
    except (ValueError, RecursionError) as err:
        raise PartitionError(f"problem {shown!r} is no JSON: {err}; mend the file") from err
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise PartitionError(
            f"problem {shown!r} has the schema {schema!r}; this release reads {SCHEMA!r}"
        )
    for key in ("nodes", "edges"):
        if not isinstance(document.get(key), list):
            raise PartitionError(f"problem {shown!r} has no list {key!r}; add it")
    if not document["nodes"]:
        raise PartitionError(f"problem {shown!r} has no nodes; give one at least")
    return dict(document)


def _rows(document: Mapping[str, Any], told: str) -> tuple[list[_Row], dict[object, int]]:
    rows: list[_Row] = []
    place: dict[object, int] = {}
    for index, node in enumerate(document["nodes"]):
        where = f"problem {told!r}, nodes[{index}]"
        if not isinstance(node, dict):
            raise PartitionError(f"{where} is no object; give one with id, time_ms, comm_ms")
        key = node.get("id", index)
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise PartitionError(f"{where} has the id {key!r}; give a number or a text")
        if key in place:
            raise PartitionError(
                f"{where} has the id {key!r}, which nodes[{place[key]}] has already; ids are"
                " unique"
            )
        place[key] = index
        rows.append(_row(node, key, where))
    return rows, place


def _row(node: Mapping[str, Any], key: object, where: str) -> _Row:
    where = f"{where} (id {key!r})"
    times = node.get("time_ms")
    if not isinstance(times, dict) or not times:
        raise PartitionError(f"{where} has no time_ms by device; give {{'accel': MS}}")
    energies = node.get("energy_j") or {}
    if not isinstance(energies, dict):
        raise PartitionError(f"{where} has an energy_j that is no object; give {{'accel': J}}")
    return _Row(
        label=str(node.get("name") or f"node {key}"),
        time_ms={name: _cost(times, name, f"{where}, time_ms") for name in times},
        energy_j={name: _cost(energies, name, f"{where}, energy_j") for name in energies},
        transfer_ms=_cost(node, "comm_ms", where) if node.get("comm_ms") is not None else 0.0,
        output_bytes=_optional(node, "output_bytes", where),
        memory_bytes=_optional(node, "memory_bytes", where),
        param_bytes=_optional(node, "param_bytes", where) or 0.0,
        colocate=node.get("colocate"),
        accel_ok=node.get("accel_ok") is not False,
    )


def _optional(node: Mapping[str, Any], key: str, where: str) -> float | None:
    return None if node.get(key) is None else _cost(node, key, where)


def _cost(node: Mapping[str, Any], key: str, where: str) -> float:
    value = node[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= _LARGEST_COST
    ):
        raise PartitionError(
            f"{where} has {key} {value!r}; it must be a number from 0 to {_LARGEST_COST:g}"
        )
    return float(value)


def _edges(
    document: Mapping[str, Any], told: str, place: Mapping[object, int]
) -> list[tuple[int, int]]:
    made: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(document["edges"]):
        where = f"problem {told!r}, edges[{index}]"
        if not isinstance(edge, list) or len(edge) != 2:
            raise PartitionError(f"{where} is {edge!r}; give [FROM, TO]")
        for end in edge:
            if isinstance(end, bool) or not isinstance(end, int | str) or end not in place:
                raise PartitionError(f"{where} names the node {end!r}, which is not in nodes")
        pair = (place[edge[0]], place[edge[1]])
        if pair in made:
            raise PartitionError(f"{where} repeats edges[{made[pair]}]; leave one out")
        made[pair] = index
    return list(made)


def _cycle(told: str, names: Sequence[str]) -> str:
    shown = " -> ".join(repr(name) for name in names[:6])
    return (
        f"problem {told!r} has a cycle: {shown}{' ...' if len(names) > 6 else ''}; a pipeline"
        " needs a graph without cycles"
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names, those that stand more than once with the number of their node."""
    count: dict[str, int] = {}
    for name in names:
        count[name] = count.get(name, 0) + 1
    made = [name if count[name] == 1 else f"{name}#{i}" for i, name in enumerate(names)]
    return made if len(set(made)) == len(made) else [f"{n}#{i}" for i, n in enumerate(names)]


def _device(
    name: str, rows: Sequence[_Row], limits: Mapping[str, float] | None, *, told: str
) -> StageDevice:
    known = set.intersection(*(set(row.time_ms) for row in rows))
    if name not in known:
        raise DeviceError(
            f"problem {told!r} has no times for device {name!r} at every node; it has"
            f" {', '.join(sorted(known)) or 'none'}{did_you_mean(name, known)}"
        )
    is_accelerator = name.startswith(DEFAULT_DEVICE)
    barred = limits is not None and is_accelerator
    energies = tuple(row.energy_j[name] for row in rows if name in row.energy_j)
    memory = (limits or {}).get("memory_bytes_per_accelerator", math.inf)
    return StageDevice(
        name,
        tuple(math.inf if barred and not row.accel_ok else row.time_ms[name] for row in rows),
        energy_j=energies if len(energies) == len(rows) else (),
        memory_limit_bytes=memory if is_accelerator else math.inf,
    )


def _limits(document: Mapping[str, Any], told: str) -> dict[str, float]:
    given = document.get("limits")
    if not isinstance(given, dict):
        raise UsageError(f"problem {told!r} has no limits to honour; leave limits out")
    keys = [key for key, value in given.items() if value is not None]
    return {key: _cost(given, key, f"problem {told!r}, limits") for key in keys}


def _accelerators(limits: Mapping[str, float] | None, devices: Sequence[str]) -> int | None:
    """Return the number of stages that the file has devices for, of accelerators alone."""
    alone = all(name.startswith(DEFAULT_DEVICE) for name in devices)
    if limits is None or not alone or "accelerators" not in limits:
        return None
    return max(1, int(limits["accelerators"]))


def _colocated(rows: Sequence[_Row]) -> tuple[tuple[int, ...], ...]:
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.colocate is not None:
            groups.setdefault(repr(row.colocate), []).append(index)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _unread(document: Mapping[str, Any]) -> list[Note]:
    """Return the note on fields that nothing reads: a misspelt cost would count as 0."""
    found = [key for key in document if key not in _FIELDS]
    found += dict.fromkeys(
        key for node in document["nodes"] for key in node if key not in _COLUMNS
    )
    if not found:
        return []
    told = ", ".join(f"{key!r}{did_you_mean(key, (*_FIELDS, *_COLUMNS))}" for key in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return [Note("fields-unread", f"fields of the file that nothing reads: {told}{more}")]


def _notes(
    rows: Sequence[_Row], edges: Sequence[tuple[int, int]], rank: Mapping[int, int]
) -> list[Note]:
    notes = []
    pieces = parts(len(rows), edges)
    if pieces > 1:
        text = f"the graph falls into {pieces} parts that no tensor joins"
        notes.append(Note("graph-disconnected", text))
    if any(row.memory_bytes is None for row in rows):
        count = sum(row.memory_bytes is None for row in rows)
        text = f"{count} of {len(rows)} nodes have no memory_bytes; they count as 0"
        notes.append(Note("memory-unknown", text))
    if any(rank[node] != node for node in rank):
        notes.append(
            Note(
                "nodes-renumbered",
                "the file's nodes are not in topological order; they were sorted, names and"
                " stage_of are as in the file",
            )
        )
    return notes
