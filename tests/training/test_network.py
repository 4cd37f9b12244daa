"""The network: it learns, what it exports is what it computes, and sums stay sums."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from slicewise.core.precision import PRECISIONS
from slicewise.hardware.catalogue import find_device
from slicewise.predict.basis import BASIS
from slicewise.predict.conditions import figures_of
from slicewise.testing.graphs import mlp, residual_cnn, transformer
from training.export import as_onnx
from training.model_rows import ModelRow
from training.network import (
    Settings,
    condition_name,
    fit,
    inputs_of,
    latency_us,
    predict_us,
    vocabulary_of,
)
from training.samples import Gatherer, Samples, basis_us
from training.tables import table_of

SETTINGS = Settings(
    hidden=16,
    width=16,
    epochs=60,
    batch=16,
    members=2,
    dropout=0.0,
    forget=0.2,
    learning_rate=1e-2,
)


def row(key: str, device: str, batch: int, latency_s: float) -> ModelRow:
    """Return a made-up measurement."""
    return ModelRow(
        source="made up", file="made up", model_name=key, key=key, device=device,
        runtime="torch-eager", precision="fp16", layout="nchw", version=(2, 4), batch=batch,
        latency_s=latency_s, family_fold=0, model_fold=0, group=key, gmacs=0.0, macts=0.0,
        params_m=0.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Return models on two devices whose latency is 1.7 times the roofline of their kernels."""
    gatherer = Gatherer()
    for build in (residual_cnn, transformer, mlp):
        graphs = build(2), build(4)
        table = table_of(graphs, precision=PRECISIONS["fp16"], runtime="torch-eager")
        assert table is not None
        numbers = gatherer.numbers(table.context)
        for name in ("t4", "rtx-4090"):
            for batch in (256, 1024, 4096, 16384):
                basis = basis_us(table, batch, find_device(name))
                true_us = 1.7 * float(table.count @ basis[:, BASIS.index("roof")]) + 100.0
                made = row(build.__name__, name, batch, true_us * 1e-6)
                gatherer.add(made, numbers, basis, table.count.astype(np.float32))
    return gatherer.gathered()


def test_it_learns_what_the_rows_follow(samples: Samples) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    everything = np.arange(len(samples.rows))
    untrained = fit(inputs, everything, vocabulary, replace(SETTINGS, epochs=1))
    networks = fit(inputs, everything, vocabulary, SETTINGS)

    def error(made: list[torch.nn.Module]) -> float:
        predicted = predict_us(made, inputs, everything).mean(axis=0)
        return float(np.mean(np.abs(predicted / (samples.measured_s * 1e6) - 1)))

    assert error(networks) < 0.15
    assert error(networks) < 0.5 * error(untrained)


def test_the_same_seed_gives_the_same_network(samples: Samples) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    which = np.arange(len(samples.rows))
    one, two = (
        predict_us(fit(inputs, which, vocabulary, replace(SETTINGS, epochs=2)), inputs, which)
        for _ in range(2)
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize("is_bounded", [False, True])
def test_what_is_exported_computes_the_same(samples: Samples, is_bounded: bool) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    settings = replace(SETTINGS, epochs=2, is_bounded=is_bounded, reach=2.0, largest=1.0)
    networks = fit(inputs, np.arange(4), vocabulary, settings)
    session = onnxruntime.InferenceSession(as_onnx(networks).SerializeToString())
    for i in (0, 5, 11):
        its, start, end = samples.rows[i], *samples.starts[i : i + 2]
        figures = figures_of(
            find_device(its.device), runtime=its.runtime, layout=its.layout, version=its.version
        )
        name = condition_name(its.runtime, its.precision, its.layout, its.version)
        kernels_us, launch, host_us = session.run(None, {
            "context": samples.contexts[samples.context[start:end]],
            "basis_us": samples.basis[start:end],
            "figures": np.array([figures], dtype=np.float32),
            "device": np.array([vocabulary.device(its.device)]),
            "under": np.array([vocabulary.condition(name)]),
        })  # fmt: skip
        busy = kernels_us @ samples.count[start:end]
        launches = float(inputs.launches_us[i]) * launch
        total = (busy**4 + launches**4) ** 0.25 + host_us
        with torch.no_grad():
            expected = [float(latency_us(each, inputs, np.array([i]))[0]) for each in networks]
        assert total == pytest.approx(expected, rel=1e-4)


def test_a_device_never_seen_is_number_zero(samples: Samples) -> None:
    vocabulary = vocabulary_of(samples)
    assert vocabulary.device("t4") > 0
    assert vocabulary.device("never seen") == 0


def test_theta_of_a_bounded_trunk_saturates_on_contexts_unlike_any(samples: Samples) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    settings = replace(SETTINGS, epochs=2, is_bounded=True, reach=3.0)
    (network,) = fit(inputs, np.arange(4), vocabulary, replace(settings, members=1))
    odd = torch.randn(64, inputs.contexts.shape[1], generator=torch.manual_seed(0))
    with torch.no_grad():
        far, farther = (network.trunk(odd.sign() * size) for size in (1e3, 1e6))
    assert torch.equal(far, farther)
    assert far.abs().max() <= 1


def test_theta_is_never_beyond_its_limit(samples: Samples) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    settings = replace(SETTINGS, epochs=1, members=1, largest=-1.0)
    (network,) = fit(inputs, np.arange(4), vocabulary, settings)
    one = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        conditions = network.conditions(inputs.figures[:1], one, one, 0.0)
        theta = network.factors(network.trunk(inputs.contexts[:1]), one, conditions, one)
    assert theta.min() > 0
    assert theta.max() == pytest.approx(np.exp(-1.0))


def test_dropout_leaves_as_much_on_average_and_nothing_out_when_predicting(
    samples: Samples,
) -> None:
    vocabulary = vocabulary_of(samples)
    inputs = inputs_of(samples, vocabulary)
    settings = replace(SETTINGS, epochs=1, members=1, dropout=0.25)
    (network,) = fit(inputs, np.arange(4), vocabulary, settings)
    with torch.no_grad():
        ones = torch.ones(400, 500)
        assert torch.equal(network._dropped(ones), ones)
        network.train()
        made = network._dropped(ones)
    assert made.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (made == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
