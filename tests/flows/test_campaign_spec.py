"""Campaign specs: what they mean, what is refused, and the order that stays balanced."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.flows.campaign_spec import (
    CampaignModel,
    CampaignPoint,
    CampaignSpec,
    points_of,
    read_spec,
)


def _read(tmp_path: Path, text: str) -> CampaignSpec:
    path = tmp_path / "zoo.yaml"
    path.write_text(text)
    return read_spec(path)


specs = st.builds(
    lambda models, batches, threads, runtimes, repeats: CampaignSpec(
        "law",
        tuple(CampaignModel(f"m{i}.onnx") for i in range(models)),
        tuple(range(1, batches + 1)),
        tuple(f"r{i}" for i in range(runtimes)),
        tuple(range(1, threads + 1)),
        repeats=repeats,
    ),
    st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
)  # fmt: skip


@given(spec=specs, seed=st.integers(0, 5))
def test_every_point_stands_once(spec: CampaignSpec, seed: int) -> None:
    points = points_of(spec, seed=seed)
    assert len(points) == len({point.id for point in points})
    assert (
        len(points)
        == len(spec.models)
        * len(spec.batches)
        * len(spec.runtimes)
        * len(spec.threads)
        * spec.repeats
    )


@given(spec=specs, cut=st.integers(0, 200))
def test_an_early_stop_leaves_models_and_conditions_balanced(spec: CampaignSpec, cut: int) -> None:
    points = points_of(spec)
    kept = points[: min(cut, len(points))]
    by_model = Counter({model.location: 0 for model in spec.models})
    by_model.update(point.model.location for point in kept)
    assert max(by_model.values()) - min(by_model.values()) <= 1
    # After whole rounds, conditions differ by at most one turn of the square for each round.
    rounds = len(kept) // len(spec.models)
    by_condition = Counter(_condition(point) for point in points[: rounds * len(spec.models)])
    if rounds:
        everything = {_condition(point) for point in points}
        counts = [by_condition[each] for each in everything]
        assert max(counts) - min(counts) <= rounds


def _condition(point: CampaignPoint) -> tuple[object, ...]:
    return (point.batch, point.runtime, point.threads, point.repeat)


@given(spec=specs)
def test_the_order_is_the_same_in_every_run(spec: CampaignSpec) -> None:
    assert points_of(spec) == points_of(spec)


def test_a_spec_is_read_whole(tmp_path: Path) -> None:
    spec = _read(
        tmp_path,
        """
models:
  - timm:resnet18
  - {model: bert.onnx, family: bert, dims: {seq: 128}}
batch: [1, 8]
runtime: [onnxruntime, torch-eager]
threads: 1
share: [50, cores:0]
precision: fp32
repeats: 2
device: cpu
profile: true
protocol: {budget_s: 2, min_samples: 5, relative_width: 0.01}
""",
    )
    assert spec.name == "zoo"
    assert spec.models[1] == CampaignModel("bert.onnx", "bert", {"seq": 128})
    assert (spec.batches, spec.threads, spec.shares) == ((1, 8), (1,), ("50", "cores:0"))
    assert (spec.protocol.budget_s, spec.protocol.min_samples) == (2.0, 5)
    assert (spec.repeats, spec.profile, spec.device) == (2, True, "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch: 1\n", "lacks 'models'"),
        ("models: []\n", "models is empty"),
        ("models: [a]\nbatches: 1\n", r"line 2: 'batches' is unknown.*did you mean batch\?"),
        ("models:\n  - {modle: a}\n", r"line 2: 'modle' is unknown.*did you mean model\?"),
        ("models: [a]\nbatch: [1, 0]\n", r"line 2: batch 0 is not a positive whole number"),
        ("models: [a]\nbatch: []\n", "batch is an empty list"),
        ("models: [a]\nprecision: fp17\n", "line 2: precision 'fp17' is unknown"),
        ("models: [a]\nprofile: 3\n", "profile is neither true nor false"),
        ("models: [a]\nprotocol: {budget: 3}\n", r"'budget' is unknown.*budget_s"),
        ("models: [a]\nprotocol: {min_samples: 900}\n", "min_samples 900 is over max_samples"),
        ("models: [{model: a, dims: 3}]\n", "dims is no mapping"),
        ("models: [a]\nname: ''\n", "line 2: name is empty"),
        ("models: [a]\nbatch: 9999999999\n", "line 2: batch 9999999999 is over"),
        ("models: [a]\nrepeats: 9999999999\n", "line 2: repeats 9999999999 is over"),
        ("models: [a]\nprotocol: {budget_s: .inf}\n", "budget_s inf is not a number over 0"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _read(tmp_path, text)


def test_a_model_named_twice_is_measured_once() -> None:
    spec = CampaignSpec("twice", (CampaignModel("a.onnx"), CampaignModel("a.onnx")))
    assert len(points_of(spec)) == 1
