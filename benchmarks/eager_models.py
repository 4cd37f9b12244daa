"""Modules with random weights and inputs, of every sort, that fit a small machine's memory.

From the constructors of timm, torchvision and transformers, and two written here. Nothing is
downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHIM: list[object] = []


@dataclass(frozen=True, slots=True)
class EagerModel:
    """How to build a module, and the inputs of one run, batch first."""

    name: str
    family: str
    build: "Callable[[], nn.Module]"
    args: "Callable[[], tuple[torch.Tensor, ...]]" = tuple
    kwargs: "Callable[[], Mapping[str, Any]]" = field(default=dict)


def prepare_torchvision() -> None:
    """Declare the two operators that torchvision registers shapes for.

    Its wheels ship them compiled for one PyTorch only; classifiers and segmentation do without.
    """
    import torch

    if not _SHIM:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _SHIM.append(library)


def _timm(name: str, batch: int = 1, size: int = 224) -> EagerModel:
    def build() -> "nn.Module":
        import timm

        module: nn.Module = timm.create_model(name, pretrained=False)
        return module

    return EagerModel(f"timm:{name}", _FAMILIES.get(name, name), build, _image(batch, size))


def _torchvision(group: str, name: str, batch: int = 1, size: int = 224) -> EagerModel:
    def build() -> "nn.Module":
        import importlib

        made = importlib.import_module(f"torchvision.models{group}")
        module: nn.Module = getattr(made, name)(
            weights=None, **({"weights_backbone": None} if group else {})
        )
        return module

    return EagerModel(f"torchvision:{name}", name, build, _image(batch, size))


def _transformers(
    name: str,
    config: str,
    inputs: Mapping[str, tuple[int, ...]],
    **fields: Any,
) -> EagerModel:
    """Build `name` from `config` with `fields` changed; inputs named *_ids are token numbers."""

    def build() -> "nn.Module":
        import transformers

        module: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**fields))
        return module

    def kwargs() -> "Mapping[str, Any]":
        import torch

        made: dict[str, Any] = {
            key: torch.ones(shape, dtype=torch.long)
            if key.endswith("_ids")
            else torch.zeros(shape)
            for key, shape in inputs.items()
        }
        return {**made, "use_cache": False} if name in _CACHING else made

    return EagerModel(f"transformers:{name}", name, build, kwargs=kwargs)


def _image(batch: int, size: int) -> "Callable[[], tuple[torch.Tensor, ...]]":
    def make() -> "tuple[torch.Tensor, ...]":
        import torch

        return (torch.zeros(batch, 3, size, size),)

    return make


def _unet() -> "nn.Module":
    """Return a diffusion-like UNet: two levels down, attention, two up with skips."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, given: int, made: int) -> None:
            super().__init__()
            self.first = nn.Sequential(
                nn.GroupNorm(8, given), nn.SiLU(), nn.Conv2d(given, made, 3, padding=1)
            )
            self.second = nn.Sequential(
                nn.GroupNorm(8, made), nn.SiLU(), nn.Conv2d(made, made, 3, padding=1)
            )
            self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.second(self.first(x)) + self.skip(x)
            return made

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(8, channels)
            self.attention = nn.MultiheadAttention(channels, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.norm(x).flatten(2).transpose(1, 2)
            mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
            return x + mixed.transpose(1, 2).reshape(x.shape)

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(4, 64, 3, padding=1)
            self.down = nn.ModuleList([Block(64, 64), Block(64, 128), Block(128, 256)])
            self.shrink = nn.ModuleList(
                [nn.Conv2d(width, width, 3, stride=2, padding=1) for width in (64, 128)]
            )
            self.middle = nn.Sequential(Block(256, 256), Attention(256), Block(256, 256))
            self.up = nn.ModuleList([Block(512, 128), Block(256, 64), Block(128, 64)])
            self.grow = nn.Upsample(scale_factor=2)
            self.head = nn.Conv2d(64, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            kept = []
            for i, block in enumerate(self.down):
                x = block(x)
                kept.append(x)
                if i < len(self.shrink):
                    x = self.shrink[i](x)
            x = self.middle(x)
            for i, block in enumerate(self.up):
                x = block(torch.cat([x, kept.pop()], dim=1))
                if i < 2:
                    x = self.grow(x)
            made: torch.Tensor = self.head(x)
            return made

    return UNet()


def _unet_inputs() -> "tuple[torch.Tensor, ...]":
    import torch

    return (torch.zeros(2, 4, 64, 64),)


def _lstm() -> "nn.Module":
    """Return a tagger: embedding, two bidirectional LSTM layers, a classifier."""
    import torch
    from torch import nn

    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10000, 256)
            self.lstm = nn.LSTM(256, 256, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(512, 500)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            states, _ = self.lstm(self.embed(ids))
            made: torch.Tensor = self.head(states)
            return made

    return Tagger()


def _tokens(batch: int, length: int) -> "Callable[[], tuple[torch.Tensor, ...]]":
    def make() -> "tuple[torch.Tensor, ...]":
        import torch

        return (torch.ones(batch, length, dtype=torch.long),)

    return make


_CACHING = frozenset({"GPT2Model", "T5Model", "LlamaModel", "WhisperModel", "MambaModel"})
_FAMILIES = {
    "resnet50": "ResNet",
    "densenet121": "DenseNet",
    "vit_base_patch16_224": "ViT",
}
_LANGUAGE = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1376}
MODELS: tuple[EagerModel, ...] = (
    _timm("resnet50", 4),
    _timm("resnet18", 1),
    _timm("densenet121", 2),
    _timm("mobilenetv3_large_100", 4),
    _timm("efficientnet_b0", 2),
    _timm("convnext_tiny", 2),
    _timm("regnety_016", 2),
    _timm("inception_v3", 2, 299),
    _timm("vgg16", 2),
    _timm("hrnet_w18_small", 1),
    _timm("res2net50_26w_4s", 1),
    _timm("dla34", 2),
    _timm("ghostnet_100", 2),
    _timm("vit_base_patch16_224", 2),
    _timm("deit_tiny_patch16_224", 4),
    _timm("swin_tiny_patch4_window7_224", 2),
    _timm("maxvit_tiny_tf_224", 1),
    _timm("coat_tiny", 1),
    _timm("coatnet_0_rw_224", 1),
    _timm("mixer_b16_224", 2),
    _timm("mobilevit_s", 2, 256),
    _timm("poolformer_s12", 2),
    _timm("beit_base_patch16_224", 1),
    _torchvision("", "squeezenet1_0", 2),
    _torchvision("", "shufflenet_v2_x1_0", 4),
    _torchvision("", "googlenet", 2),
    _torchvision(".segmentation", "deeplabv3_resnet50", 1, 256),
    _torchvision(".segmentation", "fcn_resnet50", 1, 256),
    _torchvision(".segmentation", "lraspp_mobilenet_v3_large", 2, 256),
    _transformers("BertModel", "BertConfig", {"input_ids": (2, 128)}),
    _transformers("GPT2Model", "GPT2Config", {"input_ids": (2, 128)}),
    _transformers(
        "T5Model", "T5Config", {"input_ids": (2, 64), "decoder_input_ids": (2, 64)}
    ),
    _transformers(
        "LlamaModel", "LlamaConfig", {"input_ids": (2, 256)},
        num_attention_heads=8, vocab_size=8000, **_LANGUAGE,
    ),
    _transformers(
        "WhisperModel", "WhisperConfig",
        {"input_features": (1, 80, 3000), "decoder_input_ids": (1, 32)},
    ),
    _transformers(
        "MambaModel", "MambaConfig", {"input_ids": (1, 64)},
        num_hidden_layers=2, hidden_size=256, vocab_size=8000,
    ),
    EagerModel("unet", "UNet", _unet, _unet_inputs),
    EagerModel("lstm-tagger", "LSTM", _lstm, _tokens(4, 64)),
)  # fmt: skip
