"""Layouts for NVIDIA's mig-parted and the gpu-operator's MIG manager: `version: v1`.

One configuration for each machine. It holds how many slices of each profile a card gets; where
they start is mig-parted's choice, and slices of a profile are alike wherever they stand.
"""

from collections import Counter
from collections.abc import Sequence

from slicewise.slices.emitters.hosts import Host, HostedGpu, told
from slicewise.slices.emitters.names import comment, quoted

_PREFIX = "slicewise-"


def config_name(host: Host) -> str:
    """Return the name of a machine's configuration, as its node label has it."""
    return f"{_PREFIX}{host.name}"


def has_config(host: Host) -> bool:
    """True if there is anything for mig-parted to do or to keep on the machine."""
    return bool(_host(host))


def mig_parted(hosts: Sequence[Host]) -> str:
    """Return the YAML file: for each machine what its cards are cut into.

    A card with a slice in use is left out if its slices have to change, since mig-parted makes all
    slices of such a card anew; a comment names it.
    """
    lines = [
        "# mig-parted apply -f FILE -c NAME, on the machine that NAME is for; idle cards only.",
        "# Cards are counted from 0 on each machine.",
        "version: v1",
        "mig-configs:",
    ]
    made = [_host(host) for host in hosts]
    if not any(made):
        lines[-1] += " {}"
    for part in made:
        lines += part
    lines += [f"# {line}" for host in hosts for line in _left_out(host)]
    return "\n".join(lines) + "\n"


def _host(host: Host) -> list[str]:
    """Return the configuration of a machine; nothing if none of its cards can be sliced."""
    groups: dict[tuple[tuple[str, int], ...], list[HostedGpu]] = {}
    for gpu in host.gpus:
        if gpu.is_sliceable and not _is_held(gpu):
            counts = Counter(each.profile for each in gpu.wanted)
            order = {profile.name: i for i, profile in enumerate(host.device.profiles)}
            key = tuple(sorted(counts.items(), key=lambda item: order[item[0]]))
            groups.setdefault(key, []).append(gpu)
    if not groups:
        return []
    lines = [f"  {config_name(host)}:"]
    for counts_of_group, gpus in groups.items():
        for gpu in gpus:
            slices = "; ".join(told(each) for each in gpu.planned.slices)
            lines.append(f"  # card {gpu.index}: {slices}")
        indices = ", ".join(str(gpu.index) for gpu in gpus)
        lines.append(f"  - devices: [{indices}]")
        lines.append(f"    mig-enabled: {'true' if counts_of_group else 'false'}")
        lines.append("    mig-devices:" if counts_of_group else "    mig-devices: {}")
        lines += [f"      {quoted(name)}: {count}" for name, count in counts_of_group]
    return lines


def _is_held(gpu: HostedGpu) -> bool:
    """True if mig-parted would take a slice in use away with the others of its card."""
    return bool(gpu.in_use) and bool(gpu.removed or gpu.created)


def _left_out(host: Host) -> list[str]:
    lines = []
    for gpu in host.gpus:
        name = f"{comment(host.device.name)} card {gpu.index} of {host.name}"
        if not gpu.is_sliceable:
            slices = "; ".join(told(each) for each in gpu.planned.slices)
            lines.append(f"{name} has no MIG: {slices}")
        elif _is_held(gpu):
            held = " ".join(map(str, gpu.in_use))
            lines.append(f"{name} is left out: {held} in use; change it by nvidia-smi commands")
    return lines
