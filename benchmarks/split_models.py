"""Real models cut into two stages: outputs against the whole model, throughput against predicted.

    python -m benchmarks.split_models [--models N] [--items N] [--rounds N]

Wants a quiet machine of two cores or more. The work of nodes is what onnxruntime's profiler tells,
scaled to the latency that was measured; the link is a copy in shared memory. Weights are random.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.tables import write_result
from slicewise.core.graph import Graph
from slicewise.core.measurement import Protocol
from slicewise.core.precision import Precision
from slicewise.flows.load import load
from slicewise.flows.measure import MeasureOptions, is_usable, measure
from slicewise.flows.operators import operator_times
from slicewise.flows.partition import partition
from slicewise.flows.partitioning.options import PartitionOptions
from slicewise.flows.partitioning.pipeline_material import Material
from slicewise.flows.partitioning.pipeline_model import model_material
from slicewise.flows.partitioning.pipeline_problem import assemble
from slicewise.flows.partitioning.result import PartitionResult
from slicewise.flows.partitioning.stage_files import StagesCheck, check_stages, write_stages
from slicewise.flows.partitioning.wishes import Wishes, parse_link
from slicewise.flows.predict import PredictOptions, ready_graph
from slicewise.flows.run_pipeline import RunOptions, run_pipeline
from slicewise.flows.subject import subject_of
from slicewise.predict.kernels import kernels_of
from slicewise.store.home import home

MODELS = (
    "torchvision:resnet18", "timm:mobilenetv3_small_100", "timm:vit_tiny_patch16_224",
    "torchvision:densenet121", "timm:convnext_atto", "torchvision:squeezenet1_1",
    "timm:efficientnet_b0", "transformers:bert", "transformers:gpt2",
)  # fmt: skip
STAGES = 2
DEVICE = "cpu"
# Two copies into and out of shared memory at about 10 GB/s each, and the wake-up of a process
# behind a pipe (benchmarks/results/measure_trust.md has the like of it).
LINK = "5GB/s:50us"
PROTOCOL = Protocol(warmup_s=0.5, budget_s=4.0, min_samples=20, relative_width=0.01)
ALLOWED = 0.15


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one model. `told` is the part of the time that the profiler told of kernels."""

    model: str
    nodes: int
    cut_bytes: float
    check: StagesCheck
    whole_ms: float
    told: float
    predicted: float
    measured: float
    rounds: tuple[float, ...]

    @property
    def error(self) -> float:
        """(predicted - measured) / measured throughput ratio."""
        return self.predicted / self.measured - 1


