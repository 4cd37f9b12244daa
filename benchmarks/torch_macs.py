"""Multiply-adds and parameters of PyTorch architectures beside PyTorch's own counts.

Reference of the multiply-adds: torch.utils.flop_counter.FlopCounterMode on the exported program,
run operator by operator on the meta device; half of its flops. It has formulas for products,
convolutions and attention; what else it does not count is in the last column. Reference of the
parameters: those of the module, each tensor once. Run: python -m benchmarks.torch_macs
"""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.diffusion_unet import DiffusionUnet
from benchmarks.tables import write_result
from slicewise.core.graph import Binding, Graph
from slicewise.graph.frontends.torch import ModuleSource
from slicewise.graph.frontends.zoo import import_torchvision
from slicewise.graph.frontends.zoo import timm as zoo_timm
from slicewise.graph.frontends.zoo import torchvision as zoo_torchvision
from slicewise.graph.frontends.zoo import transformers as zoo_transformers
from slicewise.graph.frontends.zoo.model import ZooModel, parse
from slicewise.graph.work import count_work

LIMIT = 0.005
_ZOO = {"timm": zoo_timm, "torchvision": zoo_torchvision, "transformers": zoo_transformers}
_TIMM = """
    resnet50 densenet121 efficientnet_b0 mobilenetv3_large_100 convnext_tiny convnextv2_atto
    regnety_008 vgg16 inception_v3 xception41 dpn68 hrnet_w18 res2net50_26w_4s skresnet18
    seresnext50_32x4d resnest14d ecaresnet50t gernet_s repvgg_a0 ghostnet_100 mnasnet_100
    tinynet_a fbnetc_100 rexnet_100 cspresnet50 darknet53 hardcorenas_a selecsls42
    edgenext_xx_small fastvit_t8 mobileone_s0 inception_next_tiny lambda_resnet26t
    halonet26t botnet26t_256 vit_tiny_patch16_224 deit_tiny_patch16_224
    swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 beit_base_patch16_224
    cait_xxs24_224 xcit_nano_12_p8_224 pit_ti_224 levit_128s pvt_v2_b0
    poolformer_s12 maxvit_tiny_tf_224 coatnet_0_rw_224 coat_lite_tiny crossvit_tiny_240
    tnt_s_patch16_224 visformer_tiny mixer_s32_224 gmlp_s16_224 resmlp_12_224 convmixer_768_32
    mobilevit_xxs mobilevitv2_050 efficientformer_l1 gcvit_xxtiny davit_tiny focalnet_tiny_srf
    hiera_tiny_224 nest_tiny eva02_tiny_patch14_224 volo_d1_224 mvitv2_tiny nextvit_small
    tiny_vit_5m_224 repvit_m0_9 caformer_s18 sequencer2d_s
"""
_TORCHVISION = """
    alexnet googlenet squeezenet1_0 shufflenet_v2_x1_0 vit_b_16 swin_t swin_v2_t maxvit_t
    fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large r3d_18 efficientnet_v2_s
"""
_TRANSFORMERS = """
    bert gpt2 llama?num_hidden_layers=4 t5 whisper?encoder_layers=2&decoder_layers=2
    mamba?num_hidden_layers=2 mamba2?num_hidden_layers=2 mixtral?num_hidden_layers=2 clip
    qwen3?num_hidden_layers=2 gemma3_text?num_hidden_layers=6 deberta-v2?num_hidden_layers=2 vit
    segformer wav2vec2?num_hidden_layers=2 bart?encoder_layers=2&decoder_layers=2
    fnet?num_hidden_layers=2 phi3?num_hidden_layers=2 albert
"""
_COLUMNS = (
    "model", "nodes", "macs", "reference macs", "deviation %", "parameters",
    "reference parameters", "unknown operators", "load cpu s", "remark",
)  # fmt: skip
_REMARKS = {
    "torch.aten._grouped_mm": "the reference has no formula for the product of the experts",
    "torch.aten.fft_fftn": "a Fourier transform is counted by its bytes, here and there",
}


