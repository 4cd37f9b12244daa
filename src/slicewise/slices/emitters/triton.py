"""Model repositories of Triton Inference Server: one for each slice, with its `config.pbtxt`.

A server sees one slice only (CUDA shows a process one MIG device), so each slice has a server and
a repository of its own. The model file itself is put beside the configuration by the user.
"""

import math
from collections.abc import Mapping, Sequence

from slicewise.core.packing import Offer, PlacedSlice
from slicewise.slices.emitters.hosts import Host, HostedGpu, told
from slicewise.slices.emitters.names import quoted, safe_name

_HTTP_PORT, _PORTS_EACH = 8000, 10  # Triton's own ports are 8000 to 8002


def triton_files(hosts: Sequence[Host], names: Mapping[str, str]) -> dict[str, str]:
    """Return path -> text of every configuration: MACHINE/CARD-SLICE/MODEL/config.pbtxt.

    `names` are the safe names of the workloads: a model has the same name on all its slices.
    """
    files = {}
    for host in hosts:
        number = 0
        for gpu in host.gpus:
            for each in gpu.planned.slices:
                if each.workload is None or each.offer is None:
                    continue
                model = names[each.workload]
                repository = repository_of(host, gpu, each)
                port = _HTTP_PORT + _PORTS_EACH * number
                path = f"{repository}/{model}/config.pbtxt"
                files[path] = _config(gpu, each, each.offer, model, repository, port)
                number += 1
    return files


def repository_of(host: Host, gpu: HostedGpu, each: PlacedSlice) -> str:
    """Return the path of a slice's model repository."""
    part = "whole" if each.profile is None else f"{safe_name(each.profile)}-at-{each.start}"
    return f"{host.name}/gpu{gpu.index}-{part}"


def _config(
    gpu: HostedGpu, each: PlacedSlice, offer: Offer, model: str, repository: str, port: int
) -> str:
    serving = offer.serving
    if each.profile is None:
        visible = f"CUDA_VISIBLE_DEVICES={gpu.index}"
        note = []
    else:
        visible = "CUDA_VISIBLE_DEVICES=MIG-UUID"
        note = [f"# MIG-UUID is that of a {each.profile} of card {gpu.index} in nvidia-smi -L"]
    lines = [
        f"# card {gpu.index}, {told(each)}",
        f"# {visible} tritonserver --model-repository={repository}"
        f" --http-port={port} --grpc-port={port + 1} --metrics-port={port + 2}",
        *note,
        "# put the model at 1/model.onnx (or what its back-end takes) beside this file",
        f"name: {quoted(model)}",
        f"max_batch_size: {serving.batch}",
    ]
    if serving.batch > 1:
        lines += [
            "dynamic_batching {",
            f"  preferred_batch_size: [ {serving.batch} ]",
            f"  max_queue_delay_microseconds: {delay_us(offer.max_delay_ms)}",
            "}",
        ]
    lines += [
        "instance_group [",
        "  {",
        f"    count: {serving.processes}",
        "    kind: KIND_GPU",
        "    gpus: [ 0 ]",  # the only one that the server sees
        "  }",
        "]",
    ]
    return "\n".join(lines) + "\n"


def delay_us(delay_ms: float) -> int:
    """Return a delay in whole microseconds, rounded down: an earlier batch is in time as well."""
    return math.floor(max(0.0, delay_ms) * 1000)
