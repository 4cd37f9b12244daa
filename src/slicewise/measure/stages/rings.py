"""Rings of slots in shared memory between two processes, one that sends and one that receives.

A byte through a pipe says that a slot is filled, another that it is free again: waiting costs no
processor time, nothing has a name that could be left behind, and the end of the other process is
the end of the pipe. Many bytes are read at once, so that a busy ring makes few system calls.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slicewise.core.errors import MeasureError
from slicewise.measure.stages.plan import Place, Route

_TOKEN = b"."
_MANY = 4096


class Gone(Exception):  # none of ours: what the user is told is who is gone, and why
    """The process at the other end has ended."""


class Sender:
    """The end of a ring that fills slots."""

    def __init__(self, route: Route, memory: memoryview, *, filled: Any, freed: Any) -> None:
        """Take the ring as empty. `filled` is written to, `freed` read from."""
        self.route = route
        self.freed = freed
        self.room = route.slots
        self._memory = memory
        self._filled = filled
        self._sent = 0

    def wait(self) -> None:
        """Return when there is room; `Gone` if there never will be."""
        if not self.room:
            self.take_tokens()

    def take_tokens(self) -> None:
        """Read what was freed, at least one slot; `Gone` at the end of the pipe."""
        self.room += _read(self.freed)

    def put(self, values: Mapping[str, NDArray[np.generic]]) -> None:
        """Fill the next slot with arrays; there must be room. `Gone` if nobody reads."""
        start = self._begin()
        for place in self.route.places:
            np.copyto(_view(self._memory, start, place), values[place.name], casting="no")
        self._end()

    def put_bytes(self, values: Mapping[str, bytes]) -> None:
        """Fill the next slot with tensors given as bytes, leaving no view of the memory."""
        start = self._begin()
        for place in self.route.places:
            begin = start + place.offset
            self._memory[begin : begin + place.size] = values[place.name]
        self._end()

    def _begin(self) -> int:
        start = self.route.offset + self._sent % self.route.slots * self.route.slot_bytes
        self._memory[start : start + 8] = self._sent.to_bytes(8, "little")
        return start

    def _end(self) -> None:
        self.room -= 1
        self._sent += 1
        try:
            os.write(self._filled.fileno(), _TOKEN)
        except OSError as err:
            raise Gone from err


class Receiver:
    """The end of a ring that empties slots."""

    def __init__(self, route: Route, memory: memoryview, *, filled: Any, freed: Any) -> None:
        """Take the ring as empty. `filled` is read from, `freed` written to."""
        self.route = route
        self.filled = filled
        self.waiting = 0
        self._memory = memory
        self._freed = freed
        self._taken = 0

    def wait(self) -> None:
        """Return when an item is there; `Gone` if none will be."""
        if not self.waiting:
            self.take_tokens()

    def take_tokens(self) -> None:
        """Read what was filled, at least one slot; `Gone` at the end of the pipe."""
        self.waiting += _read(self.filled)

    def views(self) -> dict[str, NDArray[Any]]:
        """Return the tensors of the next item, as views that hold until `release`."""
        start = self._start()
        return {p.name: _view(self._memory, start, p) for p in self.route.places}

    def copies(self) -> dict[str, NDArray[Any]]:
        """Return copies of the tensors of the next item, leaving no view of the memory."""
        start = self._start()
        taken: dict[str, NDArray[Any]] = {}
        for place in self.route.places:
            begin = start + place.offset
            held = bytearray(self._memory[begin : begin + place.size])
            taken[place.name] = np.frombuffer(held, place.dtype).reshape(place.shape)
        return taken

    def release(self) -> None:
        """Give the slot of the item back."""
        self._start()
        self.waiting -= 1
        self._taken += 1
        try:
            os.write(self._freed.fileno(), _TOKEN)
        except OSError:
            return  # the sender has sent all that it had, and left

    def _start(self) -> int:
        start = self.route.offset + self._taken % self.route.slots * self.route.slot_bytes
        number = int.from_bytes(self._memory[start : start + 8], "little")
        if number != self._taken:
            raise MeasureError(
                f"a queue gave item {number} where {self._taken} was due; report this as a fault"
                " of slicewise"
            )
        return start


def _read(pipe: Any) -> int:
    try:
        tokens = os.read(pipe.fileno(), _MANY)
    except OSError as err:
        raise Gone from err
    if not tokens:
        raise Gone
    return len(tokens)


def _view(memory: memoryview, start: int, place: Place) -> NDArray[Any]:
    return np.ndarray(place.shape, place.dtype, buffer=memory, offset=start + place.offset)
