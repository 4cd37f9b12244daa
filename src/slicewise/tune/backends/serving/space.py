"""The settings worth trying for a model on a share, in the order in which they are tried.

Which combinations are left out, and why, is a table. No setting is measured here.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from slicewise.core.graph import Graph, Node, reads_of
from slicewise.tune.backends.serving.settings import AS_IS, ONNXRUNTIME, OPENVINO, Settings

# Up to so many settings are all tried; more are searched.
EXHAUSTIVE = 48
INT8, INT8_HEAVY, INT8_DYNAMIC = "int8", "int8 heavy", "int8 dynamic"
# Every thread count up to here, then about eight for each doubling.
_ALL_THREADS = 8
# Where matrix products by constants are less than this part of the work, int8 of them alone does
# not pay: quantising activations at run time costs a pass over each.
_LEAST_MATRIX_PART = 0.2
_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention"})
_MATRIX = frozenset({"Gemm", "MatMul"})
_CARRIERS = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"}
)
_SCORERS = frozenset({"Softmax", "LogSoftmax"})
_QUANTISED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What of model, share and wishes decides which settings there are."""

    cores: int
    batches: tuple[int, ...] = (1,)
    engines: tuple[str, ...] = (ONNXRUNTIME, OPENVINO)
    numerics: tuple[str, ...] = (AS_IS,)
    has_branches: bool = False
    is_throughput: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings that are left out, and why."""

    name: str
    leaves_out: Callable[[Settings, Facts], bool]
    why: str


def _is_ort(s: Settings) -> bool:
    return s.engine == ONNXRUNTIME


RULES = (
    Rule(
        "one thread does not spin",
        lambda s, _: _is_ort(s) and s.threads_each == 1 and s.spinning != "1",
        "spinning is waiting for other threads of the same session",
    ),
    Rule(
        "one thread has no second operator to run",
        lambda s, _: s.execution == "parallel" and s.threads_each == 1,
        "parallel execution runs operators side by side",
    ),
    Rule(
        "a chain has no branches",
        lambda s, facts: s.execution == "parallel" and not facts.has_branches,
        "without two heavy operators that do not wait for each other nothing runs in parallel",
    ),
    Rule(
        "requests in parallel already",
        lambda s, _: s.execution == "parallel" and s.requests > 1,
        "several requests keep the cores busy; operators side by side only share them out again",
    ),
    Rule(
        "parallel execution at the full graph level",
        lambda s, _: s.execution == "parallel" and s.graph_level != "all",
        "the level chooses kernels, the execution mode when they run",
    ),
    Rule(
        "int8 needs the fusions of 'extended'",
        lambda s, _: s.numerics != AS_IS and s.graph_level == "basic",
        "below it QuantizeLinear and DequantizeLinear run as operators around float kernels",
    ),
    Rule(
        "one thread is pinned by the share",
        lambda s, _: s.engine == OPENVINO and s.threads == 1 and s.pinning != "0",
        "pinning chooses cores for threads; the process has its share's cores already",
    ),
    Rule(
        "dynamic int8 is onnxruntime's",
        lambda s, _: s.engine == OPENVINO and s.numerics == INT8_DYNAMIC,
        "OpenVINO computes MatMulInteger in float, behind the cost of quantising",
    ),
    Rule(
        "one inference at a time for latency",
        lambda s, facts: s.requests > 1 and not facts.is_throughput,
        "a second request beside it can only slow the first",
    ),
    Rule(
        "all cores for throughput",
        lambda s, facts: facts.is_throughput and s.threads < facts.cores and s.requests > 1,
        "cores without a thread add nothing to the throughput of the share",
    ),
)


def default_settings(facts: Facts) -> Settings:
    """Return what a user gets who sets nothing but stays on the share: onnxruntime, a thread for
    each core, spinning."""
    return Settings(threads=facts.cores, batch=facts.batches[0])


def all_settings(facts: Facts) -> tuple[Settings, ...]:
    """Return the settings that no rule leaves out, the default first, then those that differ in
    the fewest knobs, so that a short search sees what each knob does.

    >>> len(all_settings(Facts(cores=1))), len(all_settings(Facts(cores=2)))
    (4, 12)
    """
    default = default_settings(facts)
    kept = [
        made for made in _product(facts) if not any(rule.leaves_out(made, facts) for rule in RULES)
    ]
    return tuple(sorted(kept, key=lambda made: _distance(made, default)))


def _product(facts: Facts) -> Iterator[Settings]:
    """Yield all combinations, the knobs of the other engine at their defaults."""
    knobs: Mapping[str, Mapping[str, tuple[str, ...]]] = {
        ONNXRUNTIME: {
            "spinning": ("1", "0"),
            # 'disable' is not tried: constants are then folded anew in each run
            "graph_level": ("all", "extended", "basic"),
            "execution": ("sequential", "parallel"),
        },
        OPENVINO: {"pinning": ("0", "1")},
    }
    threads = thread_counts(facts.cores)
    requests = threads if facts.is_throughput else (1,)
    for engine, batch, numerics, count, at_once in itertools.product(
        facts.engines, facts.batches, facts.numerics, threads, requests
    ):
        own = knobs[engine]
        for values in itertools.product(*own.values()):
            told = dict(zip(own, values, strict=True))
            yield replace(Settings(engine, numerics, count, at_once, batch), **told)  # type: ignore[arg-type]


def _distance(made: Settings, default: Settings) -> int:
    """Return in how many knobs the two differ; the engine's own knobs count from its defaults."""
    return sum(
        getattr(made, name) != getattr(default, name) for name in Settings.__dataclass_fields__
    )


