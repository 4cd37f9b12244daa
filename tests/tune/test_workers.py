from collections.abc import Callable, Sequence
from dataclasses import replace

from slicewise.core.crew import Tell
from slicewise.core.measurement import Protocol as Sampling
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
from slicewise.tune.backends._base import CAREFUL, QUICK
from slicewise.tune.workers import client_handler, server_handler

PIECE = Piece(0, "w", 0, 2, 0)
ORDER = SearchOrder(PIECE)


class Clock:
    """A clock that goes on by what the work says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Searches for 3 s, then builds for 2 s; tells times if it is given them."""

    def __init__(self, clock: Clock, *, search_s: float = 0.0, build_s: float = 0.0) -> None:
        self.clock, self.search_s, self.build_s = clock, search_s, build_s

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        self.clock.now += 3.0
        tell(Building("w", "a"))
        self.clock.now += 2.0
        tell(Building("w", "b"))
        built = (Built("w", "a"), Built("w", "b"))
        return Proposal(order.piece, built, search_s=self.search_s, build_s=self.build_s)


class Server:
    """Takes 4 s, however many there are."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seen: list[Sampling] = []

    def measure(self, built: Sequence[Built], sampling: Sampling, tell: Tell) -> tuple[Trial, ...]:
        assert isinstance(self.clock, Clock)
        self.clock.now += 4.0
        self.seen.append(sampling)
        return tuple(Trial(each.workload, each.config, measure_s=1.5) for each in built)


def proposed(search_s: float = 0.0, build_s: float = 0.0) -> Proposal:
    clock = Clock()
    client = Client(clock, search_s=search_s, build_s=build_s)
    answer = client_handler(client, clock=clock)(ORDER, lambda step: None)
    assert isinstance(answer, Proposal)
    return answer


def test_search_ends_with_the_first_build_where_the_engine_tells_no_times() -> None:
    made = proposed()
    assert (made.search_s, made.build_s) == (3.0, 2.0)


def test_times_of_the_engine_are_kept_and_the_rest_is_search() -> None:
    assert proposed(1.0, 1.5).build_s == 1.5
    assert proposed(1.0, 1.5).search_s == 3.5
    assert proposed(9.0, 4.0).seconds == 13.0


def test_steps_are_handed_on() -> None:
    told: list[object] = []
    clock = Clock()
    client_handler(Client(clock), clock=clock)(ORDER, told.append)
    assert told == [Building("w", "a"), Building("w", "b")]


def test_finalists_are_measured_carefully() -> None:
    clock = Clock()
    server = Server(clock)
    handler = server_handler(server, clock=clock)
    order = MeasureOrder((Built("w", "a"), Built("w", "b")), piece=3)
    for each in (order, replace(order, is_alone=True)):
        answer = handler(each, lambda step: None)
        assert isinstance(answer, Measured)
        assert answer.measure_s == 4.0 and len(answer.trials) == 2
    assert server.seen == [QUICK, CAREFUL]
    assert QUICK.min_samples < CAREFUL.min_samples


def test_the_trials_own_time_counts_where_it_is_more() -> None:
    handler = server_handler(Server(clock := Clock()), clock=clock)
    answer = handler(MeasureOrder(tuple(Built("w", str(i)) for i in range(4))), lambda step: None)
    assert isinstance(answer, Measured) and answer.measure_s == 6.0
