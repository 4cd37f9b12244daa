"""Zoo names: cut, built without weights, bound, refused with the nearest name."""

import pickle
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import MissingDependency, ModelError, SlicewiseError, UsageError
from slicewise.core.graph import Binding, Graph
from slicewise.graph.frontends import _base, zoo
from slicewise.graph.frontends.zoo.model import ZooName, literal, parse
from slicewise.graph.work import count_work

pytest.importorskip("torch")

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
TINY = "num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=128"


def load(location: str, **binding: object) -> Graph:
    return _base.load(location, Binding(**binding))  # type: ignore[arg-type]


# --- names


@given(st.sampled_from(["timm", "torchvision"]), WORDS, st.dictionaries(WORDS, WORDS, max_size=3))
def test_a_name_is_cut_and_joined_again(
    zoo_name: str, model: str, options: dict[str, str]
) -> None:
    name = ZooName(zoo_name, model, options)
    assert parse(name.location) == name


@given(st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)))
def test_a_value_reads_as_what_it_was_written_from(value: object) -> None:
    text = str(value)
    if "inf" not in text:
        assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("gelu", "gelu"), ("2,2,6", (2, 2, 6)), ("[2,2]", [2, 2]), ("384x256", (384, 256)),
     ("True", True), ("1e-6", 1e-6), ("-1", -1), ("1-2-3", "1-2-3"), ("bfloat16", "bfloat16")],
)  # fmt: skip
def test_a_value_reads_as_a_person_means_it(text: str, value: object) -> None:
    assert literal(text) == value


@pytest.mark.parametrize("bad", ["timm:resnet18?", "timm:resnet18?a", "timm:resnet18?a=&b=1"])
def test_an_option_without_a_value_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE; write timm:resnet18"):
        load(bad)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="gives 'a' twice, 1 and 2"):
        parse("timm:x?a=1&a=2")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("timm:resnet5", "timm has no model 'resnet5'.*did you mean resnet50"),
        ("torchvision:vgg_16", "torchvision has no model 'vgg_16'.*did you mean vgg16"),
        ("transformers:lama", "transformers has no model 'lama'.*did you mean llama"),
        ("timm:", "timm has no model ''; it has"),
        ("tim:resnet50", "there is no zoo 'tim'.*did you mean timm"),
        ("keras:ResNet50", "zoo keras, which cannot be read yet"),
        ("transformers:clap_audio_model", "a part of another model.*such as clap"),
        ("torchvision:fasterrcnn_resnet50_fpn", "is a detector.*give its backbone"),
        ("transformers:dinat", "natten|needs another package"),
        ("timm:hf-hub:timm/resnet18.a1_in1k", "name of the hub.*give the .*timm:resnet18.a1_in1k"),
        ("timm:resnet18.nonsense", "tag 'nonsense'.*tags name weights.*give timm:resnet18"),
    ],
)
def test_a_model_that_is_not_there_is_named_with_the_nearest(location: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load(location)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("timm:resnet18?num_clases=10", "no option 'num_clases'.*did you mean num_classes"),
        ("timm:resnet18?pretrained=true", "concerns weights, which are never loaded"),
        ("timm:resnet18?in_chans=many", "in_chans='many' is text; give a value like 3"),
        ("torchvision:vgg11?num_clases=10", "no option 'num_clases'.*did you mean num_classes"),
        ("torchvision:vgg11?weights=DEFAULT", "concerns weights"),
        (
            "transformers:llama?num_layers=2",
            "no option 'num_layers'.*did you mean.*num_hidden_layers",
        ),
        ("transformers:llama?hidden_size=big", "hidden_size=big is no int.*default is 4096"),
        ("transformers:llama?hidden_size=1.5", "hidden_size=1.5 is no int"),
        ("transformers:gpt2?n_layer=-1", "n_layer=-1 is negative; its default is 12"),
        ("transformers:llama?use_cache=7", "use_cache=7 is no bool"),
        ("transformers:llama?hidden_size=100", "not a multiple of the number of attention heads"),
        ("transformers:clip?text_config.hiden_size=8", "did you mean text_config.hidden_size"),
        ("transformers:clip?txt_config.hidden_size=8", "'txt_config'.*did you mean text_config"),
        ("transformers:bert?head=MaskLM", "head=MaskLM.*did you mean head=MaskedLM"),
        ("transformers:bert?seq=0", "seq=0 is not a positive whole number"),
    ],
)
def test_an_option_that_the_model_lacks_is_a_usage_error(location: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load(location)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["torch", "torchvision", "timm"])
def test_a_missing_package_is_named(package: str) -> None:
    found = zoo.is_installed

    def without(name: str) -> bool:
        return name != package and found(name)

    remedy = "slicewise\\[torch\\]" if package == "torch" else f"pip install {package}$"
    with (
        mock.patch.object(zoo, "is_installed", without),
        pytest.raises(MissingDependency, match=remedy),
    ):
        zoo._zoo(parse("timm:resnet18"))


