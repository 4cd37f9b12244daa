"""Sampling by a clock of our own, and the formula that stands in for a device."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.measurement import Protocol as Sampling
from slicewise.tune.backends.triton.operations import Operation
from slicewise.tune.backends.triton.spaces import Target, default_config, space_of
from slicewise.tune.backends.triton.timing import (
    FormulaClock,
    clock_for,
    formula_ms,
    sample,
    summarise,
)

MATMUL = Operation.make("matmul", "bf16", batch=1, m=256, n=512, k=256)


class Scripted:
    """A clock whose latencies are given."""

    def __init__(self, values: Iterator[float]) -> None:
        self.values, self.count = values, 0

    def take(self, launch: Callable[[], None], count: int) -> list[float]:
        self.count += count
        return [next(self.values) for _ in range(count)]


def forever(*values: float) -> Iterator[float]:
    while True:
        yield from values


def test_steady_samples_end_early_and_scattered_ones_go_on() -> None:
    rules = Sampling(warmup_runs=1, warmup_s=0.0, min_samples=5, max_samples=50, budget_s=9.0)
    assert len(sample(lambda: None, Scripted(forever(2.0)), rules)) == 5
    scattered = sample(lambda: None, Scripted(forever(1.0, 3.0)), rules)
    assert len(scattered) == 50


def test_a_slow_launch_is_sampled_within_its_budget() -> None:
    rules = Sampling(warmup_runs=1, warmup_s=0.0, min_samples=20, max_samples=50, budget_s=0.5)
    assert len(sample(lambda: None, Scripted(forever(400.0, 500.0)), rules)) == 5


def test_a_warm_up_lasts_as_long_as_asked() -> None:
    clock = Scripted(forever(1.0))
    rules = Sampling(warmup_runs=3, warmup_s=0.02, min_samples=5, max_samples=5)
    assert len(sample(lambda: None, clock, rules)) == 5
    assert clock.count >= 20 + 5


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=100))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    made = summarise(values)
    assert min(values) <= made.low <= made.value <= made.high <= max(values)


@given(st.integers(1, 131), st.data())
def test_more_sms_are_never_slower(sms: int, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(space_of(MATMUL, Target(90, 32))))
    more = data.draw(st.integers(sms, 132))
    assert formula_ms(MATMUL, config, sms=more) <= formula_ms(MATMUL, config, sms=sms)


def test_what_is_best_depends_on_the_share() -> None:
    op = Operation.make("matmul", "bf16", batch=1, m=512, n=1024, k=1024)
    best = [
        min(space_of(op, Target(90, 16)), key=lambda c, s=sms: formula_ms(op, c, sms=s))  # type: ignore[misc]
        for sms in (8, 132)
    ]
    assert best[0] != best[1]


def test_the_formula_repeats_itself_and_scatters_little() -> None:
    config = default_config(MATMUL, Target(90, 16))
    first, second = (FormulaClock(MATMUL, config, 16).take(lambda: None, 9) for _ in range(2))
    assert first == second and len(set(first)) > 1
    assert max(first) <= 1.01 * min(first)


def test_a_device_that_is_there_is_asked() -> None:
    clock = Scripted(forever(1.0))
    assert clock_for(MATMUL, {}, sms=1, cuda=clock) is clock
    assert isinstance(clock_for(MATMUL, {}, sms=1, cuda=None), FormulaClock)


@pytest.mark.gpu
def test_a_launch_on_a_gpu_takes_time() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that CUDA sees")
    from slicewise.tune.backends.triton.timing import CudaClock

    x = torch.randn(1024, 1024, device="cuda")
    found = CudaClock().take(lambda: torch.mm(x, x, out=x.clone()), 5)
    assert len(found) == 5 and min(found) > 0
