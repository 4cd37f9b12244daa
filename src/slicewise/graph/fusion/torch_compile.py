"""What torch.compile launches on a GPU: inductor's generated loops between library calls.

Sources: Ansel et al., "PyTorch 2", ASPLOS 2024, section 4.4 (pointwise, reductions and scatters
are fused vertically where one reads the other and horizontally where they share reads;
convolutions and products call libraries and, without max-autotune, take nothing in); torch 2.13,
`torch/_inductor`: `lowering.py` (pooling realises what it reads, `cat` of few tensors is computed
where it is read), `fx_passes/fuse_attention.py` (written-out attention becomes one operator).
Batch normalisation is pointwise in evaluation; it is folded into weights only when frozen.
"""

from slicewise.core.cost import Kind
from slicewise.graph.fusion.composites import (
    EXPORTED_ATTENTION,
    GROUP_NORM,
    LAYER_NORM,
    MATCHED_ATTENTION,
    RMS_NORM,
)
from slicewise.graph.fusion.pattern import Free, Part, Space, Table
from slicewise.graph.fusion.torch_eager import FOLDED, STRIDED

TABLE = Table(
    free=(*STRIDED, Free("Pad(x)", same_size=True)),
    copied=FOLDED,
    expressions=(*EXPORTED_ATTENTION, *MATCHED_ATTENTION, *LAYER_NORM, *RMS_NORM, *GROUP_NORM),
    chains=("MatMul(w) > Add(b)",),
    parts=(
        Part(Kind.ELEMENTWISE),
        Part("BatchNormalization"),
        Part(Kind.NORM, Space.DATA),
        # few and long rows: what a reduction in parts finds is used by another kernel
        Part("GroupNormalization|InstanceNormalization|group_norm", Space.DATA, gives=False),
        Part(Kind.SOFTMAX, Space.DATA),
        Part(Kind.REDUCTION, Space.DATA),
        Part("CumSum|CumProd|DFT|STFT", takes=False, gives=False),
        Part("GlobalAveragePool|GlobalMaxPool|GlobalLpPool", Space.DATA),
        Part(Kind.POOL, takes=False),
        Part(Kind.QUANTIZE),
        Part(Kind.MOVEMENT),
        Part("Concat", any_size=True, most_inputs=8),
        Part("Gather|GatherElements|GatherND|GridSample|Resize|Upsample|Pad", takes=False),
        Part("Scatter|ScatterElements|ScatterND|TensorScatter|Col2Im", takes=False, gives=False),
    ),
    shares_reads=True,
)
