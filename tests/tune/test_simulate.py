from functools import partial
from typing import Any

import pytest

from slicewise.core.cost import Estimate
from slicewise.core.crew import Answer, AnswerKind, Handler, Tell
from slicewise.core.errors import DeviceError
from slicewise.core.tuning import (
    Building,
    Built,
    Measured,
    MeasureOrder,
    Piece,
    Proposal,
    SearchOrder,
    Trial,
)
from slicewise.tune.backends.simulated import SimulatedLoss
from slicewise.tune.simulate import Machine, Place, SimulatedCrew


def client(search_s: float = 2.0, build_s: float = 2.0) -> Handler:
    def propose(order: object, tell: Tell) -> object:
        assert isinstance(order, SearchOrder)
        for config in ("a", "b"):
            tell(Building("w", config))
        return Proposal(order.piece, (), search_s=search_s, build_s=build_s)

    return propose


def server(measure_s: float = 1.0) -> Handler:
    def measure(order: object, tell: Tell) -> object:
        return Measured((Trial("w", "a", latency_ms=Estimate(1.0, 0.9, 1.1)),), measure_s)

    return measure


ORDER = SearchOrder(Piece(0, "w", 0, 2, 0))
MEASURE = MeasureOrder((Built("w", "a"),))


def hired(crew: SimulatedCrew, *makers: Any) -> list[int]:
    """Return ready workers; a maker of 'server' is one by its label."""
    numbers = []
    for i, make in enumerate(makers):
        role = "server" if getattr(make, "func", make) is server else "client"
        numbers.append(crew.hire(make, label=f"{role} {i}"))
    ready: set[int] = set()
    while len(ready) < len(makers):
        ready |= {answer.worker for answer in crew.wait()}
    return numbers


def until_done(crew: SimulatedCrew, count: int) -> dict[int, tuple[float, Answer]]:
    found: dict[int, tuple[float, Answer]] = {}
    while len(found) < count:
        for answer in crew.wait():
            if answer.kind is not AnswerKind.STEP:
                found[answer.worker] = (crew.now_s(), answer)
    return found


def test_answers_come_when_the_work_is_done_and_builds_are_told_after_the_search() -> None:
    crew = SimulatedCrew()
    (worker,) = hired(crew, client)
    crew.give(worker, ORDER)
    said: list[tuple[float, AnswerKind]] = []
    while not said or said[-1][1] is not AnswerKind.DONE:
        said += [(crew.now_s(), each.kind) for each in crew.wait()]
    assert said == [(2.0, AnswerKind.STEP), (3.0, AnswerKind.STEP), (4.0, AnswerKind.DONE)]


def test_a_start_takes_its_time() -> None:
    crew = SimulatedCrew(machine=Machine(client_start_s=3.0, server_start_s=5.0))
    crew.hire(client, label="client 0")
    crew.hire(server, label="server 0")
    first = crew.wait()
    assert [(a.kind, crew.now_s()) for a in first] == [(AnswerKind.READY, 3.0)]
    crew.wait()
    assert crew.now_s() == 5.0


def test_a_held_worker_stands_still() -> None:
    crew = SimulatedCrew()
    one, two = hired(crew, client, client)
    crew.give(one, ORDER)
    crew.give(two, ORDER)
    assert set(crew.hold([one, 99])) == {one} and crew.held == {one}
    assert crew.wait(timeout_s=1.0) == () and crew.now_s() == 1.0
    crew.release([one])
    found = until_done(crew, 2)
    assert found[two][0] == 4.0 and found[one][0] == 5.0


def test_workers_of_a_host_slow_each_other_down() -> None:
    places = {"client 0": Place(host=0), "client 1": Place(host=0), "client 2": Place(host=1)}
    crew = SimulatedCrew(places=places, machine=Machine(core_efficiency=0.5))
    workers = hired(crew, client, client, client)
    for worker in workers:
        crew.give(worker, ORDER)
    found = until_done(crew, 3)
    assert [found[w][0] for w in workers] == [8.0, 8.0, 4.0]