def locations() -> Iterator[str]:
    """Yield the zoo names of the table, and the network written here."""
    yield from (f"timm:{name}" for name in _TIMM.split())
    yield from (f"torchvision:{name}" for name in _TORCHVISION.split())
    yield from (f"transformers:{name}" for name in _TRANSFORMERS.split())
    yield "diffusion-unet"


def build(location: str) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """Return a module on the meta device with its inputs."""
    if location == "diffusion-unet":
        with torch.device("meta"):
            text, step = torch.empty(1, 77, 512), torch.empty(1, dtype=torch.int64)
            return DiffusionUnet().eval(), (torch.empty(1, 4, 32, 32), step, text), {}
    name = parse(location)
    model: ZooModel = _ZOO[name.zoo].build(name)
    made = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        for spec in model.inputs
    }
    return (model.module, (), made) if model.by_name else (model.module, tuple(made.values()), {})


class _WithoutChecks(torch.fx.Interpreter):  # type: ignore[misc]
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "_assert" in str(target):
            return None
        return super().call_function(target, args, kwargs)


def reference_macs(program: Any, graph: Graph) -> int:
    """Return what FlopCounterMode counts for the program at the input shapes of the graph."""
    given = []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = graph.tensors[node.name].shape if node.name in graph.inputs else value.shape
            value = torch.empty(shape, dtype=value.dtype, device="meta")
        given.append(value)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _WithoutChecks(program.graph_module).run(*given)
    return int(counter.get_total_flops()) // 2


def row(location: str) -> tuple[str, ...]:
    """Return one line of the table."""
    module, args, kwargs = build(location)
    source = ModuleSource(location, location, (module, args, kwargs))
    begun = time.process_time()
    graph = source.bind(Binding(batch_size=1))
    seconds = time.process_time() - begun
    work = count_work(graph)
    unknown = [note for note in work.notes if note.code == "op-unknown"]
    theirs = reference_macs(next(iter(source.exports.values())).program, graph)
    own = sum(parameter.numel() for parameter in module.parameters())
    return (
        location,
        str(len(graph.nodes)),
        f"{work.total.macs:,}",
        f"{theirs:,}",
        f"{100 * (work.total.macs - theirs) / theirs:+.3f}",
        f"{graph.parameters:,}",
        f"{own:,}",
        str(len(unknown)),
        f"{seconds:.1f}",
        "; ".join(_remarks(graph, module)),
    )


def _remarks(graph: Graph, module: Any) -> Iterator[str]:
    kinds = Counter(f"{node.domain}.{node.op_type}" for node in graph.nodes)
    yield from (text for kind, text in _REMARKS.items() if kinds[kind])
    unread = sorted({name for name, _ in module.named_parameters()} - graph.constants.keys())
    if unread:
        yield f"{len(unread)} parameters are read by no operator, as {unread[0]}"


def main() -> None:
    """Count and write the table; names given replace the list, and then nothing is written."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", help="zoo names; all of the table if none")
    options = parser.parse_args()
    import_torchvision()
    rows = []
    for location in options.models or locations():
        rows.append(row(location))
        print(" | ".join(rows[-1]), flush=True)
        gc.collect()
    if options.models:
        return
    off = [r[0] for r in rows if abs(float(r[4])) > 100 * LIMIT]
    same = sum(r[5] == r[6] for r in rows)
    seconds = sorted(float(r[8]) for r in rows)
    write_result(
        "torch_macs",
        title="Multiply-adds and parameters of PyTorch models",
        command="python -m benchmarks.torch_macs",
        words=(
            f"{len(rows)} architectures at batch 1, exported on the meta device with torch"
            f" {torch.__version__}. {len(rows) - len(off)} agree with FlopCounterMode within"
            f" {100 * LIMIT} %"
            + (f"; not {', '.join(off)} (see the remarks)" if off else "")
            + f". Parameters agree for {same}; the others have some that no operator reads, which"
            f" are not counted. Median time to load {seconds[len(seconds) // 2]:.1f} CPU seconds."
        ),
        columns=_COLUMNS,
        rows=rows,
    )


if __name__ == "__main__":
    main()
