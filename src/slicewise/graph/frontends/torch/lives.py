"""Finds out how long a PyTorch program refers to each tensor, from a dry run with fake tensors.

An exported program tells what is computed, not which of the results the Python code still has in
a variable, a list or the arguments of a running call, and just that decides when eager memory is
freed. So the module is called once more with tensors that have shapes and no bytes, and every
storage that the interpreter lets go is booked. The module is left as it was.
"""

import weakref
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from slicewise.core.notes import Note

LAST_HELD = "last_held"  # entry of an FX node's meta: name of the last one that ran meanwhile
_LARGEST_TABLE = 4_000_000  # cells of an alignment; beyond, what differs stays unknown


def mark_lifetimes(
    program: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Write into the meta of each operator until which other one its result is referred to.

    `program` was exported from `module` with these arguments. An operator that the dry run does
    not have (eager code may take other branches than traced code) gets no entry, and none does
    where the dry run fails; `lifetime_notes` tells that.
    """
    try:
        operators, last_held = _dry_run(module, args, kwargs)
    except Exception:  # whatever a module raises that torch.export alone can trace
        return
    nodes = [node for node in program.graph.nodes if _gives_tensor(node)]
    places = align([str(node.target) for node in nodes], operators)
    seen = [(place, node) for place, node in zip(places, nodes, strict=True) if place is not None]
    running: list[Any] = [None] * len(operators)  # the last exported operator begun by then
    for place, node in seen:
        running[place] = node
    for i in range(1, len(running)):
        running[i] = running[i] or running[i - 1]
    for place, node in seen:
        if place in last_held:
            node.meta[LAST_HELD] = running[last_held[place]].name


def lifetime_notes(program: Any) -> tuple[Note, ...]:
    """Return a Note where it is not known what the program itself still refers to."""
    if any(LAST_HELD in node.meta for node in program.graph.nodes):
        return ()
    text = (
        "which results the program's own variables hold is not known; module calls are taken to"
        " hold their arguments, nothing else"
    )
    return (Note("lifetimes-by-module", text),)


def align(wanted: Sequence[str], seen: Sequence[str]) -> list[int | None]:
    """Return for each entry of `wanted` its place in `seen`, None where it has none; in order.

    >>> align(["a", "mask", "b", "c"], ["a", "b", "other", "c"])
    [0, None, 1, 3]
    """
    places: list[int | None] = [None] * len(wanted)
    first = 0
    while first < min(len(wanted), len(seen)) and wanted[first] == seen[first]:
        places[first] = first
        first += 1
    last = 0
    while last < min(len(wanted), len(seen)) - first and wanted[-1 - last] == seen[-1 - last]:
        places[len(wanted) - 1 - last] = len(seen) - 1 - last
        last += 1
    mine, theirs = wanted[first : len(wanted) - last], seen[first : len(seen) - last]
    if len(mine) * len(theirs) <= _LARGEST_TABLE:
        for block in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            for k in range(block.size):
                places[first + block.a + k] = first + block.b + k
    return places


def _gives_tensor(node: Any) -> bool:
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return False
    value = node.meta.get("val")
    several = value if isinstance(value, list | tuple) else (value,)
    return any(hasattr(each, "stride") for each in several)


def _dry_run(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], dict[int, int]]:
    """Return the operators that the module calls, and for those that make a storage, by place in
    that list, the place of the last one that began while the storage lived.

    In inference mode composite operators stay whole, as in an exported program.
    """
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    operators: list[str] = []
    last_held: dict[int, int] = {}
    makers: dict[int, int] = {}  # storage -> the operator that made it; -1 for what was given

    def leave(key: int) -> None:
        maker = makers.pop(key)
        if maker >= 0:
            last_held[maker] = max(last_held.get(maker, 0), len(operators) - 1)

    def enter(thing: Any, maker: int) -> None:
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if storage._cdata not in makers:
                makers[storage._cdata] = maker
                weakref.finalize(storage, leave, storage._cdata)

    class Book(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            leaves = [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
            if leaves:
                operators.append(str(func))
            for each in leaves:
                enter(each, len(operators) - 1)
            return made

    fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def faked(thing: Any) -> Any:
        made = fakes.from_tensor(thing) if isinstance(thing, torch.Tensor) else thing
        enter(made, -1)
        return made

    before = [(part, dict(vars(part))) for part in module.modules()]
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {name: faked(weight) for name, weight in weights.items()}
    given, named = pytree.tree_map(faked, (args, dict(kwargs)))
    try:
        with torch.inference_mode(), fakes, Book():
            result = torch.func.functional_call(module, state, given, named)
    finally:
        for part, fields in before:
            vars(part).clear()
            vars(part).update(fields)
    for maker in makers.values():
        if maker >= 0:
            last_held[maker] = len(operators) - 1
    del result
    return operators, last_held
