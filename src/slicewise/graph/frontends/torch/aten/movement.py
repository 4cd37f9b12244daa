"""ATen's views, copies, look-ups, fills and checks."""

from slicewise.graph.frontends.torch.aten import attributes as make
from slicewise.graph.frontends.torch.aten.row import Row, Storage, own_rows, rows

_SELF = ("self",)

ROWS = (
    # views
    *rows("view:Reshape view_as:Reshape unflatten:Reshape squeeze:Squeeze unsqueeze:Unsqueeze"
          " expand:Expand expand_as:Expand broadcast_to:Expand slice:Slice narrow:Slice"
          " select:Gather diagonal:Gather as_strided:Slice unfold:Slice"
          " split:Split split_with_sizes:Split chunk:Split tensor_split:Split unbind:Split"
          " unsafe_split:Split unsafe_chunk:Split hsplit:Split vsplit:Split"
          " view_as_real:Reshape view_as_complex:Reshape real:Slice imag:Slice"
          " atleast_1d:Reshape atleast_2d:Reshape atleast_3d:Reshape"
          " ravel:Reshape resolve_conj:Identity _conj:Identity conj:Identity",
          inputs=_SELF, storage=Storage.VIEW),
    *rows("permute:Transpose transpose:Transpose t:Transpose numpy_T:Transpose mT:Transpose"
          " adjoint:Transpose movedim:Transpose moveaxis:Transpose swapaxes:Transpose"
          " swapdims:Transpose matrix_H:Transpose mH:Transpose",
          inputs=_SELF, attrs=make.permuted, storage=Storage.VIEW),
    *rows("reshape:Reshape flatten:Reshape _unsafe_view:Reshape reshape_as:Reshape",
          inputs=_SELF, storage=Storage.IF_STRIDED),
    *rows("contiguous:Identity", inputs=_SELF, storage=Storage.IF_DENSE),
    *rows("clone:Identity", inputs=_SELF),
    *rows("detach:Identity alias:Identity lift_fresh:Identity lift_fresh_copy:Identity"
          " positive:Identity requires_grad_:Identity", inputs=_SELF, storage=Storage.SAME),
    # conversions
    *rows("to:Cast _to_copy:Cast type_as:Cast",
          inputs=_SELF, attrs=make.converted, storage=Storage.IF_CONVERTED),
    # put together, taken apart, moved
    *rows("cat:Concat concat:Concat concatenate:Concat", inputs=("tensors",),
          attrs=make.axis(default=0, of="tensors")),
    Row("stack", "Concat", ("tensors",), make.new_axis),
    *rows("hstack:Concat vstack:Concat dstack:Concat column_stack:Concat", inputs=("tensors",)),
    *rows("repeat:Tile tile:Tile repeat_interleave:Tile", inputs=_SELF),
    *rows("pad:Pad constant_pad_nd:Pad reflection_pad1d:Pad reflection_pad2d:Pad"
          " reflection_pad3d:Pad replication_pad1d:Pad replication_pad2d:Pad"
          " replication_pad3d:Pad", inputs=_SELF),
    Row("pixel_shuffle", "DepthToSpace", _SELF, make.block("upscale_factor")),
    Row("pixel_unshuffle", "SpaceToDepth", _SELF, make.block("downscale_factor")),
    Row("triu", "Trilu", _SELF, make.triangle(1)),
    Row("tril", "Trilu", _SELF, make.triangle(0)),
    *own_rows("roll flip fliplr flipud rot90 im2col channel_shuffle meshgrid broadcast_tensors"
              " tril_indices triu_indices diag diag_embed block_diag cartesian_prod"
              " affine_grid_generator"),
    Row("col2im", "Col2Im", _SELF),
    # look-ups and writes at indices
    Row("embedding", "Gather", ("weight", "indices"), make.fixed(axis=0)),
    Row("embedding_bag", "embedding_bag", ("weight", "indices", "offsets"), domain="torch.aten"),
    Row("index_select", "Gather", ("self", "index"), make.axis()),
    Row("gather", "GatherElements", ("self", "index"), make.axis()),
    Row("take_along_dim", "GatherElements", ("self", "indices")),
    Row("take", "GatherElements", ("self", "index")),
    *rows("index:GatherND masked_select:GatherND", inputs=None),
    *rows("scatter:ScatterElements scatter_add:ScatterElements scatter_reduce:ScatterElements"
          " index_add:ScatterElements index_copy:ScatterElements index_reduce:ScatterElements"
          " index_fill:ScatterElements put:ScatterElements",
          inputs=("self", "index", "src", "source", "value"), attrs=make.axis()),
    *rows("index_put:ScatterND _index_put_impl:ScatterND", inputs=("self", "values", "indices")),
    *rows("masked_scatter:ScatterND", inputs=("self", "source", "mask")),
    *rows("slice_scatter:ScatterND select_scatter:ScatterND diagonal_scatter:ScatterND"
          " copy:ScatterND", inputs=("self", "src")),
    Row("one_hot", "OneHot", _SELF),
    # sampled images
    *rows("upsample_nearest1d:Resize upsample_nearest2d:Resize upsample_nearest3d:Resize"
          " _upsample_nearest_exact1d:Resize _upsample_nearest_exact2d:Resize"
          " _upsample_nearest_exact3d:Resize", inputs=("self", "input"),
          attrs=make.fixed(mode="nearest")),
    *rows("upsample_linear1d:Resize upsample_bilinear2d:Resize upsample_trilinear3d:Resize"
          " _upsample_bilinear2d_aa:Resize", inputs=("self", "input"),
          attrs=make.fixed(mode="linear")),
    *rows("upsample_bicubic2d:Resize _upsample_bicubic2d_aa:Resize", inputs=("self", "input"),
          attrs=make.fixed(mode="cubic")),
    *rows("grid_sampler:GridSample grid_sampler_2d:GridSample grid_sampler_3d:GridSample",
          inputs=("input", "grid"), attrs=make.grid),
    # filled anew
    *rows("arange:Range linspace:Range logspace:Range", inputs=()),
    *rows("full:ConstantOfShape zeros:ConstantOfShape ones:ConstantOfShape empty:ConstantOfShape"
          " full_like:ConstantOfShape zeros_like:ConstantOfShape ones_like:ConstantOfShape"
          " empty_like:ConstantOfShape new_full:ConstantOfShape new_zeros:ConstantOfShape"
          " new_ones:ConstantOfShape new_empty:ConstantOfShape scalar_tensor:ConstantOfShape"
          " empty_strided:ConstantOfShape new_empty_strided:ConstantOfShape"
          " empty_permuted:ConstantOfShape", inputs=()),
    *rows("fill:ConstantOfShape zero:ConstantOfShape", inputs=_SELF),
    *rows("eye:EyeLike", inputs=()),
    *rows("hann_window:HannWindow hamming_window:HammingWindow blackman_window:BlackmanWindow",
          inputs=()),
    *rows("rand:RandomUniform randn:RandomNormal randint:RandomUniform randperm:RandomUniform",
          inputs=()),
    *rows("rand_like:RandomUniformLike randn_like:RandomNormalLike normal:RandomNormal"
          " uniform:RandomUniform bernoulli:Bernoulli", inputs=_SELF),
    # spectra, bytes only
    *own_rows("_fft_r2c _fft_c2r _fft_c2c fft_rfft fft_irfft fft_fft fft_ifft fft_rfft2"
              " fft_irfft2 fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn stft istft"
              " fft_fftshift fft_ifftshift"),
    # nothing is done for these
    *rows("_assert_async _assert_scalar _assert_tensor_metadata sym_size sym_numel sym_stride"
          " sym_storage_offset sym_constrain_range sym_constrain_range_for_size item"
          " _local_scalar_dense is_nonzero equal size stride numel dim record_stream"
          " _functional_assert_async _print", storage=Storage.NOTHING),
)  # fmt: skip
