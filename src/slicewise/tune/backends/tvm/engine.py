"""The engine `tvm`: MetaSchedule of apache-tvm on the cores of a share.

Pins and the way round three defects of TVM: `imports.py`, `selfcheck.py`, `artefact.py`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slicewise.core.errors import TuningError, UsageError
from slicewise.core.notes import Note
from slicewise.core.tuning import (
    Artifact,
    Prepared,
    Tuned,
    TuneTask,
    Workload,
    workload_key,
)
from slicewise.tune.backends._base import Client, Engine, Server
from slicewise.tune.backends.tvm.build import first_line
from slicewise.tune.backends.tvm.imports import import_tvm, installed, refuse_versions
from slicewise.tune.backends.tvm.problem import TvmProblem

_NAME = "tvm"
_SEARCHES = ("lean", "stock")
_OPTIONS = ("target", "search")


@dataclass(frozen=True, slots=True)
class TvmEngine:
    """The engine `tvm`.

    Options: `target`, the processor that LLVM compiles for as LLVM calls it (default: this one),
    and `search`, how candidates are found while no cost model is trained: `lean` samples the
    design space, `stock` evolves against random scores as MetaSchedule does.
    """

    name: str = _NAME
    places: frozenset[str] = frozenset({"cpu"})
    piece_size: int = 8
    is_apart: bool = False

    def check(self) -> tuple[Note, ...]:
        """Return no notes once versions fit and a tiny kernel was tuned in a process of its own;
        see the protocol. The second time on a machine nothing is run."""
        from slicewise.tune.backends.tvm.selfcheck import make_sure

        found = installed()
        refuse_versions(found)
        make_sure(found)
        return ()

    def prepare(self, task: TuneTask) -> Prepared:
        """Return the operators that TVM makes of the model; see the protocol."""
        from slicewise.tune.backends.tvm.relax import import_model, kernels_of
        from slicewise.tune.backends.tvm.trace import DEFAULT_CONFIG
        from slicewise.tune.backends.tvm.weights import operators_of, weigh

        options = _options(task.options)
        versions = installed()
        import_tvm()
        target = make_target(options["target"], task.threads)
        imported = import_model(task.subject, task.graph)
        try:
            kernels = kernels_of(imported.module, target)
        except Exception as err:
            raise TuningError(
                f"TVM cannot take model {task.subject.name!r} apart: {first_line(err)}; use engine"
                " serving"
            ) from err
        if not kernels:
            raise TuningError(
                f"engine tvm finds no operator to tune in model {task.subject.name!r}; use engine"
                " serving"
            )
        weights, notes = weigh(kernels, task.graph, task.node_ms, task.device)
        workloads, modules = [], {}
        for kernel, weight in zip(kernels, weights, strict=True):
            shapes = [shape for shape, _ in kernel.arguments]
            operators = operators_of(kernel.name)
            key = _key(operators, kernel.module)
            kinds = [kind for _, kind in kernel.arguments]
            modules[key] = _json(kernel.module)
            workloads.append(
                Workload(
                    key,
                    f"{'+'.join(operators)} {' '.join(_sizes(shape) for shape in shapes)}",
                    weight.op_types,
                    count=kernel.count,
                    weight_ms=weight.weight_ms,
                    nodes=weight.nodes,
                    kin=workload_key("tvm", operators, [len(shape) for shape in shapes], kinds),
                    default_config=DEFAULT_CONFIG,
                )
            )
        told = tuple(
            Note("tune-operator-skipped", f"{each.op_type} is not tuned: {each.reason}", each.name)
            for each in imported.skipped
        )
        problem = TvmProblem(
            str(target), task.threads, modules, is_lean=options["search"] == "lean"
        )
        version = (
            f"apache-tvm {versions['apache-tvm']}, apache-tvm-ffi {versions['apache-tvm-ffi']},"
            f" {_processor(target)}, {task.threads} thread{'s' if task.threads > 1 else ''}"
        )
        return Prepared(_NAME, version, _merged(workloads), problem, (*notes, *told))

    def client(self, problem: object) -> Client:
        """Return a client; TVM is imported here."""
        from slicewise.tune.backends.tvm.search import TvmClient

        return TvmClient(_checked(problem))

    def server(self, problem: object) -> Server:
        """Return a server; TVM is imported here."""
        from slicewise.tune.backends.tvm.timing import TvmServer

        return TvmServer(_checked(problem))

    def finish(self, task: TuneTask, prepared: Prepared, best: Mapping[str, Tuned]) -> Artifact:
        """Write the compiled model, its database and how to run it; see the protocol."""
        from slicewise.tune.backends.tvm.artefact import write_artefact

        import_tvm()
        return write_artefact(task, prepared, _checked(prepared.problem), best)


def make_target(processor: str, threads: int) -> Any:
    """Return TVM's target for `threads` cores of a processor as LLVM calls it, '' for this one."""
    import tvm

    if not processor:
        processor = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    triple = str(tvm.get_global_func("target.llvm_get_system_triple")())
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(processor, triple):
        raise UsageError(
            f"target {processor!r} is no processor that LLVM knows for {triple}; give one, as"
            " x86-64-v3 or skylake-avx512, or leave it out for this machine's"
        )
    return tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": threads})


def _options(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options with their defaults; `UsageError` names what is not known."""
    for name in given:
        if name not in _OPTIONS:
            raise UsageError(
                f"option {name!r} is unknown to engine tvm; it has {' and '.join(_OPTIONS)}"
            )
    made = {"target": "", "search": _SEARCHES[0], **given}
    if made["search"] not in _SEARCHES:
        raise UsageError(f"search {made['search']!r} is none; give {' or '.join(_SEARCHES)}")
    return made


def _checked(problem: object) -> TvmProblem:
    if not isinstance(problem, TvmProblem):
        raise TuningError(f"engine tvm was given a problem of {type(problem).__name__}")
    return problem


def _key(operators: tuple[str, ...], module: Any) -> str:
    """Return a workload's key: what TVM's structural hash tells apart, names left out."""
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return workload_key("tvm", operators, str(shash2hex(module)), "llvm")


def _json(module: Any) -> str:
    from tvm.ir import save_json

    return str(save_json(module))


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape) or "1"


def _processor(target: Any) -> str:
    return str(json.loads(str(target)).get("mcpu", "generic"))


def _merged(workloads: list[Workload]) -> tuple[Workload, ...]:
    """Return the workloads, those of one key as one."""
    counted = Counter(workload.key for workload in workloads)
    if max(counted.values()) == 1:
        return tuple(workloads)
    found: dict[str, Workload] = {}
    for each in workloads:
        one = found.get(each.key)
        if one is None:
            found[each.key] = each
            continue
        found[each.key] = Workload(
            one.key, one.name, one.op_types, one.count + each.count,
            one.weight_ms + each.weight_ms, (*one.nodes, *each.nodes), one.kin,
            one.default_config,
        )  # fmt: skip
    return tuple(found.values())


ENGINE: Engine = TvmEngine()
