"""The command line as scripts and people meet it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slicewise.app.cli import run

Light = Callable[[str], Path]
CARD = "a100-sxm4-80gb"


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _model(folder: Path, *, op_types: tuple[str, ...] = ("Relu",), domain: str = "") -> Path:
    """Write x[N, seq, 16] -> MatMul -> op, op, ... and return its path."""
    weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"], name="product")]
    nodes += [
        helper.make_node(op_type, [f"t{i}"], [f"t{i + 1}"], domain=domain)
        for i, op_type in enumerate(op_types)
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "seq", 16])],
        [helper.make_tensor_value_info(f"t{len(op_types)}", TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    path = folder / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return _model(tmp_path)


def test_json_is_one_document_of_the_contract_and_stdout_holds_nothing_else(
    capsys: pytest.CaptureFixture[str], light: Light
) -> None:
    code, out, err = _run(
        capsys, "predict", light("resnet50"), "--device", f"{CARD},{CARD}/2g.20gb",
        "--batch", "1,8", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["schema"] == "slicewise.predict/1"
    assert set(document["model"]) >= {"name", "source", "digest", "parameters", "buffers"}
    made = document["predictions"]
    assert [(p["device"], p["slice"], p["batch"]) for p in made] == [
        (CARD, None, 1), (CARD, "2g.20gb", 1), (CARD, None, 8), (CARD, "2g.20gb", 8),
    ]  # fmt: skip
    for prediction in made:
        assert set(prediction) >= {
            "device", "slice", "batch", "precision", "runtime", "macs", "flops", "latency_ms",
            "throughput_per_s", "energy_j", "memory_bytes", "compute_utilisation", "saturation",
            "source", "notes",
        }  # fmt: skip
        latency = prediction["latency_ms"]
        assert 0 < latency["low"] <= latency["value"] <= latency["high"]
        assert prediction["throughput_per_s"] == pytest.approx(
            prediction["batch"] / latency["value"] * 1e3
        )
        memory = prediction["memory_bytes"]
        parts = ("weights", "activations", "workspace", "runtime")
        assert memory["value"] == sum(memory[part] for part in parts)
        assert prediction["flops"] >= 2 * prediction["macs"]
    assert made[2]["macs"] == 8 * made[0]["macs"]


def test_explained_nodes_and_host_add_up_to_the_latency_in_the_json_itself(
    capsys: pytest.CaptureFixture[str], light: Light
) -> None:
    _, out, _ = _run(
        capsys,
        "predict",
        light("squeezenet"),
        "--device",
        f"{CARD}/1g.10gb",
        "--explain",
        "--json",
    )
    prediction = json.loads(out)["predictions"][0]
    total = sum(node["latency_ms"] for node in prediction["nodes"]) + prediction["host_ms"]
    assert total == prediction["latency_ms"]["value"]


def test_the_report_begins_with_the_answer_and_shows_every_place(
    capsys: pytest.CaptureFixture[str], light: Light
) -> None:
    code, out, _ = _run(
        capsys,
        "predict",
        light("resnet50"),
        "--device",
        f"{CARD},{CARD}/1g.10gb",
        "--batch",
        "1,8",
    )
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("Lowest latency")
    assert sum(line.startswith((f"{CARD} ", f"{CARD}/")) for line in lines) == 4
    assert "90 % interval" in out
    single = _run(capsys, "predict", light("resnet50"), "--device", CARD, "--explain")[1]
    assert f"on {CARD}, batch 1: " in single.splitlines()[0]
    assert "heaviest operators" in single
    assert "Conv" in single


def test_this_machine_is_the_default_device(
    capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    code, out, _ = _run(capsys, "predict", tiny, "--dim", "seq=8", "--json")
    assert code == 0
    assert json.loads(out)["predictions"][0]["latency_ms"]["value"] > 0


def test_several_models_make_one_document(
    capsys: pytest.CaptureFixture[str], light: Light
) -> None:
    _, out, _ = _run(
        capsys, "predict", light("squeezenet"), light("shufflenet"), "--device", CARD, "--json"
    )
    document = json.loads(out)
    assert [model["name"] for model in document["models"]] == [
        prediction["model"] for prediction in document["predictions"]
    ]
    assert len({model["digest"] for model in document["models"]}) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--batch", "0"], 2, "--batch '0'"),
        (["--batch", "-3"], 2, "positive whole number"),
        (["--batch", "eight"], 2, "--batch 1,8,32"),
        (["--dim", "seq"], 2, "--dim seq=128"),
        (["--dim", "seq=0"], 2, "not a positive whole number"),
        (["--dim", "sek=8"], 2, "seq"),
        ([], 3, "seq"),
        (["--dim", "seq=8", "--input", "y=1x8x16"], 2, "y"),
        (["--dim", "seq=8", "--device", "a100-sxm4-80g"], 4, "a100-sxm4-80gb"),
        (["--dim", "seq=8", "--device", f"{CARD}/2g.10gb"], 4, "2g.20gb"),
        (["--dim", "seq=8", "--device", f"{CARD}@0%"], 4, "at most 100"),
        (["--dim", "seq=8", "--device", ","], 2, "--device"),
        (["--dim", "seq=8", "--device", CARD, "--precision", "fp8"], 4, "no fp8"),
        (["--dim", "seq=8", "--precision", "fp31"], 2, "allowed are fp32"),
        (["--dim", "seq=8", "--runtime", "tensorflow"], 2, "torch-eager"),
        (["--dim", "seq=8", "--output", "no/such/folder/x.json"], 2, "does not exist"),
        (["--dim", "seq=8", "--output", "."], 2, "is a folder"),
        (["--colour"], 2, "--colour"),
    ],
)
def test_a_mistake_gives_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], tiny: Path, arguments: list[str], code: int, words: str
) -> None:
    got, out, err = _run(capsys, "predict", tiny, *arguments)
    assert got == code
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_models_that_are_none_give_one_line(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "cut.onnx").write_bytes(tiny.read_bytes()[:-40])
    for name in ("text.onnx", "empty.onnx", "cut.onnx", "missing.onnx", "."):
        code, out, err = _run(capsys, "predict", tmp_path / name, "--dim", "seq=4")
        assert (code, out, err.count("\n")) == (3, "", 1), (name, err)
    assert "tiny.onnx" in _run(capsys, "predict", tmp_path / "tiney.onnx")[2]


def test_unknown_operators_are_noted_and_refused_all_at_once_by_strict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = _model(tmp_path, op_types=("Frobnicate", "Wibble"), domain="com.acme")
    base = ("predict", path, "--dim", "seq=4", "--device", CARD)
    code, out, _ = _run(capsys, *base, "--json")
    notes = [note["text"] for note in json.loads(out)["predictions"][0]["notes"]]
    assert code == 0
    assert any("Frobnicate" in text for text in notes)
    code, out, err = _run(capsys, *base, "--strict")
    assert (code, out) == (5, "")
    assert "Frobnicate" in err
    assert "Wibble" in err
    assert err.count("\n") == 1
    support = json.loads(_run(capsys, "support", path, "--dim", "seq=4", "--json")[1])
    assert support["covered"] is False
    coverage = {row["op_type"]: row["coverage"] for row in support["operators"]}
    assert coverage == {"MatMul": "formula", "Frobnicate": "unknown", "Wibble": "unknown"}


def test_output_is_written_whole_beside_the_report(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    code, out, _ = _run(
        capsys, "predict", tiny, "--dim", "seq=4", "--device", CARD, "--output", target
    )
    assert code == 0
    assert "items/s" in out
    assert json.loads(target.read_text())["schema"] == "slicewise.predict/1"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_devices_lists_all_and_shows_one_with_its_slices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = _run(capsys, "devices")
    assert code == 0
    assert "h100-sxm5-80gb" in out
    shown = _run(capsys, "devices", "h100-sxm5-80gb")[1]
    assert "1g.20gb" in shown
    document = json.loads(_run(capsys, "devices", f"{CARD}/3g.40gb", "--json")[1])
    assert document["schema"] == "slicewise.devices/1"
    assert document["devices"][0]["parent"] == CARD
    assert document["devices"][0]["compute_units"] == 42
    code, _, err = _run(capsys, "devices", "h100-sxm5-80gp")
    assert code == 4
    assert "did you mean h100-sxm5-80gb" in err


def test_support_says_when_everything_is_covered(
    capsys: pytest.CaptureFixture[str], light: Light
) -> None:
    code, out, _ = _run(capsys, "support", light("resnet50"))
    assert code == 0
    assert "every operator has a formula" in out.splitlines()[0]


def test_help_and_version_work_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["predict", "--help"], ["--version"]):
        code, out, err = _run(capsys, *arguments)
        assert code == 0
        assert out.startswith(("Usage: slicewise", "slicewise "))
        assert err == ""


def test_a_reader_that_goes_away_is_no_error(light: Light) -> None:
    command = f"'{sys.executable}' -m slicewise devices --json | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == '{\n  "schem'
    assert done.stderr == ""


def test_layout_and_version_are_asked_and_told(
    capsys: pytest.CaptureFixture[str], light: Light, tmp_path: Path
) -> None:
    model, asked = light("squeezenet"), ("--runtime", "onnxruntime@1.17", "--layout", "nhwc")
    code, out, err = _run(capsys, "predict", model, "--device", "t4", *asked, "--json")
    (made,) = json.loads(out)["predictions"]
    assert (code, err) == (0, "")
    assert (made["runtime"], made["runtime_version"], made["layout"]) == (
        "onnxruntime", "1.17", "nhwc",
    )  # fmt: skip
    files = (tmp_path / "page.html", tmp_path / "trace.json")
    written = ("--html", files[0], "--trace", files[1])
    report = _run(capsys, "predict", model, "--device", "t4", *asked, *written)[1]
    assert "with onnxruntime@1.17 in nhwc." in report
    assert "with onnxruntime@1.17 in nhwc" in files[0].read_text()
    for words in (
        "--runtime onnxruntime@1.17",
        "--layout nhwc",
    ):  # of the command to make it again
        assert words in files[0].read_text()
    assert ", onnxruntime@1.17 in nhwc, " in files[1].read_text()
    assert "layout-ignored" in report and "version-ignored" in report
    (made,) = json.loads(_run(capsys, "predict", model, "--device", "t4", "--json")[1])[
        "predictions"
    ]
    assert (made["runtime_version"], made["layout"]) == (None, "nchw")
    assert not any("-ignored" in note["code"] for note in made["notes"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--layout", "nhcw"), "layout 'nhcw' is unknown; known are nchw, nhwc; did you mean"),
        (("--runtime", "torch-eager@2.x"), "no version behind the @ but '2.x'"),
        (("--runtime", "torch-eagr@2.4"), "runtime 'torch-eagr' is unknown"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "explore"])
def test_a_layout_or_version_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str],
    light: Light,
    verb: str,
    asked: tuple[str, str],
    words: str,
) -> None:
    code, out, err = _run(capsys, verb, light("squeezenet"), "--device", "t4", *asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