def thread_counts(cores: int) -> tuple[int, ...]:
    """Return the numbers of threads worth trying, ascending: all up to 8, then eighths of the
    next power of two, and all cores.

    >>> thread_counts(2), thread_counts(24)
    ((1, 2), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24))
    """
    counts = set(range(1, min(cores, _ALL_THREADS) + 1))
    top = _ALL_THREADS
    while top < cores:
        counts.update(range(top, min(2 * top, cores) + 1, top // 4))
        top *= 2
    return tuple(sorted({*counts, cores}))


# --- what the graph says


def has_branches(graph: Graph) -> bool:
    """True if two heavy operators of the graph do not wait for each other.

    Where no two are equally deep, counted in heavy operators before them, they form a chain.
    """
    depth: dict[str, int] = {}
    taken: set[int] = set()
    for node in graph.nodes:
        deep = max((depth.get(name, 0) for name in reads_of(node)), default=0)
        if node.op_type in _HEAVY:
            if deep in taken:
                return True
            taken.add(deep)
            deep += 1
        depth.update(dict.fromkeys(filter(None, node.outputs), deep))
    return False


def int8_kinds(graph: Graph, node_ms: Mapping[str, float]) -> tuple[str, ...]:
    """Return the kinds of int8 that the graph has operators for.

    `node_ms` weighs them; without it they count alike.
    """
    with_weights = [n for n in graph.nodes if n.op_type in _QUANTISED and _has_weight(graph, n)]
    if not with_weights:
        return ()

    def cost(node: Node) -> float:
        return node_ms.get(node.name, 0.0) if node_ms else float(node.op_type in _HEAVY)

    total = sum(map(cost, graph.nodes))
    matrices = sum(cost(node) for node in with_weights if node.op_type in _MATRIX)
    if total > 0 and matrices >= _LEAST_MATRIX_PART * total:
        return INT8, INT8_HEAVY, INT8_DYNAMIC
    return INT8, INT8_HEAVY


def _has_weight(graph: Graph, node: Node) -> bool:
    return any(name in graph.constants for name in node.inputs[1:2])


def score_outputs(graph: Graph) -> frozenset[str]:
    """Return the outputs that hold a score for each class: made by a softmax, or by a matrix
    product with or without a bias, as heads of classifiers are; seen through reshapes."""
    maker = {name: node for node in graph.nodes for name in node.outputs if name}

    def is_score(name: str) -> bool:
        node = maker.get(name)
        if node is None:
            return False
        if node.op_type in _CARRIERS and _width(graph, node.inputs[0]) == _width(graph, name):
            return is_score(node.inputs[0])
        if node.op_type == "Add":  # of a bias
            return any(
                other in graph.constants and is_product(one)
                for one, other in (node.inputs[:2], node.inputs[1::-1])
            )
        return node.op_type in _SCORERS or is_product(name)

    def is_product(name: str) -> bool:
        node = maker.get(name)
        return node is not None and node.op_type in _MATRIX and _has_weight(graph, node)

    return frozenset(filter(is_score, graph.outputs))


def _width(graph: Graph, name: str) -> int | None:
    """Return the last dimension of a tensor, None where its shape is not known or is ()."""
    shape = graph.tensors[name].shape if name in graph.tensors else None
    return shape[-1] if shape else None
