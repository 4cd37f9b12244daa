"""The journal of a tuning run: each trial on the disk before the next, so that none is lost.

A killed run goes on with what it has tried. Knows of no engine, and chooses nothing.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from slicewise.core.errors import StoreError
from slicewise.core.tuning import Trial
from slicewise.store.journal import Journal, Words

_TUNING = Words(
    other=(
        "another tuning (another model, share, device, engine or version of it, option or seed)"
    ),
    anew="leave --resume out to begin anew",
    elsewhere="set SLICEWISE_HOME to another folder",
)


def open_trials(path: Path, *, digest: str, fresh: bool) -> Journal[Trial]:
    """Open the journal at `path`, or begin one, with its folder; `entries` are the trials in it.

    `digest` is that of the run (`digest_of_run`). `fresh` drops what is there. `StoreError` if
    it is the journal of another tuning, is no journal, is damaged, is being written by another
    run, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(
            f"the folder {str(path.parent)!r} of the journal cannot be made:"
            f" {err.strerror or err}; {_TUNING.elsewhere}"
        ) from err
    return Journal(path, Trial, digest=digest, fresh=fresh, words=_TUNING)


def digest_of_run(
    *,
    engine: str,
    version: str,
    keys: Iterable[str],
    device: str,
    share: str | None = None,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
) -> str:
    """Return what a run and one that goes on with it have in common: 64 hexadecimal digits.

    `keys` are those of its workloads, in any order; `device` names the device with its digest,
    `share` is the share's text. Budget, clients and servers are not in it: a run can go on for
    longer, or with more of them.

    >>> a = digest_of_run(engine="tvm", version="1", keys=["k", "l"], device="cpu")
    >>> a == digest_of_run(engine="tvm", version="1", keys=["l", "k"], device="cpu")
    True
    """
    told = (
        engine,
        version,
        sorted(set(keys)),
        device,
        share,
        seed,
        sorted((options or {}).items()),
    )
    return hashlib.sha256(repr(told).encode()).hexdigest()
