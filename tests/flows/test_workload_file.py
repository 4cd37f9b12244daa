"""Problem files: what is read, whatever the order of nodes, and what is refused with its place."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import DeviceError, PartitionError, UsageError
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.wishes import Wishes
from slicewise.flows.partitioning.workload_file import read_workload
from slicewise.partition.evaluate import like_devices, objective_of, stage_loads

Document = dict[str, Any]


def document(**changes: Any) -> Document:
    """Return a chain of three with a skip."""
    nodes = [
        {"id": i, "name": name, "time_ms": {"accel": ms, "cpu": 4 * ms}, "comm_ms": cost,
         "memory_bytes": 100, "param_bytes": 60, "output_bytes": 1000 * cost, "colocate": None,
         "accel_ok": True}
        for i, (name, ms, cost) in enumerate([("a", 1.0, 0.5), ("b", 2.0, 0.25), ("c", 3.0, 0.0)])
    ]  # fmt: skip
    made: Document = {
        "schema": "pipeline-workload/1", "name": "skip", "nodes": nodes,
        "edges": [[0, 1], [1, 2], [0, 2]],
        "limits": {"accelerators": 2, "cpus": 1, "memory_bytes_per_accelerator": 250},
    }  # fmt: skip
    made.update(changes)
    return made


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Document], Path]:
    def make(made: Document) -> Path:
        path = tmp_path / "problem.json"
        path.write_text(json.dumps(made))
        return path

    return make


def test_a_tensor_is_paid_once_by_each_stage_that_consumes_it(
    write: Callable[[Document], Path],
) -> None:
    material = read_workload(write(document()))
    case = assemble(material, Wishes(), stages=3)
    loads = stage_loads(case.problem, like_devices(case.problem, (0, 1, 2)))
    assert [load.load_ms for load in loads] == [1.5, 2.75, 3.75]


@given(st.permutations(range(3)))
def test_the_order_of_nodes_in_the_file_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    made = document()
    nodes = made["nodes"]
    made["nodes"] = [{**nodes[i], "id": f"n{i}"} for i in order]
    made["edges"] = [[f"n{u}", f"n{v}"] for u, v in made["edges"]]
    path = tmp_path_factory.mktemp("w") / "p.json"
    path.write_text(json.dumps(made))
    material = read_workload(path)
    case = assemble(material, Wishes(), stages=2)
    assert material.names == ("a", "b", "c")
    assert material.labels == tuple("abc"[i] for i in order)
    loads = stage_loads(case.problem, like_devices(case.problem, (0, 1, 1)))
    assert objective_of(case.problem, loads) == 5.5
    by_label = dict(zip(material.labels, case.stage_of_label((0, 1, 1)), strict=True))
    assert by_label == {"a": 0, "b": 1, "c": 1}
    is_sorted = order == [0, 1, 2]
    assert ("nodes-renumbered" in {note.code for note in material.notes}) != is_sorted


def test_names_that_stand_twice_are_told_apart(write: Callable[[Document], Path]) -> None:
    made = document()
    made["nodes"][1]["name"] = "a"
    assert read_workload(write(made)).labels == ("a#0", "a#1", "c")


def test_limits_and_groups_count_only_where_they_are_honoured(
    write: Callable[[Document], Path],
) -> None:
    made = document()
    made["nodes"][0]["colocate"] = made["nodes"][1]["colocate"] = 7
    made["nodes"][2]["accel_ok"] = False
    path = write(made)
    plain = read_workload(path)
    assert (plain.together, plain.most_stages) == ((), None)
    assert plain.devices["accel"].memory_limit_bytes == math.inf
    assert plain.devices["accel"].work_ms == (1.0, 2.0, 3.0)
    honoured = read_workload(path, honour=("colocate", "limits"))
    assert (honoured.together, honoured.most_stages) == (((0, 1),), 2)
    assert honoured.devices["accel"].memory_limit_bytes == 250
    assert honoured.devices["accel"].work_ms == (1.0, 2.0, math.inf)
    both = read_workload(path, devices=("accel", "cpu"), honour=("limits",))
    assert both.most_stages is None
    assert both.devices["cpu"].work_ms == (4.0, 8.0, 12.0)
    assert both.devices["cpu"].memory_limit_bytes == math.inf


def test_a_graph_in_two_parts_is_noted(write: Callable[[Document], Path]) -> None:
    notes = read_workload(write(document(edges=[[0, 1]]))).notes
    assert [(note.code, note.text[:25]) for note in notes] == [
        ("graph-disconnected", "the graph falls into 2 pa")
    ]


def test_a_field_that_nothing_reads_is_noted_with_the_nearest_name(
    write: Callable[[Document], Path],
) -> None:
    made = document(comment="mine")
    made["nodes"][0]["com_ms"] = 1.0
    (note,) = read_workload(write(made)).notes
    assert note.code == "fields-unread"
    assert "'comment'" in note.text and "'com_ms'; did you mean comm_ms" in note.text


def _with(index: int, **fields: Any) -> Document:
    made = document()
    made["nodes"][index].update(fields)
    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (document(schema="other/1"), "schema 'other/1'"),
        (document(nodes=[]), "has no nodes"),
        (document(nodes=None), "no list 'nodes'"),
        (document(nodes=[3], edges=[]), r"nodes\[0\] is no object"),
        (_with(1, id=0), r"nodes\[1\] has the id 0, which nodes\[0\] has already"),
        (_with(1, id=None), r"nodes\[1\] has the id None"),
        (document(edges=[[0, 9]]), r"edges\[0\] names the node 9"),
        (document(edges=[[0, 1], [0, 1]]), r"edges\[1\] repeats edges\[0\]"),
        (document(edges=[[0, 1, 2]]), r"edges\[0\] is \[0, 1, 2\]"),
        (document(edges=[[0, 1], [1, 2], [2, 0]]), "cycle: 'a' -> 'b' -> 'c' -> 'a'"),
        (document(edges=[[1, 1]]), "cycle: 'b' -> 'b'"),
        (_with(1, comm_ms=-1.0), r"nodes\[1\] \(id 1\) has comm_ms -1.0"),
        (_with(1, time_ms={"accel": math.nan}), "accel nan"),
        (_with(1, time_ms={"accel": 1e400}), "accel inf"),
        (_with(1, time_ms={"accel": True}), "accel True"),
        (_with(1, time_ms={}), "no time_ms by device"),
        (_with(1, memory_bytes="x"), "memory_bytes 'x'"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(
    write: Callable[[Document], Path], made: Document, words: str
) -> None:
    with pytest.raises(PartitionError, match=words) as raised:
        read_workload(write(made))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_problem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="there is no problem file"):
        read_workload(tmp_path / "none.json")
    path = tmp_path / "p.json"
    for content in (b"{", b"[" * 100_000, b"\xff\xfe", b"3"):
        path.write_bytes(content)
        with pytest.raises(PartitionError, match=r"problem .*(is no JSON|has the schema)"):
            read_workload(path)


def test_an_unknown_device_names_those_that_are_there(write: Callable[[Document], Path]) -> None:
    with pytest.raises(DeviceError, match="it has accel, cpu; did you mean accel"):
        read_workload(write(document()), devices=("acel",))


def test_limits_that_are_not_there_cannot_be_honoured(write: Callable[[Document], Path]) -> None:
    with pytest.raises(UsageError, match="no limits to honour"):
        read_workload(write(document(limits=None)), honour=("limits",))


def test_every_public_workload_is_read_with_its_own_totals(data: Path) -> None:
    folder = data / "partition" / "workloads" / "open"
    paths = sorted(folder.glob("*.json"))
    assert paths
    for path in paths:
        totals = json.loads(path.read_text())["totals"]
        material = read_workload(path)
        work = sum(material.devices["accel"].work_ms)
        assert work == pytest.approx(totals["time_ms"]["accel"], rel=1e-6)
        assert len(material.names) == totals["nodes"] == len(set(material.names))
        assert sum(len(tensor.consumers) for tensor in material.tensors) == totals["edges"]
