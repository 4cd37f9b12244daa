"""Cards filled one workload after another, guided by prices; and ruin and recreate around it.

The built-in search: it needs no solver, gives the first answer of every search, and the only one
where ortools is absent. No bound is made here.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slicewise.slices.packing.material import SHARE, Ints, Material, Option
from slicewise.slices.packing.patterns import Patterns, Pick, cost_of
from slicewise.slices.packing.prices import Floats

_TRIED = 6  # patterns of a workload that are tried, the cheapest at the prices
_TRIED_MORE = 40  # until one has room, if none of those has
_BULK = 32  # cards' worth of equal slices that are placed one by one; more go by whole cards


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer in numbers: each workload's pattern (None: left over), and the layouts used.

    `cards` names for each card that is used its kind and the row of its layout.
    """

    picks: tuple[Pick | None, ...]
    cards: tuple[tuple[int, int], ...]
    cost: int

    @property
    def left_over(self) -> int:
        """The number of workloads without a pattern."""
        return sum(each is None for each in self.picks)

    @property
    def rank(self) -> tuple[int, int]:
        """What makes an answer better: fewer left over, then a lower cost."""
        return self.left_over, self.cost


def judged(
    material: Material, picks: Sequence[Pick | None], cards: Sequence[tuple[int, int]]
) -> Choice:
    """Return the choice with its cost."""
    own = sum(
        cost_of(options, pick)
        for options, pick in zip(material.options, picks, strict=True)
        if pick is not None
    )
    return Choice(
        tuple(picks), tuple(sorted(cards)), own + sum(material.cards[k].cost for k, _ in cards)
    )


@dataclass
class _Fill:
    """What may stand on a card of one kind, by content; made as it is asked for."""

    layouts: Ints
    prices: Floats
    after: dict[tuple[tuple[int, ...], int], tuple[int, ...] | None] = field(default_factory=dict)
    worth: dict[tuple[int, ...], float] = field(default_factory=dict)

    def with_one(self, content: tuple[int, ...], resource: int) -> tuple[int, ...] | None:
        """Return the content with one more slice, None if no layout has room."""
        key = (content, resource)
        if key not in self.after:
            more = list(content)
            more[resource] += 1
            has_room = bool((self.layouts >= np.array(more)).all(axis=1).any())
            self.after[key] = tuple(more) if has_room else None
        return self.after[key]

    def free_worth(self, content: tuple[int, ...]) -> float:
        """Return what the best that still fits is worth."""
        if content not in self.worth:
            rest = self.layouts - np.array(content)
            rest = rest[(rest >= 0).all(axis=1)]
            self.worth[content] = float((rest @ self.prices).max())
        return self.worth[content]


State = tuple[int, tuple[int, ...]]  # of a card: its kind and content

# cards with their content, how many of each kind, and where each workload is
Saved = tuple[
    dict[int, State],
    list[int],
    dict[int, tuple[Pick, list[tuple[int, int]]]],
]


