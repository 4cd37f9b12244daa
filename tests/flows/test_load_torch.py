"""PyTorch objects from Python: modules, exported programs and what goes wrong with them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slicewise
from slicewise.app.cli import run

torch: Any = pytest.importorskip("torch")
CARD = "a100-sxm4-80gb"


def _net() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 10),
    )  # fmt: skip


def _keyword_net() -> Any:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.head = torch.nn.Linear(16, 50)

        def forward(self, input_ids: Any, scale: float = 1.0) -> Any:
            return self.head(self.embed(input_ids)) * scale

    return Net()


@pytest.fixture
def image() -> Any:
    return torch.zeros(1, 3, 32, 32)


def test_a_tensor_a_tuple_and_a_mapping_are_the_same_inputs(image: Any) -> None:
    net = _net()
    one = slicewise.load(net, example_inputs=image)
    assert one == slicewise.load(net, example_inputs=(image,))
    assert one == slicewise.load(net, example_inputs=[image])
    assert one.parameters == sum(each.numel() for each in net.parameters())
    assert one.name == "Sequential"
    assert net.training


def test_keyword_inputs_are_given_by_name() -> None:
    ids = torch.zeros(2, 7, dtype=torch.int64)
    graph = slicewise.load(_keyword_net(), example_inputs={"input_ids": ids})
    assert graph.inputs == ("input_ids",)
    assert graph.batch_size == 2


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_module_predicts_like_its_program_and_its_file(
    place: str, image: Any, tmp_path: Path
) -> None:
    net, image = _net().to(place), image.to(place)
    program = torch.export.export(
        net.eval(), (image.repeat(2, 1, 1, 1),), dynamic_shapes=({0: torch.export.Dim("b")},)
    )
    path = tmp_path / "net.pt2"
    made = slicewise.predict(net, example_inputs=image, device=CARD, batch=4)
    of_program = slicewise.predict(program, device=CARD, batch=4)
    assert made.macs == of_program.macs
    assert made.latency_ms == of_program.latency_ms
    assert made.runtime == "torch-eager"
    if place == "cpu":
        torch.export.save(program, path)
        of_file = slicewise.predict(path, device=CARD, batch=4)
        assert of_file.latency_ms == made.latency_ms
        path.rename(tmp_path / "net.pt")  # known by what is in it, too
        assert slicewise.predict(tmp_path / "net.pt", device=CARD, batch=4).macs == made.macs


def test_a_loaded_module_is_bound_anew(image: Any) -> None:
    graph = slicewise.load(_net(), example_inputs=image)
    assert graph.bind(batch_size=8).batch_size == 8
    assert slicewise.predict(graph, device=CARD, batch=8).batch == 8
    assert slicewise.predict(graph, device=CARD).batch == 1


def test_a_module_without_inputs_shows_how_to_give_them() -> None:
    with pytest.raises(slicewise.UsageError, match=r"slicewise.load\(module, example_inputs=\(x"):
        slicewise.predict(_net(), device=CARD)


def test_inputs_for_what_has_its_own_are_refused(image: Any, light: Callable[[str], Path]) -> None:
    with pytest.raises(slicewise.UsageError, match="which knows its inputs"):
        slicewise.load(light("resnet50"), example_inputs=image)
    with pytest.raises(slicewise.UsageError, match="which knows its inputs"):
        slicewise.load(slicewise.load(light("squeezenet")), example_inputs=image)
    program = torch.export.export(_net().eval(), (image,))
    with pytest.raises(slicewise.UsageError, match="has its own; leave them out"):
        slicewise.load(program, example_inputs=image)


def test_keys_that_are_no_names_are_refused(image: Any) -> None:
    with pytest.raises(slicewise.UsageError, match="keys are names of the arguments"):
        slicewise.load(_net(), example_inputs={0: image})


@pytest.mark.parametrize("thing", [7, None, object(), {"a": 1}, lambda x: x])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(slicewise.UsageError, match="give the path of a model file, a zoo name"):
        slicewise.load(thing)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors", ".ckpt", ".bin"])
def test_a_file_of_weights_tells_how_to_go_on(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    torch.save(_net().state_dict(), path)
    with pytest.raises(slicewise.ModelError, match=r"torch\.export\.save.*timm:resnet50"):
        slicewise.load(path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["timm:resnet18", "--device", CARD], 0, "resnet18"),
        (["timm:resnet1", "--device", CARD], 3, "did you mean"),
        (["timm:resnet18?x=1", "--device", CARD], 2, "no option 'x'"),
        (["nozoo:resnet18", "--device", CARD], 3, "there is no zoo 'nozoo'"),
    ],
)
def test_the_command_line_takes_zoo_names(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *arguments]) == code
    captured = capsys.readouterr()
    assert words in (captured.err if code else captured.out)
    assert captured.err.count("\n") == (1 if code else 0)


def test_an_onnx_prediction_imports_no_framework(light: Callable[[str], Path]) -> None:
    code = (
        "import sys, slicewise\n"
        f"slicewise.predict({str(light('squeezenet'))!r}, device={CARD!r})\n"
        "print([m for m in ('torch', 'timm', 'torchvision', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
