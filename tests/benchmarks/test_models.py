"""The builders: valid graphs, and the parameters and multiply-adds of the published networks."""

import math
import re
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.models import build, builders, cache_folder, key_of, write
from benchmarks.models.audit import Audit, audit
from benchmarks.models.net import BATCH, Net, broadcast, window_output
from benchmarks.open_rows import Row, is_data_present, open_rows
from slicewise.core.graph import Binding
from slicewise.graph.frontends._base import load
from slicewise.graph.work import count_work

SIZES = {"inception_v3": 299}
# image sides that a window divides at every stage
WINDOWS = {"7": 224, "8": 256, "12": 384, "16": 256, "24": 384}
LENGTHS = ("bert", "deberta", "distiluse", "minilm")
CLASSES = (0, 1, 365, 512, 640, 768, 1000, 1024, 1280, 2048, 8191, 11221, 11821, 21841, 21843)
"""Widths of published heads: none, ImageNet-1k, -11k, -12k, -21k, CLIP embeddings."""

needs_data = pytest.mark.skipif(not is_data_present(), reason="measured data not present")


def size_of(name: str) -> int:
    if name.startswith(LENGTHS):
        return 64
    window = re.fullmatch(r"swin(v2)?_.*_?window(\d+)", name)
    if window:
        return 192 if window[1] and window[2] == "12" else WINDOWS[window[2]]
    return SIZES.get(name, 256 if name.startswith("yolo") else 224)


# One network of each family table and style: the default run stays quick.
SAMPLE = """
    alexnet vgg11_bn vgg11_conv squeezenet1_1 googlenet googlenet_paper inception_v3
    densenet121 resnet18 resnet50d resnet50_gn seresnet18 ecaresnet26t senet154 resnetblur18
    resnetv2_18 resnetv2_50x1_bit convmixer_768_32 repvgg_a0 repvgg_a0_deploy gernet_s
    darknet17 cspdarknet53 cs3darknet_s cs3se_edgenet_x hgnet_tiny hgnetv2_b0 rexnet_100
    swinv2_tiny_window8 deberta_v3_xsmall resnetaa34d resnetrs50 convnext_atto convnext_tiny
    convnextv2_atto convnextv2_tiny convnext_nano_ols shufflenet_v2_x0_5 regnetx_002
    regnetz_005 dpn68 dpn68b xception xception41 dla34 dla60_res2net hrnet_w18_small
    efficientnet_b0 tf_efficientnet_b0 efficientnet_lite0 efficientnet_es efficientnetv2_s
    mobilenetv1_100 mobilenetv2_100 semnasnet_100 fbnetc_100 tinynet_e lcnet_050 fbnetv3_b
    vit_tiny_patch16 vit_base_patch32_siglip deit_tiny_patch16 deit_tiny_distilled_patch16
    deit3_small_patch16 vit_small_patch14_reg4_dinov2 mixer_s32 gmixer_12 resmlp_12 gmlp_ti16
    swin_tiny_patch4_window7 swin_base_patch4_window12 bert_base distiluse_multilingual
    minilm_l12_multilingual yolov5n yolov5n6 yolov5n-seg yolov5n-cls yolov8n yolov8n-seg
    yolov8n-pose yolov8n-cls yolo11n yolo11m-seg yolo11n-pose pvt_v2_b0 poolformer_s12
    resnest14d resnest50d_4s2x40d resnest50_fast_1s1x64d
"""


def dsl_outputs(model: onnx.ModelProto, batch: int) -> tuple[tuple[int, ...], ...]:
    """Output shapes that the builder itself declared."""
    return tuple(
        tuple(d.dim_value or batch for d in value.type.tensor_type.shape.dim)
        for value in model.graph.output
    )


