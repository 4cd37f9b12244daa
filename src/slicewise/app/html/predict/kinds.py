"""How kinds of operators and limits look: a colour, a shape, a name each, everywhere."""

from dataclasses import dataclass

from slicewise.core.cost import Kind


@dataclass(frozen=True, slots=True)
class Look:
    """A name for a reader, a class of the style sheet (the colour), a shape of `plot.marker`."""

    name: str
    style: str
    shape: str = "square"


_CONV = Look("convolution", "conv", "circle")
_MATMUL = Look("matrix product", "matmul", "square")
_ATTENTION = Look("attention", "attention", "diamond")
_NORM = Look("norm, softmax, reduction", "norm", "up")
_POINTWISE = Look("elementwise", "elementwise", "down")
_OTHER = Look("data movement, other", "movement", "cross")

# Few enough to tell apart, in the order of legends.
GROUPS = (_CONV, _MATMUL, _ATTENTION, _NORM, _POINTWISE, _OTHER)
GROUP_OF = {
    Kind.CONV: _CONV,
    Kind.MATMUL: _MATMUL, Kind.RECURRENT: _MATMUL,
    Kind.ATTENTION: _ATTENTION,
    Kind.NORM: _NORM, Kind.SOFTMAX: _NORM, Kind.REDUCTION: _NORM, Kind.POOL: _NORM,
    Kind.ELEMENTWISE: _POINTWISE, Kind.QUANTIZE: _POINTWISE,
    Kind.MOVEMENT: _OTHER, Kind.SORT: _OTHER, Kind.VIEW: _OTHER, Kind.CONTROL: _OTHER,
    Kind.OPAQUE: _OTHER,
}  # fmt: skip

# The words of `NodeEstimate.limit` and the host's part.
LIMITS = {name: Look(name, name) for name in ("compute", "memory", "waves", "launch", "host")}
LIMIT_WORDS = (
    "compute: arithmetic; memory: traffic; waves: arithmetic on too few units or padded tiles;"
    " launch: starting kernels; host: what the device does not do."
)
# What the title says where one of them holds over half of the time.
LIMIT_MEANING = {
    "compute": "Most of the time is in kernels that arithmetic limits",
    "memory": "Most of the time is in kernels that memory traffic limits",
    "waves": "Most of the time is arithmetic on too few units or padded tiles",
    "launch": "Most of the time is the cost of launching kernels",
    "host": "Most of the time is on the host",
}
