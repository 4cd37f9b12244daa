"""A run of tuning: who does what when, until the budget is used up and the finalists are measured.

Clients search and build, servers measure, and neither waits for the other: a client gets its next
piece as soon as it has handed in the last, with what is known by then. Every trial is kept before
it counts. A worker that is lost or hangs costs its candidate at hand: that one gets a trial that
says so, the rest of the piece goes on elsewhere. Starts no process (the crew does) and knows no
engine.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from slicewise.core.crew import Answer, AnswerKind, Crew
from slicewise.core.errors import TuningError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.tuning import (
    Building,
    Built,
    Measured,
    MeasureOrder,
    Phases,
    Piece,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
    Workload,
)
from slicewise.tune.ledger import Ledger
from slicewise.tune.outlook import Forecast, outlook
from slicewise.tune.pace import Pace
from slicewise.tune.records import CurvePoint, PieceRecord, RunResult, RunSettings, Seats
from slicewise.tune.seating import Role, Seat, Seating, mean
from slicewise.tune.watch import Batch, Measuring, Searching, due_s

__all__ = [
    "CurvePoint", "Forecast", "PieceRecord", "RunResult", "RunSettings", "Seats", "outlook",
    "run_tuning",
]  # fmt: skip

_NO_TRIAL = "the server gave no trial for it"
Keep = Callable[[Trial], None]
Say = Callable[[str], None]


def run_tuning(
    crew: Crew,
    workloads: Sequence[Workload],
    seats: Seats,
    *,
    settings: RunSettings,
    keep: Keep,
    known: Sequence[Trial] = (),
    hints: Mapping[str, tuple[str, ...]] | None = None,
    progress: Say | None = None,
) -> RunResult:
    """Tune the workloads with the workers of `seats` and return what was found.

    `known` trials count towards the budget and are not repeated; those that are `is_warm` come
    from the store and settle their workload. `hints` are configurations to try early, by
    workload. `keep` gets each new trial once, before it counts. The crew is closed by whoever
    opened it. `TuningError` once no client or no server is left to go on with; Ctrl-C comes
    through; in both cases all trials were kept.
    """
    run = _Run(crew, workloads, seats, settings, keep, known, hints or {}, progress)
    try:
        run.search()
        run.confirm()
    finally:
        run.seating.release_all()
    return run.result()


class _Stage(Enum):
    SEARCH = auto()
    REBUILD = auto()  # finalists whose artifact is gone
    ALONE = auto()  # finalists are measured with nobody beside them


class _Run:
    """The loop: hand out, wait, take in."""

    def __init__(
        self,
        crew: Crew,
        workloads: Sequence[Workload],
        seats: Seats,
        settings: RunSettings,
        keep: Keep,
        known: Sequence[Trial],
        hints: Mapping[str, tuple[str, ...]],
        progress: Say | None,
    ) -> None:
        self._crew, self._seats, self._settings, self._say = crew, seats, settings, progress
        self.seating = Seating(crew, seats, settings)
        self._ledger = Ledger(workloads, known=known, settings=settings, keep=keep, hints=hints)
        self._began_s = crew.now_s()
        self._pace = Pace(settings, servers=len(seats.servers))
        self._stage = _Stage.SEARCH
        self._waiting: deque[Batch] = deque()
        self._again: deque[tuple[SearchOrder, int]] = deque()  # orders and their attempts
        self._pieces: dict[int, PieceRecord] = {}
        self._measure_s = 0.0
        self._notes: list[Note] = []

    # -- stages ------------------------------------------------------------------------------

    def search(self) -> None:
        """Search until the budget is used up, or nothing is left to try."""
        self._turn_until_done()
        if self._ledger.repeated:
            text = f"{self._ledger.repeated} candidates were proposed a second time; tried once"
            self._notes.append(Note("candidate-repeated", text))

    def confirm(self) -> None:
        """Measure the finalists again, with nobody beside them."""
        self._again.extend((order, 0) for order in self._ledger.rebuild_orders())
        if self._again:
            self._stage = _Stage.REBUILD
            self._turn_until_done()
        self._stage = _Stage.ALONE
        batches = self._ledger.finalist_batches()
        self._waiting.extend(Batch(each, -1, -1, is_alone=True) for each in batches)
        if self._waiting:
            self._tell(f"measuring {sum(map(len, batches))} finalists alone")
            self.seating.dismiss(Role.CLIENT)
            self._turn_until_done()

    def result(self) -> RunResult:
        """Return what was found."""
        ledger = self._ledger
        pieces = tuple(self._pieces[number] for number in sorted(self._pieces))
        phases = Phases(
            search_s=sum(piece.search_s for piece in pieces),
            build_s=sum(piece.build_s for piece in pieces),
            measure_s=self._measure_s,
            wall_s=self._now(),
            servers=len(self._seats.servers),
            clients=len(self._seats.clients),
        )
        notes = (*ledger.notes, *self.seating.notes, *self._notes)
        return RunResult(
            trials=tuple(ledger.trials),
            best=ledger.best(),
            phases=phases,
            curve=(*ledger.curve, self._last_point()),
            pieces=pieces,
            client_start_s=mean(self.seating.start_s, Role.CLIENT),
            server_start_s=mean(self.seating.start_s, Role.SERVER),
            notes=unique_notes(notes),
        )

    def _last_point(self) -> CurvePoint:
        is_alone = any(trial.is_alone for trial in self._ledger.trials)
        total = self._ledger.total_ms(is_alone=is_alone)
        return CurvePoint(self._now(), self._ledger.counted, total, is_alone)

    def _turn_until_done(self) -> None:
        while self._has_work():
            self._hire()
            self._give()
            if not any(self.seating.busy()) and not self._is_anyone_starting():
                if not self._has_work():
                    return
                self._give_up()
                return
            for answer in self._crew.wait(timeout_s=self._patience_s()):
                self._take(answer)
            self._end_overdue()

    def _has_work(self) -> bool:
        if self._waiting or self._again or any(self.seating.busy()):
            return True
        return self._stage is _Stage.SEARCH and self._next_piece(0) is not None

    def _give_up(self) -> None:
        """Say that nobody is left to go on; the finalists may stay unconfirmed."""
        role = Role.SERVER if self.seating.is_gone(Role.SERVER) else Role.CLIENT
        reason = self.seating.reason(role)
        if self._stage is _Stage.SEARCH:
            if not self._ledger.counted:
                raise TuningError(f"no {role} is left to begin with: {reason}")
            raise TuningError(
                f"no {role} is left to go on with after {self._ledger.counted} trials:"
                f" {reason}; all of them are kept, cure this and resume"
            )
        left = len(self._again) + sum(len(batch.built) for batch in self._waiting)
        text = f"{left} finalists could not be measured alone: {reason}"
        self._notes.append(Note("finalists-unconfirmed", text))
        self._again.clear()
        self._waiting.clear()

    # -- handing out -------------------------------------------------------------------------

    def _is_anyone_starting(self) -> bool:
        needed = self.seating.of(Role.SERVER)
        if self._stage is not _Stage.ALONE:
            needed = [*needed, *self.seating.of(Role.CLIENT)]
        return any(seat.is_starting for seat in needed)

    def _hire(self) -> None:
        if self._stage is not _Stage.ALONE:
            self.seating.fill(Role.CLIENT)
        if self._stage is not _Stage.REBUILD:
            self.seating.fill(Role.SERVER)

    def _give(self) -> None:
        # servers first: what they hold must not be given a piece just before
        for seat in self.seating.servers:
            if seat.is_free and self._waiting and self._may_measure(seat):
                self._give_batch(seat, self._waiting.popleft())
        for seat in self.seating.clients:
            if seat.is_free:
                self._give_piece(seat)

    def _may_measure(self, server: Seat) -> bool:
        """True unless a finalist would have a neighbour on its device."""
        device = self._seats.device_of(server.index)
        return self._stage is not _Stage.ALONE or not any(
            other.work is not None and self._seats.device_of(other.index) == device
            for other in self.seating.servers
        )

    def _give_batch(self, seat: Seat, batch: Batch) -> None:
        assert seat.worker is not None
        self.seating.hold_for(seat)
        seat.work = Measuring(batch, began_s=self._crew.now_s())
        order = MeasureOrder(batch.built, piece=batch.piece, is_alone=batch.is_alone)
        self._crew.give(seat.worker, order)

    def _give_piece(self, seat: Seat) -> None:
        assert seat.worker is not None
        self._drop_late()
        if self._again:
            order, attempt = self._again.popleft()
            if not order.rebuild:
                order = self._ledger.order(order.piece, self._announced(order.piece.workload))
        else:
            piece = None if self._is_behind() else self._next_piece(seat.index)
            if piece is None:
                return
            self._ledger.hand_out(piece, seat.index)
            order = self._ledger.order(piece, self._announced(piece.workload))
            attempt = 0
        now = self._crew.now_s()
        seat.work = Searching(order, attempt, began_s=now, stopped_s=seat.stopped_s(now))
        self._crew.give(seat.worker, order)

    def _drop_late(self) -> None:
        """Take back pieces that would be searched a second time when the time is up."""
        if self._stage is _Stage.SEARCH and self._again and not self._has_time():
            for order, _ in self._again:
                self._ledger.give_back(order.piece.workload, order.piece.size)
            self._again.clear()

    def _is_behind(self) -> bool:
        """True where enough is under way for the servers, or none of them is left.

        A constant amount of work (Spearman, Woodruff and Hopp, Int. J. Production Research 28,
        1990): what the servers need to stay busy until new pieces come, and a few that wait.
        More would be searched with older knowledge and gain no time.
        """
        if self.seating.is_gone(Role.SERVER):
            return True
        servers, backlog = len(self._seats.servers), self._settings.backlog
        if len(self._waiting) < backlog * servers:
            return False
        under_way = len(self._waiting) + sum(1 for _ in self.seating.busy())
        fed_by = min(servers * self._pace.pieces_to_feed, len(self._seats.clients))
        return under_way >= fed_by + servers * (1 + backlog)

    def _next_piece(self, client: int) -> Piece | None:
        if self._stage is not _Stage.SEARCH or not self._has_time():
            return None
        clients = sum(not seat.is_closed for seat in self.seating.clients)
        return self._ledger.peek(client, max(1, clients))

    def _has_time(self) -> bool:
        limit = self._settings.budget.seconds
        if limit is None:
            return True
        waiting = sum(len(batch.built) for batch in self._waiting)
        finalists = sum(len(self._ledger.finalists(key)) for key in self._ledger.standings)
        devices = len(set(self._seats.devices) or {0})
        return self._now() + self._pace.rest_s(waiting, finalists, devices) <= limit

    def _announced(self, workload: str) -> frozenset[str]:
        """Return the candidates of a workload that clients are building now."""
        return frozenset(
            seat.work.config
            for seat in self.seating.clients
            if isinstance(seat.work, Searching)
            and seat.work.config is not None
            and seat.work.order.piece.workload == workload
        )

    # -- taking in ---------------------------------------------------------------------------

    def _take(self, answer: Answer) -> None:
        seat = self.seating.seat_of(answer.worker)
        if seat is None:
            return
        if answer.kind is AnswerKind.READY:
            self.seating.ready(seat)
        elif answer.kind is AnswerKind.STEP:
            self._step(seat, answer.value)
        elif answer.kind is AnswerKind.LOST:
            self._lose(seat, TrialOutcome.CRASHED, str(answer.error or "lost"), is_alive=False)
        elif answer.kind is AnswerKind.FAILED:
            self._fail(seat, str(answer.error or "failed"))
        elif isinstance(seat.work, Searching) and isinstance(answer.value, Proposal):
            self._proposed(seat, seat.work, answer.value)
        elif isinstance(seat.work, Measuring) and isinstance(answer.value, Measured):
            self._measured(seat, seat.work, answer.value)
        else:
            self._fail(seat, f"it answered with a {type(answer.value).__name__}")

    def _step(self, seat: Seat, step: object) -> None:
        if isinstance(step, Building) and isinstance(seat.work, Searching | Measuring):
            seat.work.config = step.config
            now = self._crew.now_s()
            stopped = seat.stopped_s(now) if seat.role is Role.CLIENT else 0.0
            seat.work.config_s = now - stopped

    def _fail(self, seat: Seat, error: str) -> None:
        """Take in that a worker could not do what it was told; one that could never begin has no
        successor, since that would fail in the same way."""
        if not seat.is_ready:
            self.seating.vacate(seat, error, is_alive=True)
            if not seat.is_closed:
                self.seating.close(seat, error)
            return
        work = seat.work
        if isinstance(work, Searching):
            self.seating.done(seat)
            self._spoilt_piece(work, seat.index, TrialOutcome.BUILD_FAILED, error)
        elif isinstance(work, Measuring):
            self._stop_measuring(seat)
            self._spoilt_batch(work, seat.index, TrialOutcome.REFUSED, error)

    def _lose(self, seat: Seat, outcome: TrialOutcome, reason: str, *, is_alive: bool) -> None:
        """Take in that a worker is gone; what it was at is blamed, what is left goes on."""
        work = seat.work
        if isinstance(work, Measuring):
            self.seating.release_for(seat)
        self.seating.vacate(seat, reason, is_alive=is_alive)
        if isinstance(work, Searching):
            self._spoilt_piece(work, seat.index, outcome, reason)
        elif isinstance(work, Measuring):
            self._spoilt_batch(work, seat.index, outcome, reason)

    def _spoilt_piece(
        self, work: Searching, client: int, outcome: TrialOutcome, reason: str
    ) -> None:
        order, piece = work.order, work.order.piece
        if order.rebuild:
            left = tuple(config for config in order.rebuild if config != work.config)
            order = replace(order, piece=replace(piece, size=len(left)), rebuild=left)
        elif work.config is not None and not self._ledger.is_tried(piece.workload, work.config):
            trial = Trial(
                piece.workload, work.config, outcome, error=reason, piece=piece.number,
                client=client, at_s=self._now(),
            )  # fmt: skip
            self._ledger.record(trial)
            order = replace(order, piece=replace(piece, size=piece.size - 1))
        if order.piece.size == 0:
            return
        if work.attempt + 1 < self._settings.attempts:
            self._again.append((order, work.attempt + 1))
        elif not order.rebuild:
            self._ledger.lose(order.piece, reason)
        else:
            text = f"{order.piece.size} finalists could not be built again: {reason}"
            self._notes.append(Note("finalists-unconfirmed", text))

    def _spoilt_batch(
        self, work: Measuring, server: int, outcome: TrialOutcome, reason: str
    ) -> None:
        batch = work.batch
        blamed = [built for built in batch.built if built.config == work.config]
        attempt = batch.attempt + (not blamed)
        if attempt >= self._settings.attempts:
            blamed = list(batch.built)
        for built in blamed:
            failed = Trial(built.workload, built.config, outcome, error=reason)
            self._record(failed, built, batch, server)
        rest = tuple(built for built in batch.built if built not in blamed)
        if rest:
            self._waiting.appendleft(replace(batch, built=rest, attempt=attempt))

    def _proposed(self, seat: Seat, work: Searching, proposal: Proposal) -> None:
        self.seating.done(seat)
        self._notes.extend(proposal.notes)
        if work.order.rebuild:
            for each in proposal.built:
                if each.config in work.order.rebuild:
                    self._ledger.hold_artifact(each)
            return
        piece, now = work.order.piece, self._now()
        proposal = _own_time(proposal, self._crew.now_s() - work.began_s, self._held_s(seat, work))
        built, failed = self._ledger.accept(piece, proposal)
        self._pieces[piece.number] = PieceRecord(
            piece.number, piece.workload, len(built) + len(failed), seat.index,
            proposal.search_s, proposal.build_s, began_s=work.began_s - self._began_s,
            ended_s=now, held_s=self._held_s(seat, work),
        )  # fmt: skip
        self._pace.proposed(self._crew.now_s() - work.began_s, len(built))
        for trial in failed:
            told = replace(trial, piece=piece.number, client=seat.index, at_s=now)
            self._ledger.record(told)
        if built:
            self._waiting.append(Batch(built, piece.number, seat.index))

    def _held_s(self, seat: Seat, work: Searching) -> float:
        return seat.stopped_s(self._crew.now_s()) - work.stopped_s

    def _measured(self, seat: Seat, work: Measuring, measured: Measured) -> None:
        self._stop_measuring(seat)
        batch = work.batch
        self._notes.extend(measured.notes)
        self._measure_s += measured.measure_s
        if batch.piece in self._pieces and not batch.is_alone:
            piece = self._pieces[batch.piece]
            spent = piece.measure_s + measured.measure_s
            self._pieces[batch.piece] = replace(piece, measure_s=spent)
        self._pace.measured(measured.measure_s, len(batch.built), is_alone=batch.is_alone)
        told = {trial.config: trial for trial in measured.trials}
        for built in batch.built:
            missing = Trial(built.workload, built.config, TrialOutcome.REFUSED, error=_NO_TRIAL)
            self._record(told.get(built.config, missing), built, batch, seat.index)
        self._tell(self._standing())

    def _stop_measuring(self, seat: Seat) -> None:
        self.seating.done(seat)
        self.seating.release_for(seat)

    def _record(self, trial: Trial, built: Built, batch: Batch, server: int) -> None:
        told = replace(
            trial, workload=built.workload, piece=batch.piece, client=batch.client,
            server=server, build_s=built.build_s, at_s=self._now(), is_alone=batch.is_alone,
            is_warm=False,
        )  # fmt: skip
        self._ledger.record(told, built)

    # -- time --------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the time since the run began in s."""
        return self._crew.now_s() - self._began_s

    def _dues(self) -> list[tuple[float, Seat]]:
        now, settings = self._crew.now_s(), self._settings
        seats = [*self.seating.clients, *self.seating.servers]
        dues = ((due_s(seat, settings, now_s=now), seat) for seat in seats)
        return [(due, seat) for due, seat in dues if due is not None]

    def _patience_s(self) -> float | None:
        dues = [due for due, _ in self._dues()]
        return max(0.0, min(dues) - self._crew.now_s()) if dues else None

    def _end_overdue(self) -> None:
        for due, seat in self._dues():
            if due <= self._crew.now_s():
                what = "did not begin" if seat.is_starting else "did not answer"
                reason = f"{seat.name} {what} in time and was ended"
                self._lose(seat, TrialOutcome.TIMED_OUT, reason, is_alive=True)

    # -- words -------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(text)

    def _standing(self) -> str:
        ledger = self._ledger
        most = self._settings.budget.trials
        of = "" if most is None else f" of {most}"
        total = ledger.total_ms(is_alone=self._stage is _Stage.ALONE)
        began = ledger.curve[0].total_ms
        return f"{ledger.counted}{of} trials, {total:.3g} ms ({began:.3g} ms at first)"


def _own_time(proposal: Proposal, elapsed_s: float, held_s: float) -> Proposal:
    """Return the proposal without the time that its client was held: its own clock went on."""
    own = max(0.0, elapsed_s - held_s)
    if held_s <= 0 or proposal.seconds <= own:
        return proposal
    part = own / proposal.seconds
    return replace(proposal, search_s=proposal.search_s * part, build_s=proposal.build_s * part)