def check_graph(name: str) -> Audit:
    model = build(key_of(name, size_of(name)))
    counts = audit(model, batch_size=2)  # strict shape inference: raises where a node is wrong
    assert counts.output_shapes == dsl_outputs(model, 2)
    assert counts.parameters > 0 < counts.macs
    weights = [t for t in model.graph.initializer if not t.name.startswith("constant")]
    assert not any(t.HasField("raw_data") or t.float_data or t.int64_data for t in weights)
    nodes = [node.name for node in model.graph.node]
    assert len(nodes) == len(set(nodes))
    return counts


@pytest.mark.parametrize("name", SAMPLE.split())
def test_graph_is_valid_and_holds_no_weights(name: str) -> None:
    check_graph(name)


@pytest.mark.slow
def test_every_graph_is_valid_and_holds_no_weights() -> None:
    for name in builders():
        check_graph(name)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16", "swin_tiny_patch4_window7"])
def test_work_is_proportional_to_the_batch(name: str) -> None:
    model = build(key_of(name, 224))
    one, three = (audit(model, batch_size=n) for n in (1, 3))
    assert three.macs == 3 * one.macs
    assert three.parameters == one.parameters


# Published counts: torchvision's model table (parameters), the papers' tables (multiply-adds).
@pytest.mark.parametrize(
    ("key", "parameters", "macs"),
    [
        ("resnet50@224", 25_557_032, 4_089_184_256),
        ("resnet18@224", 11_689_512, 1_814_073_344),
        ("vgg16@224", 138_357_544, 15_470_264_320),
        ("alexnet@224", 61_100_840, 714_188_480),
        ("squeezenet1_1@224", 1_235_496, 349_151_936),
        ("densenet121@224", 7_978_856, 2_834_161_664),
        ("googlenet@224", 6_624_904, 1_498_376_192),
        ("mobilenetv2_100@224", 3_504_872, 300_774_272),
        ("shufflenet_v2_x1_0@224", 2_278_604, 144_907_992),
        ("efficientnet_b0@224", 5_288_548, 385_873_664),
        ("swin_tiny_patch4_window7@224", 28_288_354, 4_490_566_656),
    ],
)
def test_counts_equal_the_published_network(key: str, parameters: int, macs: int) -> None:
    counts = audit(build(key))
    assert counts.parameters == parameters
    assert counts.macs == pytest.approx(macs, rel=1e-3)


@given(st.integers(1, 64), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_window_output_equals_counting(
    size: int, kernel: int, stride: int, pad: int, ceil: bool
) -> None:
    if size + 2 * pad < kernel:
        return
    starts = range(0, size + 2 * pad, stride)
    inside = [s for s in starts if s + kernel <= size + 2 * pad]
    expected = len(inside)
    if ceil and inside[-1] + kernel < size + 2 * pad and inside[-1] + stride < size + pad:
        expected += 1
    assert window_output(size, kernel=kernel, stride=stride, pads=2 * pad, ceil=ceil) == expected


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_broadcast_with_ones_keeps_the_shape(shape: list[int]) -> None:
    whole = tuple(shape)
    assert broadcast(whole, (1,) * len(whole)) == whole == broadcast((1,), whole)


def test_batch_axis_stays_free_in_the_file() -> None:
    net = Net("small")
    x = net.image(8)
    assert x.shape[0] == BATCH
    model = net.model(net.flatten(net.conv(x, 4, 3)))
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 4 * 64


def test_write_keeps_a_file_and_makes_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(tmp_path))
    path = write("vgg16@224")
    assert path.parent == cache_folder()
    assert path.stat().st_size < 20_000
    before = path.stat().st_mtime_ns
    assert write("vgg16@224").stat().st_mtime_ns == before
    assert onnx.load(path).graph.name == "vgg16"


def test_unknown_architecture_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="resnet51"):
        build("resnet51@224")


# --- against the published tables --------------------------------------------------------------

