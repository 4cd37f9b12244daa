"""Shapes and element types of every value of a bound ONNX model.

onnx's own inference first, then our rules for what it leaves open, in one walk that also checks
that the shapes go together and, when the batch was changed, mends what had the old batch baked
in. Must not read weights, bind free dimensions or touch the model it is given.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from slicewise.core.errors import ModelError
from slicewise.core.graph import Tensor
from slicewise.core.notes import Note, unique_notes
from slicewise.graph.shape.batch import Mender, apply_insertions
from slicewise.graph.shape.bodies import ENTER
from slicewise.graph.shape.facts import Fact, core_dtype, show, type_fact
from slicewise.graph.shape.prepare import has_huge_range, opsets_of, prepare, with_batch
from slicewise.graph.shape.reshape import Batch
from slicewise.graph.shape.search import Choices, Mixed
from slicewise.graph.shape.walk import Scope, Walk, graph_inputs


@dataclass(frozen=True, slots=True)
class Shapes:
    """Tensors by value name, of the main graph and of every body, and the model they belong to.

    `bodies` and `repeats` (how often a Loop or Scan runs its body) are keyed by the first output
    of the If, Loop or Scan; nested ones 'outer/inner'; branches of an If end in '#then', '#else'.
    `model`: functions inlined, nodes in topological order, baked batches rewritten. `taken`: the
    attribute that holds the branch which an If with a constant condition runs, by key of the If.
    """

    main: Mapping[str, Tensor]
    bodies: Mapping[str, Mapping[str, Tensor]]
    notes: tuple[Note, ...]
    repeats: Mapping[str, int]
    model: onnx.ModelProto
    taken: Mapping[str, str] = field(default_factory=dict)


def infer(
    model: onnx.ModelProto,
    *,
    batch_change: tuple[int, int] | None,
    batch_inputs: Iterable[str] | None = None,
    is_tidy: bool = False,
) -> Shapes:
    """Return the shape and type of every value of `model`, whose inputs are bound.

    `batch_change` (old, new): the leading axis of `batch_inputs` was changed from old to new, so
    constants that name the old batch are rewritten with a Note or refused (`ModelError`).
    `batch_inputs` None: the inputs whose leading axis is new. Neither weights nor their bytes are
    needed. Shape None, with a Note, where nothing tells; the output of an operator in no table is
    guessed, with a Note, unless the guess leads to a contradiction. `is_tidy`: `check.tidy` has
    made the model. The model is left as it is.
    """
    guessed: set[str] = set()
    batch = None
    if batch_change is not None and batch_change[0] != batch_change[1]:
        batch = Batch(*batch_change)
    try:
        return _infer(model, batch, batch_inputs, guessed, is_tidy=is_tidy)
    except ModelError:
        if not guessed:
            raise
    # a guess may be what contradicts: without any, the model itself has to
    return _infer(model, batch, batch_inputs, None, is_tidy=is_tidy)


def _infer(
    model: onnx.ModelProto,
    batch: Batch | None,
    batch_inputs: Iterable[str] | None,
    guessed: set[str] | None,
    *,
    is_tidy: bool,
) -> Shapes:
    working, declared, notes = prepare(model, is_tidy=is_tidy)
    found = None
    advice = ""
    if batch is not None:
        at_old, declared = declared, _at_batch(declared, batch)
        found = _rebatch(
            working, batch, batch_inputs, notes, at_old=at_old, at_new=declared, guessed=guessed
        )
        advice = "" if found is None else _advice(batch)
    known = _ask_onnx(working, notes)
    if found is None or not _agrees(*found, known):
        found = _walk(working, known, declared=declared, advice=advice, guessed=guessed)
    walk, scope = found
    for value in working.graph.input:
        if scope.facts[value.name].is_unknown:
            text = f"input {value.name!r} has no shape; what follows from it is unknown"
            notes.append(Note("shape-unknown", text))
    return Shapes(
        main=_tensors(scope.facts),
        bodies={key: _tensors(facts) for key, facts in walk.bodies.items()},
        notes=unique_notes((*notes, *walk.notes)),
        repeats=walk.repeats,
        model=working,
        taken=walk.taken,
    )


def _agrees(walk: Walk, scope: Scope, known: Mapping[str, Fact]) -> bool:
    """True if the walk that predicted the new batch left nothing open and onnx says the same."""
    gathered = (scope.facts, *walk.bodies.values())
    if any(fact.is_unknown for facts in gathered for fact in facts.values()):
        return False
    return all(
        fact.shape is None or scope.facts[name].shape == fact.shape
        for name, fact in known.items()
        if name in scope.facts
    )


def _advice(batch: Batch) -> str:
    return f"export with a dynamic batch or use --batch {batch.old}"


def _tensors(facts: Mapping[str, Fact]) -> dict[str, Tensor]:
    return {name: Tensor(fact.shape, core_dtype(fact.dtype)) for name, fact in facts.items()}


def _walk(
    model: onnx.ModelProto,
    known: Mapping[str, Fact],
    *,
    declared: Mapping[str, Fact],
    advice: str = "",
    contents: bool = False,
    guessed: set[str] | None,
) -> tuple[Walk, Scope]:
    walk = Walk(
        opsets_of(model),
        ENTER,
        advice=advice,
        declared=declared,
        contents=contents,
        guessed=guessed,
    )
    scope = Scope(graph_inputs(model.graph))
    walk.run(model.graph, scope, known=known, before=None, key="")
    return walk, scope


def _ask_onnx(model: onnx.ModelProto, notes: list[Note]) -> dict[str, Fact]:
    """Return what onnx infers for the main graph; nothing, with a Note, where it gives up."""
    data_prop = not has_huge_range(model.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=data_prop, strict_mode=False)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as err:
        reason = str(err).strip().partition("\n")[0]
    except (ValueError, TypeError, RuntimeError, MemoryError) as err:
        reason = str(err).strip().partition("\n")[0]
    else:
        graph = inferred.graph
        return {
            v.name: type_fact(v.type) for part in (graph.value_info, graph.output) for v in part
        }
    text = f"onnx's shape inference gave up ({reason}); only our own rules were used"
    notes.append(Note("onnx-inference-failed", text))
    return {}


def _at_batch(declared: Mapping[str, Fact], batch: Batch) -> dict[str, Fact]:
    """Return the shapes a file declares with a leading old batch replaced by the new one."""
    return {
        name: Fact((batch.new, *fact.shape[1:]), fact.dtype)
        if fact.shape and fact.shape[0] == batch.old
        else fact
        for name, fact in declared.items()
    }


@dataclass(frozen=True, slots=True)
class _Before:
    """A model at its old batch: untouched, and the walk over it."""

    model: onnx.ModelProto
    walk: Walk
    scope: Scope


# Ways to mend that are tried before a model is taken as it comes: an attention block whose batch
# and sequence are both 1 needs about ten.
_TRIES = 32


def _rebatch(
    model: onnx.ModelProto,
    batch: Batch,
    batch_inputs: Iterable[str] | None,
    notes: list[Note],
    *,
    at_old: Mapping[str, Fact],
    at_new: Mapping[str, Fact],
    guessed: set[str] | None,
) -> tuple[Walk, Scope] | None:
    """Rewrite in place what has the old batch baked in; return the walk that found it.

    None if the model does not hold together at the old batch: then nothing can be learnt from it,
    and the walk at the new one tells whether it does there. Where several ways to mend are open,
    the first is taken with which the model holds together and mixes no items; if none of those
    tried is such, the one that goes furthest before it does not.
    """
    old = _at_old_batch(model, batch, batch_inputs, declared=at_old, guessed=guessed)
    if old is None:
        return None
    mender, found = _try(model, old, batch, declared=at_new, guessed=guessed)
    notes += [*mender.notes, *_lost_batches(model, old.scope, found[1], batch)]
    return found


def _try(
    model: onnx.ModelProto,
    old: _Before,
    batch: Batch,
    *,
    declared: Mapping[str, Fact],
    guessed: set[str] | None,
) -> tuple[Mender, tuple[Walk, Scope]]:
    """Mend `model` in place one way after the other; return what the one that is kept did."""
    choices: Choices | None = Choices()
    furthest, nodes_passed = Choices(), -1
    for _ in range(_TRIES):
        if choices is None:
            break
        mender = Mender(batch, choices, is_wary=True)
        try:
            return mender, _mend(model, old, mender, declared=declared, guessed=guessed)
        except (Mixed, ModelError):
            if not choices.are_open:
                raise
        _put_back(model, old.model)
        if mender.passed > nodes_passed:
            furthest, nodes_passed = choices.again(), mender.passed
        choices = choices.next()
    for last in (furthest, Choices()):
        mender = Mender(batch, last, is_wary=False)
        try:
            return mender, _mend(model, old, mender, declared=declared, guessed=guessed)
        except ModelError as err:
            refusal = err
        _put_back(model, old.model)
    raise refusal


def _mend(
    model: onnx.ModelProto,
    old: _Before,
    mender: Mender,
    *,
    declared: Mapping[str, Fact],
    guessed: set[str] | None,
) -> tuple[Walk, Scope]:
    """Mend `model` in place on a walk at the new batch; return that walk."""
    walk = Walk(
        opsets_of(model),
        ENTER,
        mend=mender,
        before=old.walk,
        declared=declared,
        advice=_advice(mender.batch),
        guessed=guessed,
    )
    scope = Scope({})
    for name, fact in graph_inputs(model.graph).items():
        kept = old.scope.facts.get(name)
        scope.facts[name] = kept if kept is not None and kept.shape == fact.shape else fact
    walk.run(model.graph, scope, known={}, before=old.scope, key="")
    apply_insertions(walk)
    return walk, scope


def _put_back(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Undo what a walk has mended: nodes are all that it edits."""
    del model.graph.node[:]
    model.graph.node.extend(original.graph.node)


