"""Commands of nvidia-smi that turn the cards of a machine into the plan: a POSIX shell script.

Slices are made at explicit starts (`-cgi ID:START`), large ones first; ids of profiles where the
board's are known, names elsewhere. Where it is known what stands on a card, only what the plan
lacks is removed and only what is missing is made: slices in use are not touched. A script looks
at each card before it changes it, so that it can be run again, as after a reset. Commands and the
columns of `-lgi` are those of the NVIDIA MIG User Guide r580, "Getting Started with MIG".
"""

from collections.abc import Sequence

from slicewise.core.device import Device
from slicewise.slices.emitters.hosts import Host, HostedGpu, position, told
from slicewise.slices.emitters.names import comment
from slicewise.slices.layouts import Placement

_HEAD = """\
#!/bin/sh
# MIG mode and slices change on idle cards only: first stop what runs on the cards that change
# (nvidia-smi lists it). A slice that is in use is not touched. Needs root. It can be run again:
# what stands as planned stays, what is gone is passed over.
set -eu

is_sliced() {  # card
  [ "$(nvidia-smi -i "$1" --query-gpu=mig.mode.current --format=csv,noheader)" = Enabled ]
}

enable() {  # card
  is_sliced "$1" || nvidia-smi -i "$1" -mig 1
  is_sliced "$1" || {
    echo "card $1: MIG mode waits for a reset: nvidia-smi --gpu-reset -i $1; run this again" >&2
    exit 1
  }
}

disable() {  # card
  ! is_sliced "$1" || nvidia-smi -i "$1" -mig 0
}

instance() {  # card, profile, START:SIZE -> id of the slice that stands there, or nothing
  ! is_sliced "$1" || nvidia-smi mig -lgi -i "$1" |
    awk -v name="$2" -v at="$3" '$(NF-1) == at && $(NF-4) == name { print $(NF-2) }'
}

remove() {  # card, profile, START:SIZE
  id=$(instance "$1" "$2" "$3")
  if [ -z "$id" ]; then
    echo "card $1 has no $2 at $3 any more; nvidia-smi mig -lgi -i $1 shows what it has" >&2
    return
  fi
  nvidia-smi mig -dci -i "$1" -gi "$id"
  nvidia-smi mig -dgi -i "$1" -gi "$id"
}

make() {  # card, then for each slice: profile, START:SIZE, what makes it
  card=$1
  shift
  missing=
  while [ $# -gt 0 ]; do
    [ -n "$(instance "$card" "$1" "$2")" ] || missing="$missing,$3"
    shift 3
  done
  [ -z "$missing" ] || nvidia-smi mig -i "$card" -cgi "${missing#,}" -C || {
    echo "card $card: other slices stand in the way of these; remove those not planned" >&2
    echo "(nvidia-smi mig -lgi -i $card lists all), then run this again" >&2
    exit 1
  }
}
"""


def nvidia_smi(host: Host) -> str:
    """Return the script of one machine. `PartitionError` if the plan lacks a slice in use."""
    parts = [_HEAD]
    for gpu in host.gpus:
        parts.append("\n".join([*_comments(gpu), *_commands(gpu)]) + "\n")
    parts += [f"{_spare(gpu)}\n" for gpu in host.spare]
    return "\n".join(parts)


def joined(scripts: Sequence[tuple[Host, str]]) -> str:
    """Return one script for several machines: its argument says which one it runs on.

    Cards are counted on each machine, so that the commands of two must not run on the same one.
    """
    if not scripts:
        return "# no card is used; nothing to do\n"
    if len(scripts) == 1:
        return scripts[0][1]
    names = "|".join(host.name for host, _ in scripts)
    lines = [_HEAD, 'case "${1:-}" in']
    for host, _ in scripts:
        lines.append(f"{host.name})")
        for gpu in host.gpus:
            lines += [f"  {line}" for line in [*_comments(gpu), *_commands(gpu)]]
        lines += [f"  {_spare(gpu)}" for gpu in host.spare]
        lines.append("  ;;")
    lines += ["*)", f'  echo "usage: sh $0 {names}" >&2', "  exit 2", "  ;;", "esac"]
    return "\n".join(lines) + "\n"


def _comments(gpu: HostedGpu) -> list[str]:
    slices = "; ".join(told(each) for each in gpu.planned.slices)
    lines = [f"# card {gpu.index} ({comment(gpu.device.name)}): {slices}"]
    if any(each.offer and each.offer.serving.processes > 1 for each in gpu.planned.slices):
        what, visible = "a slice", "MIG-UUID (nvidia-smi -L lists it)"
        if gpu.is_whole:
            what, visible = "the card", str(gpu.index)
        lines.append(
            f"# several processes share {what} through MPS: start nvidia-cuda-mps-control -d with"
            f" CUDA_VISIBLE_DEVICES={visible}"
        )
    return lines


def _spare(gpu: HostedGpu) -> str:
    return f"# card {gpu.index} ({comment(gpu.device.name)}): not in the plan; its slices stay"


def _commands(gpu: HostedGpu) -> list[str]:
    if not gpu.is_sliceable:
        return ["# has no MIG; nothing to do"]
    index = gpu.index
    lines = [f"remove {index} {_slice(gpu.device, each)}" for each in gpu.removed]
    if gpu.is_whole:
        return [*lines, f"disable {index}"]
    if not gpu.standing:
        lines.append(f"enable {index}")
    if gpu.created:
        wanted = [
            f"  {_slice(gpu.device, each)} {_profile_at(gpu.device, each)}" for each in gpu.created
        ]
        lines += [f"{line} \\" for line in (f"make {index}", *wanted[:-1])] + wanted[-1:]
    return lines or ["# stands as planned; nothing to do"]


def _slice(device: Device, placement: Placement) -> str:
    """Return profile and place of a slice as `nvidia-smi mig -lgi` prints them."""
    name = device.profile_named(placement.profile).name
    return f"{name} {position(device, placement)}"


def _profile_at(device: Device, placement: Placement) -> str:
    profile = device.profile_named(placement.profile)
    number = profile.name if profile.profile_id is None else str(profile.profile_id)
    return f"{number}:{placement.start}"