class Filler:
    """Cards being filled."""

    def __init__(self, material: Material, patterns: Patterns, prices: Floats) -> None:
        """Start with empty cards; prices guide what goes where."""
        self.material = material
        self.patterns = patterns
        self.prices = prices
        self.kinds = [_Fill(each.layouts, prices) for each in material.cards]
        self.empty = (0,) * len(material.resources)
        self.serving_kinds = [
            [k for k, each in enumerate(material.cards) if each.layouts[:, r].any()]
            for r in range(len(material.resources))
        ]
        # card -> (kind, content); workload -> its pattern and the card of each of its slices
        self.cards: dict[int, State] = {}
        # the same the other way round; dicts, since they keep their order
        self.alike: dict[State, dict[int, None]] = {}
        self.opened = [0] * len(material.cards)
        self.placed: dict[int, tuple[Pick, list[tuple[int, int]]]] = {}
        self.next_card = 0
        self.may_leave = any(o.resource < 0 for each in material.options for o in each)
        priced = patterns.usage @ prices + patterns.cost
        self.ways = [
            _ways(patterns, w, priced[patterns.first[w] : patterns.first[w + 1]])
            for w in range(len(material.options))
        ]
        self.price_of = np.minimum.reduceat(priced, patterns.first[:-1]) if len(priced) else priced

    def put(self, workload: int, generator: np.random.Generator | None = None) -> bool:
        """Place a workload by the pattern that loses least; False if none has room."""
        best = None
        for number, pick in enumerate(self.ways[workload]):
            if number >= _TRIED and best is not None:
                break
            trial = self._try(workload, pick, generator)
            if trial is not None and (best is None or trial[0] < best[0]):
                best = (*trial, pick)
        if best is None:
            return False
        _, changed, homes, pick = best
        for card, (kind, content) in changed.items():
            if card not in self.cards:
                self.opened[kind] += 1
                self.next_card = max(self.next_card, card + 1)
            self._set(card, (kind, content))
        self.placed[workload] = (pick, homes)
        return True

    def _try(
        self, workload: int, pick: Pick, generator: np.random.Generator | None
    ) -> tuple[float, dict[int, State], list[tuple[int, int]]] | None:
        """Return the loss, the cards changed and each slice's card; None without room."""
        options = self.material.options[workload]
        loss = float(cost_of(options, pick))
        changed: dict[int, State] = {}
        opened = list(self.opened)
        wanted: Counter[int] = Counter()
        for i, count in pick:
            if options[i].resource >= 0:
                wanted[options[i].resource] += count
        if any(count > self._most(resource) for resource, count in wanted.items()):
            return None
        bulk, homes, lost_there = self._in_bulk(wanted, opened)
        loss += lost_there
        next_card = self.next_card + len(bulk)
        slices = list(wanted.elements())
        for resource in sorted(slices, key=lambda r: -self.prices[r]):
            best: tuple[float, int, int, tuple[int, ...]] | None = None
            # cards of like content are alike: the first of each kind of content stands for all
            now = dict(self._first(changed))
            now.update({state: card for card, state in changed.items()})
            for (kind, content), card in now.items():
                after = self.kinds[kind].with_one(content, resource)
                if after is None:
                    continue
                fill = self.kinds[kind]
                lost = fill.free_worth(content) - fill.free_worth(after)
                if generator is not None:
                    lost *= generator.uniform(0.9, 1.1)
                if best is None or lost < best[0]:
                    best = (lost, card, kind, after)
            fresh = self._fresh(resource, opened)
            if fresh is not None and (best is None or fresh[0] < best[0]):
                best = (fresh[0], next_card, fresh[1], fresh[2])
            if best is None:
                return None
            lost, card, kind, after = best
            if card == next_card:
                opened[kind] += 1
                next_card += 1
            loss += lost
            changed[card] = (kind, after)
            homes.append((card, resource))
        return loss, {**bulk, **changed}, homes

    def _most(self, resource: int) -> float:
        """Return how many of a slice all cards hold at most."""
        total = 0.0
        for kind in self.serving_kinds[resource]:
            count = self.material.cards[kind].count
            each = int(self.kinds[kind].layouts[:, resource].max())
            total += math.inf if count is None else count * each
        return total

    def _in_bulk(
        self, wanted: Counter[int], opened: list[int]
    ) -> tuple[dict[int, State], list[tuple[int, int]], float]:
        """Open cards full of one slice while very many of it are wanted, and take them off.

        Returns the cards, each slice's card, and what is lost.
        """
        made: dict[int, State] = {}
        homes: list[tuple[int, int]] = []
        loss = 0.0
        for resource in list(wanted):
            while (fresh := self._fresh(resource, opened)) is not None:
                kind, fill = fresh[1], self.kinds[fresh[1]]
                most = int(fill.layouts[:, resource].max())
                number = wanted[resource] // most - _BULK
                count = self.material.cards[kind].count
                if count is not None:
                    number = min(number, count - opened[kind])
                if number <= 0:
                    break
                content = tuple(most if r == resource else 0 for r in range(len(self.empty)))
                for card in range(self.next_card + len(made), self.next_card + len(made) + number):
                    made[card] = (kind, content)
                    homes += [(card, resource)] * most
                opened[kind] += number
                wanted[resource] -= number * most
                loss += number * (self.material.cards[kind].cost - fill.free_worth(content))
        return made, homes, loss

    def top_up(self, workload: int) -> None:
        """Give a workload that leaves some of its rate more slices as long as there is room.

        Cards that are empty are filled whole with what serves most of it, then what is left one
        by one, the slices first that serve most for their price.
        """
        options = self.material.options[workload]
        pick, homes = self.placed[workload]
        leaving = [i for i, _ in pick if options[i].resource < 0]
        if not leaving:
            return
        counts = Counter({i: count for i, count in pick if i not in leaving})
        rest = SHARE - sum(options[i].share * count for i, count in counts.items())
        by_resource = {o.resource: i for i, o in enumerate(options) if o.resource >= 0}
        shares = np.zeros(len(self.empty))
        for resource, i in by_resource.items():
            shares[resource] = options[i].share
        homes = list(homes)
        for kind, cards in enumerate(self.material.cards):
            served = cards.layouts @ shares
            row = cards.layouts[int(np.argmax(served))].tolist()
            content = tuple(n if r in by_resource else 0 for r, n in enumerate(row))
            whole = sum(options[i].share * content[r] for r, i in by_resource.items())
            if cards.count is None or whole == 0:
                continue
            for _ in range(min(cards.count - self.opened[kind], rest // whole)):
                homes += [(self.next_card, r) for r, n in enumerate(content) for _ in range(n)]
                self._open((kind, content))
                rest -= whole
                counts.update({i: content[r] for r, i in by_resource.items() if content[r]})
        while rest > 0:
            found = self._best_slice(options, by_resource, rest)
            if found is None:
                break
            i, card, state = found
            if card is None:
                card = self._open(state)
            else:
                self._set(card, state)
            homes.append((card, options[i].resource))
            counts[i] += 1
            rest -= options[i].share
        made = [*((i, n) for i, n in counts.items() if n), *((i, 1) for i in leaving if rest > 0)]
        now = tuple(sorted(made))
        self.patterns.add(workload, now)
        self.placed[workload] = (now, homes)

    def _open(self, state: State) -> int:
        """Open a card; return its number."""
        card = self.next_card
        self.next_card += 1
        self.opened[state[0]] += 1
        self._set(card, state)
        return card

    def _best_slice(
        self, options: Sequence[Option], by_resource: Mapping[int, int], rest: int
    ) -> tuple[int, int | None, State] | None:
        """Return the slice with room that serves most of the rest for its price: the option, the
        card (None: a new one), and what is on it then."""
        order = sorted(
            by_resource.items(),
            key=lambda each: -min(rest, options[each[1]].share) / (self.prices[each[0]] + 1e-9),
        )
        for resource, i in order:
            for (kind, content), card in self._first({}):
                after = self.kinds[kind].with_one(content, resource)
                if after is not None:
                    return i, card, (kind, after)
            fresh = self._fresh(resource, self.opened)
            if fresh is not None:
                return i, None, (fresh[1], fresh[2])
        return None

    def _first(self, without: Mapping[int, object]) -> Iterator[tuple[State, int]]:
        """Yield a card of each kind of content, none of `without`."""
        for state, cards in self.alike.items():
            card = next((each for each in cards if each not in without), None)
            if card is not None:
                yield state, card

    def _set(self, card: int, state: State | None) -> None:
        """Change what is on a card; None closes it."""
        before = self.cards.pop(card, None)
        if before is not None:
            del self.alike[before][card]
            if not self.alike[before]:
                del self.alike[before]
        if state is not None:
            self.cards[card] = state
            self.alike.setdefault(state, {})[card] = None

    def _fresh(
        self, resource: int, opened: Sequence[int]
    ) -> tuple[float, int, tuple[int, ...]] | None:
        """Return what a new card loses with this slice on it, if the rest of it is well used."""
        best = None
        for kind in self.serving_kinds[resource]:
            cards = self.material.cards[kind]
            if cards.count is not None and opened[kind] >= cards.count:
                continue
            after = self.kinds[kind].with_one(self.empty, resource)
            if after is None:
                continue
            lost = cards.cost - self.kinds[kind].free_worth(after)
            if best is None or lost < best[0]:
                best = (lost, kind, after)
        return best

    def take_off(self, workload: int) -> None:
        """Remove a workload; cards that become empty are closed."""
        _, homes = self.placed.pop(workload)
        for card, resource in homes:
            kind, content = self.cards[card]
            less = list(content)
            less[resource] -= 1
            self._set(card, (kind, tuple(less)) if any(less) else None)
            if not any(less):
                self.opened[kind] -= 1

    def saved(self) -> Saved:
        """Return what stands, for `restore`."""
        return dict(self.cards), list(self.opened), dict(self.placed)

    def restore(self, saved: Saved) -> None:
        """Put back what stood."""
        self.cards, self.opened, self.placed = saved
        self.alike = {}
        for card, state in self.cards.items():
            self.alike.setdefault(state, {})[card] = None

    def choice(self) -> Choice:
        """Return what stands as a choice: each card with a layout that holds its content."""
        cards = []
        for (kind, content), alike in self.alike.items():
            rows = (self.kinds[kind].layouts >= np.array(content)).all(axis=1)
            cards += [(kind, int(np.argmax(rows)))] * len(alike)
        count = len(self.material.options)
        picks = [self.placed[w][0] if w in self.placed else None for w in range(count)]
        return judged(self.material, picks, cards)


def _ways(patterns: Patterns, workload: int, priced: Floats) -> list[Pick]:
    """Return the cheapest patterns, and at last the one that takes no slice if there is one."""
    options = patterns.material.options[workload]
    picks = patterns.picks[workload]
    found = [picks[i] for i in np.argsort(priced, kind="stable")[:_TRIED_MORE]]
    left = [pick for pick in picks if all(options[i].resource < 0 for i, _ in pick)]
    return [*found, *(pick for pick in left if pick not in found)]


def first_fit(filler: Filler) -> Choice:
    """Place every workload that is not placed yet, the dearest first, and return the choice."""
    order = sorted(
        (w for w in range(len(filler.material.options)) if w not in filler.placed),
        key=lambda w: (-filler.price_of[w], w),
    )
    for workload in order:
        filler.put(workload)
    if filler.may_leave:
        _top_up_all(filler)
    return filler.choice()


def _top_up_all(filler: Filler) -> None:
    """Use what room is left: the workload first whose next slice serves most of what counts."""
    options = filler.material.options
    for workload in sorted(
        filler.placed,
        key=lambda w: (
            -max(o.share for o in options[w] if o.resource >= 0) * _of_leaving(options[w])
        ),
    ):
        filler.top_up(workload)


def _of_leaving(options: Sequence[Option]) -> int:
    """Return what leaving a workload costs."""
    return max(option.cost for option in options if option.resource < 0)


def ruin_and_recreate(
    filler: Filler,
    *,
    seed: int,
    rounds: int,
    is_over: Callable[[], bool],
    report: Callable[[Choice], None],
) -> None:
    """Empty a few cards again and again and place their workloads anew; `report` better choices.

    An answer that is no worse is kept. Deterministic for a seed and a number of rounds.
    """
    generator = np.random.default_rng(seed)
    best = filler.choice()
    for _ in range(rounds):
        if is_over() or not filler.cards:
            return
        before = filler.saved()
        names = list(filler.cards)
        worth = np.array(
            [filler.kinds[k].free_worth(content) + 1e-9 for k, content in filler.cards.values()]
        )
        count = min(len(names), int(generator.integers(1, 4)))
        emptied = {
            names[int(i)]
            for i in generator.choice(len(names), count, replace=False, p=worth / worth.sum())
        }
        missing = [w for w in range(len(filler.material.options)) if w not in filler.placed]
        torn = [
            w
            for w, (_, homes) in filler.placed.items()
            if any(card in emptied for card, _ in homes)
        ]
        for workload in torn:
            filler.take_off(workload)
        again = torn + missing
        noise = generator.uniform(0.7, 1.3, len(again))
        order = np.argsort([-filler.price_of[w] * n for w, n in zip(again, noise, strict=True)])
        for i in order:
            filler.put(again[int(i)], generator)
        if filler.may_leave:
            _top_up_all(filler)
        made = filler.choice()
        if made.rank <= best.rank:
            if made.rank < best.rank:
                report(made)
            best = made
        else:
            filler.restore(before)
