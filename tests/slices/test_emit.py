"""Files to apply: each is read by an independent parser, its reader's schema is checked."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.core.packing import Packing, PackProblem, PlacedGpu
from slicewise.slices.emit import FORMATS, emit, emit_files
from slicewise.slices.emitters.names import safe_names
from slicewise.slices.emitters.yaml_text import Block, yaml_text
from tests.slices.cards import (
    A30,
    A100,
    KINDS,
    NASTY,
    fixed,
    packing,
    packings,
    placed,
    problem,
)

Golden = Callable[[str, str], None]
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123, as Kubernetes has it


def served(made: Packing) -> Counter[tuple[str, str | None, str]]:
    return Counter(
        (gpu.device, each.profile, each.workload)
        for gpu in made.gpus
        for each in gpu.slices
        if each.workload is not None
    )


# mig-parted


def mig_configs(text: str) -> dict[str, list[dict[str, Any]]]:
    """Read a mig-parted file as its own schema has it: `version`, `mig-configs`, nothing else."""
    document = yaml.safe_load(text)
    assert set(document) == {"version", "mig-configs"} and document["version"] == "v1"
    for name, entries in document["mig-configs"].items():
        assert LABEL.fullmatch(name) and entries
        indices = [index for entry in entries for index in entry["devices"]]
        assert len(indices) == len(set(indices))
        for entry in entries:
            assert set(entry) == {"devices", "mig-enabled", "mig-devices"}
            assert all(type(index) is int and index >= 0 for index in entry["devices"])
            assert type(entry["mig-enabled"]) is bool
            assert entry["mig-enabled"] is bool(entry["mig-devices"])
            assert all(type(count) is int and count > 0 for count in entry["mig-devices"].values())
    configs: dict[str, list[dict[str, Any]]] = document["mig-configs"]
    return configs


@settings(deadline=None)
@given(packings())
def test_mig_parted_has_the_slices_of_every_card(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    configs = mig_configs(emit(made, "mig-parted", problem=asked))
    wanted = Counter(
        (gpu.device, each.profile)
        for gpu in made.gpus
        for each in gpu.slices
        if each.profile is not None
    )
    found: Counter[tuple[str, str]] = Counter()
    for name, entries in configs.items():
        device = next(k for k in KINDS if name.startswith(f"slicewise-{k.name}"))
        for entry in entries:
            assert max(entry["devices"]) < 8
            for profile, count in entry["mig-devices"].items():
                assert device.profile_named(profile).name == profile
                found[device.name, profile] += count * len(entry["devices"])
    assert found == wanted


def test_the_mig_parted_file_is_as_agreed(golden: Golden) -> None:
    made, asked = fixed()
    golden("emit_mig_parted.yaml", emit(made, "mig-parted", problem=asked))


def test_mig_parted_leaves_a_card_out_that_it_would_empty() -> None:
    stays = placed(A100, "3g.40gb", 4, "vgg", in_use=True)
    current = (PlacedGpu(A100.name, 0, (stays,)), PlacedGpu(A100.name, 1, (stays,)))
    planned = packing(
        PlacedGpu(A100.name, 0, (placed(A100, "1g.10gb", 0, "bert"), stays)),
        PlacedGpu(A100.name, 1, (stays,)),
    )
    text = emit(planned, "mig-parted", problem=problem(A100, current=current))
    (entries,) = mig_configs(text).values()
    assert [entry["devices"] for entry in entries] == [[1]]
    assert "card 0 of a100-sxm4-80gb is left out: 3g.40gb@4 in use" in text


# Kubernetes


def objects(text: str) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        assert LABEL.fullmatch(document["metadata"]["name"])
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names))
    return documents


def check_deployment(document: dict[str, Any]) -> tuple[str | None, str, int]:
    """Check a Deployment against the parts of its schema that it uses; return what it serves."""
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "Deployment")
    spec = document["spec"]
    template = spec["template"]
    labels = template["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    for value in (*labels.values(), *template["spec"]["nodeSelector"].values()):
        assert LABEL.fullmatch(value) and len(value) <= 63
    assert all(type(value) is str for value in document["metadata"]["annotations"].values())
    (container,) = template["spec"]["containers"]
    assert LABEL.fullmatch(container["name"])
    ((resource, count),) = container["resources"]["limits"].items()
    assert count == 1
    assert re.fullmatch(r"nvidia\.com/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", resource)
    (mount,), (volume,) = container["volumeMounts"], template["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    assert mount["subPath"].endswith(f"/{labels['app.kubernetes.io/name']}")
    assert type(spec["replicas"]) is int and spec["replicas"] >= 1
    profile = None if resource == "nvidia.com/gpu" else resource.removeprefix("nvidia.com/mig-")
    return profile, document["metadata"]["annotations"]["slicewise/workload"], spec["replicas"]


@settings(deadline=None)
@given(packings())
def test_kubernetes_serves_every_slice_on_its_node(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    text = emit(made, "k8s", problem=asked)
    documents = objects(text)
    maps = [each for each in documents if each["kind"] == "ConfigMap"]
    configs = {name for each in maps for name in mig_configs(each["data"]["config.yaml"])}
    labelled = set(re.findall(r"nvidia.com/mig.config=(\S+)", text))
    assert labelled == configs and len(maps) == bool(configs)
    hosts = set(re.findall(r"slicewise/host=(\S+)", text))
    triton = emit_files(made, "triton", problem=asked)
    found: Counter[tuple[str | None, str]] = Counter()
    for document in documents:
        if document["kind"] != "ConfigMap":
            profile, workload, replicas = check_deployment(document)
            selector = document["spec"]["template"]["spec"]["nodeSelector"]
            assert selector["slicewise/host"] in hosts
            assert selector.get("nvidia.com/mig.config", "") in {"", *configs}
            container = document["spec"]["template"]["spec"]["containers"][0]
            assert f"{container['volumeMounts'][0]['subPath']}/config.pbtxt" in triton
            found[profile, workload] += replicas
    clean = {name: name if name.isprintable() else None for name in ("bert", "vgg", NASTY)}
    wanted: Counter[tuple[str | None, str]] = Counter()
    for (_, profile, workload), count in served(made).items():
        shown = (
            workload if clean.get(workload, workload) else re.sub(r"[\n\x00\u2028]", "?", workload)
        )
        wanted[profile, shown] += count
    assert found == wanted


def test_the_kubernetes_file_is_as_agreed(golden: Golden) -> None:
    made, asked = fixed()
    golden("emit_kubernetes.yaml", emit(made, "k8s", problem=asked))


def test_a_profile_with_media_engines_is_a_resource_with_a_dot() -> None:
    gpu = PlacedGpu(A100.name, 0, (placed(A100, "1g.10gb+me", 0, "cat"),))
    text = emit(packing(gpu), "k8s", problem=problem(A100))
    assert check_deployment(objects(text)[-1]) == ("1g.10gb.me", "cat", 1)


# Triton


def pbtxt(text: str) -> dict[str, list[Any]]:
    """Read protobuf's text form: NAME: VALUE, NAME { .. }, lists in brackets, comments."""
    tokens = re.findall(
        r'"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|-?\d+(?:\.\d+)?|[{}\[\]:,]', re.sub(r"(?m)#.*$", "", text)
    )
    tokens.reverse()

    def message(end: str) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {}
        while tokens and tokens[-1] != end:
            name = tokens.pop()
            assert name.isidentifier()
            if tokens[-1] == ":":
                tokens.pop()
            made.setdefault(name, []).extend(values())
        if end:
            assert tokens.pop() == end
        return made

    def values() -> list[Any]:
        if tokens[-1] != "[":
            return [value()]
        tokens.pop()
        made = []
        while tokens[-1] != "]":
            made.append(value())
            if tokens[-1] == ",":
                tokens.pop()
        tokens.pop()
        return made

    def value() -> Any:
        token = tokens.pop()
        if token == "{":
            return message("}")
        if token.startswith('"'):
            return json.loads(token)
        return int(token) if token.lstrip("-").isdigit() else token

    return message("")


