"""Says what each constant of a folded ONNX model is: parameter, buffer or data, counted once.

Decided by what the file declares (`declared_roles`), else by the slots that read it
(`ops.role_of_slot`). A weight that several constants were made
from is counted with the first of them, in full, whatever was picked out of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from slicewise.core.graph import Constant, Role, Tensor
from slicewise.core.precision import DType
from slicewise.graph.frontends.onnx.fold import Known, Scope
from slicewise.graph.ops import role_of_slot
from slicewise.graph.shape.facts import constant_value


@dataclass(frozen=True, slots=True)
class Judged:
    """A constant as it stands in a Graph: its tensor (packed weights unpacked) and its record."""

    tensor: Tensor
    constant: Constant


@dataclass(frozen=True, slots=True)
class _Reading:
    """One slot that reads a constant; `node` None is the graph's outputs.

    `is_placeholder`: the slot holds the scale or bias of a normalisation that has them elsewhere.
    """

    known: Known
    node: onnx.NodeProto | None
    slot: int
    is_placeholder: bool = False


# Where torch.onnx.export (dynamo=True) keeps what torch.export knows of a weight, and its words
# (torch.export.graph_signature.InputKind). Buffers are masks and tables; those that are running
# statistics are known by the slot that reads them.
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_ROLE_OF_KIND = {"PARAMETER": Role.PARAMETER, "BUFFER": Role.DATA, "CONSTANT_TENSOR": Role.DATA}


def declared_roles(graph: onnx.GraphProto) -> Mapping[str, Role]:
    """Return the roles that the file itself gives to weights, by name; empty for most files."""
    return {
        value.name: _ROLE_OF_KIND[entry.value]
        for value in graph.value_info
        for entry in value.metadata_props
        if entry.key == _KIND and entry.value in _ROLE_OF_KIND
    }


def judge_constants(
    main: Scope, declared: Mapping[str, Role] | None = None
) -> Mapping[str, Judged]:
    """Return every constant that something reads, by its key (`Known.key`).

    Where weights are declared, what is declared a parameter counts, whatever its size, and nothing
    else does: neither masks that an Add reads nor literals of the program.
    """
    declared = {
        main.known[name].key: role for name, role in (declared or {}).items() if name in main.known
    }
    readings: dict[str, list[_Reading]] = {}
    for reading in _readings(main):
        readings.setdefault(reading.known.key, []).append(reading)
    sizes = dict(_root_elements(main))
    judged: dict[str, Judged] = {}
    claimed: set[str] = set()
    # weights as they are come before what was made from them
    made = sorted(readings.items(), key=lambda item: item[1][0].known.roots != {item[0]})
    for key, reads in made:
        known = reads[0].known
        tensor = _unpacked(known.tensor, reads)
        role = _role(known, reads)
        if declared:
            role = _declared_role(known, role, declared)
        trainable = None
        if role is Role.PARAMETER:
            counted = _counted_roots(known, sizes, declared)
            role = role if counted else Role.DATA
            if key not in counted or key in claimed:
                trainable = sum(sizes[root] for root in counted if root not in claimed)
                trainable = None if trainable == tensor.elements else trainable
            claimed |= counted
        judged[key] = Judged(tensor, Constant(role, known.stored_bytes, trainable))
    return judged


def _declared_role(known: Known, by_slot: Role, declared: Mapping[str, Role]) -> Role:
    """Return the role of a constant in a file that declares its weights."""
    carries_data = by_slot is Role.PARAMETER or known.tensor.dtype.is_float
    if carries_data and any(declared.get(root) is Role.PARAMETER for root in known.roots):
        return Role.PARAMETER
    return Role.BUFFER if by_slot is Role.BUFFER else Role.DATA


def _counted_roots(
    known: Known, sizes: Mapping[str, int], declared: Mapping[str, Role]
) -> set[str]:
    """Return the weights that count: those declared, else those of more than one element.

    All if none has more. A scale that a weight is multiplied with is not a weight.
    """
    if declared:
        return {root for root in known.roots if declared.get(root) is Role.PARAMETER}
    return {root for root in known.roots if sizes[root] > 1} or set(known.roots)


def _root_elements(scope: Scope) -> Iterator[tuple[str, int]]:
    for known in scope.known.values():
        if known.key in known.roots:
            yield known.key, known.tensor.elements
    for bodies in scope.bodies:
        for body in bodies:
            yield from _root_elements(body)


def _readings(scope: Scope) -> Iterator[_Reading]:
    placeholders = _placeholder_norms(scope)
    for node, bodies in zip(scope.nodes, scope.bodies, strict=True):
        for slot, name in enumerate(node.input):
            known = scope.find(name) if name else None
            if known is not None:
                stands_in = slot in (1, 2) and node.output[0] in placeholders
                yield _Reading(known, node, slot, stands_in)
        for body in bodies:
            yield from _readings(body)
    for i, value in enumerate(scope.graph.output):
        known = scope.find(value.name)
        if known is not None:
            yield _Reading(known, None, i)


def _role(known: Known, reads: list[_Reading]) -> Role:
    """Return parameter if one slot says so, buffer if all do, else data."""
    tensor = known.tensor
    roles = {
        Role.DATA
        if read.node is None or read.is_placeholder
        else role_of_slot(
            read.node.domain,
            read.node.op_type,
            read.slot,
            dtype=tensor.dtype,
            elements=tensor.elements,
        )
        for read in reads
    }
    if Role.PARAMETER in roles:
        return Role.PARAMETER
    return Role.BUFFER if roles == {Role.BUFFER} else Role.DATA


# --- normalisation as Caffe writes it: BatchNorm without scale and bias, then a Scale layer


def _placeholder_norms(scope: Scope) -> frozenset[str]:
    """Return the outputs of normalisations whose own scale is 1 and bias 0, by construction.

    Converters from Caffe fill them in, because the trained ones are in the Mul and Add behind
    (DenseNet-121 and Inception v2 of the onnx wheel).
    """
    norms = [node for node in scope.nodes if node.op_type == "BatchNormalization"]
    if not norms:
        return frozenset()
    contents = {tensor.name: tensor for tensor in scope.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in scope.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in scope.graph.output}
    return frozenset(
        node.output[0]
        for node in norms
        if node.output[0] not in outputs
        and all(scope.find(name) for name in node.input[1:3])
        and len(node.input) > 2
        and _is_scaled(node.output[0], readers.get(node.output[0], ()), scope)
        and _may_be_all(1.0, contents.get(node.input[1]))
        and _may_be_all(0.0, contents.get(node.input[2]))
    )


def _is_scaled(value: str, readers: Sequence[onnx.NodeProto], scope: Scope) -> bool:
    """True if `value` is only read by a product with a constant of more than one element."""
    if len(readers) != 1 or readers[0].op_type != "Mul":
        return False
    factors = [scope.find(name) for name in readers[0].input if name != value]
    return any(known is not None and known.tensor.elements > 1 for known in factors)


def _may_be_all(number: float, tensor: onnx.TensorProto | None) -> bool:
    """True unless the content is in the file and holds another number."""
    content = None if tensor is None else constant_value(tensor)
    return content is None or bool((content == number).all())


# --- weights of several to a byte

# Slots that hold packed weights, the attribute with the bits of one, and its default (contributed
# operators of ONNX Runtime, docs/ContribOperators.md).
_PACKED_SLOTS = {
    ("com.microsoft", "MatMulNBits"): ((1,), "bits", 4),
    ("com.microsoft", "MatMulBnb4"): ((1,), "", 4),
    ("com.microsoft", "MatMulNBitsMlp"): ((3, 6), "bits", 4),
    ("com.microsoft", "MatMulNBitsQkv"): ((3, 6, 9), "bits", 4),
    ("com.microsoft", "QMoE"): ((2, 5, 8), "expert_weight_bits", 4),
    ("com.microsoft", "GatherBlockQuantized"): ((0,), "bits", 4),
}
_BYTE_TYPES = frozenset({DType.UINT8, DType.INT8})
_DTYPE_OF_BITS = {2: DType.INT2, 4: DType.INT4}
# Operators whose attributes give the true shape [N, K]: rows of packed bytes may be padded.
_SHAPED = frozenset({"MatMulNBits", "MatMulBnb4"})


def _unpacked(tensor: Tensor, reads: list[_Reading]) -> Tensor:
    """Return the tensor with one element for each weight where a slot reads it as packed."""
    for read in reads:
        if read.node is None or tensor.dtype not in _BYTE_TYPES:
            continue
        row = _PACKED_SLOTS.get((read.node.domain, read.node.op_type))
        if row is None or read.slot not in row[0]:
            continue
        _, bits_name, default = row
        numbers = {attribute.name: int(attribute.i) for attribute in read.node.attribute}
        bits = numbers.get(bits_name, default)
        dtype = _DTYPE_OF_BITS.get(bits, DType.INT8)
        if read.node.op_type in _SHAPED and numbers.get("N", 0) > 0 and numbers.get("K", 0) > 0:
            return Tensor((numbers["N"], numbers["K"]), dtype)
        if tensor.shape and dtype is not DType.INT8:
            return Tensor((*tensor.shape[:-1], tensor.shape[-1] * 8 // bits), dtype)
    return tensor
