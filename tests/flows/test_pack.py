"""`pack` as a whole: what stands before and behind the solver, and every refusal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError, PredictionError, UsageError
from slicewise.core.packing import PackObjective, PlacedGpu
from slicewise.flows.pack import pack
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.result import PackResult, Simulated
from slicewise.flows.packing.ways import MEASURED
from slicewise.flows.packing.workload import WorkloadSpec
from tests import plain_packer
from tests.flows.measured_profiles import A100, spec_of, write_profile

Light = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_packer.install(monkeypatch)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "p.csv")


def test_the_result_tells_slices_rates_and_what_is_left(profile: Path) -> None:
    made = pack([spec_of(profile), spec_of(profile, name="b", rate_per_s=900.0)], devices=[A100])
    assert made.packing.gpus_used == len(made.used) >= 1
    for outcome in made.outcomes:
        rates = sum(use.placed.rate_per_s for use in outcome.uses)
        assert rates == pytest.approx(outcome.spec.rate_per_s)
        assert outcome.capacity_per_s >= outcome.spec.rate_per_s
        assert outcome.head_room == pytest.approx(outcome.capacity_per_s / rates - 1)
    assert made.lower_bound_gpus == 1
    assert [each.index for each in made.left_over] == [gpu.index for gpu in made.used]
    for each in made.left_over:
        assert (each.largest in each.profiles) if each.profiles else not each.largest


def test_a_card_without_slices_is_used_whole_and_that_is_noted(light: Light) -> None:
    spec = WorkloadSpec("a", 10.0, 1e3, model=str(light("squeezenet")), batches=[1])
    made = pack([spec], devices=["t4"])
    assert [each.profile for gpu in made.packing.gpus for each in gpu.slices] == [None]
    assert "card-not-sliced" in [note.code for note in made.notes]
    assert (made.left_over, made.largest_free) == ((), "")


def test_rates_beyond_the_cards_come_back_unserved(profile: Path) -> None:
    spec = spec_of(profile, rate_per_s=1e5)
    made = pack([spec], devices=[A100], counts=[2])
    (left,) = made.packing.unserved
    (outcome,) = made.outcomes
    assert outcome.unserved_per_s == left.rate_per_s > 0
    assert outcome.head_room < 0
    assert not made.packing.is_optimal
    assert made.packing.gpus_used == 2


def test_notes_are_those_of_what_was_chosen(light: Light, profile: Path) -> None:
    model = WorkloadSpec("m", 10.0, 1e3, model=str(light("squeezenet")), batches=[4])
    made = pack([model, spec_of(profile)], devices=[A100])
    texts = [note.text for note in made.notes]
    assert any("'data_0' was replaced by 4" in text for text in texts)
    assert len(set(made.notes)) == len(made.notes)
    with pytest.raises(PredictionError, match=r"strict: .* assumptions were made: "):
        pack([model], devices=[A100], options=PackOptions(strict=True))


def test_requests_are_played_where_that_is_asked_and_always_for_queues(profile: Path) -> None:
    spec = spec_of(profile)
    assert pack([spec], devices=[A100]).simulated == ()
    for options in (PackOptions(simulates=True), PackOptions(latency_model="queue")):
        (played,) = pack([spec], devices=[A100], options=options).simulated
        assert played.is_met
        assert (played.workload, played.percentile, played.target_ms) == ("a", 99.0, 100.0)
        assert played.requests > 10_000


def test_little_to_carry_takes_no_large_batch(profile: Path) -> None:
    made = pack([spec_of(profile, rate_per_s=1.0)], devices=[A100])
    (outcome,) = made.outcomes
    (use,) = outcome.uses
    own = [each for each in made.served[0].offers if each.profile == use.offer.profile]
    assert use.offer.serving.service_ms.high == min(each.serving.service_ms.high for each in own)
    assert outcome.capacity_per_s == use.offer.capacity_per_s
    most = max(each.capacity_per_s for each in own)
    assert outcome.capacity_largest_batch_per_s == most > outcome.capacity_per_s


def test_a_target_missed_by_rounding_alone_is_met() -> None:
    assert Simulated("a", 99.0, 37.100000000510775, 37.1, 20_000).is_met
    assert not Simulated("a", 99.0, 37.1001, 37.1, 20_000).is_met


def _placed(gpus: tuple[PlacedGpu, ...]) -> set[tuple[str, int, str | None, int, str | None]]:
    return {
        (gpu.device, gpu.index, each.profile, each.start, each.workload)
        for gpu in gpus
        for each in gpu.slices
    }


def test_what_if_packs_further_workloads_on_top(profile: Path) -> None:
    more = [spec_of(profile, name="b", rate_per_s=3000.0)]
    options = PackOptions(what_if=more)
    made = pack([spec_of(profile)], devices=[A100], options=options)
    assert made.before is not None
    assert made.added == ("b",)
    assert {each.spec.name for each in made.served} == {"a", "b"}
    assert made.packing.gpus_used >= made.before.gpus_used
    assert _placed(made.problem.current) == _placed(made.before.gpus)


def test_what_if_with_a_known_name_takes_its_place(profile: Path) -> None:
    more = [spec_of(profile, rate_per_s=3000.0, batches=[1])]
    made = pack([spec_of(profile)], devices=[A100], options=PackOptions(what_if=more))
    (outcome,) = made.outcomes
    assert outcome.spec.rate_per_s == 3000.0
    assert {use.offer.serving.batch for use in outcome.uses} == {1}
    assert all(
        each.offer is None or each.offer.serving.batch == 1
        for gpu in made.problem.current
        for each in gpu.slices
    )


LAYOUT = f"""\
gpus:
  - device: {A100}
    index: 1
    slices:
      - {{profile: 3g.40gb, start: 4, workload: a, batch: 4, processes: 1, service_ms: 11.3,
         throughput_per_s: 353, in_use: true}}
      - {{profile: 1g.10gb, start: 0, workload: gone, in_use: true}}
      - {{profile: 1g.10gb, start: 1, workload: past}}
