"""What onnxruntime launches: the nodes of its optimised graph.

Sources: ONNX Runtime documentation, "Graph optimizations" (basic: constant folding, Conv with
Mul, Add and BatchNormalization, Add after MatMul, redundant nodes; extended: activations into
convolutions and Gemm, Gelu, layer normalisation, skip and bias variants, attention of BERT,
quantised kernels); and the graphs that version 1.32 saves (`benchmarks/fusion_check.py`).
Pointwise operators are not fused with one another.
"""

from slicewise.graph.fusion.composites import GELU, LAYER_NORM, QUICK_GELU, RMS_NORM, SILU
from slicewise.graph.fusion.pattern import Free, Table

# of FusedConv and FusedGemm; HardSwish: of the blocked convolutions of CPUs
_ACTIVATIONS = "Relu|Sigmoid|Tanh|LeakyRelu|Clip|HardSigmoid"

TABLE = Table(
    free=(Free("Pad(x)", same_size=True),),
    expressions=(*LAYER_NORM, *RMS_NORM, *GELU, *QUICK_GELU, *SILU),
    chains=(
        "Conv > BatchNormalization",
        "Conv > Mul(w)",
        "Conv > Add(b)",
        f"Conv > Add|Sum(t)? > {_ACTIVATIONS}|HardSwish",
        "Conv > Add|Sum(t)",
        "MatMul(w) > Add(b)",
        f"Gemm > {_ACTIVATIONS}",
        # the scale becomes that of the product, FusedMatMul
        "Mul|Div(c) > MatMul",
        "MatMul(t) > Mul|Div(c)",
        "Add > layer_norm|LayerNormalization|rms_norm|SimplifiedLayerNormalization",
    ),
)
