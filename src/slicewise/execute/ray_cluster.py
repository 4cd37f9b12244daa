"""Ray, connected for a piece of work: the one in use here, that of `$RAY_ADDRESS`, or a new one.

What Ray says goes to stderr, and what was connected or started for the work is undone after it.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slicewise.core.errors import MissingDependency, SlicewiseError


@contextmanager
def connected(
    cpus: int, *, what: str, resources: Mapping[str, float] | None = None
) -> Iterator[Any]:
    """Give Ray, connected; what was connected or started for it is undone.

    `cpus` and `resources` are those of a Ray that is started; `what` names in a message what needs
    it. `MissingDependency` without Ray, `SlicewiseError` if it cannot be reached or started.
    """
    try:
        import ray
    except ImportError as err:
        raise MissingDependency(what, package="ray", extra="dist") from err
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "")
    local: dict[str, Any] = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    if resources:
        local["resources"] = dict(resources)
    told = {"address": address} if address and address != "local" else local
    # Talk of Ray is no part of what our caller prints.
    with contextlib.redirect_stdout(sys.stderr), _without_usage_reports():
        try:
            ray.init(**told, log_to_driver=False, configure_logging=False)
        # Ray raises whatever its parts do: ConnectionError, RuntimeError, ValueError, OSError.
        except Exception as err:
            ray.shutdown()
            failed = f"Ray at RAY_ADDRESS={address!r} cannot be reached" if address else None
            raise SlicewiseError(
                f"{failed or 'Ray cannot start here'}: {first_line(err)}; mend that, or use the"
                " local executor"
            ) from err
    try:
        yield ray
    finally:
        with contextlib.redirect_stdout(sys.stderr):
            ray.shutdown()


class _Stdout:
    """The stdout of this process, but what threads of Ray print goes to stderr.

    Ray prints what its daemons report from a thread of its own, with no option against it.
    """

    def __init__(self, stdout: Any) -> None:
        self._stdout = stdout

    def write(self, text: str) -> int:
        """Write the text where it belongs."""
        by_ray = threading.current_thread().name.startswith("ray_")
        return int((sys.stderr if by_ray else self._stdout).write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


@contextmanager
def talk_on_stderr() -> Iterator[None]:
    """Keep stdout for our caller: what Ray says meanwhile goes to stderr."""
    before = sys.stdout
    ours: Any = _Stdout(before)
    sys.stdout = ours
    try:
        yield
    finally:
        if sys.stdout is ours:  # else somebody else has replaced it, and will mend it
            sys.stdout = before


@contextmanager
def _without_usage_reports() -> Iterator[None]:
    """Keep a Ray that is started meanwhile from reporting its use, unless that was asked for."""
    name = "RAY_USAGE_STATS_ENABLED"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, else its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
