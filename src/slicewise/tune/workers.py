"""The handlers of tuning's workers: an order in, an answer out, with the time it took.

Called in the worker's own process, which is bound to its cores or share already. Who gets which
order is no business of theirs.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from slicewise.core.crew import Handler, Tell
from slicewise.core.tuning import Building, Measured, MeasureOrder, SearchOrder
from slicewise.tune.backends._base import CAREFUL, QUICK, Client, Server

Clock = Callable[[], float]


def client_handler(client: Client, *, clock: Clock = time.perf_counter) -> Handler:
    """Return what answers a `SearchOrder` with a `Proposal`.

    Search and build are what the engine tells; where it tells less than the clock, the rest of
    the time is search: what went by before the first build, where it tells nothing at all.
    """

    def propose(order: object, tell: Tell) -> object:
        assert isinstance(order, SearchOrder), order
        watch = _FirstBuild(tell, clock)
        began = clock()
        proposal = client.propose(order, watch)
        spent = max(0.0, clock() - began)
        if proposal.seconds == 0.0:
            search = spent if watch.at is None else max(0.0, watch.at - began)
            return replace(proposal, search_s=search, build_s=spent - search)
        return replace(proposal, search_s=max(proposal.search_s, spent - proposal.build_s))

    return propose


def server_handler(server: Server, *, clock: Clock = time.perf_counter) -> Handler:
    """Return what answers a `MeasureOrder` with `Measured`: quickly among others, carefully where
    the candidates are alone on the device. The time is that of the clock, or what the trials tell
    where that is more."""

    def measure(order: object, tell: Tell) -> object:
        assert isinstance(order, MeasureOrder), order
        began = clock()
        trials = server.measure(order.built, CAREFUL if order.is_alone else QUICK, tell)
        spent = max(clock() - began, sum(trial.measure_s for trial in trials))
        return Measured(trials, measure_s=spent)

    return measure


class _FirstBuild:
    """Hands on what is told, and remembers when the first build began."""

    def __init__(self, tell: Tell, clock: Clock) -> None:
        self._tell, self._clock = tell, clock
        self.at: float | None = None

    def __call__(self, step: object) -> None:
        if self.at is None and isinstance(step, Building):
            self.at = self._clock()
        self._tell(step)