def test_a_disturbed_measurement_takes_longer_and_reads_too_high() -> None:
    crew = SimulatedCrew(machine=Machine(interference=0.5))
    one, two = hired(crew, server, server)
    crew.give(one, MEASURE)
    crew.give(two, MEASURE)
    for at_s, answer in until_done(crew, 2).values():
        assert at_s == pytest.approx(1.5)
        assert isinstance(answer.value, Measured)
        (trial,) = answer.value.trials
        assert trial.slowdown == pytest.approx(1.5)
        assert trial.latency_ms is not None and trial.latency_ms.value == pytest.approx(1.5)


def test_servers_of_other_devices_do_not_disturb() -> None:
    places = {"server 0": Place(device=0), "server 1": Place(device=1)}
    crew = SimulatedCrew(places=places, machine=Machine(interference=0.5))
    one, two = hired(crew, server, server)
    crew.give(one, MEASURE)
    crew.give(two, MEASURE)
    assert {at_s for at_s, _ in until_done(crew, 2).values()} == {1.0}


def test_half_of_a_measurement_disturbed_counts_half() -> None:
    crew = SimulatedCrew(machine=Machine(interference=1.0))
    one, two = hired(crew, partial(server, 2.0), partial(server, 0.5))
    crew.give(one, MEASURE)
    crew.give(two, MEASURE)
    found = until_done(crew, 2)
    # both at half speed until 1.0, when the short one is done; then 1.5 s alone
    assert found[two][0] == pytest.approx(1.0) and found[one][0] == pytest.approx(2.5)
    measured = found[one][1].value
    assert isinstance(measured, Measured)
    assert measured.trials[0].slowdown == pytest.approx(2.5 / 2.0)


def test_what_a_maker_or_a_handler_raises_is_an_answer() -> None:
    def unmade() -> Handler:
        raise DeviceError("not here")

    def failing(order: object, tell: Tell) -> object:
        raise ValueError("cannot")

    crew = SimulatedCrew()
    bad, poor = hired(crew, unmade, lambda: failing)
    crew.give(poor, ORDER)
    (answer,) = crew.wait()
    assert answer.kind is AnswerKind.FAILED and "cannot" in str(answer.error)
    assert bad != poor


def test_a_crash_is_a_loss_and_a_hang_is_silence() -> None:
    def ends(is_hang: bool) -> Handler:
        def work(order: object, tell: Tell) -> object:
            tell(Building("w", "bad"))
            raise SimulatedLoss("bad", is_hang=is_hang)

        return work

    crew = SimulatedCrew()
    crash, hang = hired(crew, partial(ends, False), partial(ends, True))
    crew.give(crash, ORDER)
    crew.give(hang, ORDER)
    kinds: list[AnswerKind] = []
    while said := crew.wait(timeout_s=50.0):
        kinds += [answer.kind for answer in said]
    assert sorted(kinds) == [AnswerKind.LOST, AnswerKind.STEP, AnswerKind.STEP]
    crew.dismiss(hang)
    assert crew.dismissed == 1


def test_losses_come_by_chance_and_by_the_seed() -> None:
    def lost(seed: int) -> list[bool]:
        crew = SimulatedCrew(machine=Machine(client_loss=0.5), seed=seed)
        found = []
        for _ in range(20):
            (worker,) = hired(crew, client)
            crew.give(worker, ORDER)
            ((_, answer),) = until_done(crew, 1).values()
            found.append(answer.kind is AnswerKind.LOST)
            crew.dismiss(worker)
        return found

    assert lost(1) == lost(1) != lost(2)
    assert 3 < sum(lost(1)) < 17


def test_orders_to_workers_that_cannot_take_them_are_our_mistake() -> None:
    crew = SimulatedCrew()
    (worker,) = hired(crew, client)
    crew.give(worker, ORDER)
    with pytest.raises(AssertionError, match="has an order"):
        crew.give(worker, ORDER)
