"""ATen's convolutions, matrix products, attention and recurrences."""

from slicewise.graph.frontends.torch.aten import attributes as make
from slicewise.graph.frontends.torch.aten.row import Call, Row, own_rows, rows

_CONV = ("input", "weight", "bias")


def _convolution(call: Call) -> str:
    return "ConvTranspose" if call.given("transposed") else "Conv"


ROWS = (
    *rows("conv1d:Conv conv2d:Conv conv3d:Conv conv_transpose1d:ConvTranspose"
          " conv_transpose2d:ConvTranspose conv_transpose3d:ConvTranspose",
          inputs=_CONV, attrs=make.conv),
    Row("convolution", _convolution, _CONV, make.conv),
    Row("_convolution", _convolution, _CONV, make.conv),
    Row("torchvision::deform_conv2d", "DeformConv",
        ("input", "weight", "offset", "bias", "mask"), make.deform_conv),
    Row("linear", "Gemm", _CONV, make.fixed(transB=1)),
    Row("addmm", "Gemm", ("mat1", "mat2", "self")),
    Row("baddbmm", "Gemm", ("batch1", "batch2", "self")),
    Row("addmv", "Gemm", ("mat", "vec", "self")),
    *rows("matmul:MatMul bmm:MatMul mm:MatMul mv:MatMul dot:MatMul vdot:MatMul"),
    Row("einsum", "Einsum", ("tensors",), make.equation),
    *rows("scaled_dot_product_attention:Attention",
          inputs=("query", "key", "value", "attn_mask"), attrs=make.attention),
    *own_rows("_grouped_mm _scaled_mm bilinear cdist _cdist_forward addbmm tensordot"
               " linalg_vecdot kron"),
    # what transformers registers for its experts where torch has no grouped product
    Row("transformers::grouped_mm_fallback", "_grouped_mm", domain="torch.aten"),
    # the last axes of both are summed over: a tensordot
    Row("inner", "tensordot", domain="torch.aten"),
    *(Row(f"{name}_cell", f"{name}_cell", ("input", "w_ih", "w_hh", "b_ih", "b_hh", "hx"),
          domain="torch.aten") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    Row("lstm", "LSTM", ("input", "data", "params", "hx"), make.recurrent),
    Row("gru", "GRU", ("input", "data", "params", "hx"), make.recurrent),
    Row("rnn_tanh", "RNN", ("input", "data", "params", "hx"), make.recurrent),
    Row("rnn_relu", "RNN", ("input", "data", "params", "hx"), make.recurrent),
)  # fmt: skip
