"""Who tunes where: the shares of measuring servers, and the cores of searching clients.

Numbers and shares in, a plan out; nothing is bound here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from slicewise.core.errors import UsageError
from slicewise.core.share import Mechanism, Share, cores_text, crowd

Role = Literal["client", "server"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A place of one worker. `share` is what it is bound to, None for the whole device."""

    share: Share | None
    role: Role


@dataclass(frozen=True, slots=True)
class Seating:
    """A place for each server and each client.

    `holds[s]` are the indices of the clients that sit on cores of server `s`, and so must stand
    still while it measures.
    """

    servers: tuple[Seat, ...]
    clients: tuple[Seat, ...]
    holds: tuple[tuple[int, ...], ...]


def seat_tuners(
    cores: Sequence[int],
    *,
    share: Share | None,
    clients: int,
    servers: int = 1,
    place: str = "cpu",
    instances: Sequence[str] = (),
) -> Seating:
    """Return where `servers` that measure on shares as large as `share`, and `clients`, sit.

    `cores` are the logical cores that may be used, in the order in which they are handed out;
    `place` is 'cpu' or 'gpu:N'. The first server has `share` itself. Servers share nothing with
    each other; `instances` are the UUIDs of the MIG instances as large as that of `share`.
    Clients have a core each: first cores of no server, then those of servers, taken from each in
    turn. On a GPU no client disturbs a server's share, and a core is left to the host part of
    each server as long as there is one. `UsageError` names the limit where there is no room.

    >>> seating = seat_tuners((0, 1), share=Share.parse("cores:0"), clients=2)
    >>> [seat.share.text for seat in seating.clients], seating.holds
    (['cores:1', 'cores:0'], ((1,),))
    """
    for name, count in (("clients", clients), ("servers", servers)):
        if count < 1:
            raise UsageError(f"{name}={count} is not a positive number; give 1, 2, ...")
    free = tuple(dict.fromkeys(cores))
    if clients > len(free):
        raise UsageError(
            f"clients={clients} need a core each, and this process may use {len(free)}"
            f" ({cores_text(sorted(free))}); give --clients {_up_to(len(free))}"
        )
    if place == "cpu":
        parts = _core_shares(free, share, servers)
    else:
        parts = tuple((each, ()) for each in _gpu_shares(share, servers, place, instances))
    assert not crowd([part for part, _ in parts if part is not None])
    order = _client_cores(free, [held for _, held in parts])
    if place != "cpu":
        order = order[servers:] + order[:servers]
    chosen = order[:clients]
    return Seating(
        tuple(Seat(part, "server") for part, _ in parts),
        tuple(Seat(Share(Mechanism.CORES, cores=(core,)), "client") for core in chosen),
        tuple(tuple(i for i, core in enumerate(chosen) if core in held) for _, held in parts),
    )


def _core_shares(
    free: tuple[int, ...], share: Share | None, servers: int
) -> tuple[tuple[Share | None, tuple[int, ...]], ...]:
    """Return share and cores of each server of the CPU."""
    if share is None:
        if servers > 1:
            raise UsageError(
                f"servers={servers} need a share each, and the share is the whole CPU; give"
                " --servers 1, or a smaller --share"
            )
        return ((None, free),)
    if share.mechanism is not Mechanism.CORES or not share.cores:
        raise UsageError(
            f"share {share.text} has no core, and the device is the CPU; give a percentage, or"
            f" cores among {cores_text(sorted(free))}"
        )
    lacking = sorted(set(share.cores) - set(free))
    if lacking:
        raise UsageError(
            f"share {share.text} wants core {cores_text(lacking)}, and this process may use"
            f" {cores_text(sorted(free))}; choose among these"
        )
    size = len(share.cores)
    rest = [core for core in free if core not in share.cores]
    most = 1 + len(rest) // size
    if servers > most:
        raise UsageError(
            f"servers={servers} need {size} core{'s' if size > 1 else ''} each as {share.text}"
            f" has, and this process may use {len(free)} ({cores_text(sorted(free))}); give"
            f" --servers {_up_to(most)}, or a smaller --share"
        )
    others = [tuple(sorted(rest[i * size : (i + 1) * size])) for i in range(servers - 1)]
    shares = (share, *(Share(Mechanism.CORES, held, share.percent) for held in others))
    return tuple((each, each.cores) for each in shares)


def _gpu_shares(
    share: Share | None, servers: int, place: str, instances: Sequence[str]
) -> tuple[Share | None, ...]:
    """Return the share of each server of a GPU."""
    if share is None:
        if servers > 1:
            raise UsageError(
                f"servers={servers} need a share each, and the share is the whole {place}; give"
                " --servers 1, or a smaller --share"
            )
        return (None,)
    if share.mechanism is Mechanism.CORES:
        raise UsageError(
            f"share {share.text} divides a CPU, and the device is {place}; give a percentage, or"
            " mig:MIG-UUID"
        )
    if share.mechanism is Mechanism.MIG:
        uuids = tuple(dict.fromkeys((share.uuid, *instances)))
        if servers > len(uuids):
            raise UsageError(
                f"servers={servers} need a MIG instance each, and {place} has {len(uuids)} like"
                f" {share.uuid}; give --servers {_up_to(len(uuids))}, or make more instances"
            )
        return tuple(Share(Mechanism.MIG, uuid=uuid) for uuid in uuids[:servers])
    if crowd((share,) * servers):
        most = next(n for n in range(servers, 0, -1) if not crowd((share,) * n))
        raise UsageError(
            f"servers={servers} of {share.text} each are {servers * share.percent:g}% of {place};"
            f" give --servers {_up_to(most)}, or a --share of {100 / servers:.3g} or less"
        )
    return (share,) * servers


def _client_cores(free: tuple[int, ...], held: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the cores in the order in which clients take them."""
    taken = set(chain.from_iterable(held))
    outside = [core for core in free if core not in taken]
    inside = [core for turn in zip_longest(*held) for core in turn if core is not None]
    return (*outside, *inside)


def _up_to(most: int) -> str:
    """Return '1', '1 or 2' or '1 to 3'."""
    return {1: "1", 2: "1 or 2"}.get(most, f"1 to {most}")
