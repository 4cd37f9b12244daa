"""What `nvidia-smi` tells about GPUs, MIG instances and processes. Nothing is changed by it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Run = Callable[[Sequence[str]], str]
LIST = ("nvidia-smi", "-L")
PROCESSES = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: its profile, UUID and the index of its GPU."""

    profile: str
    uuid: str
    gpu: int


@dataclass(frozen=True, slots=True)
class Listing:
    """GPUs (index to UUID) and MIG instances of this machine."""

    gpus: dict[int, str]
    instances: tuple[Instance, ...]


def read_listing(text: str) -> Listing:
    """Return what `nvidia-smi -L` printed.

    >>> read_listing("GPU 0: NVIDIA L4 (UUID: GPU-1)").gpus
    {0: 'GPU-1'}
    """
    gpus: dict[int, str] = {}
    instances: list[Instance] = []
    for line in text.splitlines():
        gpu = re.match(r"GPU\s+(\d+):.*\(UUID: (\S+)\)", line)
        instance = re.match(r"\s+MIG\s+(\S+)\s+Device\s+\d+:\s+\(UUID: (\S+)\)", line)
        if gpu is not None:
            gpus[int(gpu[1])] = gpu[2]
        elif instance is not None and gpus:
            instances.append(Instance(instance[1], instance[2], gpu=max(gpus)))
    return Listing(gpus, tuple(instances))


def count_others(text: str, *, uuid: str, pid: int) -> int:
    """Return how many processes other than `pid` compute on the GPU, by `PROCESSES`' output.

    In a container the driver's numbers are not ours: then one of the processes is this one.
    """
    found = {
        int(parts[1])
        for line in text.splitlines()
        if len(parts := [part.strip() for part in line.split(",")]) == 2
        and parts[0] == uuid
        and parts[1].isdigit()
    }
    return max(0, len(found) - 1) if pid not in found else len(found - {pid})
