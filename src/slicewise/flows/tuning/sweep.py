"""The sweep behind a matrix: candidates proposed once, measured at every share by turns.

One client, one server for each share, one order at a time: nothing measured has a neighbour.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.core.crew import AnswerKind, Crew, MakeHandler
from slicewise.core.errors import TuningError
from slicewise.core.notes import Note, unique_notes
from slicewise.core.share import Share
from slicewise.core.tuning import (
    Built,
    Measured,
    MeasureOrder,
    Piece,
    Prepared,
    Proposal,
    SearchOrder,
    Trial,
    Workload,
)
from slicewise.flows.tuning.options import INLINE, TuneOptions
from slicewise.flows.tuning.workers import client_maker, server_maker

# A client that proposes nothing new so often has no more to propose.
_DRY = 3
# Candidates of one order.
_BATCH = 8


@dataclass(frozen=True, slots=True)
class AtShare:
    """The task as it was taken up for one share, and the share."""

    prepared: Prepared
    share: Share | None


class Sweep:
    """Candidates and their samples. Shares are ascending; keys of workloads are those at the
    largest share."""

    def __init__(
        self,
        crew: Crew,
        at: Mapping[str, AtShare],
        *,
        options: TuneOptions,
        place: str,
        progress: Callable[[str], None] | None,
    ) -> None:
        """Take up the shares, whose names are the keys of `at`; start nothing."""
        self._crew, self._at, self._options, self._place = crew, at, options, place
        self._progress = progress
        self.shares = tuple(at)
        self._keys = {name: self._keys_at(name) for name in self.shares}
        self.workloads = self._common()
        self.chosen: dict[str, list[Built]] = {}
        # workload -> share -> configuration -> samples in ms
        self.samples: dict[str, dict[str, dict[str, list[float]]]] = {}
        self._lost: set[tuple[str, str]] = set()
        self.notes: tuple[Note, ...] = ()
        self.search_s = self.build_s = self.measure_s = 0.0

    # -- which workload is which ---------------------------------------------------------------

    def _common(self) -> tuple[Workload, ...]:
        """Return the workloads that there are at every share."""
        largest = self._at[self.shares[-1]].prepared.workloads
        return tuple(
            each for each in largest if all(each.key in here for here in self._keys.values())
        )

    def _keys_at(self, name: str) -> dict[str, str]:
        """Return the keys at a share by those at the largest one."""
        own = _told_apart(self._at[name].prepared)
        its = _told_apart(self._at[self.shares[-1]].prepared)
        return {its[told].key: own[told].key for told in its if told in own}

    # -- candidates ------------------------------------------------------------------------------

    def propose(self) -> None:
        """Choose the candidates: what is proposed for the largest share and for the smallest, by
        turns, `options.candidates` of each workload."""
        first, second = (self._proposed(name) for name in (self.shares[-1], self.shares[0]))
        limit = self._options.candidates
        self.chosen = {key: by_turns(first[key], second[key])[:limit] for key in first}

    def _proposed(self, name: str) -> dict[str, list[Built]]:
        maker = client_maker(self._options.engine, self._at[name].prepared.problem, None)
        client = self._hired(maker, label="client")
        found: dict[str, list[Built]] = {}
        for number, workload in enumerate(self.workloads):
            self._say(f"candidates for {workload.name}, {number + 1} of {len(self.workloads)}")
            key = self._keys[name][workload.key]
            own: dict[str, Built] = {}
            avoid: set[str] = set()
            dry = 0
            while len(own) < self._options.candidates and dry < _DRY:
                size = min(_BATCH, self._options.candidates - len(own))
                piece = Piece(number, key, len(own), size, self._options.seed + len(own))
                known = tuple(Trial(key, config) for config in own)
                answer, last = self._ask(client, SearchOrder(piece, known, frozenset(avoid)))
                if answer is None:  # it died: go on with another one, without what killed it
                    avoid.add(last)
                    dry += 1
                    client = self._hired(maker, label="client")
                    continue
                assert isinstance(answer, Proposal)
                self._spent(answer)
                avoid |= {trial.config for trial in answer.failed}
                fresh = [each for each in answer.built if each.config not in own]
                own.update({each.config: each for each in fresh})
                dry = 0 if fresh else dry + 1
                if answer.is_exhausted:
                    break
            found[workload.key] = [replace(each, workload=workload.key) for each in own.values()]
        self._crew.dismiss(client)
        return found

    def _spent(self, answer: Proposal) -> None:
        self.search_s += answer.search_s
        self.build_s += answer.build_s
        self.notes = unique_notes((*self.notes, *answer.notes))

    # -- samples ---------------------------------------------------------------------------------

    def measure(self, *, rounds: int) -> None:
        """Measure every candidate at every share, `rounds` times; forget what failed at one."""
        makers = {name: self._server(name) for name in self.shares}
        servers = {name: self._hired(makers[name], label=f"server {name}") for name in makers}
        for number in range(rounds):
            for name in self.shares:
                self._say(f"measuring at {name}, round {number + 1} of {rounds}")
                waiting = [b for each in self.chosen.values() for b in each if self._is_able(b)]
                for start in range(0, len(waiting), _BATCH):
                    batch = waiting[start : start + _BATCH]
                    if not self._measured(servers[name], name, batch):
                        servers[name] = self._hired(makers[name], label=f"server {name}")
        for workload, config in self._lost:
            for found in self.samples.get(workload, {}).values():
                found.pop(config, None)

    def _server(self, name: str) -> MakeHandler:
        here = self._at[name]
        share = None if self._options.executor == INLINE else here.share
        return server_maker(self._options.engine, here.prepared.problem, self._place, share)

    def _is_able(self, built: Built) -> bool:
        return (built.workload, built.config) not in self._lost

    def _measured(self, server: int, name: str, batch: Sequence[Built]) -> bool:
        """Take the samples of a batch; False where the server died of one of them."""
        keys = self._keys[name]
        its = tuple(replace(built, workload=keys[built.workload]) for built in batch)
        answer, last = self._ask(server, MeasureOrder(its, is_alone=True))
        if answer is None:
            self._lost |= {(b.workload, b.config) for b in batch if b.config == last}
            return False
        assert isinstance(answer, Measured)
        self.measure_s += answer.measure_s
        self.notes = unique_notes((*self.notes, *answer.notes))
        for built, trial in zip(batch, answer.trials, strict=True):
            if not trial.is_ok:
                self._lost.add((built.workload, built.config))
                continue
            found = self.samples.setdefault(built.workload, {}).setdefault(name, {})
            found.setdefault(built.config, []).extend(trial.samples_ms)
        return True

    def able(self) -> tuple[Workload, ...]:
        """Return the workloads of which a candidate ran at every share."""
        return tuple(each for each in self.workloads if self._has_all(each.key))

    def _has_all(self, key: str) -> bool:
        found = self.samples.get(key, {})
        if not all(name in found for name in self.shares):
            return False
        return bool(set.intersection(*(set(found[name]) for name in self.shares)))

    def left_out(self) -> tuple[Note, ...]:
        """Return what counts nowhere: workloads and candidates that did not run everywhere."""
        keys = {each.key for each in self.able()}
        notes = [
            Note("tune-workload-left-out", f"no candidate of {each.name} ran at every share")
            for each in self.workloads
            if each.key not in keys
        ]
        if self._lost:
            text = f"{len(self._lost)} candidates did not run at every share and count nowhere"
            notes.append(Note("tune-candidates-failed", text))
        return tuple(notes)

    # -- workers ---------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)

    def _hired(self, maker: MakeHandler, *, label: str) -> int:
        """Return a worker that is ready; the error of one that cannot be made is raised."""
        worker = self._crew.hire(maker, label=label)
        while True:
            for answer in self._crew.wait():
                if answer.worker == worker:
                    if answer.kind is AnswerKind.READY:
                        return worker
                    raise answer.error or TuningError(f"the {label} could not start")

    def _ask(self, worker: int, order: object) -> tuple[object | None, str]:
        """Return the answer to an order and the configuration told last; None where the worker
        died. An error of the order is raised."""
        self._crew.give(worker, order)
        last = ""
        while True:
            for answer in self._crew.wait():
                if answer.worker != worker:
                    continue
                if answer.kind is AnswerKind.STEP:
                    last = getattr(answer.value, "config", last)
                elif answer.kind is AnswerKind.DONE:
                    return answer.value, last
                elif answer.kind is AnswerKind.LOST:
                    return None, last
                elif answer.error is not None:
                    raise answer.error


def by_turns(first: Sequence[Built], second: Sequence[Built]) -> list[Built]:
    """Return the candidates of both by turns, none twice.

    >>> [b.config for b in by_turns([Built("w", c) for c in "ab"], [Built("w", c) for c in "bcd"])]
    ['a', 'b', 'c', 'd']
    """
    found: dict[str, Built] = {}
    for place in range(max(len(first), len(second))):
        for each in (*first[place : place + 1], *second[place : place + 1]):
            found.setdefault(each.config, each)
    return list(found.values())


def _told_apart(prepared: Prepared) -> dict[tuple[str, int], Workload]:
    """Return the workloads by name and how many of that name come before.

    Not by key: an engine whose candidates depend on the share may have the share in its keys.
    """
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Workload] = {}
    for each in sorted(prepared.workloads, key=lambda workload: workload.nodes):
        found[each.name, seen[each.name]] = each
        seen[each.name] += 1
    return found
