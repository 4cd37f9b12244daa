"""Part of a core's time, by a cgroup of its own. Only cgroup v2 is written to.

A group is called `slicewise-PID` and goes when its process ends; those of processes that were
killed are removed by the next one. Nothing else in the tree is touched.
"""

import os
from multiprocessing import util
from pathlib import Path

from slicewise.core.errors import DeviceError

_PERIOD_US = 100_000  # the kernel's own period (cgroup-v2.rst, cpu.max)
_TREE = "sys/fs/cgroup"


def quota_place(root: Path) -> tuple[Path | None, str]:
    """Return the group under which one with a CPU quota can be made, or None and why not."""
    tree = root / _TREE
    if not (tree / "cgroup.controllers").is_file():
        return None, f"/{_TREE} is no cgroup v2 tree here"
    own = _own_group(root)
    for group in (own, *own.parents):
        if _hands_on_cpu(group) and _is_writable(group):
            return group, ""
        if group == tree:
            break
    return None, "this user may make no cgroup with the cpu controller"


def hold_quota(place: Path, *, cores: float, root: Path) -> None:
    """Move this process into a new group under `place` with the time of `cores` cores.

    `DeviceError` where the system refuses.
    """
    remove_stale(place)
    pid = os.getpid()
    home = _own_group(root)
    group = place / f"slicewise-{pid}"
    try:
        group.mkdir(exist_ok=True)
        util.Finalize(None, _leave, args=(group, home, pid), exitpriority=0)
        (group / "cpu.max").write_text(f"{round(cores * _PERIOD_US)} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as err:
        _leave(group, home, pid)
        raise DeviceError(
            f"a quota of {cores:g} cores cannot be set: {err.strerror or err}; use whole cores"
        ) from err


def remove_stale(place: Path) -> None:
    """Remove the groups of processes that are no more."""
    for group in place.glob("slicewise-*"):
        pid = group.name.removeprefix("slicewise-")
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(group)


def read_cap(root: Path) -> float | None:
    """Return how many cores' time this process's groups leave it at most; None for no limit.

    cgroup v2 `cpu.max`, and v1 `cpu.cfs_quota_us`, of the own group and all above it.
    """
    caps = [
        cap
        for tree, name in ((root / _TREE, ""), (root / _TREE / "cpu", "cpu"))
        for group in _upward(root, tree=tree, controller=name)
        if (cap := _cap_of(group)) is not None
    ]
    return min(caps, default=None)


def _cap_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None  # no such file: a group without the controller sets no limit


def _own_group(root: Path, *, tree: Path | None = None, controller: str = "") -> Path:
    """Return the folder of this process's group, by the line '0::/path' or '4:cpu:/path'."""
    base = root / _TREE if tree is None else tree
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return base
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return base / path.lstrip("/")
    return base


def _upward(root: Path, *, tree: Path, controller: str) -> list[Path]:
    own = _own_group(root, tree=tree, controller=controller)
    above = [group for group in (own, *own.parents) if group.is_relative_to(tree)]
    return above or [tree]


def _hands_on_cpu(group: Path) -> bool:
    try:
        return "cpu" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _is_writable(group: Path) -> bool:
    return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)


def _leave(group: Path, home: Path, pid: int) -> None:
    if not group.exists():
        return
    try:
        (home / "cgroup.procs").write_text(str(pid))
    except OSError:
        return  # not allowed back: the next process removes the empty group
    _remove(group)


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:
        return  # still in use, or removed by another one meanwhile
