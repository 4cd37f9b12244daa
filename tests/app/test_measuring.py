"""Reports of measuring: the answer, and every reason once."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from slicewise.app.measuring.report import measure_report
from slicewise.core.measurement import Measurement, Outcome

FAILED = Measurement(
    "m", "m.onnx", "0" * 64, "cpu", None, "onnxruntime", 1, "fp32", 2, outcome=Outcome.CRASHED
)


def test_every_reason_is_told_once() -> None:
    made = [
        replace(FAILED, batch=batch, error=error)
        for batch, error in ((1, "it died"), (8, "it hung"), (9, "it died"))
    ]
    file = StringIO()
    Console(file=file, width=200).print(measure_report(made, kept=""))
    text = file.getvalue()
    assert text.startswith("m: nothing could be measured: crashed: it died")
    assert (text.count("it died"), text.count("it hung")) == (1, 1)
