"""What eager PyTorch launches: a kernel for each ATen operator, views for nothing.

Sources: PyTorch documentation, "Tensor Views" (expand, permute, select, split, slices share
storage; reshape copies where strides cannot say it); `torch.nn.functional.linear` is one addmm
where it has a bias; `gelu`, `silu`, `hardswish`, `layer_norm`, `group_norm` are single operators.
Batch normalisation is a kernel of its own in evaluation too.
"""

from slicewise.graph.fusion.composites import EXPORTED_ATTENTION, ONE_OPERATOR
from slicewise.graph.fusion.pattern import Copied, Free, Table

STRIDED = (
    Free("Split(x)"),
    Free("Slice(x)"),
    Free("Expand(x)"),
    Free("Gather(x, c)"),
    # fused attention gives its result as its reader wants it
    Free("Transpose(Attention(q))"),
    # elsewhere a reshape behind it has to copy, or the product that reads it takes strides
    Free("Transpose(x)", unless=frozenset({"Reshape", "Flatten", "MatMul"})),
)
"""Views of PyTorch by the names that ONNX has for them."""
# `matmul` folds the axes in front into one, which the strides of turned keys do not allow
FOLDED = (Copied("Transpose", "MatMul"),)

TABLE = Table(
    free=STRIDED,
    copied=FOLDED,
    expressions=(*ONE_OPERATOR, *EXPORTED_ATTENTION),
    chains=("MatMul(w) > Add(b)",),
    undoes_exporters=True,
)
