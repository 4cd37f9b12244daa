"""The account of a run: every candidate is counted exactly once, whatever becomes of it.

Knows workloads, pieces and trials; no worker and no clock. A candidate that was handed out is in
flight until it is tried, or given back because nobody came to try it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slicewise.core.notes import Note
from slicewise.core.tuning import (
    Built,
    Piece,
    Proposal,
    SearchOrder,
    Trial,
    TrialOutcome,
    Tuned,
    Workload,
)
from slicewise.tune.records import CurvePoint, RunSettings
from slicewise.tune.schedule import Progress, next_piece, piece_seed

# A workload whose proposals bring nothing new so often in a row has nothing new.
_EMPTY_PROPOSALS = 3
# One whose pieces were given up so often is given up itself.
_LOST_PIECES = 2
# The best of so many workloads of the same kin are hinted at a workload that begins.
_HINTS = 2
_FATAL = frozenset({TrialOutcome.CRASHED, TrialOutcome.TIMED_OUT})


class Ledger:
    """What is known and what is under way, for each workload."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        *,
        known: Sequence[Trial],
        settings: RunSettings,
        keep: Callable[[Trial], None],
        hints: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Take up what is known. `keep` gets each new trial before it counts."""
        self._settings, self._keep, self._hints = settings, keep, hints
        self.standings = {each.key: Progress(each) for each in workloads}
        self.trials: list[Trial] = []
        self.counted = 0  # trials that count towards the budget
        self.repeated = 0  # candidates proposed a second time
        self.curve: list[CurvePoint] = []
        self.notes: list[Note] = []
        self._of: dict[str, list[Trial]] = {key: [] for key in self.standings}
        self._tried: dict[str, set[str]] = {key: set() for key in self.standings}
        self._flying: dict[str, set[str]] = {key: set() for key in self.standings}
        self._fatal: dict[str, set[str]] = {key: set() for key in self.standings}
        self._empty: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._artifacts: dict[str, dict[str, Built]] = {key: {} for key in self.standings}
        self._restarts: set[str] = set()  # workloads whose first piece was lost
        self._take_up(known)
        self.first_number = 1 + max((trial.piece for trial in known), default=-1)
        self._number = self.first_number
        self._mark(0.0)

    def _take_up(self, known: Sequence[Trial]) -> None:
        rounds: dict[str, set[int]] = {key: set() for key in self.standings}
        strange = 0
        for trial in known:
            standing = self.standings.get(trial.workload)
            if standing is None:
                strange += 1
                continue
            self._enter(trial)
            if trial.is_warm and trial.is_ok and trial.latency_ms is not None:
                start = min(standing.start_ms, trial.latency_ms.value)
                closed = not self._settings.is_retuned
                standing = replace(standing, start_ms=start, is_closed=closed)
            elif not trial.is_warm and not trial.is_alone:
                rounds[trial.workload].add(trial.piece)
                standing = standing.tried(trial)
            self.standings[trial.workload] = replace(standing, pieces=len(rounds[trial.workload]))
        self._restarts.update(key for key in rounds if rounds[key] and self._lacks_default(key))
        if strange:
            text = f"{strange} known trials are of workloads that this model lacks; left out"
            self.notes.append(Note("trial-unknown", text))

    def _enter(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._of[trial.workload].append(trial)
        if trial.outcome in _FATAL:
            self._fatal[trial.workload].add(trial.config)
        if not trial.is_alone:
            self._tried[trial.workload].add(trial.config)
            self.counted += not trial.is_warm

    # -- pieces ------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Candidates handed out and not tried yet."""
        return sum(each.in_flight for each in self.standings.values())

    @property
    def left(self) -> int | None:
        """How many candidates may still be handed out; None without a limit."""
        most = self._settings.budget.trials
        return None if most is None else max(0, most - self.counted - self.in_flight)

    def peek(self, client: int, clients: int) -> Piece | None:
        """Return the piece that `client` would get."""
        standings = tuple(
            replace(each, pieces=0) if key in self._restarts else each
            for key, each in self.standings.items()
        )
        return next_piece(
            standings,
            left=self.left,
            piece_size=self._settings.piece_size,
            clients=clients,
            client=client,
            number=self._number,
            seed=self._settings.seed,
        )

    def _lacks_default(self, key: str) -> bool:
        """True where a workload's default was neither tried nor is under way."""
        default = self.standings[key].workload.default_config
        return bool(default) and not self.is_tried(key, default)

    def hand_out(self, piece: Piece, client: int) -> None:
        """Count the candidates of a piece as in flight."""
        standing = self.standings[piece.workload]
        self.standings[piece.workload] = replace(
            standing,
            in_flight=standing.in_flight + piece.size,
            pieces=standing.pieces + 1,
            client=client,
        )
        self._restarts.discard(piece.workload)
        self._number += 1

    def order(self, piece: Piece, announced: frozenset[str]) -> SearchOrder:
        """Return the order for a piece. `announced` are candidates that others are building."""
        key = piece.workload
        known = tuple(
            replace(trial, samples_ms=(), notes=())  # a search has no use for them
            for trial in self._of[key]
            if not trial.is_alone
        )
        avoid = frozenset(self._fatal[key] | self._flying[key] | announced)
        return SearchOrder(piece, known, avoid, self._hints_for(key) if not known else ())

    def _hints_for(self, key: str) -> tuple[str, ...]:
        """Return what was best on workloads of the same kin: in the store, and in this run."""
        kin = self.standings[key].workload.kin
        near = sorted(
            (
                standing
                for other, standing in self.standings.items()
                if kin and other != key and standing.workload.kin == kin
            ),
            key=lambda standing: -standing.trials,
        )
        found = [self.winner(standing.workload.key) for standing in near]
        own = [trial.config for trial in found if trial is not None][:_HINTS]
        return tuple(dict.fromkeys((*self._hints.get(key, ()), *own)))

    def rebuild_orders(self) -> tuple[SearchOrder, ...]:
        """Return orders to build again the finalists whose artifact is gone."""
        orders = []
        for key in self.standings:
            gone = tuple(c for c in self.finalists(key) if c not in self._artifacts[key])
            if gone:
                standing = self.standings[key]
                seed = piece_seed(self._settings.seed, key, standing.pieces)
                piece = Piece(self._number, key, standing.pieces, len(gone), seed)
                self._number += 1
                orders.append(SearchOrder(piece, rebuild=gone))
        return tuple(orders)

    def give_back(self, key: str, candidates: int) -> None:
        """Take candidates that nobody will try out of flight."""
        standing = self.standings[key]
        assert standing.in_flight >= candidates, (key, standing.in_flight, candidates)
        self.standings[key] = replace(standing, in_flight=standing.in_flight - candidates)

    def lose(self, piece: Piece, reason: str) -> None:
        """Give a piece up for good, and its workload where that happened too often.

        Where it was the first one, with the default in it, the next is a first one again.
        """
        if piece.round == 0 and self._lacks_default(piece.workload):
            self._restarts.add(piece.workload)
        self.give_back(piece.workload, piece.size)
        self._lost[piece.workload] += 1
        if self._lost[piece.workload] >= _LOST_PIECES:
            name = self.standings[piece.workload].workload.name
            text = f"{_LOST_PIECES} pieces of it were lost with their clients: {reason}"
            self.close(piece.workload, Note("workload-given-up", text, node=name))

    def close(self, key: str, note: Note | None = None) -> None:
        """Hand out no further piece of a workload."""
        if not self.standings[key].is_closed:
            self.standings[key] = replace(self.standings[key], is_closed=True)
            if note is not None:
                self.notes.append(note)

    # -- candidates --------------------------------------------------------------------------

    def accept(self, piece: Piece, proposal: Proposal) -> tuple[tuple[Built, ...], list[Trial]]:
        """Return the candidates to measure and the trials that failed, of a proposal for `piece`.

        What is there already, belongs elsewhere or is more than asked is left out; what the
        proposal has less than the piece is given back.
        """
        key = piece.workload
        room = piece.size
        failed: list[Trial] = []
        built: list[Built] = []
        there = self._tried[key] | self._flying[key]
        candidates: list[Built | Trial] = [*proposal.failed, *proposal.built]
        for each in candidates:
            if each.workload != key or each.config in there or room == 0:
                self.repeated += 1
                continue
            there.add(each.config)
            room -= 1
            if isinstance(each, Built):
                built.append(each)
            else:
                failed.append(each)
        self._flying[key].update(each.config for each in built)
        self.give_back(key, room)
        self._notice(key, proposal, is_empty=room == piece.size)
        return tuple(built), failed

    def _notice(self, key: str, proposal: Proposal, *, is_empty: bool) -> None:
        """Close a workload that has no further candidate, or says none again and again."""
        self._empty[key] = self._empty[key] + 1 if is_empty else 0
        is_searched = self.standings[key].in_flight > 0
        if proposal.is_exhausted:
            self.close(key)
        elif self._empty[key] >= _EMPTY_PROPOSALS and not is_searched:
            name = self.standings[key].workload.name
            text = f"{_EMPTY_PROPOSALS} searches in a row found nothing new; ended"
            self.close(key, Note("workload-spent", text, node=name))

    def record(self, trial: Trial, built: Built | None = None) -> None:
        """Keep a trial, then count it. `built` is what was run."""
        key = trial.workload
        is_new = not trial.is_alone
        assert not (is_new and trial.config in self._tried[key]), trial
        self._keep(trial)
        self._enter(trial)
        if is_new:
            self._flying[key].discard(trial.config)
            standing = self.standings[key]
            assert standing.in_flight > 0, trial
            standing = replace(standing, in_flight=standing.in_flight - 1)
            self.standings[key] = standing.tried(trial)
            self._hold_artifact(key, built)
            self._mark(trial.at_s)

    def is_tried(self, key: str, config: str) -> bool:
        """True where a candidate has its trial, or waits for it."""
        return config in self._tried[key] or config in self._flying[key]

    def hold_artifact(self, built: Built) -> None:
        """Keep what was built for a finalist."""
        self._artifacts[built.workload][built.config] = built

    def _hold_artifact(self, key: str, built: Built | None) -> None:
        """Keep the artifacts of those that would be finalists now, and no others."""
        if built is not None:
            self._artifacts[key][built.config] = built
        wanted = set(self.finalists(key))
        held = self._artifacts[key]
        self._artifacts[key] = {c: held[c] for c in held if c in wanted}

    def _mark(self, at_s: float) -> None:
        total = self.total_ms()
        if not self.curve or self.curve[-1].total_ms != total:
            self.curve.append(CurvePoint(at_s, self.counted, total))

    # -- what is best ------------------------------------------------------------------------

    def total_ms(self, *, is_alone: bool = False) -> float:
        """Return the sum over the workloads of count x best latency in ms."""
        if not is_alone:
            each = self.standings.values()
            return sum(one.workload.count * one.expected_ms for one in each)
        total = 0.0
        for key, standing in self.standings.items():
            best = self.winner(key)
            value = best.latency_ms.value if best and best.latency_ms else standing.expected_ms
            total += standing.workload.count * value
        return total

    def finalists(self, key: str) -> tuple[str, ...]:
        """Return the configurations to be measured alone still: the best, and the default."""
        if self.standings[key].trials == 0 or self._settings.finalists == 0:
            return ()  # known from the store, nothing ever ran, or not asked for
        best: dict[str, float] = {}
        for trial in self._of[key]:
            if trial.is_ok and not trial.is_alone and trial.latency_ms is not None:
                best[trial.config] = min(best.get(trial.config, math.inf), trial.latency_ms.value)
        order = sorted(best, key=lambda config: best[config])  # stable: ties to the first
        chosen = order[: self._settings.finalists]
        default = self.standings[key].workload.default_config
        if default in best and default not in chosen:
            chosen.append(default)
        done = {trial.config for trial in self._of[key] if trial.is_alone}
        return tuple(config for config in chosen if config not in done)

    def finalist_batches(self) -> tuple[tuple[Built, ...], ...]:
        """Return what is to be measured alone, a batch for each workload, the heaviest first."""
        keys = sorted(self.standings, key=lambda key: -self.standings[key].workload.weight_ms)
        batches = (
            tuple(
                self._artifacts[key][c] for c in self.finalists(key) if c in self._artifacts[key]
            )
            for key in keys
        )
        return tuple(batch for batch in batches if batch)

    def winner(self, key: str) -> Trial | None:
        """Return the best trial of a workload: by those measured alone where there are any.

        A candidate that failed when it was measured alone has lost.
        """
        failed = {t.config for t in self._of[key] if t.is_alone and not t.is_ok}
        good = [t for t in self._of[key] if t.is_ok and t.config not in failed]
        alone = [t for t in good if t.is_alone]
        return min(alone or good, key=_latency, default=None)

    def best(self) -> dict[str, Tuned]:
        """Return the best configuration of each workload that has one."""
        found: dict[str, Tuned] = {}
        for key, standing in self.standings.items():
            won = self.winner(key)
            if won is None or won.latency_ms is None:
                continue
            default = self._default_ms(key)
            found[key] = Tuned(
                standing.workload, won.config, won.latency_ms, trials=standing.trials,
                default_ms=default, is_from_store=won.is_warm,
            )  # fmt: skip
        return found

    def _default_ms(self, key: str) -> float | None:
        config = self.standings[key].workload.default_config
        of_it = [t for t in self._of[key] if config and t.config == config and t.is_ok]
        alone = [t for t in of_it if t.is_alone]
        best = min(alone or of_it, key=_latency, default=None)
        return None if best is None else _latency(best)


def _latency(trial: Trial) -> float:
    return math.inf if trial.latency_ms is None else trial.latency_ms.value