# The part of Triton's ModelConfig that is written: name -> type, or the fields of a message.
MODEL_CONFIG: dict[str, Any] = {
    "name": str,
    "max_batch_size": int,
    "dynamic_batching": {"preferred_batch_size": int, "max_queue_delay_microseconds": int},
    "instance_group": {"count": int, "kind": str, "gpus": int},
}


def check_message(message: dict[str, list[Any]], schema: dict[str, Any]) -> None:
    for name, values in message.items():
        for value in values:
            if isinstance(schema[name], dict):
                check_message(value, schema[name])
            else:
                assert type(value) is schema[name]


@settings(deadline=None)
@given(packings())
def test_triton_has_a_repository_for_each_slice(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    files = emit_files(made, "triton", problem=asked)
    wanted = Counter(
        (each.offer.serving.batch, each.offer.serving.processes, each.offer.max_delay_ms)
        for gpu in made.gpus
        for each in gpu.slices
        if each.offer is not None
    )
    found: Counter[tuple[int, int, float]] = Counter()
    delays = {0: 0.0, 500: 0.5, 4250: 4.25, 7123: 7.1234}  # microseconds, rounded down
    left_open: Counter[tuple[int, int]] = Counter()
    for path, text in files.items():
        config = pbtxt(text)
        check_message(config, MODEL_CONFIG)
        repository, model, name = path.rsplit("/", 2)
        assert name == "config.pbtxt" and config["name"] == [model] and LABEL.fullmatch(model)
        assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", repository)
        (group,), (batch,) = config["instance_group"], config["max_batch_size"]
        assert group["kind"] == ["KIND_GPU"] and group["gpus"] == [0]
        if batch == 1:
            assert "dynamic_batching" not in config
            left_open[1, group["count"][0]] += 1
        else:
            (batching,) = config["dynamic_batching"]
            assert batching["preferred_batch_size"] == [batch]
            (delay,) = batching["max_queue_delay_microseconds"]
            found[batch, group["count"][0], delays[delay]] += 1
    repositories = [path.rsplit("/", 2)[0] for path in files]
    assert len(set(repositories)) == len(repositories) == sum(served(made).values())
    for (batch, processes, delay), count in wanted.items():
        if batch > 1:
            assert found[batch, processes, delay] == count
        else:
            left_open[batch, processes] -= count
    assert not any(left_open.values())


@settings(deadline=None)
@given(packings())
def test_servers_of_a_machine_have_ports_of_their_own(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    ports: dict[str, list[str]] = {}
    for path, text in emit_files(made, "triton", problem=asked).items():
        found = re.findall(r"--(?:http|grpc|metrics)-port=(\d+)", text)
        assert len(found) == 3
        ports.setdefault(path.split("/")[0], []).extend(found)
    assert all(len(set(each)) == len(each) for each in ports.values())


def test_the_triton_files_are_as_agreed(golden: Golden) -> None:
    made, asked = fixed()
    golden("emit_triton.txt", emit(made, "triton", problem=asked))


# Names, and all formats together


@given(st.lists(st.text(max_size=100), max_size=8), st.integers(8, 63))
def test_names_are_safe_short_and_different(names: list[str], longest: int) -> None:
    made = safe_names(names, longest=longest)
    assert set(made) == set(names)
    assert len(set(made.values())) == len(made)
    assert all(LABEL.fullmatch(each) and len(each) <= longest for each in made.values())
    assert safe_names(made.values()) == {each: each for each in made.values()}


plain = st.recursive(
    st.text() | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(plain)
def test_values_come_back_from_yaml(value: Any) -> None:
    def printable(thing: Any) -> Any:
        if isinstance(thing, str):
            return "".join(char if char.isprintable() else "?" for char in thing)
        if isinstance(thing, dict):
            return {printable(key): printable(item) for key, item in thing.items()}
        return [printable(item) for item in thing] if isinstance(thing, list) else thing

    assert yaml.safe_load(yaml_text(value)) == printable(value)


def test_a_block_of_lines_comes_back_from_yaml() -> None:
    text = "# a: b\n- c\n\n  d\n"
    assert yaml.safe_load(yaml_text({"x": Block(text), "y": [{"z": Block(text)}]})) == {
        "x": text,
        "y": [{"z": text}],
    }


@pytest.mark.parametrize("name", FORMATS)
@given(case=packings())
@settings(max_examples=20, deadline=None)
def test_files_and_text_hold_the_same_and_no_name_leaves_its_line(
    name: str, case: tuple[Packing, PackProblem]
) -> None:
    made, asked = case
    text = emit(made, name, problem=asked)
    assert emit(made, name, problem=asked) == text
    if name == "json":
        return
    for line in text.splitlines():
        assert line.isprintable()
        if "rm -rf" in line and "annotations" not in line:
            stripped = line.strip()
            assert stripped.startswith(("#", "slicewise/workload:")) or "  # " in line


@settings(deadline=None)
@given(packings())
def test_the_json_form_holds_all_that_stands(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    document = json.loads(emit(made, "json", problem=asked))
    assert document["schema"] == "slicewise.pack/1"
    told = [
        (gpu["device"], gpu["index"], each["profile"], each["start"], each["workload"])
        for gpu in document["gpus"]
        for each in gpu["slices"]
    ]
    assert told == [
        (gpu.device, gpu.index, each.profile, each.start, each.workload)
        for gpu in made.gpus
        for each in gpu.slices
    ]


def test_what_cannot_be_asked_is_refused() -> None:
    made, asked = fixed()
    with pytest.raises(
        UsageError, match=r"format 'mig_parted' is unknown.*did you mean mig-parted"
    ):
        emit(made, "mig_parted", problem=asked)
    with pytest.raises(UsageError, match="0 cards in a machine are none"):
        emit(made, "k8s", problem=asked, gpus_per_host=0)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_planned_gives_a_file_that_does_nothing(name: str) -> None:
    text = emit(packing(), name, problem=problem(A100))
    if name == "mig-parted":
        assert mig_configs(text) == {}
    elif name == "k8s":
        assert objects(text) == []
    elif name == "nvidia-smi":
        assert all(line.startswith("#") for line in text.splitlines())
    elif name == "triton":
        assert text == ""
    else:
        assert json.loads(text)["gpus"] == []


def test_machines_are_filled_in_order_of_the_index() -> None:
    cards = [PlacedGpu(A30.name, i, (placed(A30, "1g.6gb", 0, "a"),)) for i in range(10)]
    configs = mig_configs(emit(packing(*cards), "mig-parted", problem=problem(A30)))
    told = {name: entries[0]["devices"] for name, entries in configs.items()}
    assert told == {"slicewise-a30-node-0": list(range(8)), "slicewise-a30-node-1": [0, 1]}
    one = mig_configs(emit(packing(*cards), "mig-parted", problem=problem(A30), gpus_per_host=16))
    assert one["slicewise-a30"][0]["devices"] == list(range(10))
    assert len(one) == len(one["slicewise-a30"]) == 1