# --- models


def test_a_zoo_model_is_the_model_of_the_papers() -> None:
    graph = load("timm:resnet50")
    assert graph.name == "resnet50"
    assert graph.parameters == 25_557_032  # He et al., table of timm: 25.56 M
    assert graph.buffers == 53_120
    assert count_work(graph).total.macs == 4_089_184_256
    assert graph.source is not None and graph.source.location == "timm:resnet50"
    assert graph.source.runtime == "torch-eager"


@pytest.mark.parametrize(
    ("location", "shape"),
    [
        ("timm:vit_tiny_patch16_224?img_size=384", (1, 3, 384, 384)),
        ("timm:resnet18?in_chans=1", (1, 1, 224, 224)),
        ("timm:tf_efficientnet_b0", (1, 3, 224, 224)),
        ("torchvision:inception_v3", (1, 3, 299, 299)),
        ("torchvision:vit_h_14", (1, 3, 224, 224)),  # its first weights go with 518
        ("torchvision:regnet_x_400mf", (1, 3, 224, 224)),  # reads values while it is built
        ("torchvision:mc3_18", (1, 3, 16, 112, 112)),
        ("torchvision:lraspp_mobilenet_v3_large", (1, 3, 520, 520)),
    ],
)
def test_inputs_have_the_size_that_the_model_was_made_for(
    location: str, shape: tuple[int, ...]
) -> None:
    assert [spec.shape for spec in zoo._model(location).inputs] == [shape]


