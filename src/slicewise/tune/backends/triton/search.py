"""Which candidates come next: first a spread over the space, then neighbours of the best.

A pure function of the order, so that any client gives the same answer to the same piece.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.core.tuning import SearchOrder, Trial
from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.plans import Config, read_config, write_config
from slicewise.tune.backends.triton.spaces import (
    Target,
    default_config,
    neighbours,
    space_of,
    spread,
    why_not,
)

# Of a later piece this part is drawn from all that is left, so that a search that began in the
# wrong corner leaves it.
_EXPLORED = 0.25
_PARENTS = 3  # best configurations whose neighbours are tried
_DRAWN = 256  # of a large space the spread is chosen among so many


@dataclass(frozen=True, slots=True)
class Candidates:
    """What to build: texts, in order. `is_last`: nothing is left in the space after them."""

    configs: tuple[str, ...]
    is_last: bool


def choose(op: Operation, target: Target, order: SearchOrder) -> Candidates:
    """Return at most `order.piece.size` configurations that are neither known nor avoided."""
    if order.rebuild:
        return Candidates(order.rebuild, is_last=False)
    space = space_of(op, target)
    tried = {trial.config for trial in order.known} | order.avoid
    left = {text: config for config in space if (text := write_config(config)) not in tried}
    first = list(dict.fromkeys(_early(op, target, order)))[: order.piece.size]
    rest = {text: config for text, config in left.items() if text not in first}
    draw = random.Random(order.piece.seed)
    wanted = order.piece.size - len(first)
    good = sorted(
        (trial for trial in order.known if trial.is_ok and _reads(op, trial.config)),
        key=_latency,
    )
    if not good:
        more = _spread(rest, wanted, draw)
    else:
        more = _guided(op, good[:_PARENTS], rest, wanted, draw)
    configs = (*first, *more)
    return Candidates(configs, is_last=set(left) <= set(configs))


def _early(op: Operation, target: Target, order: SearchOrder) -> list[str]:
    """Return what is tried before anything else: the default, then what was best on kin.

    The first piece alone has them: others may be on their way at the same time.
    """
    if order.piece.round > 0:
        return []
    texts = [write_config(default_config(op, target))]
    for hint in order.hints:
        config = _reads(op, hint)
        if config is not None and not why_not(op, config, target):
            texts.append(write_config(config))
    tried = {trial.config for trial in order.known} | order.avoid
    return [text for text in texts if text not in tried]


def _spread(rest: dict[str, Config], count: int, draw: random.Random) -> list[str]:
    if count <= 0 or not rest:
        return []
    space = list(rest.values())
    order = draw.sample(range(len(space)), min(len(space), _DRAWN))
    return [write_config(config) for config in spread(space, count, order)]


def _guided(
    op: Operation, parents: Sequence[Trial], rest: dict[str, Config], count: int,
    draw: random.Random,
) -> list[str]:  # fmt: skip
    """Return neighbours of the best, taken from each in turn, and some of all that is left."""
    if count <= 0:
        return []
    space = list(rest.values())
    queues: list[list[str]] = []
    for trial in parents:
        config = _reads(op, trial.config)
        near = [] if config is None else neighbours(config, space)
        texts = [write_config(each) for each in near]
        # among steps of one size no direction is better known than another
        draw.shuffle(texts)
        queues.append(texts)
    near_count = count - int(_EXPLORED * count)
    chosen: dict[str, None] = {}
    while len(chosen) < near_count and any(queues):
        for queue in queues:
            if queue and len(chosen) < near_count:
                chosen[queue.pop(0)] = None
    others = [text for text in rest if text not in chosen]
    more = draw.sample(others, min(len(others), count - len(chosen)))
    return [*chosen, *more]


def _reads(op: Operation, text: str) -> Config | None:
    try:
        return read_config(op.kind, text)
    except ValueError:
        return None


def _latency(trial: Trial) -> float:
    return trial.latency_ms.value if trial.latency_ms is not None else float("inf")
