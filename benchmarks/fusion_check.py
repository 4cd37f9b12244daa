"""Our kernels beside what onnxruntime and inductor make of the same models on this CPU.

    python -m benchmarks.fusion_check [onnxruntime|torch-compile ...] [--models PART,PART]

onnxruntime: the graph that a session saves after its optimisations, ours from the same file (made
by torch.onnx, weights random). `ORT_ENABLE_ALL` is what users get; its reordering nodes serve the
blocked layouts of CPUs alone and are left out. `ORT_ENABLE_EXTENDED` stops before layouts: what is
left of it on a GPU. Nodes that are views by our table are left out on both sides.

torch-compile: inductor's kernels after its scheduler has fused, ours from the program that
torch.export makes of the module. Layout optimisation, weight packing and freezing are off, since
GPUs do without.
Concatenations of few tensors are computed where they are read, as on a GPU (`lowering.py: cat`).
Loops over the same rows that the C++ back-end puts together count as one kernel, as on a GPU.
Kernels that touch weights only are left out. `--list MODEL` lists ours with the numbers of theirs.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.eager_models import MODELS, EagerModel, prepare_torchvision
from benchmarks.tables import markdown, write_result
from slicewise.core.cost import GraphWork, Kind
from slicewise.core.graph import Binding, Graph
from slicewise.graph.launch import launch
from slicewise.graph.ops import operator
from slicewise.graph.work import count_work

CHOSEN = (
    "timm:resnet18", "timm:densenet121", "timm:mobilenetv3_large_100", "timm:efficientnet_b0",
    "timm:convnext_tiny", "timm:deit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224",
    "timm:mobilevit_s", "torchvision:shufflenet_v2_x1_0", "transformers:BertModel",
    "transformers:GPT2Model", "transformers:LlamaModel", "unet",
)  # fmt: skip
# inductor unrolls these over the steps of a sequence, which no table of operators can know
ONNX_ONLY = ("lstm-tagger",)
_NOT_TRACED = frozenset({"unet"})
COLUMNS = ("model", "nodes", "kernels, ours", "theirs", "difference %", "precision", "recall")


@dataclass(frozen=True, slots=True)
class Compared:
    """Ours beside theirs for one model; `precision` and `recall` of the groupings."""

    model: str
    nodes: int
    ours: int
    theirs: int
    precision: float
    recall: float
    remark: str = ""

    @property
    def percent(self) -> float:
        """Ours over theirs."""
        return 100 * (self.ours / self.theirs - 1)

    def cells(self) -> tuple[str, ...]:
        """Return one line of the table."""
        return (
            self.model, str(self.nodes), str(self.ours), str(self.theirs), f"{self.percent:+.1f}",
            f"{self.precision:.2f}", f"{self.recall:.2f}", self.remark,
        )  # fmt: skip


# --- onnxruntime


def optimised(path: Path, level: str) -> Any:
    """Return the model that an onnxruntime session on the CPU saves at `level`."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    options.log_severity_level = 3
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


def is_kernel(node: Any) -> bool:
    """True for a node of an optimised graph that launches something by our table of operators."""
    row = operator(node.domain, node.op_type)
    return not node.op_type.startswith("Reorder") and (
        row is None or row.kind not in (Kind.VIEW, Kind.CONTROL)
    )


def compare_onnxruntime(model: EagerModel, folder: Path, level: str) -> Compared:
    """Return ours beside the optimised graph; groupings by the tensors that are left.

    A tensor inside one of our kernels must not be in theirs, one that ends a kernel must.
    Fusions and the moving of transposes rename tensors, which counts against us.
    """
    path = folder / f"{model.name.replace(':', '-')}.onnx"
    if not path.exists():
        _export(model, path)
    from slicewise.flows.load import load

    graph = load(path)
    work = launch(graph, count_work(graph), runtime="onnxruntime")
    theirs = [node for node in optimised(path, level).graph.node if is_kernel(node)]
    made = {name for node in theirs for name in node.output if name}
    ends = _ends(graph, work)
    common = ends & made
    ops = Counter(node.op_type for node in theirs)
    own = Counter(kernel.work.op_type for kernel in work.kernels or ())
    return Compared(
        model.name, len(graph.nodes), len(work.kernels or ()), len(theirs),
        len(common) / len(ends), len(common) / len(made), _differing(own, ops),
    )  # fmt: skip


