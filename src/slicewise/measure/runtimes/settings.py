"""Checks of what a runtime is told: its options by name and value, the device, the precision.

Every refusal is one `UsageError` that names what is allowed. No framework is touched.
"""

from collections.abc import Collection, Mapping

from slicewise.core.errors import UsageError
from slicewise.core.notes import Note
from slicewise.core.plugins import did_you_mean

SWITCH = ("0", "1")


def read_options(
    runtime: str, given: Mapping[str, str], *, allowed: Mapping[str, Collection[str]]
) -> Mapping[str, str]:
    """Return every option of `allowed` with its value, the first allowed one where not given.

    An option without listed values takes a positive whole number; '' where not given.
    `UsageError` for a name or value that is not allowed.

    >>> read_options("mine", {"spinning": "0"}, allowed={"spinning": ("1", "0"), "streams": ()})
    {'spinning': '0', 'streams': ''}
    """
    for name in given:
        if name not in allowed:
            listed = ", ".join(allowed) or "none"
            raise UsageError(
                f"runtime {runtime} has no option {name!r}; it has {listed}"
                f"{did_you_mean(name, allowed)}"
            )
    return {
        name: _checked(runtime, name, given[name], values)
        if name in given
        else next(iter(values), "")
        for name, values in allowed.items()
    }


def _checked(runtime: str, name: str, value: str, values: Collection[str]) -> str:
    if not values:
        if value.isdecimal() and int(value) > 0:
            return value
        raise UsageError(
            f"option {name}={value} of runtime {runtime} is no positive whole number; give"
            f" {name}=1, 2, ..."
        )
    if value not in values:
        raise UsageError(
            f"option {name}={value} of runtime {runtime} is unknown; it is one of"
            f" {', '.join(values)}{did_you_mean(value, values)}"
        )
    return value


def read_requests(runtime: str, options: Mapping[str, str], *, threads: int) -> int:
    """Return how many inferences one run does at once, 1 where not given.

    `UsageError` where they are more than the threads.

    >>> read_requests("mine", {"requests": "2"}, threads=4)
    2
    """
    requests = int(options["requests"] or 1)
    if requests > threads:
        raise UsageError(
            f"option requests={requests} of runtime {runtime} is more than its {threads} threads;"
            f" give 1 to {threads}"
        )
    return requests


def requests_note(requests: int) -> tuple[Note, ...]:
    """Return the Note on what latency and energy mean where several run at once."""
    if requests == 1:
        return ()
    text = f"{requests} inferences run at once: latency is that beside the others, energy of all"
    return (Note("requests-at-once", text),)


def refuse_precision(runtime: str, given: str, *, allowed: Collection[str]) -> None:
    """Raise `UsageError` if the runtime does not have the precision."""
    if given not in allowed:
        raise UsageError(
            f"runtime {runtime} does not run in precision {given!r}; it has"
            f" {', '.join(allowed)}{did_you_mean(given, allowed)}"
        )


def gpu_index(device: str) -> int | None:
    """Return the number of a GPU, None for the CPU; `UsageError` for anything else.

    >>> gpu_index("gpu:1"), gpu_index("gpu"), gpu_index("cpu")
    (1, 0, None)
    """
    kind, _, number = device.partition(":")
    if device == "cpu":
        return None
    if kind == "gpu" and (number.isdecimal() or device == "gpu"):
        return int(number or 0)
    raise UsageError(f"device {device!r} cannot be measured on; give cpu, gpu:0, gpu:1, ...")


def first_line(err: BaseException, *, limit: int = 300) -> str:
    """Return the first line of an error that says something, or its class."""
    lines = (" ".join(line.split()) for line in str(err).splitlines())
    return next(filter(None, lines), type(err).__name__)[:limit].rstrip(". ")