@pytest.mark.parametrize(
    ("location", "shapes"),
    [
        (f"transformers:bert?{TINY}", {"input_ids": (1, 128)}),
        (f"transformers:llama?{TINY}&seq=32", {"input_ids": (1, 32)}),
        ("transformers:vivit", {"pixel_values": (1, 32, 3, 224, 224)}),
        ("transformers:vjepa2", {"pixel_values_videos": (1, 64, 3, 256, 256)}),
        ("transformers:audio-spectrogram-transformer", {"input_values": (1, 1024, 128)}),
        (
            "transformers:layoutlmv3",
            {"input_ids": (1, 128), "bbox": (1, 128, 4), "pixel_values": (1, 3, 224, 224)},
        ),
        (f"transformers:vit?{TINY}&image_size=64", {"pixel_values": (1, 3, 64, 64)}),
        (
            "transformers:clip?text_config.num_hidden_layers=1&vision_config.num_hidden_layers=1",
            {"input_ids": (1, 77), "pixel_values": (1, 3, 224, 224)},
        ),
        (
            "transformers:whisper?encoder_layers=1&decoder_layers=1",
            {"input_features": (1, 80, 3000), "decoder_input_ids": (1, 128)},
        ),
        ("transformers:wav2vec2?num_hidden_layers=1", {"input_values": (1, 16000)}),
        ("transformers:encodec", {"input_values": (1, 1, 16000)}),
        (
            "transformers:moonshine?encoder_num_hidden_layers=1&decoder_num_hidden_layers=1",
            {"input_values": (1, 16000), "decoder_input_ids": (1, 128)},
        ),
        ("transformers:glmasr_encoder?num_hidden_layers=1", {"input_features": (1, 128, 1000)}),
        (
            "transformers:fun_asr_nano_encoder?num_hidden_layers=22",  # seven frames in one
            {"input_features": (1, 1000, 560), "input_features_mask": (1, 1000)},
        ),
        ("transformers:glm_ocr_vision?depth=1", {"hidden_states": (576, 1176)}),
        (
            "transformers:longt5?num_layers=1&num_decoder_layers=1",
            dict.fromkeys(("input_ids", "decoder_input_ids", "attention_mask"), (1, 128)),
        ),
        (
            "transformers:t5?num_layers=1&num_decoder_layers=1&seq=16&decoder_seq=8",
            {"input_ids": (1, 16), "decoder_input_ids": (1, 8)},
        ),
    ],
)
def test_inputs_follow_from_the_modalities(
    location: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    assert {spec.name: spec.shape for spec in zoo._model(location).inputs} == shapes


def test_two_modalities_and_a_decoder_are_exported_together() -> None:
    location = (
        "transformers:clip?text_config.num_hidden_layers=1&vision_config.num_hidden_layers=1"
        "&vision_config.image_size=64"
    )
    graph = load(location, batch_size=2)
    assert set(graph.inputs) == {"input_ids", "pixel_values"}
    assert graph.batch_axes == {"input_ids": 0, "pixel_values": 0}
    speech = load("transformers:whisper?encoder_layers=1&decoder_layers=1&decoder_seq=8")
    assert [speech.tensors[name].shape for name in speech.inputs] == [(1, 80, 3000), (1, 8)]


def test_a_tower_for_patches_gets_the_grid_of_one_picture() -> None:
    graph = load("transformers:glm_ocr_vision?depth=1")
    assert (graph.batch_size, graph.batch_axes) == (1, {})
    assert [graph.tensors[name].shape for name in graph.inputs] == [(24 * 24, 3 * 2 * 14 * 14)]
    assert sum(node.op_type == "Attention" for node in graph.nodes) == 1
    assert not graph.notes
    with pytest.raises(ModelError, match=r"batch 2 cannot be set.*hidden_states: 576x1176"):
        load("transformers:glm_ocr_vision?depth=1", batch_size=2)


def test_tied_weights_are_one() -> None:
    module = zoo._model("transformers:gpt2").module
    assert sum(each.numel() for each in module.parameters()) == 124_439_808  # type: ignore[attr-defined]


def test_a_decoder_is_a_language_model_and_an_encoder_is_not() -> None:
    llama = load(f"transformers:llama?{TINY}&vocab_size=500&seq=8")
    bert = load(f"transformers:bert?{TINY}&vocab_size=500&seq=8")
    masked = load(f"transformers:bert?{TINY}&vocab_size=500&seq=8&head=MaskedLM")
    assert [llama.tensors[name].shape for name in llama.outputs] == [(1, 8, 500)]
    assert (1, 8, 64) in [bert.tensors[name].shape for name in bert.outputs]
    assert [masked.tensors[name].shape for name in masked.outputs] == [(1, 8, 500)]


def test_attention_stays_one_operator() -> None:
    graph = load(f"transformers:llama?{TINY}&seq=8")
    assert sum(node.op_type == "Attention" for node in graph.nodes) == 2


def test_fields_take_the_type_of_the_field() -> None:
    graph = load(f"transformers:llama?{TINY}&seq=8&rms_norm_eps=1&tie_word_embeddings=true")
    untied = load(f"transformers:llama?{TINY}&seq=8")
    assert untied.parameters - graph.parameters == 32_000 * 64  # the head is the embedding


def test_inputs_come_in_the_type_of_the_weights() -> None:
    model = zoo._model(f"transformers:vit?{TINY}&dtype=bfloat16")
    assert [spec.dtype for spec in model.inputs] == ["bfloat16"]


def test_a_second_modality_that_cannot_be_exported_is_left_out_with_a_note() -> None:
    small = "text_config.num_hidden_layers=1"
    graph = load(f"transformers:qwen2_vl?{small}&seq=8")
    assert graph.inputs == ("input_ids",)
    assert "pixel_values" in "".join(n.text for n in graph.notes if n.code == "input-left-out")


# --- binding


@pytest.mark.parametrize("location", ["timm:resnet18", f"transformers:bert?{TINY}&seq=16"])
def test_work_grows_with_the_batch(location: str) -> None:
    one, many = load(location), load(location, batch_size=6)
    assert many.batch_size == 6
    assert {many.tensors[name].shape[0] for name in many.inputs} == {6}  # type: ignore[index]
    assert count_work(many).total.macs == 6 * count_work(one).total.macs
    assert one.digest == many.digest
    assert one.bind(batch_size=6) == many


def test_the_length_of_text_is_a_dimension() -> None:
    location = f"transformers:bert?{TINY}"
    graph = load(location, dims={"seq": 48}, batch_size=2)
    assert graph.tensors["input_ids"].shape == (2, 48)
    assert graph.binding.dims == {"seq": 48}
    assert graph.bind(dims={"seq": 24}).tensors["input_ids"].shape == (2, 24)
    assert load(f"{location}&seq=48", batch_size=2).digest == graph.digest


def test_shapes_are_given_by_input() -> None:
    graph = load("timm:resnet18", inputs={"": (1, 3, 96, 160)})
    assert graph.tensors["x"].shape == (1, 3, 96, 160)
    assert graph.bind(batch_size=2).tensors["x"].shape == (2, 3, 96, 160)
    assert load("timm:resnet18", inputs={"x": (4, 3, 96, 160)}).batch_size == 4


@pytest.mark.parametrize(
    ("location", "binding", "words"),
    [
        ("timm:resnet18", {"dims": {"seq": 8}}, "no free dimension 'seq'; it has none"),
        (f"transformers:bert?{TINY}", {"dims": {"sek": 8}}, "has seq.*did you mean seq"),
        ("timm:resnet18", {"inputs": {"y": (1, 3, 8, 8)}}, "no input 'y'; its inputs are 'x'"),
        ("timm:resnet18", {"inputs": {"x": (1, 3, 8)}}, "has 4 axes.*has 3"),
        (
            f"transformers:bert?{TINY}",
            {"dims": {"seq": 8}, "inputs": {"input_ids": (1, 9)}},
            "--dim seq=8 contradicts axis 1",
        ),
    ],
)
def test_a_binding_that_does_not_fit_is_a_usage_error(
    location: str, binding: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        load(location, **binding)


def test_a_size_that_the_module_refuses_says_how_to_build_it_for_that_size() -> None:
    with pytest.raises(ModelError, match=r"\?img_size=384"):
        load("timm:vit_tiny_patch16_224", inputs={"x": (1, 3, 384, 384)})


def test_a_zoo_graph_survives_another_process(tmp_path: Path) -> None:
    graph = load("torchvision:squeezenet1_1")
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph
    assert again.bind(batch_size=3).tensors[again.inputs[0]].shape[0] == 3


def test_torchvision_is_imported_whatever_its_operators() -> None:
    assert zoo.import_torchvision() is zoo.import_torchvision()


def test_nothing_is_asked_of_the_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from slicewise.graph.frontends import zoo\n"
        "for name in ('timm:resnet18', 'torchvision:alexnet', 'transformers:detr'):\n"
        "    print(len(zoo._model(name).inputs))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3


def test_every_error_is_one_of_ours() -> None:
    for location in ("timm:resnet18?depth=3", "transformers:bark", "transformers:encodec"):
        with pytest.raises(SlicewiseError):
            load(location)


def test_names_that_timm_had_once_are_known(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    old, new = load("timm:gluon_resnet18_v1b"), load("timm:resnet18")
    assert old.digest == new.digest and old.name == "gluon_resnet18_v1b"
    assert "deprecated" not in capfd.readouterr().err
