"""Which settings come next: all of them in order where they are few, else what Optuna proposes.

Stateless but for the settings that are excluded: what is known comes in with each call.
"""

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from slicewise.core.tuning import Piece, Trial
from slicewise.tune.backends.serving.settings import Settings
from slicewise.tune.backends.serving.space import EXHAUSTIVE

PIECE_SIZE = 8
# So many settings are tried in their own order before a model of them is asked.
STARTUP = 2 * PIECE_SIZE
_ASKED_PER_CANDIDATE = 16


@dataclass(frozen=True, slots=True)
class Chosen:
    """The settings that come next, and whether none is left after them."""

    points: tuple[str, ...]
    is_last: bool


def choose(
    points: Sequence[str], piece: Piece, *, known: Sequence[Trial], excluded: Collection[str]
) -> Chosen:
    """Return at most `piece.size` of `points` that are neither known nor excluded.

    Up to 48 points, and the first 16 of more, come in their order: the first round from the
    beginning, each later one from where the rounds before it end, so that clients that search at
    the same time do not propose the same. Then the tree-structured Parzen estimator of Optuna
    proposes (Bergstra et al., NeurIPS 2011), seeded by the piece; without Optuna a seeded draw.
    """
    taken = {trial.config for trial in known} | set(excluded)
    left = [point for point in points if point not in taken]
    stride = max(piece.size, PIECE_SIZE)
    first = piece.round * stride
    if len(points) > EXHAUSTIVE and max(first, len(known)) >= STARTUP:
        picked = _searched(points, left, piece, known)
        return Chosen(tuple(picked), len(picked) == len(left))
    ahead = set(points[first:])
    picked = [point for point in left if point in ahead][: piece.size] or left[: piece.size]
    is_window_last = piece.size == stride and first + stride >= len(points)
    return Chosen(tuple(picked), len(picked) == len(left) or is_window_last)


def _searched(
    points: Sequence[str], left: Sequence[str], piece: Piece, known: Sequence[Trial]
) -> list[str]:
    """Return up to `piece.size` of `left` that a model of the known trials expects to be fast."""
    size = min(piece.size, len(left))
    if find_spec("optuna") is None:
        drawn = np.random.default_rng(piece.seed).choice(len(left), size, replace=False)
        return [left[i] for i in drawn]
    found = _asked(points, set(left), piece, known) if size else []
    # where it proposes what is known again and again, what differs least from the default
    return [*found, *(point for point in left if point not in found)][:size]


def _asked(
    points: Sequence[str], left: Collection[str], piece: Piece, known: Sequence[Trial]
) -> list[str]:
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate sampling is called experimental
        sampler = optuna.samplers.TPESampler(
            seed=piece.seed, multivariate=True, constant_liar=True, n_startup_trials=0
        )
        study = optuna.create_study(sampler=sampler)
        axes = _axes(points)
        spread = {name: _distribution(optuna, values) for name, values in axes.items()}
        for trial in known:
            if trial.is_ok and trial.latency_ms is not None and trial.config in points:
                study.add_trial(
                    optuna.trial.create_trial(
                        params=_coded(Settings.parse(trial.config), axes),
                        distributions=dict(spread),
                        value=trial.latency_ms.value,
                    )
                )
        found: dict[str, None] = {}
        for _ in range(_ASKED_PER_CANDIDATE * piece.size):
            asked = study.ask(dict(spread))
            text = _read(asked.params, axes).text
            if text in left:
                found[text] = None  # stays open: the liar then keeps others away from it
                if len(found) == piece.size:
                    break
            else:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
    return list(found)


def _axes(points: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    """Return the values that each knob takes, for knobs that take more than one; numbers in
    order."""
    settings = [Settings.parse(point) for point in points]
    every = {
        name: list(dict.fromkeys(getattr(each, name) for each in settings))
        for name in Settings.__dataclass_fields__
    }
    return {
        name: sorted(values) if isinstance(values[0], int) else values
        for name, values in every.items()
        if len(values) > 1
    }


def _distribution(optuna: Any, values: Sequence[Any]) -> Any:
    """Return places of numbers, so that near ones are near; names have no order."""
    if isinstance(values[0], int):
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    return optuna.distributions.CategoricalDistribution(list(values))


def _coded(settings: Settings, axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    own = {name: getattr(settings, name) for name in axes}
    return {
        name: axes[name].index(value) if isinstance(value, int) else value
        for name, value in own.items()
    }


def _read(params: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> Settings:
    """Return the settings of sampled parameters; knobs without an axis keep their value."""
    told = {
        name: axes[name][value] if isinstance(axes[name][0], int) else value
        for name, value in params.items()
    }
    return replace(Settings(), **told)
