"""One topological walk over a graph: fill in what onnx left open, check what it claims.

A node's outputs come from, in this order: contents (shape arithmetic), onnx's inference, our own
rule, onnx asked about the node alone. Every node whose inputs contradict is a `ModelError`.
The batch is mended by `batch`, bodies are entered by `bodies`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx

from slicewise.core.errors import ModelError
from slicewise.core.notes import Note
from slicewise.graph.ops import operator
from slicewise.graph.shape.facts import (
    NOTHING,
    VALUE_LIMIT,
    Contradiction,
    Fact,
    Op,
    Unknown,
    show,
    tensor_fact,
    type_fact,
    words,
)
from slicewise.graph.shape.rules import ask_onnx, rule_for
from slicewise.graph.shape.values import FROM_SHAPE, VALUES, constant_fact, evaluate, with_content

# Operators whose contradictions onnx's non-strict inference passes over, so that they are checked
# even where it gave a shape.
CHECKED = frozenset(
    words("""Add Sub Mul Div Pow Mod Min Max Sum Mean Where And Or Xor Equal Greater GreaterOrEqual
    Less LessOrEqual PRelu MatMul Gemm Conv ConvInteger ConvTranspose QLinearConv QLinearMatMul
    MatMulInteger BatchNormalization Concat Reshape Expand Transpose Squeeze Split RNN GRU LSTM
    Einsum""")
)


@dataclass(slots=True)
class Scope:
    """Facts of one graph by value name; what is not found here is looked up outside."""

    facts: dict[str, Fact]
    outer: "Scope | None" = None

    def find(self, name: str) -> Fact | None:
        """Return the fact of `name` from the nearest graph that has it."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.facts.get(name)
            if found is not None:
                return found
            scope = scope.outer
        return None


