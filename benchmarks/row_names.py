"""Names of models and devices as the sources of measured rows write them, and ours for them.

Tables only. A name that leads to no builder leads to None; `open_rows` counts those rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from benchmarks.models import builders

# In turn; the first column is a pattern for the whole timm name without its pretraining tag.
_TIMM: Sequence[tuple[str, str]] = (
    (r"(vgg\d+|vgg\d+_bn)", r"\1_conv"),
    (r"densenet264", "densenet264_k48"),
    (r"vit_base_patch16_224_miil", "vit_base_patch16_miil"),
    (r"tv_(.+)", r"\1"),
    (r"(?:ssl|swsl|ig)_(resn.+)", r"\1"),
    (r"gluon_(resnet\d+)_v1b", r"\1"),
    (r"gluon_(resnet\d+)_v1([cds])", r"\1\2"),
    (r"gluon_(resnext.+|seresnext.+|senet154|inception_v3|xception65)", r"\1"),
    (r"(?:tf|adv)_(inception_v3)", r"\1"),
    (r"legacy_(senet154|seresnext.+|seresnet18|seresnet34|xception)", r"\1"),
    (r"(efficientnet_b[23])a", r"\1"),
    (r"(resnetv2_.+_bit)m", r"\1"),
    (r"(resnetv2_.+_bit)_(?:distilled|teacher|teacher_384)", r"\1"),
    (r"(deit3_.+|vit_.+|swinv?2?_.+|mixer_.+|resmlp_.+)_(?:in21ft1k|in22k|in21k)", r"\1"),
    (r"(resmlp_.+)_distilled_(\d+)", r"\1_\2"),
    (r"(resmlp_.+_\d+)_in22ft1k", r"\1"),
    (r"((?:vit|deit3?|swin|mixer|resmlp|gmlp|gmixer|eva|pit)_.+)_\d{3}(?:_miil)?", r"\1"),
    (r"((?:deit3)_.+)_\d{3}_in21ft1k", r"\1"),
    (r"(swinv2_[a-z]+_window\d+)_\d{3}", r"\1"),
    (r"(swinv2_[a-z]+_window)12to(\d+)_192to\d{3}(?:_22kft1k)?", r"\1\2"),
)  # fmt: skip


def timm_name(name: str) -> str | None:
    """Return our name for a timm model name ('resnet50.a1_in1k'), None without a builder."""
    name = name.partition(".")[0]
    for pattern, replacement in _TIMM:
        match = re.fullmatch(pattern, name)
        if match:
            name = match.expand(replacement)
    return name if name in builders() else None


# Training recipes: the same network.
_PADDLE_TAGS = re.compile(r"^Fix_|_ssld$|_wsl$")
_PADDLE: Sequence[tuple[str, str]] = (
    (r"ResNet(\d+)", r"resnet\1"),
    (r"ResNet(\d+)_v([cd])", r"resnet\1\2"),
    (r"ResNeXt(\d+)_(\d+x\d+d)", r"resnext\1_\2"),
    (r"ResNeXt(\d+)_vd_(\d+x\d+d)", r"resnext\1d_\2"),
    (r"SE_ResNet(\d+)_vd", r"seresnet\1d"),
    (r"SE_ResNeXt(\d+)_(\d+x\d+d)", r"seresnext\1_\2"),
    (r"VGG(\d+)", r"vgg\1"),
    (r"AlexNet", r"alexnet"),
    (r"SqueezeNet1_(\d)", r"squeezenet1_\1_floor"),
    (r"DenseNet(\d+)", r"densenet\1"),
    (r"InceptionV3", r"inception_v3"),
    (r"GoogLeNet", r"googlenet_paper"),
    (r"EfficientNetB(\d)", r"efficientnet_b\1"),
    (r"EfficientNetB0_small", r"efficientnet_b0_small"),
    (r"MobileNetV1", r"mobilenetv1_paddle_100"),
    (r"MobileNetV1_x(\d)_(\d+)", r"mobilenetv1_paddle_\1\2"),
    (r"MobileNetV2", r"mobilenetv2_100"),
    (r"MobileNetV2_x(\d)_(\d+)", r"mobilenetv2_\1\2"),
    (r"PPLCNet_x(\d)_(\d+)", r"lcnet_\1\2"),
    (r"ShuffleNetV2", r"shufflenet_v2_paddle_x1_0"),
    (r"ShuffleNetV2_x(\d_\d+)", r"shufflenet_v2_paddle_x\1"),
    (r"ShuffleNetV2_swish", r"shufflenet_v2_paddle_x1_0_swish"),
    (r"ViT_(base|large)_patch(\d+)_\d+", r"vit_\1_patch\2"),
    (r"ViT_small_patch16_224", r"vit_small_wide_patch16"),
    (r"DeiT_(.+)_patch16_\d+", r"deit_\1_patch16"),
    (r"SwinTransformer_(.+)_patch4_window(\d+)_\d+", r"swin_\1_patch4_window\2"),
    (r"RegNetX_200MF", r"regnetx_002"),
    (r"RegNetX_4GF", r"regnetx_040"),
    (r"RegNetX_32GF", r"regnetx_320"),
    (r"DLA(\d+)(x?)_c", r"dla\1\2_c"),
    (r"DLA(\d+x?2?)", r"dla\1"),
    (r"HRNet_W(\d+)_C", r"hrnet_w\1"),
    (r"DarkNet53", r"darknet53"),
    (r"CSPDarkNet53", r"cspdarknet53"),
    (r"DPN(\d+)", r"dpn\1"),
    (r"Xception(\d+)_deeplab", r"xception\1"),
    (r"MixNet_([SML])", r"mixnet_\1"),
    (r"ReXNet_(\d)_(\d)", r"rexnet_\1\g<2>0"),
    (r"RepVGG_(.+)", r"repvgg_\1_deploy"),
    (r"PVT_V2_B(\d)", r"pvt_v2_b\1"),
    (r"VAN.B(\d)", r"van_b\1"),
    (r"ResNeSt50_fast_1s1x64d", r"resnest50_fast_1s1x64d"),
    (r"ResNeSt50", r"resnest50d"),
    (r"ResNeSt101", r"resnest101e"),
    (r"PPHGNetV2_B(\d)", r"hgnetv2_b\1"),
    (r"PPHGNet_(tiny|small|base)", r"hgnet_\1"),
)  # fmt: skip


def paddle_name(name: str) -> str | None:
    """Return our name for a PaddleClas model name."""
    plain = re.sub(_PADDLE_TAGS, "", name)
    for pattern, replacement in _PADDLE:
        match = re.fullmatch(pattern, plain)
        if match:
            ours = match.expand(replacement).lower()
            # a width of two digits, as in x0_5, stands for tenths
            ours = re.sub(r"^(lcnet|mobilenetv1_paddle|mobilenetv2)_(\d\d)$", r"\1_\g<2>0", ours)
            return ours if ours in builders() else None
    return None


def _table(names: Mapping[str, str]) -> Callable[[str], str | None]:
    return lambda name: names[name] if names.get(name) in builders() else None


_TORCHVISION = """
    alexnet densenet121 densenet161 densenet169 densenet201 resnet18 resnet34 resnet50 resnet101
    resnet152 resnext50_32x4d resnext101_32x8d shufflenet_v2_x0_5 shufflenet_v2_x1_0
    shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 vgg11 vgg11_bn vgg13 vgg13_bn
    vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet50_2 wide_resnet101_2
