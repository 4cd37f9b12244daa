"""The open rows: what is in them, and that nothing is left out in silence."""

import csv
import gzip
from collections import Counter

import pytest

from benchmarks.models import builders
from benchmarks.open_rows import (
    FLAGS,
    OTHER_SOURCES,
    SOURCES,
    data_folder,
    excluded,
    is_data_present,
    open_rows,
)
from benchmarks.row_names import DEVICES, paddle_name, timm_name
from slicewise.core.precision import PRECISIONS

pytestmark = pytest.mark.skipif(not is_data_present(), reason="measured data not present")


def test_every_row_is_read_or_counted_as_left_out() -> None:
    with gzip.open(data_folder() / "model_level" / "open.csv.gz", "rt", newline="") as file:
        total = Counter(raw["source"] for raw in csv.DictReader(file))
    kept = Counter(row.source for row in open_rows())
    left = Counter[str]()
    for exclusion in excluded():
        left[exclusion.source] += exclusion.rows
    assert kept + left == total


def test_every_source_is_known() -> None:
    seen = {row.source for row in open_rows()} | {e.source for e in excluded()}
    assert seen <= set(SOURCES) | set(OTHER_SOURCES)
    assert not set(SOURCES) & set(OTHER_SOURCES)


def test_rows_speak_the_words_of_the_package() -> None:
    runtimes = {"torch-eager", "torch-compile", "onnxruntime", "tensorrt"}
    for row in open_rows():
        assert row.runtime in runtimes
        assert row.precision in PRECISIONS
        assert row.layout in ("", "nchw", "nhwc")
        assert row.batch_size >= 1
        assert row.latency_ms > 0
        assert row.model in builders()
        assert 0 <= row.family_fold <= 4
        assert 0 <= row.model_fold <= 4
        assert set(row.flags) <= set(FLAGS)


def test_a_family_is_never_in_two_folds() -> None:
    folds: dict[str, set[int]] = {}
    for row in open_rows():
        folds.setdefault(row.family, set()).add(row.family_fold)
    assert all(len(found) == 1 for found in folds.values())


def test_small_batches_and_many_families_are_covered() -> None:
    rows = open_rows()
    small_gpu = [r for r in rows if r.batch_size <= 8 and "CPU" not in r.device]
    assert len(rows) > 10_000
    assert len(small_gpu) > 1_000
    assert len({row.family for row in rows}) >= 15


def test_training_mode_and_host_copies_are_marked() -> None:
    for row in open_rows():
        if row.source == "jcjohnson-cnn-benchmarks":
            assert "training-mode" in row.flags
        if row.source == "ryujaehun-pytorch-gpu-benchmark":
            assert not row.is_model_only


def test_fp32_on_tensor_core_cards_says_that_tf32_is_possible() -> None:
    flags = {
        (row.device_name, row.precision): "tf32-possible" in row.flags
        for row in open_rows()
        if row.source == "ryujaehun-pytorch-gpu-benchmark"
    }
    assert flags["a100-sxm4-40gb", "fp32"]
    assert not flags["titanxp", "fp32"]
    assert not flags["a100-sxm4-40gb", "fp16"]


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("resnet50.a1_in1k", "resnet50"),
        ("tv_resnet50", "resnet50"),
        ("gluon_resnet50_v1d", "resnet50d"),
        ("swsl_resnext101_32x8d", "resnext101_32x8d"),
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16"),
        ("deit3_base_patch16_384_in21ft1k", "deit3_base_patch16"),
        ("vgg16.tv_in1k", "vgg16_conv"),
        ("mobilenetv2_100", "mobilenetv2_100"),
        ("levit_128s", None),
    ],
)
def test_timm_names_lead_to_builders(published: str, ours: str | None) -> None:
    assert timm_name(published) == ours


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("ResNet50_vd_ssld", "resnet50d"),
        ("ResNeXt101_32x16d_wsl", "resnext101_32x16d"),
        ("MobileNetV2_x0_5", "mobilenetv2_050"),
        ("PPLCNet_x0_25", "lcnet_025"),
        ("SE_ResNet18_vd", "seresnet18d"),
        ("ViT_large_patch16_384", "vit_large_patch16"),
    ],
)
def test_paddle_names_lead_to_builders(published: str, ours: str | None) -> None:
    assert paddle_name(published) == ours


def test_devices_of_the_table_have_a_data_sheet() -> None:
    catalogue = pytest.importorskip("slicewise.hardware.catalogue")
    for name, _ in DEVICES.values():
        catalogue.find_device(name)
