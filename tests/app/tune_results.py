"""Tunings made by hand, as the tests of reports and pages show them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slicewise.core.cost import Estimate
from slicewise.core.document import ModelInfo
from slicewise.core.notes import Note
from slicewise.core.tuning import (
    Matrix,
    MatrixCell,
    Phases,
    Trial,
    TrialOutcome,
    Tuned,
    Workload,
)
from slicewise.flows.tuning.result import (
    CurvePoint,
    MatrixResult,
    Outlook,
    ShareChoice,
    SharePoint,
    TunedWorkload,
    TuneResult,
)

MODEL = ModelInfo("resnet", "models/resnet.onnx", "ab" * 32, 25_557_032, 53_120)
NOTE = Note("share-disturbed", "others took 4 % of core 0 while it was measured")
WHOLE = "c0" * 32


def around(value: float, part: float = 0.03) -> Estimate:
    """Return a figure with an interval of `part` to both sides."""
    return Estimate(value, value * (1 - part), value * (1 + part), "measured")


def settings(**given: object) -> str:
    """Return settings as canonical text."""
    return json.dumps(given, sort_keys=True)


def _serving_trials() -> Iterator[Trial]:
    figures = (8.31, 8.02, 6.11, 4.40, 3.99, 3.97)
    for i, value in enumerate(figures):
        config = settings(engine="openvino" if i > 2 else "onnxruntime", streams=i)
        at_s = 6.0 + 5.0 * i
        yield Trial(WHOLE, config, latency_ms=around(value), piece=i // 2, client=0, server=0,
                    build_s=0.8, measure_s=2.5, at_s=at_s)  # fmt: skip
    yield Trial(WHOLE, settings(engine="openvino", precision="int8"), TrialOutcome.REFUSED,
                error="no accuracy data\nmore", piece=3, client=0, at_s=33.0)  # fmt: skip
    yield Trial(WHOLE, settings(engine="onnxruntime", graph="none"), TrialOutcome.CRASHED,
                error="signal 11", piece=3, client=0, server=0, measure_s=0.5,
                at_s=35.0)  # fmt: skip
    best = settings(engine="openvino", streams=5)
    yield Trial(WHOLE, best, latency_ms=around(3.96, 0.01), server=0, measure_s=4.0, at_s=41.0,
                is_alone=True)  # fmt: skip


def serving() -> TuneResult:
    """Return a tuning of settings: one workload, faster, outputs equal."""
    trials = tuple(_serving_trials())
    whole = Workload(WHOLE, "resnet, whole", ("Conv", "Gemm"), weight_ms=7.9)
    best = Tuned(whole, trials[-1].config, around(3.96, 0.01), trials=8, default_ms=8.31)
    workload = TunedWorkload(
        best, whole.name, WHOLE, whole.op_types, 1, 7.9, 8,
        {TrialOutcome.REFUSED: 1, TrialOutcome.CRASHED: 1},
    )  # fmt: skip
    totals = (8.31, 8.02, 6.11, 4.40, 3.99, 3.97)
    curve = [CurvePoint(6.0 + 5.0 * i, i + 1, total) for i, total in enumerate(totals)]
    return TuneResult(
        model=MODEL, engine="serving", engine_version="serving 1", device="cpu", share="50%",
        mechanism="cores", threads=1, batch=1, precision="fp32", artifact=Path("resnet.tuned"),
        how_to_run="python resnet.tuned/run.py\n", before_ms=around(8.31, 0.02),
        after_ms=around(3.96, 0.02),
        before_options={"engine": "onnxruntime", "spinning": "1", "threads": "1"},
        after_options={"engine": "openvino", "streams": "1", "threads": "1"},
        outputs_equal=True, difference=2.1e-6, workloads=(workload,), trials=trials,
        phases=Phases(1.5, 6.4, 21.5, 43.0, servers=1, clients=1),
        curve=(*curve, CurvePoint(41.0, 8, 3.96, is_alone=True)),
        outlook=Outlook(3600.0, 690, Estimate(3.9, 3.7, 3.96)),
        choice=choice(), journal=Path("tune/trials.jsonl"), notes=(NOTE,),
    )  # fmt: skip


def choice() -> ShareChoice:
    """Return a sweep over quarters with its knee at a half."""
    figures = ((25.0, 15.2, None), (50.0, 8.2, 8.31), (75.0, 7.9, None), (100.0, 7.6, 7.7))
    points = [
        SharePoint(at, around(ms, 0.2), None if measured is None else around(measured))
        for at, ms, measured in figures
    ]
    return ShareChoice(tuple(points), 50.0, 0.1)


def operators(*, clients: int = 2) -> TuneResult:
    """Return a tuning of operators that was not run as a whole: triton's, say."""
    shapes = (
        ("MatMul 8x512x768 768x3072", 12, 0.52, 0.25),
        ("MatMul 8x512x3072 3072x768", 12, 0.5, 0.3),
        ("Softmax 8x12x512x512", 12, 0.21, 0.2), ("LayerNormalization 8x512x768", 25, 0.04, 0.03),
        ("Gather 30522x768", 1, None, None),
    )  # fmt: skip
    workloads, trials = [], []
    for i, (name, count, default, tuned) in enumerate(shapes):
        key = f"{i:02d}" * 32
        its = Workload(key, name, (name.split()[0],), count=count, weight_ms=count * 0.3)
        config = settings(block=64 << i, warps=4)
        best = None
        failed = {TrialOutcome.BUILD_FAILED: 24}
        if tuned is not None:
            best = Tuned(its, config, around(tuned), trials=24, default_ms=default,
                         is_from_store=i == 3)  # fmt: skip
            failed = {TrialOutcome.BUILD_FAILED: i, TrialOutcome.TIMED_OUT: 1} if i else {}
            for j in range(3):
                at_s = 8.0 * (i + 1) + 1.5 * j
                trials.append(
                    Trial(key, f"{config}{j}", latency_ms=around(tuned * (1.3 - 0.1 * j)),
                          piece=i, client=i % clients, server=0, build_s=1.2, measure_s=0.7,
                          at_s=at_s, is_warm=i == 3)
                )  # fmt: skip
        workloads.append(
            TunedWorkload(best, name, key, its.op_types, count, its.weight_ms, 24, failed)
        )
    totals = ((8.0, 3, 16.2), (16.0, 40, 12.1), (24.0, 80, 10.0), (40.0, 118, 9.75))
    return replace(
        serving(), engine="triton", device="h100-sxm5-80gb", share="1g.10gb", mechanism="mig",
        threads=0, before_ms=None, after_ms=None, before_options={}, after_options={},
        outputs_equal=None, difference=None, workloads=tuple(workloads), trials=tuple(trials),
        phases=Phases(30.0, 42.0, 20.0, 41.0, servers=1, clients=clients), choice=None,
        curve=tuple(CurvePoint(*each) for each in totals), notes=(),
    )  # fmt: skip


