"""Which tensors go from where to where, and where each lies in shared memory. Runs nothing.

A route joins two places: the feeder (-1), a stage, or the collector (the number of stages). All
tensors between two places share a ring of slots; a route that skips stages has more slots, since
more items are between its ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slicewise.core.errors import UsageError
from slicewise.core.graph import Tensor
from slicewise.core.pipeline_measurement import StageSpec
from slicewise.core.precision import DType

FEEDER = -1
_ALIGNMENT = 64  # of a tensor in a slot: a cache line, and what vector units like
_STATE_BYTES = 16  # of a stage: what it does, and with which item

_NUMPY = {
    DType.FP64: "float64", DType.FP32: "float32", DType.FP16: "float16",
    DType.INT64: "int64", DType.INT32: "int32", DType.INT16: "int16", DType.INT8: "int8",
    DType.UINT64: "uint64", DType.UINT32: "uint32", DType.UINT16: "uint16", DType.UINT8: "uint8",
    DType.BOOL: "bool", DType.COMPLEX64: "complex64", DType.COMPLEX128: "complex128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor inside a slot: `offset` and `size` in bytes, `dtype` as numpy calls it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Route:
    """A ring of `slots` slots from `source` to `target`, at `offset` bytes of the memory.

    A slot begins with the number of its item.
    """

    source: int
    target: int
    places: tuple[Place, ...]
    slots: int
    slot_bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All routes, and the size of the memory that they and the stages' states need."""

    routes: tuple[Route, ...]
    stages: int
    size_bytes: int

    def into(self, place: int) -> list[Route]:
        """Return the routes that end at a place."""
        return [route for route in self.routes if route.target == place]

    def out_of(self, place: int) -> list[Route]:
        """Return the routes that begin at a place."""
        return [route for route in self.routes if route.source == place]


def numpy_type(dtype: DType) -> str:
    """Return what numpy calls the type; `KeyError` for one that cannot be passed on."""
    return _NUMPY[dtype]


def state_offset(stage: int) -> int:
    """Return where the state of a stage lies in the memory."""
    return stage * _STATE_BYTES


def plan_routes(
    stages: Sequence[StageSpec], *, depth: int, outputs: Sequence[str] | None = None
) -> Plan:
    """Return the routes that join the stages by the names of their tensors.

    A tensor that no stage gives comes from the feeder. `outputs` are handed out at the end; None
    for all that no later stage reads. `depth` slots between neighbours. `UsageError` for stages
    that cannot be joined.
    """
    if not stages or depth < 1:
        raise UsageError(
            f"a pipeline of {len(stages)} stages with queues of {depth} cannot run; give at least"
            " one stage and depth 1"
        )
    _check_stages(stages)
    sent = _sent_tensors(stages, outputs)
    offset = _aligned(len(stages) * _STATE_BYTES)
    routes: list[Route] = []
    for (source, target), tensors in sorted(sent.items()):
        places, slot_bytes = _place(tensors)
        skipped = target - source - 1
        slots = depth * (skipped + 1) + skipped
        routes.append(Route(source, target, places, slots, slot_bytes, offset))
        offset += slots * slot_bytes
    plan = Plan(tuple(routes), len(stages), size_bytes=offset)
    for index, stage in enumerate(stages):
        if not plan.into(index) or not plan.out_of(index):
            lacks = "reads no tensor" if not plan.into(index) else "gives no tensor that is read"
            raise UsageError(f"stage {stage.name!r} {lacks}; leave it out, or join it to another")
    return plan


def _sent_tensors(
    stages: Sequence[StageSpec], outputs: Sequence[str] | None
) -> dict[tuple[int, int], dict[str, Tensor]]:
    """Return the tensors between each two places."""
    maker = {name: i for i, stage in enumerate(stages) for name in stage.outputs}
    sent: dict[tuple[int, int], dict[str, Tensor]] = {}
    read: set[str] = set()
    given: dict[str, Tensor] = {}
    for target, stage in enumerate(stages):
        for name, tensor in stage.inputs.items():
            source = maker.get(name, FEEDER)
            if source >= target:
                raise UsageError(
                    f"stage {stage.name!r} reads {name!r}, which stage {stages[source].name!r}"
                    " gives, and that is not before it; put the stages in order"
                )
            made = given.setdefault(name, tensor)
            if source != FEEDER:
                made = stages[source].outputs[name]
            _check_agrees(name, made, tensor, reader=stage.name)
            sent.setdefault((source, target), {})[name] = tensor
            read.add(name)
    wanted = [name for name in maker if name not in read] if outputs is None else outputs
    for name in wanted:
        if name not in maker:
            raise UsageError(f"output {name!r} is given by no stage; stages give {_names(maker)}")
        source = maker[name]
        sent.setdefault((source, len(stages)), {})[name] = stages[source].outputs[name]
    if not wanted:
        raise UsageError(f"a pipeline needs an output; its stages give {_names(maker)}")
    return sent


def _check_stages(stages: Sequence[StageSpec]) -> None:
    names = [stage.name for stage in stages]
    given = [name for stage in stages for name in stage.outputs]
    for what, each in (("stage", names), ("tensor", given)):
        twice = sorted({name for name in each if each.count(name) > 1})
        if twice:
            raise UsageError(f"{what} {twice[0]!r} is given twice; names must differ")
    for stage in stages:
        if stage.threads < 1:
            raise UsageError(
                f"stage {stage.name!r} has threads={stage.threads}; give 1 or more, at most one"
                " for each of its cores"
            )
        for name, tensor in {**stage.inputs, **stage.outputs}.items():
            _check_tensor(name, tensor, stage=stage.name)


def _check_tensor(name: str, tensor: Tensor, *, stage: str) -> None:
    if tensor.shape is None or min(tensor.shape, default=0) < 0:
        raise UsageError(
            f"tensor {name!r} of stage {stage!r} has shape {tensor.shape}; a queue needs sizes;"
            " bind the model's dimensions first"
        )
    if tensor.dtype not in _NUMPY:
        raise UsageError(
            f"tensor {name!r} of stage {stage!r} is {tensor.dtype}, which cannot be passed between"
            f" stages; can be: {', '.join(_NUMPY)}; cut elsewhere"
        )


def _check_agrees(name: str, made: Tensor, read: Tensor, *, reader: str) -> None:
    if (made.shape, made.dtype) != (read.shape, read.dtype):
        raise UsageError(
            f"stage {reader!r} reads {name!r} as {read.dtype}{list(read.shape or ())}, and it is"
            f" {made.dtype}{list(made.shape or ())}; make them agree"
        )


def _place(tensors: Mapping[str, Tensor]) -> tuple[tuple[Place, ...], int]:
    """Return where tensors lie in a slot, behind the item's number, and the slot's size."""
    offset = _ALIGNMENT
    places: list[Place] = []
    for name, tensor in tensors.items():
        shape = tensor.shape or ()
        size = math.prod(shape) * tensor.dtype.bits // 8
        places.append(Place(name, shape, _NUMPY[tensor.dtype], offset, size))
        offset = _aligned(offset + size)
    return tuple(places), offset


def _aligned(offset: int) -> int:
    return (offset + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _names(names: Mapping[str, int]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