"""


def test_what_stands_is_given_to_the_solver_and_slices_in_use_stay(
    profile: Path, tmp_path: Path
) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(LAYOUT)
    spec = spec_of(profile, rate_per_s=300.0)
    made = pack([spec], devices=[A100], options=PackOptions(current=layout))
    (card,) = made.problem.current
    gone, past, kept = card.slices
    assert (gone.workload, gone.in_use, gone.offer) == ("gone", True, None)
    assert (past.workload, past.in_use) == (None, False)
    assert kept.offer is not None
    assert (kept.offer.serving.batch, kept.offer.serving.source) == (4, MEASURED)
    assert (A100, 1, "3g.40gb", 4, "a") in _placed(made.packing.gpus)
    codes = [note.code for note in made.notes]
    assert codes.count("workload-gone") == 2
    (outcome,) = made.outcomes
    assert len(outcome.uses) == 1


def test_a_workload_in_use_keeps_every_slice_that_it_has(profile: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(LAYOUT.replace(", in_use: true}}", "}}"))
    specs = [spec_of(profile, in_use=True), spec_of(profile, name="new", in_use=True)]
    made = pack(specs, devices=[A100], options=PackOptions(current=layout))
    assert all(
        each.in_use for gpu in made.problem.current for each in gpu.slices if each.workload == "a"
    )
    assert "in-use-nowhere" in [note.code for note in made.notes]


def test_a_slice_in_use_that_misses_the_target_carries_nothing(
    profile: Path, tmp_path: Path
) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(LAYOUT)
    spec = spec_of(profile, latency_ms=20.0)
    made = pack([spec], devices=[A100], options=PackOptions(current=layout))
    assert "in-use-misses-target" in [note.code for note in made.notes]


def test_a_way_that_only_stands_is_not_offered_for_new_slices(
    light: Light, tmp_path: Path
) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(LAYOUT.replace("batch: 4, processes: 1", "batch: 5, processes: 2"))
    spec = WorkloadSpec(
        "a", 10.0, 1e4, model=str(light("squeezenet")), batches=[8], isolation="mig"
    )
    made = pack([spec], devices=[A100], options=PackOptions(current=layout))
    asked = {
        (offer.serving.batch, offer.serving.processes) for offer in made.served[0].workload.offers
    }
    assert asked == {(8, 1)}
    (card,) = made.problem.current
    standing = card.slices[-1].offer
    assert standing is not None
    assert (standing.serving.batch, standing.serving.processes) == (5, 2)
    assert made.served[0].way(standing) is not None


@pytest.mark.parametrize(
    ("text", "counts", "error", "told"),
    [
        (LAYOUT, [1], UsageError, f"has {A100} 1 .counted from 0., --count says 1"),
        (LAYOUT.replace("start: 4", "start: 1"), [], DeviceError, "start"),
        (LAYOUT.replace("start: 1,", "start: 0,"), [], DeviceError, "overlap"),
        (LAYOUT.replace("3g.40gb", "3g.20gb"), [], DeviceError, "no slice profile '3g.20gb'"),
        (LAYOUT.replace(A100, "h100-sxm5-80gb"), [], DeviceError, "h100-sxm5-80gb"),
    ],
)
def test_a_layout_that_cannot_stand_is_refused(
    profile: Path,
    tmp_path: Path,
    text: str,
    counts: list[int],
    error: type[Exception],
    told: str,
) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(text)
    with pytest.raises(error, match=told):
        pack(
            [spec_of(profile)], devices=[A100], counts=counts, options=PackOptions(current=layout)
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"objective": "gpu"}, "objective 'gpu' is unknown; .* did you mean gpus"),
        ({"latency_model": "que"}, "latency model 'que' is unknown; .* did you mean queue"),
        ({"safety": -0.1}, "safety -0.1"),
        ({"safety": "a"}, "safety 'a' is no part of the target"),
        ({"time_limit_s": "60"}, "time limit '60' s leaves no time"),
        ({"time_limit_s": float("nan")}, "time limit nan s leaves no time"),
        ({"time_limit_s": -1.0}, "time limit -1 s leaves no time"),
        ({"seed": "1"}, "seed '1' is no whole number"),
        ({"time_limit_s": 0.0}, "time limit 0 s"),
        ({"seed": -1}, "seed -1"),
        ({"workers": 0}, "workers 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        PackOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"counts": 8}, r"counts 8 is no list .* give \[8\], one for all"),
        ({"counts": "8"}, "counts '8' is no list"),
        ({"options": PackOptions(costs=2.0)}, "costs 2.0 is no list"),  # type: ignore[arg-type]
    ],
)
def test_counts_and_costs_that_are_no_list_are_refused(
    profile: Path, given: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        pack([spec_of(profile)], devices=[A100], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workloads", "told"),
    [([], "give the path of a YAML file"), ([1], "give a WorkloadSpec"), (3, "workloads 3")],
)
def test_workloads_that_are_none_are_refused(workloads: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        pack(workloads, devices=["t4"])  # type: ignore[arg-type]


def test_a_bound_of_cards_is_that_of_the_dearest_where_costs_differ(profile: Path) -> None:
    made = pack(
        [spec_of(profile, rate_per_s=3000.0)], devices=[A100], options=PackOptions(costs=[3.0])
    )
    assert made.packing.value == 3.0 * made.packing.gpus_used
    assert made.lower_bound_gpus == 1
    energy = _of_energy(made)
    assert energy.lower_bound_gpus is None


def _of_energy(made: PackResult) -> PackResult:
    return replace(made, problem=replace(made.problem, objective=PackObjective.ENERGY))


def test_devices_of_a_problem_are_those_asked(profile: Path) -> None:
    made = pack([spec_of(profile)], devices=[A100])
    card = made.problem.device(A100)
    assert isinstance(card, Device)
    assert card.name == A100
