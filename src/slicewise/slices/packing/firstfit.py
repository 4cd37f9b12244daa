"""Cards filled one workload after another, guided by prices; and ruin and recreate around it.

The built-in search: it needs no solver, gives the first answer of every search, and the only one
where ortools is absent. No bound is made here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slicewise.slices.packing.material import Ints, Material
from slicewise.slices.packing.patterns import Patterns, Pick, cost_of
from slicewise.slices.packing.prices import Floats

_TRIED = 6  # patterns of a workload that are tried, the cheapest at the prices
_TRIED_MORE = 40  # until one has room, if none of those has


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


# cards with their content, how many of each kind, and where each workload is
Saved = tuple[
    dict[int, tuple[int, tuple[int, ...]]],
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
        self.cards: dict[int, tuple[int, tuple[int, ...]]] = {}
        # the same the other way round; dicts, since they keep their order
        self.alike: dict[tuple[int, tuple[int, ...]], dict[int, None]] = {}
        self.opened = [0] * len(material.cards)
        self.placed: dict[int, tuple[Pick, list[tuple[int, int]]]] = {}
        self.next_card = 0
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
    ) -> tuple[float, dict[int, tuple[int, tuple[int, ...]]], list[tuple[int, int]]] | None:
        """Return the loss, the cards changed and each slice's card; None without room."""
        options = self.material.options[workload]
        loss = float(cost_of(options, pick))
        changed: dict[int, tuple[int, tuple[int, ...]]] = {}
        homes = []
        opened = list(self.opened)
        slices = [options[i].resource for i, count in pick for _ in range(count)]
        slices = [r for r in slices if r >= 0]
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
                card = max([self.next_card - 1, *changed]) + 1
                best = (fresh[0], card, fresh[1], fresh[2])
                opened[fresh[1]] += 1
            if best is None:
                return None
            lost, card, kind, after = best
            loss += lost
            changed[card] = (kind, after)
            homes.append((card, resource))
        return loss, changed, homes

    def _first(
        self, without: Mapping[int, object]
    ) -> Iterator[tuple[tuple[int, tuple[int, ...]], int]]:
        """Yield a card of each kind of content, none of `without`."""
        for state, cards in self.alike.items():
            card = next((each for each in cards if each not in without), None)
            if card is not None:
                yield state, card

    def _set(self, card: int, state: tuple[int, tuple[int, ...]] | None) -> None:
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
        for kind, content in self.cards.values():
            rows = (self.kinds[kind].layouts >= np.array(content)).all(axis=1)
            cards.append((kind, int(np.argmax(rows))))
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
    return filler.choice()


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
        made = filler.choice()
        if made.rank <= best.rank:
            if made.rank < best.rank:
                report(made)
            best = made
        else:
            filler.restore(before)