def _export(model: EagerModel, path: Path) -> None:
    """Write the module with operators of opset 17 or 18, as most files in use are.

    By tracing, or by torch.export where tracing fails: named inputs, fused multi-head attention.
    """
    import torch

    module, kwargs = model.build().eval(), dict(model.kwargs())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if kwargs or model.name in _NOT_TRACED:
            torch.onnx.export(
                module, model.args(), str(path), kwargs=kwargs, dynamo=True, verbose=False
            )
        else:
            torch.onnx.export(
                module, model.args(), str(path), dynamo=False, opset_version=17,
                training=torch.onnx.TrainingMode.PRESERVE,
            )  # fmt: skip


def _ends(graph: Graph, work: GraphWork) -> set[str]:
    """Return the results that kernels leave behind."""
    readers: dict[str, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(i)
    ends = set()
    for kernel in work.kernels or ():
        own = set(kernel.nodes)
        for i in kernel.nodes:
            if work.nodes[i].kind is Kind.VIEW:
                continue
            for name in graph.nodes[i].outputs:
                if name and (name in graph.outputs or not readers.get(name, set()) <= own):
                    ends.add(name)
    return ends


def _differing(ours: Counter[str], theirs: Counter[str], most: int = 4) -> str:
    """Return the operators whose numbers differ most."""
    names = {name: ours[name] - theirs[name] for name in {*ours, *theirs}}
    listed = sorted((n for n in names if names[n]), key=lambda n: (-abs(names[n]), n))
    return ", ".join(f"{name} {names[name]:+d}" for name in listed[:most])


# --- inductor


class _Stopped(Exception):
    """Raised in place of generating code."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One kernel of inductor: what launches it, and the exported operators it came from."""

    sort: str
    origins: frozenset[str]


# nothing runs for them: an unused buffer, one of the results of a call
_NO_KERNELS = frozenset({"NopKernelSchedulerNode", "MultiOutput"})


def _is_split(before: Launched, after: Launched) -> bool:
    """True for the parts of one norm or softmax, which the C++ back-end keeps apart."""
    return before.origins >= after.origins and "Extern" not in before.sort + after.sort


def inductor_kernels(program: Any, args: Sequence[Any]) -> list[Launched]:
    """Return the kernels that inductor schedules for an exported program; no code is made."""
    import torch
    import torch._inductor.config as config
    from torch._inductor import scheduler
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.lowering import lowerings

    found: list[Launched] = []

    def record(self: Any) -> None:
        for node in self.nodes:
            launched = Launched(type(node).__name__, frozenset(_origins(node)))
            if _NO_KERNELS & {type(node).__name__, type(node.node).__name__}:
                continue
            if found and _is_split(found[-1], launched):
                found.pop()
            found.append(launched)
        raise _Stopped

    real, cat = scheduler.Scheduler.codegen, lowerings[torch.ops.aten.cat.default]

    def cat_as_on_gpu(inputs: Any, dim: int = 0) -> Any:
        with config.patch(force_pointwise_cat=len(inputs) <= config.max_pointwise_cat_inputs):
            return cat(inputs, dim)

    scheduler.Scheduler.codegen = record
    lowerings[torch.ops.aten.cat.default] = cat_as_on_gpu
    try:
        with config.patch({
            "freezing": False, "layout_optimization": False, "fx_graph_cache": False,
            "cpp.weight_prepack": False, "compile_threads": 1,
        }), torch.no_grad():  # fmt: skip
            compile_fx(program.module(), list(args))(*args)
    except Exception as err:  # the compiler wraps what stopped it
        if "_Stopped" not in repr(err) and "_Stopped" not in str(err):
            raise
    finally:
        scheduler.Scheduler.codegen = real
        lowerings[torch.ops.aten.cat.default] = cat
    return found


def _origins(node: Any) -> Iterator[str]:
    for part in node.get_nodes():
        for origin in (part.node.origins if part.node is not None else None) or ():
            for source in origin.meta.get("from_node", ()):
                yield source.name


def compare_inductor(model: EagerModel, listed: str = "") -> Compared:
    """Return ours beside inductor's kernels; groupings by the edges inside kernels.

    Each of our nodes belongs to the first of their kernels that names it.
    """
    import torch

    from slicewise.graph.frontends.torch import read_exported

    args, kwargs = model.args(), dict(model.kwargs())
    program = torch.export.export(model.build().eval(), args, kwargs, strict=False)
    graph = read_exported(program, Binding(), name=model.name, location=model.name)
    work = launch(graph, count_work(graph), runtime="torch-compile")
    theirs, count = _theirs(graph, work, inductor_kernels(program, [*args, *kwargs.values()]))
    if listed == model.name:
        _list(graph, work, theirs)
    ours = {i: k for k, kernel in enumerate(work.kernels or ()) for i in kernel.nodes}
    launching = {i for i in ours if work.nodes[i].kind is not Kind.VIEW and i in theirs}
    edges = [(u, v) for u, v, _ in graph.edges if u in launching and v in launching]
    return Compared(
        model.name, len(graph.nodes), len(work.kernels or ()), count,
        *_agreement([e for e in edges if ours[e[0]] == ours[e[1]]],
                    [e for e in edges if theirs[e[0]] == theirs[e[1]]]),
    )  # fmt: skip


def _theirs(
    graph: Graph, work: GraphWork, kernels: Sequence[Launched]
) -> tuple[dict[int, int], int]:
    """Return which of their kernels each node runs in, and how many they launch for the model.

    A product runs in the first library call that names it, another node in the first kernel.
    """
    node_of = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    theirs: dict[int, int] = {}
    named = [[node_of[name] for name in kernel.origins if name in node_of] for kernel in kernels]
    for calls in (True, False):
        for k, (kernel, its) in enumerate(zip(kernels, named, strict=True)):
            for i in its:
                is_product = work.nodes[i].work.macs > 0
                if is_product == calls and (not calls or "Extern" in kernel.sort):
                    theirs.setdefault(i, k)
    return theirs, sum(bool(its) for its in named)


def _list(graph: Graph, work: GraphWork, theirs: dict[int, int]) -> None:
    """Write each of our kernels with the numbers of theirs that its nodes are in."""
    for kernel in work.kernels or ():
        named = [f"{graph.nodes[i].outputs[0]}:{theirs.get(i, '-')}" for i in kernel.nodes]
        sys.stderr.write(f"{kernel.work.kind} {' '.join(named)}\n")


def _agreement(
    ours: Collection[tuple[int, int]], theirs: Collection[tuple[int, int]]
) -> tuple[float, float]:
    common = len(set(ours) & set(theirs))
    return (
        common / len(set(ours)) if ours else 1.0,
        common / len(set(theirs)) if theirs else 1.0,
    )


# --- tables


def main(arguments: Sequence[str]) -> int:
    """Compare and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtimes", nargs="*", default=["onnxruntime", "torch-compile"])
    parser.add_argument("--models", default="", help="parts of names, separated by commas")
    parser.add_argument("--list", default="", help="a model whose kernels are listed")
    asked = parser.parse_args(arguments)
    prepare_torchvision()
    wanted = asked.models.split(",")
    models = [m for m in MODELS if m.name in CHOSEN + ONNX_ONLY
              and any(part in m.name for part in wanted)]  # fmt: skip
    sections: list[tuple[str, list[Compared]]] = []
    with tempfile.TemporaryDirectory() as folder:
        if "onnxruntime" in asked.runtimes:
            for level in ("ALL", "EXTENDED"):
                rows = [compare_onnxruntime(model, Path(folder), level) for model in models]
                sections.append((f"onnxruntime, ORT_ENABLE_{level}", rows))
                _tell(*sections[-1])
    if "torch-compile" in asked.runtimes:
        rows = [compare_inductor(m, asked.list) for m in models if m.name not in ONNX_ONLY]
        sections.append(("torch-compile, inductor", rows))
        _tell(*sections[-1])
    if not asked.models:
        _write(sections)
    return 0


def _summary(rows: Sequence[Compared]) -> str:
    off = [abs(row.percent) for row in rows]
    return f"median {median(off):.1f} % off, worst {max(off):.1f} %"


def _tell(title: str, rows: Sequence[Compared]) -> None:
    lines = markdown((*COLUMNS, "remark"), [row.cells() for row in rows])
    sys.stdout.write("\n".join([title + ": " + _summary(rows), *lines, ""]))
    sys.stdout.flush()


def _write(sections: Sequence[tuple[str, list[Compared]]]) -> None:
    first, *others = sections
    more: list[str] = []
    for title, rows in others:
        lines = markdown((*COLUMNS, "ours less theirs"), [row.cells() for row in rows])
        more += [f"## {title}", "", f"{_summary(rows)}.", "", *lines, ""]
    write_result(
        "fusion_check",
        title="Kernels, ours beside those of onnxruntime and inductor",
        command="python -m benchmarks.fusion_check",
        words="Batch as in `benchmarks/eager_models.py`, random weights, CPU. Precision and"
        " recall: of tensors left between kernels (onnxruntime), of edges inside kernels"
        " (inductor)."
        f"\n\n## {first[0]}\n\n{_summary(first[1])}.",
        columns=(*COLUMNS, "ours less theirs"),
        rows=[row.cells() for row in first[1]],
        more="\n".join(more).strip(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
