"""WORKLOADS.yaml: every field read, every mistake with file, line and the nearest word."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.flows.packing.workload import Isolation, WorkloadSpec, refuse_duplicates
from slicewise.flows.packing.workloads_file import FIELDS, read_workloads

WHOLE = """\
schema: slicewise.workloads/1
workloads:
  - name: search
    model: net.onnx
    rate_per_s: 300/s
    latency_ms: 20ms
    percentile: 99.9
    precision: fp16
    runtime: tensorrt@8.4
    layout: nhwc
    batch: [1, 4]
    processes: 2
    isolation: mps
    in_use: true
    dims: {seq: 128}
    input: {x: 1x3x224x224, y: [1, 8]}
    batch_axis: {x: 0, y: none}
  - name: ranking
    profile: full.csv
    rate_per_s: 12.5
    latency_ms: 80
    scale_missing: true
"""
ONE = "{name: a, model: a.onnx, rate_per_s: 1, latency_ms: 2}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.yaml"


def test_every_field_is_read(path: Path) -> None:
    path.write_text(WHOLE)
    first, second = read_workloads(path)
    assert first == WorkloadSpec(
        "search", 300.0, 20.0, model="net.onnx", percentile=99.9, precision="fp16",
        runtime="tensorrt@8.4", layout="nhwc", batches=(1, 4), processes=(2,),
        isolation=Isolation.MPS, in_use=True, dims={"seq": 128},
        inputs={"x": (1, 3, 224, 224), "y": (1, 8)}, batch_axes={"x": 0, "y": None},
    )  # fmt: skip
    assert second == WorkloadSpec("ranking", 12.5, 80.0, profile="full.csv", scales_missing=True)
    assert (first.where, second.where) == (f"{path}, line 3: ", f"{path}, line 18: ")
    asked = {line.strip(" -").partition(":")[0] for line in WHOLE.splitlines()[2:]}
    assert asked == set(FIELDS)


def test_what_is_left_out_has_the_usual_value(path: Path) -> None:
    path.write_text(f"workloads: [{ONE}]")
    (made,) = read_workloads(path)
    assert (made.percentile, made.isolation, made.in_use) == (99.0, Isolation.ANY, False)
    assert made.batches_tried == (1, 2, 4, 8, 16, 32, 64, 128)
    assert made.processes_tried == (1, 2, 3)
    assert made.scales_missing is None


def test_isolation_by_mig_means_one_process(path: Path) -> None:
    path.write_text(f"workloads: [{ONE[:-1]}, isolation: mig}}]")
    assert read_workloads(path)[0].processes_tried == (1,)


def test_files_beside_the_list_are_found_first(path: Path) -> None:
    (path.parent / "a.onnx").write_bytes(b"")
    path.write_text(f"workloads: [{ONE}, {ONE.replace('name: a', 'name: b, precision: fp16')}]")
    path.write_text(path.read_text().replace("model: a.onnx, rate", "model: timm:x, rate", 1))
    assert [made.model for made in read_workloads(path)] == [
        "timm:x", str(path.parent / "a.onnx"),
    ]  # fmt: skip


@given(st.floats(1e-3, 1e6))
def test_units_say_the_same(tmp_path_factory: pytest.TempPathFactory, value_ms: float) -> None:
    path = tmp_path_factory.getbasetemp() / "units.yaml"
    texts = [f"{value_ms!r}", f"{value_ms!r}ms", f"{value_ms / 1e3!r} s", f"{value_ms * 1e3!r}us"]
    for text in texts:
        path.write_text(f"workloads: [{{name: a, model: b, rate_per_s: 1, latency_ms: {text}}}]")
        assert read_workloads(path)[0].latency_ms == pytest.approx(value_ms, rel=1e-12)


@pytest.mark.parametrize(
    ("rate", "per_s"), [("90", 90), ("90/s", 90), ("90 / min", 1.5), ("7200/h", 2), ("1e3", 1e3)]
)
def test_rates_may_be_of_a_minute_or_an_hour(path: Path, rate: str, per_s: float) -> None:
    path.write_text(f"workloads: [{ONE.replace('rate_per_s: 1', f'rate_per_s: {rate}')}]")
    assert read_workloads(path)[0].rate_per_s == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("- 1", "workloads is a list; write entries NAME: VALUE"),
        ("workload: []", "line 1: 'workload' is unknown in workloads; .* did you mean workloads"),
        ("workloads: []", "line 1: workloads is no list with at least one workload"),
        ("schema: slicewise.pack/1\nworkloads: [1]", "this release reads 'slicewise.workloads/1'"),
        ("workloads: [1]", "line 1: a workload is 1; write entries"),
        ("workloads:\n - {model: a, rate_per_s: 1, latency_ms: 2}", "line 2: .* lacks 'name'"),
        ("workloads:\n - {name: a, model: a, latency_ms: 2}", "line 2: .* lacks 'rate_per_s'"),
        ("workloads:\n - {name: a, model: a, rate_per_s: 1}", "line 2: .* lacks 'latency_ms'"),
        (
            "workloads:\n - name: a\n   latency: 2",
            "line 3: 'latency' is unknown in a workload; .* did you mean latency_ms",
        ),
        ("workloads:\n - name: a\n   name: b", "line 3: 'name' stands twice"),
        (f"workloads:\n - {ONE}\n - {ONE}", "line 3: two workloads are called 'a'"),
        (f"workloads: [{ONE.replace('2}', '2min}')}]", r"'2min' is no number .*\(ms, us, s\)"),
        (f"workloads: [{ONE.replace('2}', '-2}')}]", "latency_ms -2 is not a number over 0"),
        (f"workloads: [{ONE.replace('2}', 'quick}')}]", "latency_ms 'quick' is no number"),
        (f"workloads: [{ONE.replace('s: 1', 's: 1 rps')}]", "write requests a second, as in 300"),
        (f"workloads: [{ONE.replace('s: 1', 's: 0')}]", "rate_per_s 0 is not a number over 0"),
        (f"workloads: [{ONE[:-1]}, percentile: 100}}]", "percentile 100 is not from 1 to under"),
        (f"workloads: [{ONE[:-1]}, percentile: 0.99}}]", "0.99 is under 1; write 99 for 99 %"),
        (f"workloads: [{ONE.replace('s: 1', 's: [1, 2]')}]", "rate_per_s is a list; write"),
        (f"workloads: [{ONE[:-1]}, percentile: [99]}}]", "percentile is a list"),
        (f"workloads: [{ONE[:-1]}, isolation: {{a: 1}}}}]", "isolation is a mapping"),
        (f"workloads: [{ONE[:-1]}, batch: [[1]]}}]", "batch is a list"),
        (f"workloads: [{ONE[:-1]}, batch: []}}]", "batch is an empty list"),
        (f"workloads: [{ONE[:-1]}, batch: [0]}}]", "batch 0 is not a positive whole number"),
        (f"workloads: [{ONE[:-1]}, processes: 49}}]", "processes 49 is over 48"),
        (f"workloads: [{ONE[:-1]}, isolation: mip}}]", "isolation 'mip' .* did you mean mps, mig"),
        (
            f"workloads: [{ONE[:-1]}, isolation: mig, processes: [2]}}]",
            "isolation mig, one process in each slice, and processes",
        ),
        (f"workloads: [{ONE[:-1]}, in_use: 1}}]", "in_use is neither true nor false"),
        (f"workloads: [{ONE[:-1]}, precision: fp17}}]", "precision 'fp17' is unknown"),
        (f"workloads: [{ONE[:-1]}, layout: nwhc}}]", "layout 'nwhc'"),
        (f"workloads: [{ONE[:-1]}, runtime: a@b}}]", "runtime 'a@b'"),
        (f"workloads: [{ONE[:-1]}, dims: 3}}]", r"dims is no mapping; write \{seq: 128\}"),
        (f"workloads: [{ONE[:-1]}, input: 1x}}]", "input '1x' is no shape"),
        (f"workloads: [{ONE[:-1]}, batch_axis: x}}]", "batch_axis 'x' is no axis"),
        (f"workloads: [{ONE[:-1]}, profile: a.csv}}]", "'a' has both model and profile"),
        ("workloads: [{name: a, rate_per_s: 1, latency_ms: 2}]", "neither model nor profile"),
        (
            "workloads: [{name: a, rate_per_s: 1, latency_ms: 2, profile: a, precision: fp16}]",
            "precision of workload 'a' says how a model is predicted",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(path: Path, text: str, told: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match=told) as caught:
        read_workloads(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_a_mistake(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_workloads(path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": " "}, "is no text"),
        ({"rate_per_s": True}, "rate_per_s True"),
        ({"latency_ms": float("inf")}, "latency_ms inf"),
        ({"percentile": 0}, "percentile 0"),
        ({"percentile": 0.5}, "percentile 0.5 is under 1; write 50 for 50 %"),
        ({"batches": "12"}, "batch '12' of workload 'a' is no list"),
        ({"batches": [1.5]}, "batch 1.5"),
        ({"isolation": "none"}, "isolation 'none'"),
    ],
)
def test_a_specification_checks_itself(given: dict[str, object], told: str) -> None:
    usual: dict[str, object] = {
        "name": "a", "model": "a.onnx", "rate_per_s": 1.0, "latency_ms": 2.0,
    }  # fmt: skip
    with pytest.raises(UsageError, match=told):
        WorkloadSpec(**{**usual, **given})  # type: ignore[arg-type]


def test_two_workloads_of_one_name_are_refused() -> None:
    one = WorkloadSpec("a", 1.0, 2.0, model="a.onnx")
    with pytest.raises(UsageError, match="two workloads are called 'a'"):
        refuse_duplicates([one, one])
