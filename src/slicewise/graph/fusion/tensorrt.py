"""What TensorRT launches: layers of an engine after its fusions, transformer blocks by Myelin.

Sources: NVIDIA TensorRT developer guide, "Types of Fusions" (convolution with scale, activation
and element-wise sum; scale with activation; pointwise layers with one another; shuffles with one
another and into reductions; reduce, softmax, GELU, L1 and L2 norms), "Multi-Head Attention
Fusion"; engine inspector output shows blocks of transformers as Myelin regions, in which products
take bias and activation, and norms run with the pointwise operators around them. Batch
normalisation becomes a scale and is folded into the weights.
"""

from slicewise.core.cost import Kind
from slicewise.graph.fusion.composites import (
    ATTENTION,
    EXPORTED_ATTENTION,
    GELU,
    GROUP_NORM,
    HARD_SWISH,
    LAYER_NORM,
    RMS_NORM,
    SILU,
)
from slicewise.graph.fusion.pattern import Free, Part, Space, Table

_ACTIVATIONS = (
    "Relu|Sigmoid|Tanh|LeakyRelu|PRelu|Elu|Selu|Softplus|Softsign|Clip|HardSigmoid|ThresholdedRelu"
    "|Gelu|gelu|HardSwish|hard_swish|silu"
)

TABLE = Table(
    free=(Free("Pad(x)", same_size=True),),
    expressions=(
        *EXPORTED_ATTENTION, *ATTENTION, *LAYER_NORM, *RMS_NORM, *GROUP_NORM, *GELU, *SILU,
        *HARD_SWISH,
    ),
    chains=(
        f"Conv|ConvTranspose > BatchNormalization? > Add|Sum(t)? > {_ACTIVATIONS}",
        "Conv|ConvTranspose > BatchNormalization",
        "Conv|ConvTranspose > Mul(w)? > Add(w)",
        "Conv > Add|Sum(t)",
        f"MatMul > Add(b)? > {_ACTIVATIONS}",
        "MatMul > Add(b)",
        f"Gemm > {_ACTIVATIONS}",
        "MatMul > Mul|Div(c)",
        # the kernels of attention read and write heads by strides
        "Gather|Split|Slice > attention|Attention",
        "Transpose > attention|Attention",
        "attention|Attention > Transpose",
        "Transpose > MatMul",
        "Transpose > Transpose",
    ),
    parts=(
        Part(Kind.ELEMENTWISE),
        Part("BatchNormalization"),
        Part(Kind.NORM, Space.DATA),
        Part(Kind.SOFTMAX, Space.DATA),
        Part(Kind.REDUCTION, Space.DATA),
        Part("CumSum|CumProd|DFT|STFT", takes=False, gives=False),
        Part(Kind.QUANTIZE),
        Part("Transpose|Slice|Split|Cast|Expand|Where"),
    ),
)  # fmt: skip
