"""`pack` with the real solver, end to end: laws that hold whatever is asked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slicewise
from slicewise.app.documents import encode
from slicewise.app.slicing.pack_documents import pack_document
from slicewise.core.packing import PlacedGpu
from slicewise.flows.pack import pack
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.workload import WorkloadSpec
from slicewise.slices.layouts import Placement, is_legal
from slicewise.slices.verify import verify

A100, A30 = "a100-sxm4-80gb", "a30"
_SLICES = {
    A100: ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    A30: ("1g.6gb", "2g.12gb", "4g.24gb"),
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model measured on both kinds of card: a batch of b takes 2 + 7 b / slices ms."""
    rows = ["device,slice,batch,processes,latency_ms,memory_bytes"]
    for device, slices in _SLICES.items():
        for name in slices:
            for batch in (1, 2, 4, 8, 16):
                for count in (1, 2):
                    ms = count * (2 + 7 * batch / int(name[0]))
                    rows.append(f"{device},{name},{batch},{count},{ms!r},{count * 2**31}")
    path = tmp_path_factory.mktemp("profiles") / "net.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def _spec(profile: Path, name: str, rate_per_s: float, latency_ms: float) -> WorkloadSpec:
    return WorkloadSpec(name, rate_per_s, latency_ms, profile=profile)


def _illegal(gpus: tuple[PlacedGpu, ...]) -> list[PlacedGpu]:
    return [
        gpu
        for gpu in gpus
        if all(each.profile is not None for each in gpu.slices)
        and not is_legal(
            slicewise.device(gpu.device),
            [Placement(each.profile or "", each.start) for each in gpu.slices],
        )
    ]


_RATES = st.lists(
    st.tuples(st.floats(5, 1500), st.sampled_from([20.0, 40.0, 100.0])), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=8)
@given(_RATES, st.tuples(st.floats(5, 500), st.just(60.0)))
def test_one_more_workload_never_frees_a_card_and_every_target_is_kept(
    profile: Path, asked: list[tuple[float, float]], more: tuple[float, float]
) -> None:
    specs = [_spec(profile, f"w{i}", *each) for i, each in enumerate(asked)]
    options = PackOptions(
        what_if=[_spec(profile, "more", *more)], time_limit_s=120, simulates=True
    )
    made = pack(specs, devices=[A100], options=options)
    assert made.before is not None
    assert made.packing.gpus_used >= made.before.gpus_used
    assert made.packing.is_optimal
    assert not _illegal(made.packing.gpus)
    assert all(each.is_met for each in made.simulated)
    verify(made.problem, made.packing)


@settings(deadline=None, max_examples=6)
@given(_RATES)
def test_looser_targets_never_take_more_cards(
    profile: Path, asked: list[tuple[float, float]]
) -> None:
    options = PackOptions(time_limit_s=120)
    tight = [_spec(profile, f"w{i}", *each) for i, each in enumerate(asked)]
    loose = [replace(each, latency_ms=2 * each.latency_ms) for each in tight]
    used = [
        pack(specs, devices=[A100, A30], options=options).packing.value for specs in (tight, loose)
    ]
    assert used[1] <= used[0]


def test_a_plan_that_stands_in_use_is_kept_slice_by_slice(profile: Path, tmp_path: Path) -> None:
    specs = [_spec(profile, "a", 900.0, 40.0), _spec(profile, "b", 300.0, 100.0)]
    options = PackOptions(time_limit_s=120)
    first = pack(specs, devices=[A100], options=options)
    layout = tmp_path / "now.json"
    layout.write_bytes(encode(pack_document(first)))
    in_use = [replace(each, in_use=True) for each in specs]
    further = [*in_use, _spec(profile, "c", 200.0, 60.0)]
    made = pack(further, devices=[A100], options=replace(options, current=layout))

    def slices(gpus: tuple[PlacedGpu, ...]) -> set[tuple[int, str | None, int, str | None]]:
        return {
            (gpu.index, each.profile, each.start, each.workload)
            for gpu in gpus
            for each in gpu.slices
        }

    assert slices(first.packing.gpus) <= slices(made.packing.gpus)
    assert made.packing.moves == len(slices(made.packing.gpus) - slices(first.packing.gpus))


def test_what_the_cards_cannot_carry_is_told_with_how_many_would_do(profile: Path) -> None:
    specs = [_spec(profile, "a", 9000.0, 40.0)]
    made = pack(specs, devices=[A100], counts=[2], options=PackOptions(time_limit_s=120))
    (left,) = made.packing.unserved
    enough = pack(specs, devices=[A100], options=PackOptions(time_limit_s=120))
    assert f"{enough.packing.gpus_used} cards would serve all" in left.reason
    assert json.loads(encode(pack_document(made)))["unserved"][0]["workload"] == "a"


def test_least_energy_never_draws_more_than_fewest_cards(profile: Path) -> None:
    specs = [_spec(profile, "a", 700.0, 40.0), _spec(profile, "b", 50.0, 100.0)]
    watts = []
    for objective in ("gpus", "energy"):
        options = PackOptions(objective=objective, time_limit_s=120)
        made = pack(specs, devices=[A100, A30], options=options)
        idle_w = sum(slicewise.device(gpu.device).idle_power_w for gpu in made.used)
        busy_w = sum(
            use.placed.rate_per_s * use.offer.serving.energy_j
            for outcome in made.outcomes
            for use in outcome.uses
        )
        watts.append(idle_w + busy_w)
    assert watts[1] <= watts[0] * (1 + 1e-9)
    assert made.packing.value == pytest.approx(watts[1])