# Sources whose figures are coarse: parameters are not compared, multiply-adds to 8 %.
COARSE = {
    "paddleclas-docs": "parameters include running statistics; activations may be counted",
    "nvidia-tensorrt-demo-bert": "parameters rounded to 10 million",
    "ultralytics-yolov5-readme": "figures rounded to one digit; P6 multiply-adds at 640 pixels",
    "ultralytics-docs": "figures rounded to one digit",
    "migprofiler-mig": "parameters of the encoder without the dense layer",
}
# Networks (patterns of the published name) whose published multiply-adds follow another rule.
OTHER_RULE = {
    r"resnetv2_.*_bit.*": "standardising the weights counts 4 an element",
    r"convmixer_.*": "depthwise convolutions with padding 'same' were not counted",
}
# Networks whose published parameters are those of another release.
OTHER_RELEASE = {
    r"vit_medium_patch16_reg4_gap_256.*": "layer scale came with a later release of the library",
}


def matches(name: str, table: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in table)


def possible_gmacs(counts: Audit) -> list[float]:
    """Some tables leave out products of activations (fused attention), some add normalisation."""
    return [
        (counts.macs - attention + norm) / 1e9
        for attention in (0, counts.product_macs)
        for norm in (0, counts.norm_ops)
    ]


def disagreement(row: Row, counts: Audit) -> str:
    """Empty, or how the row's figures differ from the graph's."""
    assert row.params_m is not None
    assert row.gmacs is not None
    tolerance = 0.08 if matches(row.model_name, OTHER_RULE) else 0.005
    found = possible_gmacs(counts)
    if not any(math.isclose(v, row.gmacs, rel_tol=tolerance, abs_tol=0.0105) for v in found):
        return f"{row.gmacs=} {found}"
    heads = [(classes - 1000) * (counts.features + 1) / 1e6 for classes in CLASSES]
    if matches(row.model_name, OTHER_RELEASE):
        return ""
    if not any(abs(counts.parameters / 1e6 + head - row.params_m) < 0.012 for head in heads):
        return f"{row.params_m=} {counts.parameters / 1e6}"
    return ""


def compared_rows() -> dict[str, list[Row]]:
    by_key: dict[str, list[Row]] = {}
    for row in open_rows():
        if row.source not in COARSE and row.params_m is not None and row.gmacs is not None:
            by_key.setdefault(row.key, []).append(row)
    return by_key


def check_against_tables(stride: int) -> None:
    by_key = compared_rows()
    assert len(by_key) > 600
    wrong = {}
    for key in list(by_key)[::stride]:
        counts = audit(build(key))
        for row in by_key[key]:
            text = disagreement(row, counts)
            if text:
                wrong[row.source, row.model_name, key] = text
    assert not wrong


@needs_data
def test_some_networks_agree_with_published_tables() -> None:
    check_against_tables(stride=15)


@needs_data
@pytest.mark.slow
def test_every_network_agrees_with_published_tables() -> None:
    check_against_tables(stride=1)


@needs_data
def test_coarse_tables_agree_to_their_digits() -> None:
    wrong, seen = {}, set()
    for row in open_rows():
        rounded = row.model.startswith("yolo") and row.size != 1280
        if row.gmacs is None or not (row.source == "paddleclas-docs" or rounded):
            continue
        if row.key in seen:
            continue
        seen.add(row.key)
        found = possible_gmacs(audit(build(row.key)))
        slack = 0.12 if rounded else 0.004  # rounding of a small figure
        if not any(math.isclose(v, row.gmacs, rel_tol=0.08, abs_tol=slack) for v in found):
            wrong[row.source, row.model_name] = (row.gmacs, found)
    assert len(seen) > 100
    assert not wrong


@pytest.mark.parametrize("name", SAMPLE.split())
def test_the_front_end_counts_the_same_work(name: str, tmp_path: Path) -> None:
    key = key_of(name, size_of(name))
    graph = load(str(write(key, tmp_path)), Binding(batch_size=2))
    assert graph.batch_size == 2
    assert count_work(graph).total.macs == audit(build(key), batch_size=2).macs
