"""What crosses between processes: outcomes and errors in a form that can be sent."""

import pickle
import traceback
from typing import Any

from slicewise.core.errors import SlicewiseError, UsageError
from slicewise.core.executor import Done

# What pickle raises for things that cannot be sent, by kind of thing.
UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


def encoded(done: Done[Any]) -> bytes:
    """Return an outcome as bytes; one whose result cannot be sent says so instead."""
    try:
        return pickle.dumps(done)
    except UNPICKLABLE as err:
        return pickle.dumps(Done(done.index, error=unsendable("result", err)))


def portable(error: Exception) -> Exception:
    """Return the error in a form that can be sent; where it stood is kept as its note."""
    where = "".join(traceback.format_exception(error))
    try:
        sent: Exception = pickle.loads(pickle.dumps(error))
        assert str(sent) == str(error)
    except Exception:  # an error of any class may need arguments that only its maker knows
        sent = _alike(error)
    sent.add_note(where)
    return sent


def _alike(error: Exception) -> Exception:
    """Return an error of the nearest class of ours that a message alone makes."""
    for cls in type(error).__mro__:
        if issubclass(cls, SlicewiseError):
            try:
                return cls(str(error))
            except TypeError:
                continue  # wants more than a message: its base says the same
    return SlicewiseError(f"{type(error).__name__}: {error}")


def lost(attempts: int, how: str) -> SlicewiseError:
    """Return the error for an item whose workers died, each time it was tried."""
    return SlicewiseError(
        f"a worker process died on this work {attempts} times ({how}), for lack of memory perhaps;"
        " run it alone, with one worker"
    )


def unsendable(what: str, error: Exception) -> UsageError:
    """Return the error for a function, item or result that cannot be pickled."""
    return UsageError(
        f"the {what} of this work cannot be sent between processes: {error}; use one worker, or"
        " name models by their paths"
    )
