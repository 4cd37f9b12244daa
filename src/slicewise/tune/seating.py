"""Who sits where: hires workers into seats, replaces the lost, and holds those that would disturb.

Knows the crew and its workers, and nothing of what they work on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slicewise.core.crew import Crew, MakeHandler
from slicewise.core.errors import SlicewiseError
from slicewise.core.notes import Note
from slicewise.tune.records import RunSettings, Seats


class Role(StrEnum):
    """What a worker does."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(slots=True)
class Seat:
    """A place for a worker, and how those fared that sat there.

    `work` is what its worker is busy with, None while it is idle. `reason` says why a closed
    seat is filled no more.
    """

    role: Role
    index: int
    make: MakeHandler
    worker: int | None = None
    is_ready: bool = False
    work: object | None = None
    hired_s: float = 0.0
    losses: int = 0
    is_closed: bool = False
    reason: str = ""
    held_by: set[int] = field(default_factory=set)
    held_since_s: float = 0.0
    held_s: float = 0.0  # in all

    @property
    def name(self) -> str:
        """What the crew and messages call it."""
        return f"{self.role} {self.index}"

    @property
    def is_free(self) -> bool:
        """True where an order can be given: a held worker would not take it up."""
        return self.worker is not None and self.is_ready and self.work is None and not self.held_by

    @property
    def is_starting(self) -> bool:
        """True from the hiring until the worker is ready."""
        return self.worker is not None and not self.is_ready

    def stopped_s(self, now_s: float) -> float:
        """Return how long its workers were held so far."""
        return self.held_s + (now_s - self.held_since_s if self.held_by else 0.0)


class Seating:
    """The seats of a run and the workers in them."""

    def __init__(self, crew: Crew, seats: Seats, settings: RunSettings) -> None:
        """Seat nobody yet."""
        self._crew, self._seats, self._settings = crew, seats, settings
        self.clients = [Seat(Role.CLIENT, i, make) for i, make in enumerate(seats.clients)]
        self.servers = [Seat(Role.SERVER, i, make) for i, make in enumerate(seats.servers)]
        self.notes: list[Note] = []
        self.start_s: dict[Role, list[float]] = {role: [] for role in Role}
        self._at: dict[int, Seat] = {}
        self._unheld: set[str] = set()

    def seat_of(self, worker: int) -> Seat | None:
        """Return the seat of a worker; None once it was dismissed."""
        return self._at.get(worker)

    def of(self, role: Role) -> list[Seat]:
        """Return the seats of a role."""
        return self.clients if role is Role.CLIENT else self.servers

    def busy(self) -> Iterator[Seat]:
        """Yield the seats whose worker has an order."""
        yield from (seat for seat in (*self.clients, *self.servers) if seat.work is not None)

    def is_gone(self, role: Role) -> bool:
        """True where no seat of a role will ever be filled again."""
        return all(seat.is_closed for seat in self.of(role))

    def fill(self, role: Role) -> None:
        """Hire a worker for each empty seat that is open; one that is held stays empty, since a
        starting worker would disturb what is being measured."""
        for seat in self.of(role):
            if seat.worker is None and not seat.is_closed and not seat.held_by:
                self._hire(seat)

    def _hire(self, seat: Seat) -> None:
        resources = {
            Role.CLIENT: self._seats.client_resources,
            Role.SERVER: self._seats.server_resources,
        }[seat.role]
        seat.hired_s = self._crew.now_s()
        try:
            seat.worker = self._crew.hire(seat.make, label=seat.name, resources=resources)
        except SlicewiseError as err:
            self.close(seat, str(err))
            return
        seat.is_ready = False
        self._at[seat.worker] = seat

    def ready(self, seat: Seat) -> None:
        """Note that its worker has begun."""
        seat.is_ready = True
        self.start_s[seat.role].append(self._crew.now_s() - seat.hired_s)

    def done(self, seat: Seat) -> None:
        """Note that its worker has finished an order."""
        seat.work = None
        seat.losses = 0

    def vacate(self, seat: Seat, reason: str, *, is_alive: bool) -> None:
        """Empty a seat whose worker is lost, or is to be dismissed where it `is_alive`."""
        assert seat.worker is not None
        if is_alive:
            self._crew.dismiss(seat.worker)
        self._empty(seat)
        seat.losses += 1
        seat.reason = reason
        if seat.losses >= self._settings.losses:
            self.close(seat, f"{seat.losses} workers in a row were lost: {reason}")

    def _empty(self, seat: Seat) -> None:
        assert seat.worker is not None
        del self._at[seat.worker]
        seat.worker, seat.is_ready, seat.work = None, False, None

    def close(self, seat: Seat, reason: str) -> None:
        """Fill a seat no more."""
        seat.is_closed, seat.reason = True, reason
        text = f"the run goes on without it: {reason}"
        code = "client-lost" if seat.role is Role.CLIENT else "server-lost"
        self.notes.append(Note(code, text, node=seat.name))

    def reason(self, role: Role) -> str:
        """Return why the seats of a role are empty."""
        told = dict.fromkeys(seat.reason for seat in self.of(role) if seat.reason)
        return "; ".join(told) or "no seat was given"

    # -- holding -----------------------------------------------------------------------------

    def hold_for(self, server: Seat) -> None:
        """Stop the clients on this server's own cores."""
        now = self._crew.now_s()
        wanted = [self.clients[i] for i in self._seats.holds.get(server.index, ())]
        fresh = [seat.worker for seat in wanted if seat.worker is not None and not seat.held_by]
        held = set(self._crew.hold(fresh)) if fresh else set()
        for seat in wanted:
            if not seat.held_by:
                if seat.worker is not None and seat.worker not in held:
                    self._miss(seat, server)
                    continue
                seat.held_since_s = now
            seat.held_by.add(server.index)

    def _miss(self, seat: Seat, server: Seat) -> None:
        if seat.name not in self._unheld:
            self._unheld.add(seat.name)
            text = f"it could not be stopped while {server.name} measured; latencies may be high"
            self.notes.append(Note("client-not-held", text, node=seat.name))

    def release_for(self, server: Seat) -> None:
        """Let the clients go on that were stopped for this server alone."""
        now = self._crew.now_s()
        freed = []
        for seat in self.clients:
            if server.index in seat.held_by:
                if len(seat.held_by) == 1:
                    seat.held_s = seat.stopped_s(now)
                    if seat.worker is not None:
                        freed.append(seat.worker)
                seat.held_by.discard(server.index)
        if freed:
            self._crew.release(freed)

    def release_all(self) -> None:
        """Let everybody go on."""
        for server in self.servers:
            self.release_for(server)

    def dismiss(self, role: Role) -> None:
        """End the workers of a role; nobody was lost by it."""
        for seat in self.of(role):
            if seat.worker is not None:
                self._crew.dismiss(seat.worker)
                self._empty(seat)


def mean(values: Mapping[Role, list[float]], role: Role) -> float:
    """Return the mean of a role's times in s; 0 without any."""
    return sum(values[role]) / len(values[role]) if values[role] else 0.0