"""
torchvision_name = _table(
    {name: name for name in _TORCHVISION.split()} | {"mobilenet_v2": "mobilenetv2_100"}
)
torch7_name = _table(
    {
        "alexnet": "alexnet",
        "googlenet-v1": "googlenet_paper",
        "vgg16": "vgg16",
        "vgg19": "vgg19",
        **{f"resnet-{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
        "resnet-200": "resnet200_v2",
    }
)
examples_name = _table(
    {
        "ConvNets/resnet50": "resnet50",
        "ConvNets/resnet50v1.5": "resnet50",
        "RN50v1.5": "resnet50",
        "ConvNets/resnext101-32x4d": "resnext101_32x4d",
        "ConvNets/se-resnext101-32x4d": "seresnext101_32x4d",
    }
)
bert_name = _table(
    {
        "BERT base": "bert_base",
        "BERT Base": "bert_base",
        "BERT large": "bert_large",
        "BERT Large": "bert_large",
    }
)
deberta_name = _table(
    {"deberta-v3-xsmall": "deberta_v3_xsmall", "deberta-v3-large": "deberta_v3_large"}
)
sentence_name = _table(
    {
        "bert-base-multilingual-cased": "bert_base_multilingual",
        "distiluse-base-multilingual-cased-v1": "distiluse_multilingual",
        "distiluse-base-multilingual-cased-v2": "distiluse_multilingual",
        "paraphrase-multilingual-MiniLM-L12-v2": "minilm_l12_multilingual",
    }
)
openmmlab_name = _table(
    {
        "ResNet": "resnet50",
        "ResNeXt": "resnext50_32x4d",
        "SE-ResNet": "seresnet50",
        "ShuffleNetV2": "shufflenet_v2_x1_0",
    }
)
mlperf_name = _table({"resnet50": "resnet50"})


def ultralytics_name(name: str) -> str | None:
    """Return our name for a YOLO, or for a torchvision network of the YOLOv5 table."""
    plain = {
        **{f"ResNet{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101)},
        **{f"EfficientNet_b{i}": f"efficientnet_b{i}" for i in range(4)},
    }.get(name, name.lower())
    return plain if plain in builders() else None


# Data string -> (name in the catalogue, whether the form factor had to be assumed).
DEVICES: Mapping[str, tuple[str, bool]] = {
    "NVIDIA GeForce RTX 4090": ("rtx-4090", False),
    "NVIDIA GeForce RTX 3090": ("rtx-3090", False),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q": ("rtx-pro-6000-maxq", False),
    "Intel Core i9-10940X (CPU)": ("i9-10940x", False),
    "Intel Core i7-12700H (CPU)": ("i7-12700h", False),
    "NVIDIA T4": ("t4", False),
    "NVIDIA A2": ("a2", False),
    "NVIDIA A30": ("a30", False),
    "NVIDIA A40": ("a40", False),
    "NVIDIA A100": ("a100-sxm4-40gb", True),
    "NVIDIA A100 (Amazon EC2 P4d)": ("a100-sxm4-40gb", False),  # P4d instances hold SXM4 40 GB
    "NVIDIA A100 40GB": ("a100-sxm4-40gb", True),
    "NVIDIA A100 80GB": ("a100-sxm4-80gb", True),
    "NVIDIA A100-SXM4-40GB": ("a100-sxm4-40gb", False),
    "NVIDIA A100-SXM-80GB": ("a100-sxm4-80gb", False),
    "NVIDIA A100-PCIe-80GB": ("a100-pcie-80gb", False),
    "NVIDIA A100 40GB MIG 7g.40gb": ("a100-sxm4-40gb/7g.40gb", True),
    "NVIDIA A100 80GB MIG 7g.80gb": ("a100-sxm4-80gb/7g.80gb", True),
    "NVIDIA H100-PCIe-80GB": ("h100-pcie-80gb", False),
    "NVIDIA H100-SXM-80GB": ("h100-sxm5-80gb", False),
    "NVIDIA V100": ("v100-sxm2-16gb", True),
    "NVIDIA V100 16GB": ("v100-sxm2-16gb", True),
    "NVIDIA V100 32GB": ("v100-sxm2", True),
    "NVIDIA V100 (memory size not stated)": ("v100-sxm2-16gb", True),
    "NVIDIA GeForce RTX 2080 Ti": ("rtx-2080-ti", False),
    "NVIDIA TITAN RTX": ("titan-rtx", False),
    "NVIDIA TITAN Xp": ("titanxp", False),
    "NVIDIA TITAN V": ("titan-v", False),
    "NVIDIA TITAN X": ("titanx-pascal", False),
    "NVIDIA GeForce GTX TITAN X": ("titanx-maxwell", False),
    "NVIDIA GeForce GTX 1080": ("gtx-1080", False),
    "NVIDIA GeForce GTX 1080 Ti": ("gtx-1080ti", False),
    "NVIDIA Jetson AGX Xavier": ("jetson-agx-xavier", False),
    "NVIDIA Jetson AGX Orin": ("jetson-agx-orin", False),
    "NVIDIA Orin NX": ("jetson-orin-nx", False),
    "NVIDIA Jetson Nano": ("jetson-nano", False),
    "NVIDIA Jetson Nano 2GB": ("jetson-nano-2gb", False),
    "NVIDIA Jetson TX2": ("jetson-tx2", False),
}
"""Devices of the rows that have a data sheet in the catalogue; others are kept without a name."""
