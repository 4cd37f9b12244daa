"""What an unknown device name may have meant. Compares names only; opens no file."""

import difflib
from collections.abc import Iterable, Mapping

from slicewise.hardware.aliases import ALIASES, DEFAULTED, NOTED, REFUSED, fold

_MOST = 4
_SHORTEST_BEGINNING = 2
_SHORTEST_PART = 3
# letters typed for the digits that look like them: h1o0, l4 as i4
_LOOKALIKES = str.maketrans("oil", "011")


def names_by_fold(devices: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the devices behind every folded name that is known, ambiguous ones included."""
    return {
        **REFUSED,
        **DEFAULTED,
        **{folded: (name,) for folded, (name, _) in NOTED.items()},
        **{folded: (name,) for folded, name in ALIASES.items()},
        **{fold(name): (name,) for name in devices},
    }


def nearest_devices(name: str, devices: Iterable[str]) -> tuple[str, ...]:
    """Return up to four devices that `name` may have meant, the likeliest first; often none."""
    start = name.strip().casefold()
    if start.startswith(("gpu", "cuda")):
        return ("gpu:0",)
    if start.startswith("cpu"):
        return ("cpu",)
    known = names_by_fold(devices)
    folded = fold(name)
    if len(folded) < _SHORTEST_BEGINNING:
        return ()
    for keys in (
        _lookalikes(folded, known),
        _extensions(folded, known),
        _longest_beginnings(folded, known),
        _similar(folded, known),
    ):
        if keys:
            found = dict.fromkeys(one for key in keys for one in known[key])
            return tuple(found)[:_MOST]
    return ()


def _lookalikes(folded: str, known: Mapping[str, object]) -> list[str]:
    wanted = folded.translate(_LOOKALIKES)
    return [key for key in known if key.translate(_LOOKALIKES) == wanted]


def _extensions(folded: str, known: Mapping[str, object]) -> list[str]:
    """Return the names that begin with `folded`, then those that hold it elsewhere."""
    inside = [key for key in known if folded in key and len(folded) >= _SHORTEST_PART]
    return [*(key for key in known if key.startswith(folded)), *inside]


def _similar(folded: str, known: Mapping[str, object]) -> list[str]:
    """Return names of similar spelling, those of the same first letter (the series) first."""
    near = difflib.get_close_matches(folded, list(known), n=3 * _MOST, cutoff=0.6)
    return sorted(near, key=lambda key: key[0] != folded[0])


def _longest_beginnings(folded: str, known: Mapping[str, object]) -> list[str]:
    """Return the longest known name that begins `folded` and is at least half of it."""
    keys = [key for key in known if folded.startswith(key) and 2 * len(key) >= len(folded)]
    longest = max(map(len, keys), default=0)
    return [key for key in keys if len(key) == longest]