def _at_old_batch(
    model: onnx.ModelProto,
    batch: Batch,
    batch_inputs: Iterable[str] | None,
    *,
    declared: Mapping[str, Fact],
    guessed: set[str] | None,
) -> _Before | None:
    """Return the model as it was before the batch was changed, None if impossible.

    Some models have the batch behind the leading axis too ([2, batch, heads, past, size]): where
    putting back the leading axes alone contradicts, all axes of that size are put back.
    """
    for everywhere in (False, True):
        old_model = with_batch(model, batch, batch_inputs, everywhere=everywhere)
        known = _ask_onnx(old_model, [])
        try:
            found = _walk(old_model, known, declared=declared, contents=True, guessed=guessed)
        except ModelError:
            continue
        return _Before(old_model, *found)
    return None


def _lost_batches(model: onnx.ModelProto, old: Scope, new: Scope, batch: Batch) -> Iterable[Note]:
    reached: set[str] | None = None
    for value in model.graph.output:
        before, after = old.find(value.name), new.find(value.name)
        if before is None or after is None or not before.shape:
            continue
        if before.shape != after.shape:
            continue
        reached = _reached(model.graph, old, new) if reached is None else reached
        if value.name in reached:
            text = (
                f"output {value.name!r} is {show(after.shape)} at batch {batch.new} as at batch"
                f" {batch.old}: what makes it does not serve the whole batch"
            )
            yield Note("batch-lost", text)


def _reached(graph: onnx.GraphProto, old: Scope, new: Scope) -> set[str]:
    """Return the values that follow from inputs whose batch was changed."""
    reached = {
        value.name
        for value in graph.input
        if old.facts[value.name].shape != new.facts[value.name].shape
    }
    for node in graph.node:
        if not reached.isdisjoint(node.input):
            reached.update(node.output)
    return reached
