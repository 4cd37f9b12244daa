"""Peak activation bytes of eager PyTorch: predicted from the graph beside the true peak.

    python -m benchmarks.activation_peak           # writes results/activation_peak.md and .json
    python -m benchmarks.activation_peak NAME...   # prints models whose name holds a NAME

The truth is a CPU run without gradients (`benchmarks/allocations.py`). Errors are against the
dispatch hook: it sees the tensors of the program, the same on every device. The CPU allocator also
sees scratch memory of CPU kernels, mostly weights that oneDNN reorders; `with scratch` compares
that with activations + workspace.
"""

import math
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.allocations import Peak, allocator_peak, dispatch_peak
from benchmarks.eager_models import MODELS, prepare_torchvision
from benchmarks.tables import write_result
from slicewise.core.cost import GraphWork
from slicewise.core.graph import Binding, Graph
from slicewise.core.units import MIB
from slicewise.graph.launch import launch
from slicewise.graph.work import count_work
from slicewise.predict.lifetimes import trace
from slicewise.predict.memory import Footprint, measure_footprint
from slicewise.predict.workspace import HABITS

RUNTIME = "torch-eager"
PROCESSES = 2
COLUMNS = (
    "model", "batch", "true MiB", "ours MiB", "error", "allocator MiB", "with scratch MiB",
    "error with scratch", "without held tensors", "at (true)", "at (ours)", "largest alive (true)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """One model: the true peak, the allocator's, and the prediction."""

    model: str
    batch: int
    true: Peak
    allocator_bytes: int
    footprint: Footprint
    unheld_bytes: int
    node: str

    @property
    def error(self) -> float:
        """Predicted over true, less 1."""
        return self.footprint.activation_bytes / self.true.bytes_ - 1

    @property
    def with_scratch(self) -> int:
        """Predicted activations and scratch memory of kernels."""
        return self.footprint.activation_bytes + self.footprint.scratch_bytes

    @property
    def scratch_error(self) -> float:
        """The same over the allocator's peak, less 1."""
        return self.with_scratch / self.allocator_bytes - 1


def compare(place: int) -> Compared:
    """Run the model at `place` in the list and predict it."""
    prepare_torchvision()
    import torch

    from slicewise.graph.frontends.torch import read_module

    model = MODELS[place]
    torch.set_num_threads(2)  # with one thread, oneDNN is not used for every convolution
    torch.manual_seed(0)
    module, args, kwargs = model.build().eval(), model.args(), model.kwargs()
    with torch.no_grad():
        module(*args, **kwargs)  # what a module makes once, at its first call, is no activation
    true = dispatch_peak(module, args, kwargs)
    allocator_bytes = allocator_peak(module, args, kwargs)
    graph = read_module(module, args, kwargs, Binding(), name=model.name, location=model.name)
    work = launch(graph, count_work(graph), runtime=RUNTIME)
    footprint = measure_footprint(graph, work, runtime=RUNTIME, device_kind="cpu")
    alive = footprint.alive_bytes
    most = max(range(len(alive)), key=alive.__getitem__)
    first = next(iter((*args, *kwargs.values())))
    return Compared(
        model.name,
        int(first.shape[0]),
        true,
        allocator_bytes,
        footprint,
        _without_held(graph, work),
        f"{graph.nodes[most].name} ({graph.nodes[most].op_type})",
    )


def _without_held(graph: Graph, work: GraphWork) -> int:
    """Return the peak if each tensor died with its last reader."""
    habits = replace(HABITS[RUNTIME], holds_arguments=False)
    return trace(graph, work.nodes, work.kernels, habits).peak_bytes


def row(each: Compared) -> tuple[str, ...]:
    """Return one line of the table."""
    largest = ", ".join(
        f"{bytes_ / MIB:.2f} {maker.split('.')[0]}" for bytes_, maker in each.true.largest[:3]
    )
    return (
        each.model,
        str(each.batch),
        f"{each.true.bytes_ / MIB:.2f}",
        f"{each.footprint.activation_bytes / MIB:.2f}",
        f"{each.error:+.1%}",
        f"{each.allocator_bytes / MIB:.2f}",
        f"{each.with_scratch / MIB:.2f}",
        f"{each.scratch_error:+.1%}",
        f"{each.unheld_bytes / each.true.bytes_ - 1:+.1%}",
        each.true.operator.split(".")[0],
        each.node,
        largest,
    )


def _summary(errors: Sequence[float]) -> str:
    ordered = sorted(abs(error) for error in errors)
    p90 = ordered[math.ceil(0.9 * len(ordered)) - 1]
    within = sum(error <= 0.1 for error in ordered)
    return (
        f"median {median(ordered):.1%}, 90th percentile {p90:.1%}, largest {ordered[-1]:.1%},"
        f" {within} of {len(ordered)} within 10 %"
    )


def main(names: Sequence[str]) -> int:
    """Compare every model, or those named, and write or print the table."""
    chosen = [
        i for i, m in enumerate(MODELS) if not names or any(name in m.name for name in names)
    ]
    compared: list[Compared] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        for each in pool.map(compare, chosen):
            compared.append(each)
            sys.stderr.write(" | ".join(row(each)) + "\n")
    if names:
        return 0
    unheld = [each.unheld_bytes / each.true.bytes_ - 1 for each in compared]
    write_result(
        "activation_peak",
        title="Peak activation bytes of eager PyTorch, predicted and true",
        command="python -m benchmarks.activation_peak",
        words=f"{len(compared)} models, random weights, CPU, fp32, no gradients. Errors against"
        f" the dispatch hook: {_summary([each.error for each in compared])}. Activations and"
        " scratch memory against the allocator of the CPU:"
        f" {_summary([each.scratch_error for each in compared])}. If tensors died with their last"
        f" reader, not when the program lets them go: {_summary(unheld)}.",
        columns=COLUMNS,
        rows=[row(each) for each in compared],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
