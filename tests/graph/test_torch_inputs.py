"""Modules and example inputs of every kind: what is taken, and what is said where it is not."""

# mypy: allow-subclassing-any

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import slicewise
from slicewise.core.errors import ModelError, UsageError
from slicewise.graph.frontends.torch.export import quiet


class Does(nn.Module):
    """A module made of one function and a layer."""

    def __init__(self, function: Any, layer: Any = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def linear(device: str = "meta") -> Any:
    return nn.Linear(8, 4, device=device).eval()


def x(*shape: int) -> Any:
    return torch.empty(*(shape or (2, 8)), device="meta")


@dataclass
class Pair:
    first: Any
    second: Any


# --- what is taken


@pytest.mark.parametrize("inputs", [np.zeros((2, 8), "float32"), [np.zeros((2, 8), "float32")]])
def test_arrays_of_numpy_are_inputs(inputs: Any) -> None:
    graph = slicewise.load(linear("cpu"), example_inputs=inputs)
    assert graph.tensors["input"].shape == (2, 8)


@pytest.mark.parametrize("of_module", ["cpu", "meta"])
@pytest.mark.parametrize("of_input", ["cpu", "meta"])
def test_module_and_inputs_may_be_on_different_devices(of_module: str, of_input: str) -> None:
    inputs = torch.empty(2, 8, device=of_input)
    assert len(slicewise.load(linear(of_module), example_inputs=inputs).nodes) == 1


def test_a_batch_that_no_memory_would_hold_can_be_asked() -> None:
    graph = slicewise.load(linear("cpu"), example_inputs=torch.empty(2, 8), batch=10**9)
    assert graph.tensors["input"].shape == (10**9, 8)


@pytest.mark.parametrize("batch", [1, 2])
def test_self_attention_given_one_tensor_three_times_stays_self_attention(batch: int) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True, device="meta").eval()
    same = x(batch, 10, 32)
    graph = slicewise.load(module, example_inputs=(same, same, same))
    # one product gives query, key and value; with three tensors there are three
    assert [node.op_type for node in graph.nodes].count("Gemm") == 2
    assert graph.bind(batch_size=8).digest == graph.digest


def test_vmap_counts_the_whole_batch() -> None:
    module = Does(lambda m, a: torch.vmap(lambda row: m.layer(row) * 2)(a), linear()).eval()
    graph = slicewise.load(module, example_inputs=x(3, 8))
    assert slicewise.predict(graph, device="l4").macs == 3 * 8 * 4
    assert slicewise.predict(graph, device="l4", batch=5).macs == 5 * 8 * 4


def test_weights_that_nothing_reads_are_told() -> None:
    module = Does(lambda m, a: a * 2, linear()).eval()
    graph = slicewise.load(module, example_inputs=x())
    assert graph.parameters == 0
    (note,) = [note for note in graph.notes if note.code == "unused-initialiser"]
    assert "layer.weight and 1 other" in note.text


def test_no_more_rows_than_a_mask_has_can_pass_it() -> None:
    module = Does(lambda m, a: m.layer(a[a[:, 0] > 0]), linear()).eval()
    graph = slicewise.load(module, example_inputs=x())
    assert graph.tensors[graph.outputs[0]].shape == (2, 4)


# --- what is not


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.eye(8).to_sparse(), "sparse_coo tensor.*dense one"),
        (torch.empty(0, 8), "shape 0x8 and no elements.*batch 1 or more"),
        (np.array([["a"]]), "array of <U1.*torch does not have"),
    ],
)
def test_inputs_without_a_shape_to_predict_for_are_refused(inputs: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        slicewise.load(linear(), example_inputs=inputs)


def test_a_nested_tensor_is_refused() -> None:
    with quiet():
        nested = torch.nested.nested_tensor([torch.zeros(3, 8), torch.zeros(4, 8)])
    with pytest.raises(ModelError, match=r"nested tensor.*dense one"):
        slicewise.load(linear(), example_inputs=nested)


def test_torchscript_is_told_apart_alone_and_inside() -> None:
    with quiet():
        scripted, traced = torch.jit.script(nn.Linear(8, 4)), nn.Linear(8, 4)
        traced = torch.jit.trace(traced, torch.zeros(2, 8))
    for module in (scripted, traced, nn.Sequential(nn.ReLU(), scripted)):
        with pytest.raises(ModelError, match=r"TorchScript.*torch.onnx.export"):
            slicewise.load(module, example_inputs=torch.zeros(2, 8))


def test_quantised_modules_name_the_part_and_the_way_out() -> None:
    with quiet():
        module = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.ReLU(), nn.Linear(8, 4)), {nn.Linear}
        )
    with pytest.raises(ModelError, match=r"quantised .its part '1'.*float module, with precision"):
        slicewise.load(module, example_inputs=torch.zeros(2, 8))


def test_lazy_layers_are_told() -> None:
    with quiet():
        module = nn.LazyLinear(4)
    with pytest.raises(ModelError, match=r"lazy layers.*call it once"):
        slicewise.load(module, example_inputs=torch.zeros(2, 8))


def test_classes_that_torch_does_not_look_into_are_named() -> None:
    taken = Does(lambda m, pair: m.layer(pair.first), linear()).eval()
    with pytest.raises(ModelError, match=r"given a .*Pair.*register_dataclass\(Pair\)"):
        slicewise.load(taken, example_inputs=(Pair(x(), x()),))
    returned = Does(lambda m, a: Pair(m.layer(a), a), linear()).eval()
    with pytest.raises(ModelError, match=r"returns a .*Pair.*register_dataclass\(Pair\)"):
        slicewise.load(returned, example_inputs=x())


@pytest.mark.parametrize(
    ("function", "batch_axis"),
    [
        (lambda m, a: m.layer(a.view(2, 8)), 0),
        (lambda m, a: m.layer(a + torch.ones(2, 8, device="meta")), 0),
    ],
)
def test_another_batch_that_does_not_go_is_not_blamed_on_the_example_inputs(
    function: Any, batch_axis: int
) -> None:
    module = Does(function, linear()).eval()
    assert slicewise.load(module, example_inputs=x()).batch_size == 2
    said = f"takes its example inputs, of batch 2, but not batch 7.*'args_0': {batch_axis}"
    with pytest.raises(ModelError, match=said):
        slicewise.load(module, example_inputs=x(), batch=7)


def test_a_branch_on_data_names_its_line_and_a_way_out_that_works() -> None:
    def function(m: Any, a: Any) -> Any:
        return m.layer(a) if a.sum() > 0 else a

    with pytest.raises(ModelError, match=r"test_torch_inputs.py:\d+.*torch.onnx.export.*dynamo"):
        slicewise.load(Does(function, linear("cpu")).eval(), example_inputs=torch.ones(2, 8))


def test_a_branch_inside_a_layer_of_torch_names_that_layer() -> None:
    from torch.ao.quantization import FakeQuantize

    with quiet():
        module = nn.Sequential(nn.Linear(8, 4), FakeQuantize()).eval()
    with pytest.raises(ModelError, match=r"fake_quantize.py:\d+"):
        slicewise.load(module, example_inputs=torch.ones(2, 8))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda a: a, "is a function; make it the forward method"),
        (nn.Linear, "Linear is a class; call it"),
        ({"weight": torch.zeros(400)}, "dict of 1 entries: weights are no program"),
        (torch.zeros(400), "is a Tensor"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(model: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        slicewise.load(model)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