def main() -> None:
    """Cut, check and run every model, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=len(MODELS))
    parser.add_argument("--items", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-table", action="store_true")
    asked = parser.parse_args()
    made = []
    for model in MODELS[: asked.models]:
        began = time.monotonic()
        made.append(judge(model, items=asked.items, rounds=asked.rounds))
        print(*_row(made[-1]), f"{time.monotonic() - began:.0f} s", sep=" | ", flush=True)
    if not asked.no_table:
        _write(made)


def onnx_of(model: str) -> str:
    """Return an ONNX file of a model of a zoo, random weights and all."""
    graph = load(model)
    subject = subject_of(graph, form="onnx", precision="fp32", exports=home() / "exports")
    return str(subject.open())


def judge(model: str, *, items: int, rounds: int) -> Outcome:
    """Return what cutting a model into stages gave."""
    graph = load(onnx_of(model))
    material, told, whole_ms = profiled(graph)
    result = cut(material)
    with tempfile.TemporaryDirectory() as folder:
        files = write_stages(result, Path(folder) / "stages").files
        assert files is not None
        check = check_stages(files, items=2)
        runs = [
            run_pipeline(files.directory, options=RunOptions(items=items)) for _ in range(rounds)
        ]
    predicted = runs[0].predicted_speedup
    assert predicted is not None
    ratios = tuple(run.speedup for run in runs)
    return Outcome(
        model,
        len(graph.nodes),
        math.fsum(each.tensor.size_bytes or 0.0 for each in result.cut_tensors),
        check,
        whole_ms,
        told,
        predicted,
        statistics.median(ratios),
        ratios,
    )


def profiled(graph: Graph) -> tuple[Material, float, float]:
    """Return the model as material with measured work, the part of the time told, and the latency.

    A kernel that was timed together with others gets its part by its predicted time; what no
    kernel was told for is spread over all.
    """
    asked = MeasureOptions(runtime="onnxruntime", threads=1, protocol=PROTOCOL, profile=True)
    (measured,) = measure(graph, device=DEVICE, options=asked, keep=False)
    if not is_usable(measured) or measured.latency_ms is None:
        raise SystemExit(f"{graph.name} could not be measured: {measured.error}")
    whole_ms = measured.latency_ms.value
    material = model_material(graph, devices=[DEVICE], options=PredictOptions())
    ready, work = ready_graph(graph, Precision.named(measured.precision), runtime="onnxruntime")
    device = material.devices[DEVICE]
    group_of = {node: i for i, group in enumerate(material.groups) for node in group}
    groups = {k: group_of[row.nodes[0]] for k, row in enumerate(kernels_of(work)) if row.nodes}
    own: defaultdict[int, float] = defaultdict(float)
    for found in operator_times(ready, work, measured.nodes):
        its = [groups[k] for k in found.kernels if k in groups]
        total = math.fsum(device.work_ms[i] for i in its)
        for i in its:
            part = device.work_ms[i] / total if total > 0 else 1 / len(its)
            own[i] += found.latency_ms * part
    told = math.fsum(own.values()) / whole_ms
    ratio = math.fsum(own.values()) / math.fsum(device.work_ms[i] for i in own)
    times = [own.get(i, ms * ratio) for i, ms in enumerate(device.work_ms)]
    scale = whole_ms / math.fsum(times)
    timed = replace(device, work_ms=tuple(ms * scale for ms in times), energy_j=())
    return replace(material, devices={DEVICE: timed}), told, whole_ms


def cut(material: Material) -> PartitionResult:
    """Return the best cut of a model into `STAGES`."""
    case = assemble(material, Wishes(links=(parse_link(LINK),)), stages=STAGES)
    solved = partition(case.problem, options=PartitionOptions(time_limit_s=20.0))
    return PartitionResult(case, solved.partition)


def _row(made: Outcome) -> list[str]:
    worst = max(made.check.outputs, key=lambda each: each.relative)
    equal = "bit for bit" if made.check.is_equal else f"to {worst.relative:.1e}"
    return [
        made.model,
        f"{made.nodes}",
        f"{made.cut_bytes / 1024:.0f}",
        equal if made.check.is_within else f"no: {worst.relative:.1e}",
        f"{made.whole_ms:.2f}",
        f"{made.told:.0%}",
        f"{made.predicted:.3f}",
        f"{made.measured:.3f}",
        f"{made.error:+.1%}",
        f"{min(made.rounds):.3f} - {max(made.rounds):.3f}",
    ]


def _write(made: list[Outcome]) -> None:
    within = sum(abs(each.error) <= ALLOWED for each in made)
    equal = sum(each.check.is_within for each in made)
    write_result(
        "split_models",
        title="Do split models run as predicted?",
        command="python -m benchmarks.split_models",
        words=(
            f"{len(made)} ONNX models cut into {STAGES} stages; onnxruntime, a core and a thread"
            " for each stage, batch 1, random weights. Outputs of the stages are the whole"
            f" model's for {equal} of {len(made)}; the throughput ratio of {STAGES} stages to one"
            f" is within {ALLOWED:.0%} of predicted for {within} of {len(made)}. Predicted from"
            " the operators' times by onnxruntime's profiler, scaled to the measured latency, and"
            f" a link of {LINK}; `told` is the part of it that the profiler tells. The middle of"
            " the rounds, whose range is in the last column."
        ),
        columns=(
            "model", "nodes", "cut KiB", "outputs equal", "whole ms", "told", "predicted ratio",
            "measured ratio", "error", "rounds",
        ),
        rows=[_row(each) for each in made],
    )  # fmt: skip


if __name__ == "__main__":
    main()
