"""Kubernetes objects: the MIG configurations as a ConfigMap, a Deployment for each kind of slice.

For the gpu-operator with the mixed strategy, under which a node offers each profile as a resource
of its own (`nvidia.com/mig-1g.10gb`). Nodes are labelled by the commands in the comments: their
names are the user's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.core.packing import PlacedSlice
from slicewise.slices.emitters.hosts import Host
from slicewise.slices.emitters.mig_parted import config_name, has_config, mig_parted
from slicewise.slices.emitters.names import comment, safe_names
from slicewise.slices.emitters.triton import delay_us, repository_of
from slicewise.slices.emitters.yaml_text import Block, Plain, yaml_text

CONFIG_LABEL = "nvidia.com/mig.config"  # read by the MIG manager of the gpu-operator
HOST_LABEL = "slicewise/host"  # by which pods find the node whose cards they are planned for
_CONFIG_MAP = "slicewise-mig-config"
_IMAGE = "nvcr.io/nvidia/tritonserver:24.08-py3"
_CLAIM = "model-repository"
_HEAD = """\
# For the gpu-operator with mig.strategy=mixed and migManager.config.name={config_map}.
# Label the nodes; the MIG manager then cuts their cards, idle cards only:
{labels}
# The pods run Triton. The volume claim {claim!r} holds the repositories that the triton format
# writes, with the models put in. Processes of a pod are instances of its one server; the device
# plugin shares no MIG slice through MPS, so servers of another kind with several processes need
# nvidia-cuda-mps-control in their pod.
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Slices that are served alike on one machine: they become replicas of one Deployment."""

    host: Host
    workload: str
    profile: str | None
    batch: int = 0
    processes: int = 1
    delay_us: int = 0

    @property
    def words(self) -> str:
        parts = [self.workload, self.host.name, self.profile or "whole"]
        parts += [f"b{self.batch}"] if self.batch else []
        parts += [f"p{self.processes}"] if self.processes > 1 else []
        return " ".join(parts)


def resource_name(profile: str | None) -> str:
    """Return the resource by which a pod asks for a slice, or for a whole card.

    >>> resource_name("1g.10gb+me"), resource_name(None)
    ('nvidia.com/mig-1g.10gb.me', 'nvidia.com/gpu')
    """
    if profile is None:
        return "nvidia.com/gpu"
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def kubernetes(hosts: Sequence[Host], names: Mapping[str, str]) -> str:
    """Return the objects as YAML documents; `names` are the safe names of the workloads."""
    sliced = [host for host in hosts if has_config(host)]
    labels = "\n".join(map(_label_command, hosts)) or "#   (no card is used)"
    head = _HEAD.format(config_map=_CONFIG_MAP, labels=labels, claim=_CLAIM)
    documents = [yaml_text(_config_map(hosts))] if sliced else []
    kinds: dict[_Kind, list[str]] = {}  # the repository of each replica
    for host in hosts:
        for gpu in host.gpus:
            for each in gpu.planned.slices:
                if each.workload is not None:
                    kind = _kind(host, each.workload, each)
                    kinds.setdefault(kind, []).append(repository_of(host, gpu, each))
    safe = _object_names(list(kinds))
    documents += [
        yaml_text(_deployment(kind, repositories, safe[kind], names[kind.workload]))
        for kind, repositories in kinds.items()
    ]
    return head + "".join(f"---\n{document}" for document in documents)


def _label_command(host: Host) -> str:
    config = f" {CONFIG_LABEL}={config_name(host)}" if has_config(host) else ""
    cards = comment(host.device.name)
    return (
        f"#   kubectl label --overwrite node NODE {HOST_LABEL}={host.name}{config}  # has {cards}"
    )


def _kind(host: Host, workload: str, each: PlacedSlice) -> _Kind:
    if each.offer is None:
        return _Kind(host, workload, each.profile)
    serving = each.offer.serving
    delay = delay_us(each.offer.max_delay_ms)
    return _Kind(host, workload, each.profile, serving.batch, serving.processes, delay)


def _object_names(kinds: Sequence[_Kind]) -> dict[_Kind, str]:
    """Return a name for each Deployment; kinds that differ in their delay only are numbered."""
    seen: Counter[str] = Counter()
    words = []
    for kind in kinds:
        seen[kind.words] += 1
        number = seen[kind.words]
        words.append(kind.words if number == 1 else f"{kind.words} {number}")
    safe = safe_names(words)
    return {kind: safe[told] for kind, told in zip(kinds, words, strict=True)}


def _config_map(hosts: Sequence[Host]) -> Plain:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CONFIG_MAP},
        "data": {"config.yaml": Block(mig_parted(hosts))},
    }


def _deployment(kind: _Kind, repositories: Sequence[str], name: str, model: str) -> Plain:
    labels = {"app.kubernetes.io/name": model, "app.kubernetes.io/instance": name}
    selector = {HOST_LABEL: kind.host.name}
    if has_config(kind.host):
        selector[CONFIG_LABEL] = config_name(kind.host)
    pod: dict[str, Plain] = {"nodeSelector": selector}
    # the configurations of all replicas are equal: any of them serves all
    sub_path = f"{repositories[0]}/{model}"
    pod["containers"] = [
        {
            "name": "server",
            "image": _IMAGE,
            "command": ["tritonserver"],
            "args": ["--model-repository=/models"],
            "resources": {"limits": {resource_name(kind.profile): 1}},
            "ports": [{"name": "http", "containerPort": 8000}],
            "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": "http"}},
            "volumeMounts": [
                {"name": "models", "mountPath": f"/models/{model}", "subPath": sub_path}
            ],
        }
    ]
    pod["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": _CLAIM}}]
    annotations = {
        "slicewise/workload": kind.workload,
        "slicewise/batch": str(kind.batch),
        "slicewise/processes": str(kind.processes),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": len(repositories),
            "selector": {"matchLabels": {"app.kubernetes.io/instance": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
