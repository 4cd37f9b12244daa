"""A packing ready to apply: files for mig-parted, Kubernetes, Triton, nvidia-smi, or `--current`.

Each format is a row of a table; the texts are made in `emitters/`. Writes no file.
"""

import json
from collections.abc import Callable, Mapping

from slicewise.core.errors import UsageError
from slicewise.core.packing import Packing, PackProblem, PlacedGpu, PlacedSlice
from slicewise.core.plugins import did_you_mean
from slicewise.slices.emitters.hosts import GPUS_PER_HOST, Host, hosts_of, workload_names
from slicewise.slices.emitters.kubernetes import kubernetes
from slicewise.slices.emitters.mig_parted import mig_parted
from slicewise.slices.emitters.nvidia_smi import joined, nvidia_smi
from slicewise.slices.emitters.triton import triton_files

Json = dict[str, object]
_Hosts = tuple[Host, ...]


def _mig_parted_files(packing: Packing, hosts: _Hosts) -> dict[str, str]:
    return {"mig-parted.yaml": mig_parted(hosts)}


def _kubernetes_files(packing: Packing, hosts: _Hosts) -> dict[str, str]:
    return {"kubernetes.yaml": kubernetes(hosts, workload_names(packing))}


def _triton_files(packing: Packing, hosts: _Hosts) -> dict[str, str]:
    return triton_files(hosts, workload_names(packing))


def _nvidia_smi_files(packing: Packing, hosts: _Hosts) -> dict[str, str]:
    return {f"{host.name}.sh": nvidia_smi(host) for host in hosts}


def _json_files(packing: Packing, hosts: _Hosts) -> dict[str, str]:
    text = json.dumps(layout_document(packing), indent=2, ensure_ascii=False)
    # a reader of YAML takes the file too, but neither surrogates nor line ends of Unicode
    lines = text.split("\n")
    return {"layout.json": "".join(f"{_escaped(line)}\n" for line in lines)}


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c).strip('"') for c in line)


_EMITTERS: Mapping[str, Callable[[Packing, _Hosts], dict[str, str]]] = {
    "mig-parted": _mig_parted_files,
    "k8s": _kubernetes_files,
    "triton": _triton_files,
    "nvidia-smi": _nvidia_smi_files,
    "json": _json_files,
}
FORMATS: tuple[str, ...] = tuple(_EMITTERS)


def emit_files(
    packing: Packing,
    format: str,  # noqa: A002
    *,
    problem: PackProblem,
    gpus_per_host: int = GPUS_PER_HOST,
) -> dict[str, str]:
    """Return the files of one of `FORMATS`: path -> text.

    Cards of a kind are taken to fill machines of `gpus_per_host` in order of their index.
    `UsageError` for an unknown format, `PartitionError` if the packing lacks a slice that
    `problem.current` has in use.
    """
    if format not in _EMITTERS:
        raise UsageError(
            f"format {format!r} is unknown; known are {', '.join(FORMATS)}"
            f"{did_you_mean(format, FORMATS)}"
        )
    if gpus_per_host < 1:
        raise UsageError(f"{gpus_per_host} cards in a machine are none; give 1 or more")
    return _EMITTERS[format](packing, hosts_of(packing, problem, gpus_per_host=gpus_per_host))


def emit(
    packing: Packing,
    format: str,  # noqa: A002
    *,
    problem: PackProblem,
    gpus_per_host: int = GPUS_PER_HOST,
) -> str:
    """Return the files of one of `FORMATS` as one text, see `emit_files`.

    Several files of Triton follow one another, each below a comment with its path; scripts of
    nvidia-smi for several machines become one that takes the machine as its argument.
    """
    files = emit_files(packing, format, problem=problem, gpus_per_host=gpus_per_host)
    if format == "nvidia-smi":
        hosts = hosts_of(packing, problem, gpus_per_host=gpus_per_host)
        return joined([(host, files[f"{host.name}.sh"]) for host in hosts])
    if format != "triton":
        return "".join(files.values())
    return "\n".join(f"# file: {path}\n{text}" for path, text in files.items())


def layout_document(packing: Packing) -> Json:
    """Return the cards of a packing as `slicewise.pack/1` has them, to be read by `--current`."""
    return {"schema": "slicewise.pack/1", "gpus": [_gpu(gpu) for gpu in packing.gpus]}


def _gpu(gpu: PlacedGpu) -> Json:
    return {
        "device": gpu.device,
        "index": gpu.index,
        "slices": [_slice(each) for each in gpu.slices],
    }


def _slice(each: PlacedSlice) -> Json:
    serving = None if each.offer is None else each.offer.serving
    return {
        "profile": each.profile,
        "start": each.start,
        "workload": each.workload,
        "batch": None if serving is None else serving.batch,
        "processes": None if serving is None else serving.processes,
        "service_ms": None if serving is None else serving.service_ms.value,
        "throughput_per_s": None if serving is None else serving.throughput_per_s,
        "rate_per_s": each.rate_per_s,
        "in_use": each.in_use,
    }
