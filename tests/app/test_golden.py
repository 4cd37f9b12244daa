"""What people and scripts see, word for word. Change with --update-golden and read the change."""

import io
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console, RenderableType

from slicewise.app import documents, report
from slicewise.core.cost import Estimate, Kind, MemoryEstimate, NodeEstimate, Prediction
from slicewise.core.coverage import Coverage, OperatorSupport, Support
from slicewise.core.document import ModelInfo, PredictionSet
from slicewise.core.notes import Note
from slicewise.testing.predictors import tiny_gpu

Golden = Callable[[str, str], None]
MODEL = ModelInfo("resnet", "models/resnet.onnx", "ab" * 32, 25_557_032, 53_120)
NODES = (
    NodeEstimate("conv1", "Conv", Kind.CONV, 1.25, 1.0, 0.25, "compute", 236_027_904, 3_800_000),
    NodeEstimate("relu1", "Relu", Kind.ELEMENTWISE, 0.5, 0.01, 0.4, "memory", 802_816, 6_400_000),
    NodeEstimate("flat", "Flatten", Kind.VIEW, 0.0, 0.0, 0.0, "none", 0, 0),
    NodeEstimate("add", "Add", Kind.ELEMENTWISE, 0.0625, 0.0, 0.001, "launch", 1000, 12_000),
)
WHOLE = Prediction(
    model="resnet", device="tiny-gpu", slice=None, batch=8, precision="fp16",
    runtime="onnxruntime", macs=32_712_704_000, flops=65_800_000_000,
    latency_ms=Estimate(1.875, 1.5, 2.5, "roofline"), throughput_per_s=4266.6666,
    energy_j=Estimate(0.42, 0.25, 0.75, "idle and dynamic power"),
    memory_bytes=MemoryEstimate(700_000_000, 600_000_000, 900_000_000, 51_000_000, 149_000_000,
                                500_000_000, "tensor lifetimes"),
    compute_utilisation=0.1125, saturation=0.625, source="roofline", host_ms=0.0625, nodes=NODES,
    notes=(Note("reshape-rewritten", "the target [1,2048] is [8,2048] at batch 8", "flat"),),
)  # fmt: skip
ON_SLICE = replace(
    WHOLE,
    slice="1g.10gb",
    latency_ms=Estimate(9.5, 6.0, 15.0, "roofline, slice rule"),
    throughput_per_s=842.1,
    notes=(
        *WHOLE.notes,
        Note("memory-exceeded", "needs 12.0 GiB, tiny-gpu/1g.10gb has 10.0 GiB; it does not fit"),
    ),
)


def _text(made: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=118, highlight=False).print(made)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def test_one_prediction_reads_as_agreed(golden: Golden) -> None:
    result = PredictionSet((MODEL,), (WHOLE,))
    golden("predict_one.txt", _text(report.predict_report(result, explain=True, width=118)))


def test_the_answer_is_never_a_place_where_the_model_may_not_fit_while_another_holds_it() -> None:
    fast = replace(ON_SLICE, latency_ms=Estimate(0.5, 0.4, 0.6), throughput_per_s=16000.0)
    result = PredictionSet((MODEL,), (fast, WHOLE))
    told = _text(report.predict_report(result, explain=False, width=118)).replace("\n", " ")
    assert told.startswith("Lowest latency 1.88 ms: resnet on tiny-gpu, batch 8.")
    assert "1 of 2 may not fit into memory and are left out here." in told


def test_an_answer_for_too_small_a_memory_says_so_in_the_first_line() -> None:
    for given, told in (
        ((ON_SLICE,), "May not fit into memory."),
        ((ON_SLICE, ON_SLICE), "None is sure to fit into memory."),
    ):
        made = report.predict_report(PredictionSet((MODEL,), given), explain=False, width=118)
        assert told in _text(made).replace("\n", " ")


def test_a_table_of_predictions_reads_as_agreed(golden: Golden) -> None:
    other = replace(WHOLE, model="vit", latency_ms=Estimate(0.875, 0.5, 1.25, "roofline"))
    result = PredictionSet(
        (MODEL, replace(MODEL, name="vit", buffers=0)), (WHOLE, ON_SLICE, other)
    )
    golden("predict_table.txt", _text(report.predict_report(result, explain=False, width=118)))


def test_a_narrow_terminal_keeps_what_identifies_a_row(golden: Golden) -> None:
    result = PredictionSet((MODEL,), (WHOLE, ON_SLICE))
    file = io.StringIO()
    console = Console(file=file, width=60, highlight=False)
    console.print(report.predict_report(result, explain=False, width=60))
    text = file.getvalue()
    assert "tiny-gpu/1g.10gb" in text
    assert "latency ms" in text
    assert "GMAC" not in text
    golden("predict_narrow.txt", "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def test_the_json_documents_are_as_agreed(golden: Golden) -> None:
    asked = replace(ON_SLICE, runtime_version=(1, 17), layout="nhwc")
    result = PredictionSet((MODEL,), (WHOLE, asked))
    encoded = documents.encode(documents.predict_document(result, nodes=True))
    golden("predict.json", encoded.decode())


def test_support_reads_as_agreed(golden: Golden) -> None:
    rows = (
        OperatorSupport("Conv", "", Kind.CONV, 53, Coverage.FORMULA),
        OperatorSupport("Frobnicate", "com.acme", Kind.OPAQUE, 2, Coverage.UNKNOWN),
    )
    note = Note("op-unknown", "com.acme.Frobnicate (2 nodes) is in no table: bytes only")
    result = Support(MODEL, rows, covered=False, notes=(note,))
    golden("support.txt", _text(report.support_report(result)))
    golden("support.json", documents.encode(documents.support_document(result)).decode())


def test_a_device_reads_as_agreed(golden: Golden) -> None:
    card = replace(
        tiny_gpu(),
        notes=(Note("spec-recalled", "tiny-gpu: written from general knowledge: cache"),),
        sources={"figures": "made up for tests; 2026-11"},
    )
    golden("device.txt", _text(report.device_report(card)))
    golden("devices.json", documents.encode(documents.devices_document((card,))).decode())
