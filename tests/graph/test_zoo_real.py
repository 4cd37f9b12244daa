"""Zoo models built with memory: buffers as the constructor made them, weights repeatable."""

from typing import Any

import pytest

from slicewise.core.errors import ModelError
from slicewise.graph.frontends import zoo
from slicewise.graph.frontends.zoo.model import parse
from slicewise.graph.frontends.zoo.real import build_real, fill_weights

torch: Any = pytest.importorskip("torch")
TINY = "num_hidden_layers=1&hidden_size=64&num_attention_heads=4&intermediate_size=128"
BERT = f"transformers:bert?{TINY}&vocab_size=100"


def _all_buffers(module: Any) -> dict[str, Any]:
    return dict(module.named_buffers())


@pytest.mark.parametrize(
    "location",
    [
        BERT,
        "timm:swin_tiny_patch4_window7_224?depths=1,1,2,1&embed_dim=24",
        "timm:resnet10t",
    ],
)
def test_buffers_are_those_of_a_plain_construction(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = parse(location)
    room = zoo._zoo(name)
    monkeypatch.setattr(room, "built_on_meta", lambda make: make().eval())
    plain: Any = room.build(name).module
    monkeypatch.undo()
    made: Any = build_real(location).module
    wanted, found = _all_buffers(plain), _all_buffers(made)
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        assert torch.equal(value, found[key]), key
    assert [p.shape for p in plain.parameters()] == [p.shape for p in made.parameters()]


def test_weights_are_the_same_each_time_and_none_is_alike() -> None:
    one: Any = build_real(BERT).module
    other: Any = build_real(BERT).module
    again = dict(other.named_parameters())
    for name, value in one.named_parameters():
        assert torch.equal(value, again[name])
        assert value.isfinite().all() and not value.requires_grad
        assert value.any()
    layer = one.encoder.layer[0].attention.self
    assert not torch.equal(layer.query.weight, layer.key.weight)
    assert not one.training


def test_what_a_constructor_draws_by_itself_is_the_same_each_time() -> None:
    parts = [f"{part}_config.{key}" for part in ("text", "vision")
             for key in ("num_hidden_layers=1", "hidden_size=64", "intermediate_size=128",
                         "num_attention_heads=4")]  # fmt: skip
    location = f"transformers:clip?{'&'.join(parts)}&text_config.vocab_size=50"
    made: list[Any] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made.append(build_real(location).module)
    one, other = (each.vision_model.embeddings.class_embedding for each in made)
    assert torch.equal(one, other) and one.std() > 0


def test_activations_stay_finite_and_depend_on_the_input() -> None:
    module: Any = build_real(BERT).module
    ids = torch.arange(16).reshape(2, 8)
    with torch.inference_mode():
        found = module(input_ids=ids).last_hidden_state
    assert found.isfinite().all()
    assert not torch.allclose(found[0], found[1])


def test_large_weights_are_filled_to_the_last_element() -> None:
    layer = torch.nn.Linear(1500, 1500)
    layer.weight.data.fill_(float("nan"))
    fill_weights(layer, label="it")
    assert layer.weight.isfinite().all()
    assert layer.weight.std().item() == pytest.approx(1500**-0.5, rel=0.02)


def test_a_parameter_without_memory_is_refused() -> None:
    with pytest.raises(ModelError, match="its weight is on the meta device"):
        fill_weights(torch.nn.Linear(2, 2, device="meta"), label="it")


def test_building_for_real_leaves_the_zoo_as_it_was() -> None:
    before = torch.nn.Module.to_empty
    build_real("timm:resnet10t")
    assert torch.nn.Module.to_empty is before
    meta: Any = zoo._zoo(parse("timm:resnet10t")).build(parse("timm:resnet10t")).module
    assert {each.device.type for each in meta.parameters()} == {"meta"}