def matrix_result(*, has_effect: bool = True, several: bool = True) -> MatrixResult:
    """Return a matrix over three shares of two workloads, or of one."""
    total = _matrix("", "all workloads", 0.12 if has_effect else 0.01, config="")
    own = [_matrix("a1" * 32, "MatMul 128x256 256x256", 0.31 if has_effect else 0.02)]
    if several:
        own.append(_matrix("b2" * 32, "Softmax 4x128x128", 0.01))
    return MatrixResult(
        MODEL, "tvm", "tvm 0.27", "cpu", "cores", 1, total.shares, 24, total, tuple(own),
        Phases(3.0, 20.0, 61.0, 90.0), (NOTE,),
    )  # fmt: skip


def _matrix(key: str, name: str, effect: float, *, config: str | None = None) -> Matrix:
    shares = ("25%", "50%", "100%")
    cells = []
    for i, tuned_at in enumerate(shares):
        for j, run_at in enumerate(shares):
            best = 8.0 / (j + 1)
            factor = 1 + effect * abs(i - j) / 2
            penalty = Estimate(1.0, 1.0, 1.0) if i == j else around(factor, 0.04)
            chosen = settings(tile=16 << i) if config is None else config
            cells.append(MatrixCell(tuned_at, run_at, chosen, around(best * factor), penalty))
    return Matrix(key, name, shares, tuple(cells))
