"""Reports of measuring: the answer, and every reason once."""

import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from slicewise.app.measuring.report import measure_report
from slicewise.app.show import reason_once
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


@pytest.mark.parametrize(("is_terminal", "as_json"), [(True, False), (True, True), (False, False)])
def test_a_person_reads_the_reason_once_and_a_script_always(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, as_json: bool
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    told = reason_once("crashed: it died", as_json=as_json)
    assert ("it died" in told) != (is_terminal and not as_json)