# Enters the bodies of a control-flow node: (walk, op, scope, before, key) -> outputs.
Enter = Callable[["Walk", Op, Scope, "Scope | None", str], list[Fact]]
# Amends a node whose batch is baked: (walk, op, scope, before, place) -> the op to go on with.
Mend = Callable[["Walk", Op, Scope, Scope, "Place", "Contradiction | None"], Op | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: its graph, which body that is (`key`), and its index there."""

    graph: onnx.GraphProto
    key: str
    index: int


@dataclass(slots=True)
class Walk:
    """What one walk over a model gathers. `known`: onnx's facts of the main graph.

    With `mend` the walk predicts the shapes of another batch: `before` holds the walk at the old
    one, and nodes whose inputs did not change keep their old facts. `insertions` are the nodes
    that mending makes, `made` the facts of their outputs by body, since a body is walked more
    than once; `inner` says, of values that have other elements of a merged axis in front of the
    batch, how many of the axis lie behind it (1: the batch is the fast part). `taken`: the
    branch that an If with a constant condition runs, by key. `guessed` gathers the outputs whose
    shape was guessed; None: guess nothing. `constants` are names of initialisers.
    """

    opsets: Mapping[str, int]
    enter: Mapping[str, Enter]
    mend: Mend | None = None
    before: "Walk | None" = None
    advice: str = ""
    declared: Mapping[str, Fact] = field(default_factory=dict)
    contents: bool = False  # keep small contents even where no shape is left open
    noted: dict[str, list[Note]] = field(default_factory=dict)
    bodies: dict[str, dict[str, Fact]] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    insertions: list[tuple[Place, onnx.NodeProto]] = field(default_factory=list)
    inner: dict[str, int] = field(default_factory=dict)
    made: dict[str, dict[str, Fact]] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    guessed: set[str] | None = None
    constants: set[str] = field(default_factory=set)

    def run(
        self,
        graph: onnx.GraphProto,
        scope: Scope,
        *,
        known: Mapping[str, Fact],
        before: Scope | None,
        key: str,
    ) -> None:
        """Add the facts of every value of `graph` to `scope`, whose inputs are there already."""
        facts = scope.facts
        here = facts.get
        facts.update(self.made.get(key, {}))
        for tensor in graph.initializer:
            facts[tensor.name] = _kept(before, tensor.name) or tensor_fact(tensor)
        self.constants.update(tensor.name for tensor in graph.initializer)
        for sparse in graph.sparse_initializer:
            facts[sparse.values.name] = Fact(tuple(sparse.dims), sparse.values.data_type)
        settled = before is None and not self.contents and self._is_settled(graph, known)
        for index, node in enumerate(graph.node):
            outputs = node.output
            if before is None:
                given = [known.get(name, NOTHING) for name in outputs]
                if self._is_plain(node, given, settled=settled):
                    facts.update(zip(outputs, given, strict=True))
                    continue
            inputs = [(here(name) or scope.find(name)) if name else None for name in node.input]
            found = self._visit(node, inputs, known, scope, before, key, Place(graph, key, index))
            for slot, name in enumerate(outputs):
                if name:
                    fact = found[slot] if slot < len(found) else NOTHING
                    facts[name] = fact if before is None else _shared(before, name, fact)

    def _is_plain(self, node: onnx.NodeProto, given: list[Fact], *, settled: bool) -> bool:
        """True if onnx's facts of a node stand as they are: no check, no content worth knowing."""
        op_type = node.op_type
        if (op_type in CHECKED or op_type in self.enter) and not node.domain:
            return False
        for fact in given:
            if fact.shape is None:
                return False
            if not settled and op_type in VALUES and math.prod(fact.shape) <= VALUE_LIMIT:
                return False
        return settled or op_type != "Constant"

    def _is_settled(self, graph: onnx.GraphProto, known: Mapping[str, Fact]) -> bool:
        """True if onnx told every shape, so that contents are of no use and checking is all."""
        return all(
            node.op_type not in self.enter
            and all(not name or known.get(name, NOTHING).shape is not None for name in node.output)
            for node in graph.node
        )

    def _visit(
        self,
        node: onnx.NodeProto,
        inputs: list[Fact | None],
        known: Mapping[str, Fact],
        scope: Scope,
        before: Scope | None,
        key: str,
        place: Place,
    ) -> list[Fact]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        op = Op(node, inputs, version=self.opsets.get(domain, 1))
        enter = self.enter.get(node.op_type) if not domain else None
        if enter is not None:
            return self._enter(enter, op, scope, before, key, place)
        if before is not None and _unchanged(node, inputs, before):
            if self.before is not None and (kept := self.before.noted.get(_mark(node))):
                self.noted[_mark(node)] = kept
            return [before.facts.get(name, NOTHING) for name in node.output]
        return self._node(op, domain, known, scope, before, place)

    def _enter(
        self, enter: Enter, op: Op, scope: Scope, before: Scope | None, key: str, place: Place
    ) -> list[Fact]:
        try:
            found = enter(self, op, scope, before, key)
        except Contradiction as clash:
            if before is None or self.mend is None:
                raise contradictory(op, clash, self.advice) from clash
            mended = self.mend(self, op, scope, before, place, clash)
            if mended is None:
                raise baked(op, clash, self.advice) from clash
            op = mended
            try:
                found = enter(self, op, scope, before, key)
            except Contradiction as again:
                raise baked(op, again, self.advice) from again
        self._take_notes(op)
        return found

    def _take_notes(self, op: Op) -> None:
        if op.notes:
            self.noted[_mark(op.node)] = op.notes

    def _node(
        self,
        op: Op,
        domain: str,
        known: Mapping[str, Fact],
        scope: Scope,
        before: Scope | None,
        place: Place,
    ) -> list[Fact]:
        try:
            if before is not None and self.mend is not None:
                op = self.mend(self, op, scope, before, place, None) or op
            found = self.settle(op, domain, known)
            self._take_notes(op)
            return found
        except Contradiction as clash:
            if before is not None and self.mend is not None:
                mended = self.mend(self, op, scope, before, place, clash)
                if mended is not None:
                    return self._settle_mended(mended, domain)
                raise baked(op, clash, self.advice) from clash
            raise contradictory(op, clash, self.advice) from clash

    def _settle_mended(self, op: Op, domain: str) -> list[Fact]:
        try:
            found = self.settle(op, domain, {})
            self._take_notes(op)
            return found
        except Contradiction as clash:
            raise baked(op, clash, self.advice) from clash

    def settle(self, op: Op, domain: str, known: Mapping[str, Fact]) -> list[Fact]:
        """Return the facts of a node's outputs; `Contradiction` where its inputs clash."""
        outputs = op.node.output
        if not domain and op.type == "Constant":
            return constant_fact(op)
        given = [known.get(name, NOTHING) if name else NOTHING for name in outputs]
        is_open = not known or any(
            fact.shape is None for name, fact in zip(outputs, given, strict=True) if name
        )
        if is_open and not domain and op.type in VALUES and _valued(op):
            try:
                return evaluate(op)
            except Unknown:
                pass  # too large or not arithmetic: the shape rules go on
        if not is_open and (domain or op.type not in CHECKED):
            return given if domain else with_content(op, given)
        try:
            ruled = self._ruled(op, domain)
        except Unknown:
            if not is_open:
                return with_content(op, _same_count(op, given))
            ruled = []
        if not is_open:
            op.notes.clear()  # a check leaves no note
            return with_content(op, given) if op.type in VALUES else given
        found = [
            _joined(fact, ruled[k] if k < len(ruled) else NOTHING) for k, fact in enumerate(given)
        ]
        if any(x and f.is_unknown for x, f in zip(outputs, found, strict=True)):
            return self._declared(op, domain, found)
        return found

    def _declared(self, op: Op, domain: str, found: list[Fact]) -> list[Fact]:
        """Fall back on what the file declares, then on a guess; note what stays unknown."""
        believed = []
        for name, fact in zip(op.node.output, found, strict=True):
            said = self.declared.get(name, NOTHING)
            if name and fact.is_unknown and said.shape is not None:
                text = f"shape of {name!r} taken from what the file declares: {show(said.shape)}"
                op.notes.append(Note("shape-declared", text, op.label))
                fact = Fact(said.shape, fact.dtype or said.dtype)
            elif name and not fact.dtype:
                fact = Fact(fact.shape, said.dtype, fact.value, fact.parts)
            believed.append(fact)
        if any(x and f.is_unknown for x, f in zip(op.node.output, believed, strict=True)):
            guess = self._guess(op, domain)
            if guess is not None:
                return [Fact(guess.shape, believed[0].dtype or guess.dtype)]
            self._note_unknown(op, domain)
        return believed

    def _guess(self, op: Op, domain: str) -> Fact | None:
        """Return the first input that is no weight, if an operator in no table has one output."""
        is_custom = operator(domain, op.type) is None and rule_for(domain, op.type) is None
        if self.guessed is None or len(op.node.output) != 1 or not is_custom:
            return None
        if onnx.defs.has(op.type, domain):
            return None
        for name, fact in zip(op.node.input, op.inputs, strict=True):
            if fact is None or name in self.constants:
                continue
            if fact.shape is None:
                return None
            self.guessed.add(op.node.output[0])
            text = (
                f"nothing tells the output shape of {_spelt(op, domain)}; taken to be that of its"
                f" input {name!r}, {show(fact.shape)}; declare it in the file's value_info"
            )
            op.notes.append(Note("shape-guessed", text, op.label))
            return fact
        return None

    def _ruled(self, op: Op, domain: str) -> list[Fact]:
        rule = rule_for(domain, op.type)
        try:
            if rule is not None:
                return list(rule(op))
        except (IndexError, ValueError, TypeError, OverflowError) as err:
            # a rule took apart a shape of another rank than the operator is defined for
            shapes = ", ".join(show(f.shape) for f in op.inputs if f is not None)
            raise Contradiction(f"inputs {shapes} do not fit the operator") from err
        return ask_onnx(op, domain=domain)

    @property
    def notes(self) -> list[Note]:
        """The notes of all nodes, in the order they were visited."""
        return [note for notes in self.noted.values() for note in notes]

    def _note_unknown(self, op: Op, domain: str) -> None:
        given = [fact for fact in op.inputs if fact is not None]
        if any(fact.is_unknown for fact in given):
            return  # the note is on the node where knowledge was lost, not on each one behind it
        text = (
            f"no rule tells the output shape of {_spelt(op, domain)}; it and what follows from it"
            " is unknown; declare it in the file's value_info, or export the operator as a model"
            " function"
        )
        op.notes.append(Note("shape-unknown", text, op.label))


def _spelt(op: Op, domain: str) -> str:
    return f"{domain}.{op.type}" if domain else op.type


def contradictory(op: Op, clash: Contradiction, advice: str) -> ModelError:
    """Return the error for a node whose inputs contradict."""
    return ModelError(
        f"contradictory shapes at node {op.label!r} ({op.type}): {clash};"
        f" {advice or 'correct the model, or the input shapes given'}"
    )


def baked(op: Op, clash: Contradiction, advice: str) -> ModelError:
    """Return the error for a node that works at the old batch only."""
    return ModelError(f"batch is baked in at node {op.label!r} ({op.type}): {clash}; {advice}")


def graph_inputs(graph: onnx.GraphProto) -> dict[str, Fact]:
    """Return the facts of the declared inputs of a graph, constants among them included."""
    return {value.name: type_fact(value.type) for value in graph.input}


def _mark(node: onnx.NodeProto) -> str:
    """What notes of a node are kept under: names of nodes may repeat, names of values do not."""
    return str(next(filter(None, node.output), node.name))


def _kept(before: Scope | None, name: str) -> Fact | None:
    return None if before is None else before.facts.get(name)


def _unchanged(node: onnx.NodeProto, inputs: list[Fact | None], before: Scope) -> bool:
    return all(
        fact is before.find(name)
        for name, fact in zip(node.input, inputs, strict=True)
        if fact is not None
    )


def _shared(before: Scope, name: str, fact: Fact) -> Fact:
    """Return the old fact itself where the new one says the same, so that change ends here."""
    old = before.facts.get(name)
    if old is None or old.shape != fact.shape or old.parts != fact.parts:
        return fact
    if old.value is None or fact.value is None:
        return old if old.value is fact.value else fact
    return old if (old.value == fact.value).all() else fact


def _valued(op: Op) -> bool:
    if op.type in FROM_SHAPE:
        return True
    return all(fact is None or fact.value is not None for fact in op.inputs)


def _same_count(op: Op, given: list[Fact]) -> list[Fact]:
    """A Reshape to a target we cannot see still keeps the number of elements."""
    if op.type == "Reshape" and op.has(0):
        shape, out = op.fact(0).shape, given[0].shape
        if shape is not None and out is not None and math.prod(shape) != math.prod(out):
            raise Contradiction(f"{show(shape)} reshaped to {show(out)}")
    return given


def _joined(given: Fact, ruled: Fact) -> Fact:
    """onnx's shape where it gives one, ours elsewhere; types likewise."""
    if given.shape is None:
        if ruled.dtype or not given.dtype:
            return ruled
        return Fact(ruled.shape, given.dtype, ruled.value, ruled.parts)
    if ruled.parts is None and ruled.value is None:
        return given if given.dtype else Fact(given.shape, ruled.dtype)
    return Fact(given.shape, given.dtype or ruled.dtype, ruled.value, ruled.parts)
