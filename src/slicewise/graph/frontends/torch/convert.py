"""Turns the FX graph of an exported program into the frozen Graph of the house.

ATen operators become nodes by the table in `aten/`; shapes are those of the fake tensors that
the program carries, with its symbols replaced. Nothing is run and no weight is looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slicewise.core.graph import Constant, Graph, Node, Role, Tensor, reads_of
from slicewise.core.notes import Note, unique_notes
from slicewise.core.precision import DType
from slicewise.graph.frontends.torch.aten import find_row
from slicewise.graph.frontends.torch.aten.row import ATEN, Call, Row, Storage, Values
from slicewise.graph.frontends.torch.lives import LAST_HELD, lifetime_notes
from slicewise.graph.frontends.torch.names import held_arguments, node_names, scopes_of
from slicewise.graph.frontends.torch.owners import is_same, is_view
from slicewise.graph.frontends.torch.versions import Versions

_DTYPES = {
    "float64": DType.FP64, "float32": DType.FP32, "float16": DType.FP16, "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.FP8, "float8_e5m2": DType.FP8, "float8_e4m3fnuz": DType.FP8,
    "float8_e5m2fnuz": DType.FP8, "float8_e8m0fnu": DType.FP8, "float4_e2m1fn_x2": DType.UINT8,
    "int64": DType.INT64, "int32": DType.INT32, "int16": DType.INT16, "int8": DType.INT8,
    "uint64": DType.UINT64, "uint32": DType.UINT32, "uint16": DType.UINT16, "uint8": DType.UINT8,
    "int4": DType.INT4, "uint4": DType.UINT4, "int2": DType.INT2, "uint2": DType.UINT2,
    "bool": DType.BOOL, "complex64": DType.COMPLEX64, "complex128": DType.COMPLEX128,
    "complex32": DType.FP32, "qint8": DType.INT8, "quint8": DType.UINT8, "qint32": DType.INT32,
}  # fmt: skip
_STATISTICS = frozenset({3, 4})  # slots of BatchNormalization: running mean and variance


@dataclass(slots=True)
class _Step:
    """One node on its way, before it has a name."""

    node: Node
    kind: str
    stack: tuple[str, ...]


@dataclass(slots=True)
class Scope:
    """A graph or body under conversion. `names` gives for each FX node its tensor, or tensors,
    `ends` by the name of an FX node the index of the last step made by then."""

    values: Values
    names: dict[Any, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    prefix: str = ""
    around: tuple[str, ...] = ("",)
    ends: dict[str, int] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)

    def tensor(self, value: Any) -> Tensor:
        """Return the record of a fake tensor."""
        name = str(value.dtype).removeprefix("torch.")
        dtype = _DTYPES.get(name, DType.UNKNOWN)
        if dtype is DType.UNKNOWN:
            text = f"4 bytes are counted for each element of type {name}"
            self.notes.append(Note("type-unknown", text))
        return Tensor(self.values.shape(value), dtype)

    def inside(self, prefix: str, around: tuple[str, ...]) -> "Scope":
        """Return the scope of a region in line: its nodes are put at the end of this one's."""
        return Scope(
            self.values, {}, self.tensors, self.steps, self.notes, self.prefix + prefix,
            self.stack(around), versions=self.versions,
        )  # fmt: skip

    def apart(self, prefix: str, around: tuple[str, ...]) -> "Scope":
        """Return the scope of a body."""
        return Scope(self.values, prefix=self.prefix + prefix, around=self.stack(around))

    def stack(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the module calls around a node that itself tells `own`."""
        return own if len(own) > 1 else self.around


def convert(program: Any, values: Values, *, name: str) -> Graph:
    """Return the Graph of an exported program under the sizes in `values`.

    `program` is a torch.export.ExportedProgram. The result has no batch and no source yet: the
    caller knows them.
    """
    scope = Scope(values)
    constants, inputs = _placeholders(program, scope)
    convert_nodes(program.graph_module, scope)
    outputs = tuple(_user_outputs(program, scope))
    graph = finish(scope, constants, inputs, outputs, name=name)
    return replace(
        graph,
        held_to=_held(program, scope, graph),
        notes=unique_notes((*graph.notes, *_unread(constants, graph), *lifetime_notes(program))),
    )


def _unread(constants: Mapping[str, Constant], graph: Graph) -> Iterator[Note]:
    """Yield a Note on the weights of the module that nothing reads in this call of it."""
    left = [name for name, each in constants.items()
            if each.role is Role.PARAMETER and name not in graph.constants]  # fmt: skip
    if left:
        text = f"{left[0]}{f' and {len(left) - 1} other' if len(left) > 1 else ''}"
        text = f"weights that no operator reads are not counted: {text}"
        yield Note("unused-initialiser", text)


def _held(program: Any, scope: Scope, graph: Graph) -> Mapping[str, str]:
    """Return what the program holds: as a dry run saw it, arguments of calls for the rest."""
    last_read = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    known: dict[str, int] = {}
    for node in program.graph.nodes:
        if LAST_HELD in node.meta:
            known |= dict.fromkeys(names_of(node, scope), scope.ends[node.meta[LAST_HELD]])
    owner: dict[str, str] = {}
    for made in graph.nodes:
        if made.storage_of:
            root = owner.get(made.storage_of, made.storage_of)
            owner |= dict.fromkeys(made.outputs, root)
    held = {name: graph.nodes[i].name for name, i in known.items() if i > last_read.get(name, -1)}
    for name, last in graph.held_to.items():
        if name not in known and owner.get(name, name) not in known:
            held[name] = last
    return held


def finish(
    scope: Scope,
    constants: Mapping[str, Constant],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    *,
    name: str,
) -> Graph:
    """Return the graph of all that was put into a scope; constants that nothing reads are left."""
    steps = scope.steps
    labels = node_names([step.stack[-1] for step in steps], [step.kind for step in steps])
    nodes = tuple(
        replace(step.node, name=label) for step, label in zip(steps, labels, strict=True)
    )
    read = {each for node in nodes for each in reads_of(node)} | set(outputs)
    used = _with_statistics({each: k for each, k in constants.items() if each in read}, nodes)
    seen = {*inputs, *outputs, *read, *(each for node in nodes for each in node.outputs)}
    held = held_arguments(
        [[each for each in reads_of(node) if each not in constants] for node in nodes],
        [node.outputs for node in nodes],
        [step.stack for step in steps],
        inputs,
    )
    return Graph(
        name=name,
        nodes=nodes,
        tensors={each: scope.tensors[each] for each in scope.tensors if each in seen},
        inputs=inputs,
        outputs=outputs,
        constants=used,
        notes=unique_notes(scope.notes),
        held_to={each: labels[i] for each, i in held.items()},
    )


def _with_statistics(
    constants: Mapping[str, Constant], nodes: Sequence[Node]
) -> Mapping[str, Constant]:
    """Return the constants, those that only normalisations read as statistics as buffers."""
    statistics = {
        node.inputs[slot]
        for node in nodes
        if node.op_type == "BatchNormalization"
        for slot in _STATISTICS
        if slot < len(node.inputs)
    }
    return {
        name: replace(constant, role=Role.BUFFER)
        if constant.role is Role.DATA and name in statistics
        else constant
        for name, constant in constants.items()
    }


# --- what stands around the nodes


def _placeholders(program: Any, scope: Scope) -> tuple[dict[str, Constant], tuple[str, ...]]:
    """Name every placeholder; return constants and inputs that are tensors."""
    constants: dict[str, Constant] = {}
    inputs: list[str] = []
    known: dict[Any, str] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs
             if hasattr(spec.arg, "name")}  # fmt: skip
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        value = scope.values.of(node)
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            continue
        spec = specs.get(node.name)
        kind = "USER_INPUT" if spec is None else spec.kind.name
        if kind == "USER_INPUT":
            scope.names[node] = node.name
            scope.tensors[node.name] = scope.tensor(value)
            inputs.append(node.name)
            continue
        assert spec is not None
        name = str(spec.target or node.name)
        same = _identity(program, name)
        if same is not None and same in known:  # tied: one tensor under two names
            scope.names[node] = known[same]
            continue
        if same is not None:
            known[same] = name
        tensor = scope.tensor(value)
        scope.names[node] = name
        scope.tensors[name] = tensor
        role = Role.PARAMETER if kind == "PARAMETER" else Role.DATA
        constants[name] = Constant(role, tensor.size_bytes)
    return constants, tuple(inputs)


def _identity(program: Any, name: str) -> Any:
    """Return what is equal for two names of the same stored tensor."""
    stored = program.state_dict.get(name)
    if stored is None:
        stored = program.constants.get(name)
    if stored is None or not hasattr(stored, "untyped_storage"):
        return None
    try:
        storage = stored.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(stored)
    return storage, stored.storage_offset(), tuple(stored.shape), stored.stride(), stored.dtype


def _user_outputs(program: Any, scope: Scope) -> Iterator[str]:
    specs = program.graph_signature.output_specs
    out = next(node for node in program.graph.nodes if node.op == "output")
    for spec, arg in zip(specs, out.args[0], strict=True):
        if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"):
            yield from read_names(out, arg, scope)


def read_names(node: Any, arg: Any, scope: Scope) -> Iterator[str]:
    """Yield the tensors that `node` reads in an argument, each as the writes so far left it.

    A write into shared storage that a name does not show yet is put between them, as a view that
    waits for it.
    """
    for each in names_of(arg, scope):
        name = scope.versions.latest(each)
        if result := scope.versions.write_since(name):
            new = scope.versions.new_name(name)
            scope.tensors[new] = scope.tensors[name]
            inputs = (name, result)
            add_step(scope, node, Node("", "Identity", inputs, (new,), storage_of=name), "written")
            scope.versions.replaced(name, new)
            name = new
        yield name


def names_of(arg: Any, scope: Scope) -> Iterator[str]:
    """Yield the tensors behind an argument: a node, a list of them, or nothing."""
    if isinstance(arg, list | tuple):
        for entry in arg:
            yield from names_of(entry, scope)
    elif hasattr(arg, "meta"):
        name = scope.names.get(arg)
        if isinstance(name, str):
            yield name
        elif isinstance(name, tuple):
            yield from (each for each in name if each)


# --- nodes


def convert_nodes(module: Any, scope: Scope) -> None:
    """Convert every node of an FX graph; what it reads from outside must have names already."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _convert_attribute(node, module, scope)
        elif node.op == "call_function":
            _convert_call(node, module, scope)
        scope.ends[node.name] = len(scope.steps) - 1


def _convert_attribute(node: Any, module: Any, scope: Scope) -> None:
    """Name a tensor that the program holds; sub-programs are looked up when they are called."""
    value = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        name = scope.prefix + str(node.target)
        scope.names[node] = name
        scope.tensors[name] = scope.tensor(value)


def _convert_call(node: Any, module: Any, scope: Scope) -> None:
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is not None:
        _convert_operator(node, schema, scope)
    elif getattr(target, "__name__", "") == "getitem":
        source = scope.names.get(node.args[0])
        if isinstance(source, tuple) and isinstance(node.args[1], int):
            scope.names[node] = source[node.args[1]]
    elif hasattr(target, "name") and hasattr(target, "dispatch"):
        from slicewise.graph.frontends.torch.control import convert_higher_order

        convert_higher_order(node, module, scope)
    elif outputs := tuple(record_outputs(node, scope.values.of(node), scope)):
        # a function of torch that is no operator: kept under its own name
        name = getattr(target, "__name__", "function")
        inputs = tuple(read_names(node, (node.args, tuple(node.kwargs.values())), scope))
        made = Node("", name, inputs, outputs, domain="torch.function", storage_of="")
        add_step(scope, node, made, name)


def _convert_operator(node: Any, schema: Any, scope: Scope) -> None:
    value = scope.values.of(node)
    row = find_row(schema.name)
    if row is not None and row.storage is Storage.NOTHING:
        return
    call = Call(node, _arguments(node, schema), scope.values)
    given = list(names_of((node.args, tuple(node.kwargs.values())), scope))
    is_in_place = schema.is_mutable and _writes_first(schema)
    written = tuple(_written_names(call, schema, scope)) if schema.is_mutable else ()
    if value is None and not written:
        return
    if row is not None and is_same(row, call, is_in_place=is_in_place):
        scope.names[node] = given[0] if given else None
        return
    given = list(read_names(node, (node.args, tuple(node.kwargs.values())), scope))
    written = tuple(scope.versions.latest(name) for name in written)
    _bound_sizes(node, value, given, scope)
    outputs = tuple(record_outputs(node, value, scope))
    if value is None:
        outputs = tuple(_new_versions(written, scope))
    if not outputs:
        return
    space, _, short = schema.name.partition("::")
    row = row or Row(short, short, domain=ATEN if space == "aten" else f"torch.{space}")
    made = Node(
        name="",
        op_type=row.op_type if isinstance(row.op_type, str) else row.op_type(call),
        inputs=_inputs(row, call, given, scope, is_in_place=is_in_place),
        outputs=outputs,
        attrs=dict(row.attrs(call)) if row.attrs is not None else {},
        domain=row.domain,
    )
    shares = is_in_place or value is None or is_view(row, call)
    owner = (written or given)[0] if shares and given else ""
    add_step(scope, node, replace(made, storage_of=owner), short)
    step = len(scope.steps) - 1
    for name in written:
        scope.versions.wrote(name, result=outputs[0], step=step)
    if is_in_place or value is None:  # what reads them later reads the new values
        for name, new in zip(written, outputs, strict=False):
            scope.versions.replaced(name, new)


def _bound_sizes(node: Any, value: Any, given: Sequence[str], scope: Scope) -> None:
    """Give the symbols of sizes that depend on data the largest size they can have.

    At most one result for each element of the largest tensor read: of NonZero, of a mask.
    """
    for each in value if isinstance(value, list | tuple) else (value,):
        for symbol in scope.values.unknown(each):
            largest = max((each.elements for each in _choosing(node, given, scope)), default=1)
            scope.values.bind(symbol, max(1, largest))
            text = f"the size {symbol} depends on data; the largest, {largest}, was taken"
            scope.notes.append(Note("shape-upper-bound", text, node.name))


def _choosing(node: Any, given: Sequence[str], scope: Scope) -> list[Tensor]:
    """Return the tensors whose elements decide how many results there are: the masks of an index,
    else all that are read."""
    tensors = [scope.tensors[name] for name in given]
    masks = [each for each in tensors[1:] if each.dtype in (DType.BOOL, DType.UINT8)]
    return masks if masks and node.target._schema.name == "aten::index" else tensors


def add_step(scope: Scope, node: Any, made: Node, kind: str) -> None:
    """Put a node at the end; of equal names those of one module are numbered later."""
    stack = scope.stack(scopes_of(node))
    for name in made.outputs:
        if name:
            scope.versions.made(name, of=made.storage_of or "", step=len(scope.steps))
    scope.steps.append(_Step(replace(made, origin=stack[-1]), kind.strip("_"), stack))


_SCHEMAS: dict[Any, tuple[tuple[str, Any, bool], ...]] = {}


def _parameters(target: Any, schema: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return name, default and 'by keyword only' of each argument, once for each operator."""
    found = _SCHEMAS.get(target)
    if found is None:
        found = _SCHEMAS[target] = tuple(
            (each.name, each.default_value, each.kwarg_only) for each in schema.arguments
        )
    return found


def _arguments(node: Any, schema: Any) -> Mapping[str, Any]:
    """Return the arguments of a call by name, defaults where they are left out."""
    given = dict(node.kwargs)
    positional = iter(node.args)
    arguments: dict[str, Any] = {}
    for name, default, is_keyword in _parameters(node.target, schema):
        if not is_keyword and (value := next(positional, _MISSING)) is not _MISSING:
            arguments[name] = value
        else:
            arguments[name] = given.get(name, default)
    return arguments


_MISSING = object()


def _written_names(call: Call, schema: Any, scope: Scope) -> Iterator[str]:
    """Yield the tensors that an operator writes into, in the order of its arguments."""
    for each in schema.arguments:
        if each.alias_info is not None and each.alias_info.is_write:
            yield from names_of(call.given(each.name), scope)


def _new_versions(written: Sequence[str], scope: Scope) -> Iterator[str]:
    """Name and record what an operator that returns nothing leaves in what it writes into."""
    for name in written:
        new = scope.versions.new_name(name)
        scope.tensors[new] = scope.tensors[name]
        yield new


def _inputs(
    row: Row, call: Call, given: Sequence[str], scope: Scope, *, is_in_place: bool
) -> tuple[str, ...]:
    """Return the inputs slot by slot; '' for an absent one, none behind the last."""
    if row.inputs is None:
        return tuple(given)
    found: list[str] = []
    for argument in row.inputs:
        if argument not in call.arguments:
            continue
        value = call.arguments[argument]
        names = [scope.versions.latest(name) for name in names_of(value, scope)]
        found += names or [""]
    while found and not found[-1]:
        found.pop()
    if is_in_place and given and given[0] not in found:
        found.insert(0, given[0])
    return tuple(found)


def record_outputs(node: Any, value: Any, scope: Scope) -> Iterator[str]:
    """Name and record what an operator returns."""
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        scope.names[node] = name = scope.prefix + node.name
        scope.tensors[name] = scope.tensor(value)
        yield name
    elif isinstance(value, list | tuple):
        names: list[str] = []
        for i, each in enumerate(value):
            is_tensor = hasattr(each, "dtype") and hasattr(each, "stride")
            names.append(f"{scope.prefix}{node.name}.{i}" if is_tensor else "")
            if is_tensor:
                scope.tensors[names[-1]] = scope.tensor(each)
        scope.names[node] = tuple(names)
        yield from names if any(names) else ()


def _writes_first(schema: Any) -> bool:
    first = schema.arguments[0] if schema.arguments else None
    alias = None if first is None else first.alias_info
    return alias is not None and alias.is_write
