"""Seating: servers never share, and clients that could disturb one are named."""

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.core.seating import Seating, seat_tuners
from slicewise.core.share import Mechanism, Share, crowd, overlaps

machines = st.lists(st.integers(0, 40), min_size=1, max_size=16, unique=True)


@st.composite
def cpu_wishes(draw: st.DrawFn) -> tuple[list[int], Share | None, int, int]:
    cores = draw(machines)
    chosen = draw(st.none() | st.lists(st.sampled_from(cores), min_size=1, unique=True))
    share = None if chosen is None else Share(Mechanism.CORES, cores=tuple(sorted(chosen)))
    return cores, share, draw(st.integers(1, 17)), draw(st.integers(1, 6))


def _core(seating: Seating, client: int) -> int:
    share = seating.clients[client].share
    assert share is not None and share.mechanism is Mechanism.CORES
    (core,) = share.cores
    return core


@given(cpu_wishes())
def test_on_a_cpu_the_counts_are_those_asked_for_or_the_limit_is_told(
    wish: tuple[list[int], Share | None, int, int],
) -> None:
    cores, share, clients, servers = wish
    most = 1 if share is None else 1 + (len(cores) - len(share.cores)) // len(share.cores)
    if clients > len(cores) or servers > most:
        with pytest.raises(UsageError, match=r"clients=\d+ need|servers=\d+ need"):
            seat_tuners(cores, share=share, clients=clients, servers=servers)
        return
    seating = seat_tuners(cores, share=share, clients=clients, servers=servers)
    assert (len(seating.clients), len(seating.servers)) == (clients, servers)
    assert len(seating.holds) == servers
    assert seating.servers[0].share == share
    assert {seat.role for seat in seating.clients} == {"client"}
    assert {seat.role for seat in seating.servers} == {"server"}


@given(cpu_wishes())
def test_on_a_cpu_servers_are_alike_and_apart_and_holds_are_the_clients_on_their_cores(
    wish: tuple[list[int], Share | None, int, int],
) -> None:
    cores, share, clients, servers = wish
    try:
        seating = seat_tuners(cores, share=share, clients=clients, servers=servers)
    except UsageError:
        reject()
    shares = [seat.share for seat in seating.servers if seat.share is not None]
    assert crowd(shares) == ""
    assert all(set(each.cores) <= set(cores) for each in shares)
    assert len({len(each.cores) for each in shares}) <= 1
    taken = [_core(seating, client) for client in range(clients)]
    assert len(set(taken)) == clients and set(taken) <= set(cores)
    for seat, held in zip(seating.servers, seating.holds, strict=True):
        for client, own in enumerate(seating.clients):
            assert own.share is not None
            disturbs = seat.share is None or overlaps(seat.share, own.share)
            assert (client in held) == disturbs
    # nobody is held while a core of no server is free
    outside = len(cores) - sum(len(each.cores) for each in shares) if shares else 0
    assert len({client for held in seating.holds for client in held}) == max(0, clients - outside)
    # and who must be held is spread over the servers
    counts = [len(held) for held in seating.holds]
    assert max(counts) - min(counts) <= 1


@given(
    machines,
    st.builds(
        Share, st.sampled_from([Mechanism.MPS, Mechanism.GREEN]), percent=st.integers(1, 100)
    )
    | st.builds(Share, st.just(Mechanism.MIG), uuid=st.just("MIG-0")),
    st.integers(1, 17),
    st.integers(1, 6),
    st.integers(0, 5),
)
def test_on_a_gpu_servers_are_apart_and_nobody_is_held(
    cores: list[int], share: Share, clients: int, servers: int, more: int
) -> None:
    uuids = [f"MIG-{i}" for i in range(more + 1)]
    most = more + 1 if share.mechanism is Mechanism.MIG else int(100 // share.percent)
    try:
        seating = seat_tuners(
            cores, share=share, clients=clients, servers=servers, place="gpu:0", instances=uuids
        )
    except UsageError:
        assert clients > len(cores) or servers > most
        return
    assert clients <= len(cores) and servers <= most
    shares = [seat.share for seat in seating.servers if seat.share is not None]
    assert len(shares) == servers and crowd(shares) == "" and shares[0] == share
    assert seating.holds == ((),) * servers
    taken = {_core(seating, client) for client in range(clients)}
    assert len(taken) == clients
    if clients + servers <= len(cores):
        assert not taken & set(cores[:servers])


def test_the_whole_gpu_has_one_server_and_clients_on_any_core() -> None:
    seating = seat_tuners((0, 1), share=None, clients=2, place="gpu:0")
    assert [seat.share for seat in seating.servers] == [None]
    assert seating.holds == ((),)


CORE = Share.parse("cores:0")
MPS = Share.parse("mps:40")
MIG = Share.parse("mig:MIG-1")


@pytest.mark.parametrize(
    ("share", "clients", "servers", "place", "message"),
    [
        (
            CORE, 4, 1, "cpu",
            "clients=4 need a core each, and this process may use 2 (0-1); give --clients 1 or 2",
        ),
        (
            CORE, 1, 3, "cpu",
            "servers=3 need 1 core each as cores:0 has, and this process may use 2 (0-1); give"
            " --servers 1 or 2, or a smaller --share",
        ),
        (
            None, 1, 2, "cpu",
            "servers=2 need a share each, and the share is the whole CPU; give --servers 1, or a"
            " smaller --share",
        ),
        (
            None, 1, 2, "gpu:0",
            "servers=2 need a share each, and the share is the whole gpu:0; give --servers 1, or a"
            " smaller --share",
        ),
        (
            MPS, 1, 3, "gpu:0",
            "servers=3 of mps:40% each are 120% of gpu:0; give --servers 1 or 2, or a --share of"
            " 33.3 or less",
        ),
        (
            MIG, 1, 2, "gpu:0",
            "servers=2 need a MIG instance each, and gpu:0 has 1 like MIG-1; give --servers 1, or"
            " make more instances",
        ),
        (
            Share.parse("cores:1-2"), 1, 1, "cpu",
            "share cores:1-2 wants core 2, and this process may use 0-1; choose among these",
        ),
        (
            MPS, 1, 1, "cpu",
            "share mps:40% has no core, and the device is the CPU; give a percentage, or cores"
            " among 0-1",
        ),
        (
            CORE, 1, 1, "gpu:0",
            "share cores:0 divides a CPU, and the device is gpu:0; give a percentage, or"
            " mig:MIG-UUID",
        ),
        (CORE, 0, 1, "cpu", "clients=0 is not a positive number; give 1, 2, ..."),
        (CORE, 1, 0, "cpu", "servers=0 is not a positive number; give 1, 2, ..."),
    ],
)  # fmt: skip
def test_what_has_no_room_is_refused_with_the_limit(
    share: Share | None, clients: int, servers: int, place: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        seat_tuners((0, 1), share=share, clients=clients, servers=servers, place=place)
    assert str(caught.value) == message
