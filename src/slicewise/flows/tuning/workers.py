"""The makers of tuning's workers: picklable, called in the worker's own process.

Binding to cores or a share comes first, since libraries count cores when they load; then the
engine makes its client or server.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from slicewise.core.crew import Handler, MakeHandler, Tell
from slicewise.core.notes import Note, unique_notes
from slicewise.core.share import Share
from slicewise.core.tuning import Measured


def client_maker(engine: str, problem: object, cores: Share | None) -> MakeHandler:
    """Return what makes a client of `engine`, bound to `cores`."""
    return partial(open_client, engine, problem, cores)


def server_maker(engine: str, problem: object, place: str, share: Share | None) -> MakeHandler:
    """Return what makes a server of `engine`, bound to `share` of `place`."""
    return partial(open_server, engine, problem, place, share)


def open_client(engine: str, problem: object, cores: Share | None) -> Handler:
    """Bind this process to its cores and return the handler of search orders."""
    from slicewise.measure.shares._base import load_binder
    from slicewise.tune.backends._base import load_engine
    from slicewise.tune.workers import client_handler

    if cores is not None:
        load_binder(cores.mechanism.value).bind(cores, 0)
    return client_handler(load_engine(engine).client(problem))


def open_server(engine: str, problem: object, place: str, share: Share | None) -> Handler:
    """Bind this process to its share and return the handler of orders to measure.

    An engine that measures in processes of their own leaves binding, turns and watching to them.
    `DeviceError` where the share cannot be had.
    """
    from slicewise.tune.backends._base import load_engine
    from slicewise.tune.workers import server_handler

    made = load_engine(engine)
    if made.is_apart:
        return server_handler(made.server(problem))
    bound = _Bound(place, share)
    return bound.serving(server_handler(made.server(problem)))


class _Bound:
    """This process as it is bound to a share of a device, for as long as it lives."""

    def __init__(self, place: str, share: Share | None) -> None:
        from slicewise.measure.shares._base import load_binder

        self._place, self._share = place, share
        self._index = int(place.partition(":")[2] or 0)
        self._binder = None if share is None else load_binder(share.mechanism.value)
        self._notes: tuple[Note, ...] = ()
        self._life = ExitStack()
        if self._binder is not None and share is not None:
            self._notes = self._binder.bind(share, self._index)
            entered = self._life.enter_context(self._binder.entered(share, self._index))
            self._notes = unique_notes((*self._notes, *entered))
        self._is_verified = False

    def serving(self, handler: Handler) -> Handler:
        """Return `handler`, verified to be on the share and watched while it measures."""

        def serve(order: object, tell: Tell) -> object:
            return self._serve(handler, order, tell)

        return serve

    def _serve(self, handler: Handler, order: object, tell: Tell) -> object:
        from slicewise.measure import quiet

        self._verify()
        end = self._watch()
        before, began = quiet.run_delays(), time.perf_counter()
        answer = handler(order, tell)
        seconds = time.perf_counter() - began
        waited = None
        if self._place == "cpu":
            # one thread measures at a time as a rule; more wait no less than it
            waited = quiet.waited_part(before, quiet.run_delays(), seconds=seconds, cores=1)
        notes = (*self._notes, *end())
        return _told(answer, notes, waited) if isinstance(answer, Measured) else answer

    def _verify(self) -> None:
        """Ask once what this process really has; `MeasureError` where that is not its share."""
        if self._is_verified or self._binder is None or self._share is None:
            return
        self._notes = unique_notes((*self._notes, *self._binder.verify(self._share, self._index)))
        self._is_verified = True

    def _watch(self) -> Callable[[], tuple[Note, ...]]:
        if self._binder is None or self._share is None:
            return lambda: ()
        return self._binder.watch(self._share, self._index)


def _told(answer: Measured, notes: Sequence[Note], waited: float | None) -> Measured:
    """Return the answer with what was seen of others: threads that waited for a core."""
    slowdown = None if waited is None else 1.0 / max(1e-3, 1.0 - waited)
    trials = tuple(
        trial if trial.slowdown is not None else replace(trial, slowdown=slowdown)
        for trial in answer.trials
    )
    return replace(answer, trials=trials, notes=unique_notes((*answer.notes, *notes)))
