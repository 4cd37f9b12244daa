"""The same model through ONNX and through torch.export: multiply-adds and parameters must agree.

    python -m benchmarks.onnx_vs_export [FOLDER]

Each module is built on the CPU with random weights and exported with `torch.onnx.export(
dynamo=True, optimize=False)`, so that nothing is folded; its twin goes through the zoo on the meta
device. FOLDER keeps what came of each model from one run to the next: an export takes up to a
minute.
"""

import contextlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import slicewise
from benchmarks.tables import write_result
from slicewise.graph.frontends import zoo
from slicewise.graph.frontends.zoo import timm as zoo_timm
from slicewise.graph.frontends.zoo import torchvision as zoo_torchvision
from slicewise.graph.frontends.zoo import transformers as zoo_transformers
from slicewise.graph.frontends.zoo.model import parse
from slicewise.graph.work import count_work

_SMALL = "num_hidden_layers=2&hidden_size=128&num_attention_heads=4&intermediate_size=256"
MODELS = (
    "timm:resnet18", "timm:mobilenetv3_small_100", "timm:efficientnet_b0", "timm:convnext_atto",
    "timm:vit_tiny_patch16_224", "timm:mobilevit_xxs", "timm:levit_128s", "timm:ghostnet_100",
    "timm:regnetx_002", "timm:densenet121", "timm:poolformer_s12", "timm:mixer_s32_224",
    "timm:edgenext_xx_small", "timm:repvgg_a0", "timm:pvt_v2_b0", "timm:hgnetv2_b0",
    "timm:xcit_nano_12_p16_224", "timm:swin_tiny_patch4_window7_224", "timm:coat_tiny",
    "torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x0_5", "torchvision:mnasnet0_5",
    "torchvision:lraspp_mobilenet_v3_large", "torchvision:r3d_18",
    f"transformers:bert?{_SMALL}", f"transformers:roberta?{_SMALL}",
    "transformers:gpt2?n_layer=2&n_embd=128&n_head=4",
    f"transformers:llama?{_SMALL}&num_key_value_heads=2",
    f"transformers:qwen3?{_SMALL}&num_key_value_heads=2&head_dim=32",
    f"transformers:vit?{_SMALL}",
    "transformers:distilbert?n_layers=2&dim=128&hidden_dim=256&n_heads=4",
    "transformers:whisper?encoder_layers=2&decoder_layers=2&d_model=128&encoder_attention_heads=4"
    "&decoder_attention_heads=4&encoder_ffn_dim=256&decoder_ffn_dim=256",
    "transformers:opt?num_hidden_layers=2&hidden_size=128&ffn_dim=256&num_attention_heads=4"
    "&word_embed_proj_dim=128",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """What one road gives."""

    macs: int
    parameters: int
    buffers: int
    nodes: int
    digest: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Both roads for one model; `error` tells why there is no ONNX."""

    location: str
    onnx: Side | None
    torch: Side
    error: str = ""


def _side(load: Callable[[], slicewise.Graph]) -> Side:
    start = time.process_time()
    graph = load()
    work = count_work(graph)
    seconds = time.process_time() - start
    return Side(
        work.total.macs, graph.parameters, graph.buffers, len(graph.nodes), graph.digest, seconds
    )


@contextlib.contextmanager
def _real_weights() -> Iterator[None]:
    """Let the zoos build on the CPU instead of the meta device."""

    def built(make: Callable[[], Any]) -> Any:
        return make().eval()

    with contextlib.ExitStack() as stack:
        for module in (zoo_timm, zoo_torchvision, zoo_transformers):
            stack.enter_context(mock.patch.object(module, "built_on_meta", built))
        yield


def _to_onnx(location: str, path: Path) -> None:
    """Export the model with the inputs that the zoo gives it, nothing folded."""
    import torch

    with _real_weights():
        name = parse(location)
        model = zoo._zoo(name).build(name)
    inputs = {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
              for spec in model.inputs}  # fmt: skip
    args, kwargs = ((), inputs) if model.by_name else (tuple(inputs.values()), None)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module, args, str(path), kwargs=kwargs, dynamo=True, optimize=False,
            external_data=False, verbose=False,
        )  # fmt: skip


def compare(location: str) -> Pair:
    """Read one model both ways."""
    by_torch = _side(lambda: slicewise.load(location))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            _to_onnx(location, path)
        except Exception as err:  # the exporter raises many kinds; which, is the result
            return Pair(location, None, by_torch, f"{type(err).__name__}: {err}"[:300])
        return Pair(location, _side(lambda: slicewise.load(path)), by_torch)


def _known(cache: Path) -> dict[str, Pair]:
    if not cache.exists():
        return {}
    rows = [json.loads(line) for line in cache.open()]
    return {
        row["location"]: Pair(
            row["location"],
            row["onnx"] and Side(**row["onnx"]),
            Side(**row["torch"]),
            row["error"],
        )
        for row in rows
    }


def _row(pair: Pair) -> tuple[str, ...]:
    one, other = pair.onnx, pair.torch
    name = pair.location.partition("?")[0]
    if one is None:
        return (name, "no ONNX", f"{other.macs / 1e6:.2f}", "", "", f"{other.parameters:,}", "",
                f"{other.nodes}", "")  # fmt: skip
    return (
        name,
        f"{one.macs / 1e6:.2f}",
        f"{other.macs / 1e6:.2f}",
        f"{100 * (other.macs / one.macs - 1):+.3f} %",
        f"{one.parameters:,}",
        f"{other.parameters:,}",
        f"{one.nodes}",
        f"{other.nodes}",
        "equal" if one.parameters == other.parameters else "UNEQUAL",
    )


def main() -> None:
    """Compare all models and write the table."""
    logging.disable(logging.WARNING)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    cache = folder / "onnx_vs_export.jsonl"
    known = _known(cache)
    pairs = []
    with cache.open("a") as file:
        for location in MODELS:
            pair = known.get(location) or compare(location)
            if location not in known:
                file.write(json.dumps(asdict(pair)) + "\n")
                file.flush()
                print(*_row(pair), pair.error[:200])
            pairs.append(pair)
    both = [pair for pair in pairs if pair.onnx is not None]
    close = [p for p in both if p.onnx and abs(p.torch.macs / p.onnx.macs - 1) <= 0.005]
    equal = [p for p in both if p.onnx and p.torch.parameters == p.onnx.parameters]
    errors = [f"- {p.location.partition('?')[0]}: {p.error}" for p in pairs if p.error]
    write_result(
        "onnx_vs_export",
        title="The same model through ONNX and through torch.export",
        command="python -m benchmarks.onnx_vs_export",
        words=f"{len(both)} models both ways: multiply-adds within 0.5 % on {len(close)},"
        f" parameters equal on {len(equal)}. Exported with `optimize=False`: nothing folded.",
        columns=("model", "MMAC, ONNX", "MMAC, torch", "difference", "parameters, ONNX",
                 "parameters, torch", "nodes, ONNX", "nodes, torch", "parameters"),
        rows=[_row(pair) for pair in pairs],
        more="\n".join(["The exporter failed:", "", *errors]) if errors else "",
    )  # fmt: skip


if __name__ == "__main__":
    main()
