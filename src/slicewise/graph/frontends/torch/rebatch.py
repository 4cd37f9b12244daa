"""Gives a program with a fixed batch the shapes of another one, node by node, without its data.

The program is run on fake tensors of the new sizes. Where it has the old batch written down as a
number (view, expand, zeros ...), the argument is rewritten by the table below, which leaves a
Note. What cannot be rewritten is a `ModelError` that names the node. The program is not changed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.check import listed
from slicewise.graph.frontends.torch.aten.row import Values
from slicewise.graph.frontends.torch.bind import Asked
from slicewise.graph.frontends.torch.export import quiet

Sizes = tuple[int, ...]


@dataclass(slots=True)
class _Change:
    """From one batch to another: the values found so far, and the nodes that were rewritten."""

    old: int
    new: int
    found: dict[Any, Any] = field(default_factory=dict)
    rewritten: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)


def rebatch(program: Any, asked: Asked, *, label: str) -> tuple[Values, tuple[Note, ...]]:
    """Return the values of every node of `program` at the shapes asked, and what was rewritten.

    `ModelError` where a number written into the program contradicts them.
    """
    old, new = asked.batch_change or (asked.batch_size, asked.batch_size)
    change = _Change(old, new)
    with quiet():
        _run(program, asked, change, label=label)
    return Values({}, change.found), (*_notes(change), *_lost(program, change, asked))


def _notes(change: _Change) -> tuple[Note, ...]:
    notes = []
    if change.rewritten:
        text = f"the batch {change.old} that is written into {_some(change.rewritten)} was"
        notes.append(Note("reshape-rewritten", f"{text} replaced by {change.new}"))
    if change.widened:
        text = f"what was made for batch {change.old} was widened to {change.new} in"
        notes.append(Note("batch-rewritten", f"{text} {_some(change.widened)}"))
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    return listed(names[:_NAMED]) + (f" and {more} other nodes" if more > 0 else "")


_NAMED = 3


def _lost(program: Any, change: _Change, asked: Asked) -> tuple[Note, ...]:
    """Return a Note for each output that had the batch in front and has it no more."""
    out = next(node for node in program.graph.nodes if node.op == "output")
    lost = []
    for node in out.args[0]:
        before = _shape(node.meta.get("val")) if hasattr(node, "meta") else ()
        after = _shape(change.found.get(node)) if hasattr(node, "meta") else ()
        had = before[:1] == (change.old,) and change.old != change.new
        if had and after[:1] != (change.new,):
            lost.append(node.name)
    if not lost or not asked.batch_axes:
        return ()
    return (Note("batch-lost", f"{listed(lost)} no longer leads with the batch {change.new}"),)


def _run(program: Any, asked: Asked, change: _Change, *, label: str) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Runner(torch.fx.Interpreter):  # type: ignore[misc]
        """Runs one graph, sub-programs included, and keeps what each node gives."""

        def run(self, *args: Any) -> Any:
            self.extra_traceback = False  # it would be written into our message
            return super().run(*args)

        def run_node(self, node: Any) -> Any:
            try:
                result = super().run_node(node)
            except ModelError:
                raise
            except Exception as err:
                raise _refusal(node, err, change, label=label) from err
            change.found[node] = result
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return _call(target, args, kwargs, self, super().call_function)

    def _call(target: Any, args: Any, kwargs: Any, runner: Any, plain: Any) -> Any:
        schema = getattr(target, "_schema", None)
        if schema is None:
            inlined = _sub_program(target, args)
            if inlined is None:
                return plain(target, args, kwargs)
            part, operands = inlined
            return Runner(part, garbage_collect_values=False).run(*operands)
        name = schema.name.removeprefix("aten::")
        if name.startswith("_assert"):
            return None
        before = _values_before(runner)
        rewrite = _REWRITES.get(name.rstrip("_") if not name.startswith("_") else name)
        if rewrite is not None and change.old != change.new:
            new_args = rewrite(_Site(name, args, before, change, runner.node))
            args = args if new_args is None else new_args
        return plain(target, args, kwargs)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        inputs = [_placeholder(node, asked) for node in program.graph.nodes
                  if node.op == "placeholder"]  # fmt: skip
        runner = _with_node(Runner)(program.graph_module, garbage_collect_values=False)
        runner.run(*inputs)


def _with_node(kind: Any) -> Any:
    """Return the interpreter with the node at hand in `node`."""

    class WithNode(kind):  # type: ignore[misc]
        node: Any = None

        def run_node(self, node: Any) -> Any:
            self.node = node
            return super().run_node(node)

    return WithNode


def _values_before(runner: Any) -> tuple[Any, ...]:
    """Return for each argument of the node at hand what the program itself says of it."""
    return tuple(
        each.meta.get("val") if hasattr(each, "meta") else each for each in runner.node.args
    )


def _sub_program(target: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
    """Return the sub-program of a region in line and its operands."""
    name = target.name() if hasattr(target, "name") and hasattr(target, "dispatch") else ""
    place = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}.get(name)
    return None if place is None else (args[place], args[place + 1 :])


def _placeholder(node: Any, asked: Asked) -> Any:
    import torch

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value
    shape = asked.shapes.get(node.name, _shape(value))
    order = sorted(range(len(shape)), key=lambda i: (-_step(value, i), i))
    strides, step = [0] * len(shape), 1
    for i in reversed(order):
        strides[i] = step
        step *= max(1, shape[i])
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _step(value: Any, i: int) -> int:
    step = value.stride()[i]
    return step if isinstance(step, int) else int(step.node.hint or 1)


def _shape(value: Any) -> Sizes:
    if not hasattr(value, "shape"):
        return ()
    return tuple(
        size if isinstance(size, int) else int(size.node.hint or 1) for size in value.shape
    )


def _refusal(node: Any, err: BaseException, change: _Change, *, label: str) -> ModelError:
    line = " ".join(str(err).strip().split("\n")[0].split())[:200].rstrip(" .")
    place = _model_line(node)
    return ModelError(
        f"{label}: batch {change.new} contradicts node {node.name!r} ({node.target}{place}),"
        f" which is made for batch {change.old}: {line}; export the model with a dynamic batch, as"
        " in dynamic_shapes={'x': {0: torch.export.Dim.AUTO}} and example inputs of batch 2"
    )


def _model_line(node: Any) -> str:
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File")]
    if not lines:
        return ""
    path, _, rest = lines[-1].removeprefix('File "').partition('", line ')
    return f", {'/'.join(path.split('/')[-2:])}:{rest.split(',')[0]}"


# --- rewriting numbers


@dataclass(frozen=True, slots=True)
class _Site:
    """A call whose numbers may hold the old batch: its arguments, and what they were before."""

    name: str
    args: Sequence[Any]
    before: Sequence[Any]
    change: _Change
    node: Any

    def rewritten(self, at: int, value: Any) -> tuple[Any, ...]:
        """Return the arguments with another one in place `at`, and remember the node."""
        self.change.rewritten.append(self.node.name)
        return (*self.args[:at], value, *self.args[at + 1 :])


def _view(site: _Site) -> tuple[Any, ...] | None:
    """Give a view its new number of elements: the axis that grew keeps its place in the order."""
    old_shape, new_shape = _shape(site.before[0]), _shape(site.args[0])
    target = _shape(site.node.meta["val"])
    if math.prod(new_shape) == math.prod(target) or not all(
        isinstance(size, int) for size in site.args[1]
    ):
        return None
    sizes = _regrown(old_shape, new_shape, target)
    if sizes is None or tuple(site.args[1]) == sizes:
        return None
    wanted = tuple(site.args[1])
    if -1 in wanted and _fits(wanted, math.prod(new_shape)):
        left_open = wanted.index(-1)
        if (
            sizes[:left_open] == wanted[:left_open]
            and sizes[left_open + 1 :] == (wanted[left_open + 1 :])
        ):
            return None
    return site.rewritten(1, list(sizes))


def _fits(wanted: Sizes, elements: int) -> bool:
    known = math.prod(size for size in wanted if size != -1)
    return known > 0 and elements % known == 0


def _regrown(old: Sizes, new: Sizes, target: Sizes) -> Sizes | None:
    """Return `target` with the axis multiplied that holds the axis of `old` which grew.

    >>> _regrown((1, 197, 768), (8, 197, 768), (1, 197, 12, 64))
    (8, 197, 12, 64)
    >>> _regrown((10, 1, 512), (10, 4, 512), (10, 8, 64))
    (10, 32, 64)
    """
    grown = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    if len(grown) != 1:
        return None
    axis = grown[0]
    before, factor_up, factor_down = math.prod(old[:axis]), new[axis], old[axis]
    done = 1
    for i, size in enumerate(target):
        if done == before or done < before < done * size:
            if size * factor_up % factor_down:
                return None
            return (*target[:i], size * factor_up // factor_down, *target[i + 1 :])
        done *= size
    return None


def _expand(site: _Site) -> tuple[Any, ...] | None:
    """Let what has the batch already keep it; widen a fixed leading batch of a constant."""
    wanted = list(site.args[1])
    given = _shape(site.args[0])
    lead = len(wanted) - len(given)
    for i, size in enumerate(given):
        if size != 1 and wanted[lead + i] not in (-1, size):
            wanted[lead + i] = size
    is_fixed = site.change.old > 1 and wanted and wanted[0] == site.change.old
    if is_fixed and (lead or given[0] == 1):
        wanted[0] = site.change.new
    return None if wanted == list(site.args[1]) else site.rewritten(1, wanted)


def _filled(at: int) -> Callable[[_Site], tuple[Any, ...] | None]:
    """Return the rewriting of a fill whose sizes, in place `at`, lead with the batch."""

    def rewrite(site: _Site) -> tuple[Any, ...] | None:
        sizes = list(site.args[at]) if len(site.args) > at else []
        if not sizes or sizes[0] != site.change.old or site.change.old == 1:
            return None
        return site.rewritten(at, [site.change.new, *sizes[1:]])

    return rewrite


def _counted(site: _Site) -> tuple[Any, ...] | None:
    """Rewrite arange(batch), unless the batch is 1: then it broadcasts."""
    if len(site.args) != 1 or site.args[0] != site.change.old or site.change.old == 1:
        return None
    return site.rewritten(0, site.change.new)


def _joined(site: _Site) -> tuple[Any, ...] | None:
    """Widen the parts of a concatenation that were made for the old batch, class tokens say."""
    parts = list(site.args[0])
    axis = site.args[1] if len(site.args) > 1 else 0
    rank = max(len(_shape(part)) for part in parts)
    own = axis % max(1, rank)
    sizes = [_shape(part) for part in parts]
    wide = [max(shape[i] for shape in sizes if len(shape) == rank) for i in range(rank)]
    changed = False
    for i, (part, shape) in enumerate(zip(parts, sizes, strict=True)):
        if len(shape) != rank:
            continue
        goal = [size if k == own else wide[k] for k, size in enumerate(shape)]
        differs = [k for k in range(rank) if goal[k] != shape[k]]
        if differs and all(shape[k] == site.change.old for k in differs):
            parts[i] = _widened(part, goal, site.change.old)
            changed = True
    if not changed:
        return None
    site.change.widened.append(site.node.name)
    return (parts, *site.args[1:])


def _widened(part: Any, goal: Sequence[int], old: int) -> Any:
    if old == 1:
        return part.expand(goal)
    return part.new_empty(goal)


def _state(site: _Site) -> tuple[Any, ...] | None:
    """Widen the initial state of a recurrence: its axis 1 is the batch."""
    states = site.args[1]
    is_list = isinstance(states, list | tuple)
    parts = list(states) if is_list else [states]
    if not parts or any(len(_shape(part)) != 3 for part in parts):
        return None
    is_first = bool(site.args[-1])
    batch = _shape(site.args[0])[0 if is_first else 1]
    if _shape(parts[0])[1] == batch:
        return None
    parts = [part.new_empty((_shape(part)[0], batch, _shape(part)[2])) for part in parts]
    site.change.widened.append(site.node.name)
    return (site.args[0], parts if is_list else parts[0], *site.args[2:])


_REWRITES: Mapping[str, Callable[[_Site], tuple[Any, ...] | None]] = {
    "view": _view, "reshape": _view, "_unsafe_view": _view,
    "expand": _expand, "broadcast_to": _expand,
    "new_zeros": _filled(1), "new_ones": _filled(1), "new_full": _filled(1),
    "new_empty": _filled(1),
    "zeros": _filled(0), "ones": _filled(0), "full": _filled(0), "empty": _filled(0),
    "rand": _filled(0), "randn": _filled(0),
    "arange": _counted,
    "cat": _joined, "concat": _joined, "concatenate": _joined,
    "lstm": _state, "gru": _state, "rnn_tanh": _state, "rnn_relu": _state,
}  # fmt: skip
