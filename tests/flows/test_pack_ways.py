"""What `pack` offers to the solver: parts of cards, ways to serve on them, and what they carry."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slicewise
from slicewise.core.errors import DeviceError, Infeasible, ModelError, UsageError
from slicewise.core.packing import Offer
from slicewise.flows.pack import pack
from slicewise.flows.packing.fleet import parts_of, stock_of
from slicewise.flows.packing.offers import served
from slicewise.flows.packing.options import PackOptions
from slicewise.flows.packing.profile_file import read_profile
from slicewise.flows.packing.profile_ways import measured_ways
from slicewise.flows.packing.ways import MEASURED, PREDICTED, SCALED, Reader, predicted_ways
from slicewise.flows.packing.workload import WorkloadSpec
from slicewise.flows.predict import PredictOptions, predict_where_possible
from tests import plain_packer
from tests.flows.measured_profiles import A100, SLICES, all_parts, spec_of, write_profile

Light = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_packer.install(monkeypatch)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "p.csv")


def _offers(spec: WorkloadSpec, **given: object) -> tuple[Offer, ...]:
    assert spec.profile is not None
    ways, notes = measured_ways(spec, read_profile(Path(spec.profile)), all_parts())
    return served(spec, ways, PackOptions(**given), notes).workload.offers  # type: ignore[arg-type]


# --- the fleet


def test_parts_are_the_plain_profiles_and_the_whole_card() -> None:
    card = slicewise.device(A100)
    names = [part.profile for part in parts_of(card)]
    assert names == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", None]
    assert [part.device.name for part in parts_of(card)][-2:] == [f"{A100}/7g.80gb", A100]
    assert [part.profile for part in parts_of(card, also={"1g.10gb+me"})][:2] == [
        "1g.10gb", "1g.10gb+me",
    ]  # fmt: skip
    assert [part.profile for part in parts_of(slicewise.device("t4"))] == [None]


def test_counts_and_costs_are_of_every_kind_or_of_each() -> None:
    both = [A100, "t4"]
    assert [each.count for each in stock_of(both)] == [None, None]
    assert [each.count for each in stock_of(both, counts=[8])] == [8, 8]
    assert [each.cost for each in stock_of(both, counts=[8, 0], costs=[2, 0.5])] == [2.0, 0.5]


@pytest.mark.parametrize(
    ("devices", "given", "told"),
    [
        ([], {}, "a list with at least one kind of card"),
        (A100, {}, "a list with at least one kind of card"),
        ([f"{A100}/2g.20gb"], {}, f"is a part of a card; .* give {A100}"),
        (["t4@50%"], {}, "is a part of a card"),
        (["t4", "t4"], {}, "t4 is named 2 times"),
        (["t4"], {"counts": [1, 2]}, "2 values of count for 1 kinds of card"),
        (["t4"], {"counts": [-1]}, "count -1"),
        (["t4"], {"counts": [1.5]}, "count 1.5"),
        (["t4"], {"counts": [0]}, "no card is left"),
        (["t4"], {"costs": [0]}, "cost 0 is no positive number"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(
    devices: list[str], given: dict[str, list[float]], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        stock_of(devices, **given)  # type: ignore[arg-type]


# --- ways to serve


def test_rows_of_a_profile_are_offered_as_they_stand(profile: Path) -> None:
    spec = spec_of(profile)
    ways, notes = measured_ways(spec, read_profile(profile), all_parts())
    assert len(ways) == len(SLICES) * 4 * 2
    assert {way.serving.source for way in ways} == {MEASURED}
    assert {way.part.profile for way in ways} == set(SLICES)
    assert [note.code for note in notes] == ["profile-energy-assumed"]
    asked = spec_of(profile, batches=[4], processes=[2])
    ways, _ = measured_ways(asked, read_profile(profile), all_parts())
    assert {(way.serving.batch, way.serving.processes) for way in ways} == {(4, 2)}
    alone = spec_of(profile, isolation="mig")
    ways, _ = measured_ways(alone, read_profile(profile), all_parts())
    assert {way.serving.processes for way in ways} == {1}


def test_a_busy_part_draws_its_part_of_the_power(profile: Path) -> None:
    card = slicewise.device(A100)
    ways, _ = measured_ways(spec_of(profile), read_profile(profile), all_parts())
    for way in ways:
        drawn_w = way.serving.energy_j * way.serving.throughput_per_s
        units = way.part.device.compute_units / card.compute_units
        assert drawn_w == pytest.approx((card.max_power_w - card.idle_power_w) * units)


def test_other_slices_are_scaled_where_one_is_measured_or_that_is_asked(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "one.csv", slices=("7g.80gb",))
    ways, _ = measured_ways(spec_of(path), read_profile(path), all_parts())
    assert {way.part.profile for way in ways} == {part.profile for part in all_parts()}
    scaled = [way for way in ways if way.part.profile != "7g.80gb"]
    assert {way.serving.source for way in scaled} == {SCALED}
    assert all("scaled from 7g.80gb" in way.notes[0].text for way in scaled)
    kept, _ = measured_ways(spec_of(path, scales_missing=False), read_profile(path), all_parts())
    assert {way.part.profile for way in kept} == {"7g.80gb"}
    several = write_profile(tmp_path / "two.csv", slices=("1g.10gb", "7g.80gb"))
    ways, _ = measured_ways(spec_of(several), read_profile(several), all_parts())
    assert {way.part.profile for way in ways} == {"1g.10gb", "7g.80gb"}
    ways, _ = measured_ways(
        spec_of(several, scales_missing=True), read_profile(several), all_parts()
    )
    assert {way.part.profile for way in ways} == {part.profile for part in all_parts()}


def test_what_a_profile_does_not_tell_is_refused_or_noted(profile: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"batch 3 of workload 'a' stands in no row of .*1, 2, 4"):
        measured_ways(spec_of(profile, batches=[3]), read_profile(profile), all_parts())
    with pytest.raises(UsageError, match="processes 5 of workload 'a' stands in no row"):
        measured_ways(spec_of(profile, processes=[5]), read_profile(profile), all_parts())
    bare = tmp_path / "bare.csv"
    bare.write_text("slice,batch,latency_ms,device\n1g.10gb,1,5,a100-sxm4-80gb\n")
    both = all_parts(A100, "h100-sxm5-80gb")
    _, notes = measured_ways(spec_of(bare, scales_missing=False), read_profile(bare), both)
    assert [note.code for note in notes] == [
        "profile-memory-unknown", "card-left-out", "profile-energy-assumed",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has rows of none of t4"):
        measured_ways(spec_of(bare), read_profile(bare), all_parts("t4"))


def test_each_model_is_read_once_and_predicted_once_at_a_batch(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    real = predict_where_possible

    def counted(graph: slicewise.Graph, *rest: object, **named: object) -> object:
        calls.append((graph.name, graph.batch_size or 0))
        return real(graph, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("slicewise.flows.packing.ways.predict_where_possible", counted)
    model = str(light("squeezenet"))
    one = WorkloadSpec("a", 10.0, 1e4, model=model, batches=[1, 8])
    two = replace(one, name="b", rate_per_s=90.0)
    other = replace(one, name="c", precision="fp16", batches=[8])
    made = pack([one, two, other], devices=[A100, "t4"])
    assert [batch for _, batch in calls] == [1, 8, 8]
    assert all(each.workload.offers for each in made.served)


def test_predicted_ways_hold_every_part_batch_and_number_of_processes(light: Light) -> None:
    spec = WorkloadSpec("a", 10.0, 1e4, model=str(light("squeezenet")))
    reader = Reader(all_parts(), PredictOptions())
    ways, notes = predicted_ways(spec, reader, batches=[1, 8], processes=[1, 3])
    assert len(ways) == 7 * 2 * 2
    assert notes == []
    assert {way.serving.source for way in ways} == {PREDICTED}
    for way in ways:
        rate = way.serving.processes * way.serving.batch / way.serving.service_ms.value * 1e3
        assert way.serving.throughput_per_s == pytest.approx(rate)
        assert way.prediction is not None
        assert way.serving.energy_j >= 0
    memory = {
        (way.part.profile, way.serving.batch, way.serving.processes): way.serving.memory_bytes
        for way in ways
    }
    assert all(memory[name, batch, 3] > memory[name, batch, 1] for name, batch, _ in memory)


def test_batches_end_where_one_alone_is_over_the_target(light: Light) -> None:
    spec = WorkloadSpec("a", 10.0, 4.0, model=str(light("resnet50")))
    reader = Reader(all_parts(), PredictOptions())
    ways, _ = predicted_ways(spec, reader, batches=[1, 2, 4, 8, 16], processes=[1])
    times = {
        batch: min(way.serving.service_ms.value for way in ways if way.serving.batch == batch)
        for batch in {way.serving.batch for way in ways}
    }
    *others, last = (times[batch] for batch in sorted(times))
    assert last > 4.0 >= max(others)


def test_a_card_that_cannot_run_a_model_is_left_out_with_a_note(light: Light) -> None:
    spec = WorkloadSpec("a", 10.0, 1e4, model=str(light("squeezenet")), precision="fp8")
    reader = Reader(all_parts(A100, "h100-sxm5-80gb"), PredictOptions())
    ways, notes = predicted_ways(spec, reader, batches=[1], processes=[1])
    assert {way.part.card.name for way in ways} == {"h100-sxm5-80gb"}
    assert [note.code for note in notes] == ["card-left-out"]
    with pytest.raises(DeviceError, match="fp8"):
        predicted_ways(spec, Reader(all_parts(A100), PredictOptions()), batches=[1], processes=[1])


def test_a_model_that_is_not_there_names_its_workload() -> None:
    spec = WorkloadSpec("a", 10.0, 1e4, model="none.onnx", where="w.yaml, line 3: ")
    with pytest.raises(ModelError, match=r"w.yaml, line 3: workload 'a': there is no model"):
        pack([spec], devices=["t4"])


# --- offers


def test_what_lacks_memory_is_not_offered(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "big.csv", gib=12.0)
    offers = _offers(spec_of(path))
    assert {(each.profile, each.serving.processes) for each in offers} == {
        ("2g.20gb", 1), ("3g.40gb", 1), ("3g.40gb", 2), ("4g.40gb", 1), ("4g.40gb", 2),
        ("7g.80gb", 1), ("7g.80gb", 2),
    }  # fmt: skip


def test_safety_is_kept_where_a_figure_is_predicted_unless_one_is_asked(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "one.csv", slices=("7g.80gb",))
    spec = spec_of(path)
    ways, notes = measured_ways(spec, read_profile(path), all_parts())

    def part_of_rate(safety: float | None, source: str) -> set[float]:
        made = served(spec, ways, PackOptions(safety=safety), notes)
        return {
            round(offer.capacity_per_s / way.serving.throughput_per_s, 9)
            for way, offer in made.pairs
            if way.serving.source == source
        }

    assert part_of_rate(None, MEASURED) == {1.0}
    assert part_of_rate(None, SCALED) == {round(1 / 1.1, 9)}
    assert part_of_rate(0.25, MEASURED) == part_of_rate(0.25, SCALED) == {0.8}


@settings(deadline=None, max_examples=25)
@given(
    st.floats(20, 500), st.floats(1, 3), st.sampled_from(["service", "fill", "queue"]),
    st.floats(1, 2000),
)  # fmt: skip
def test_a_looser_target_offers_all_that_a_tighter_one_does_and_no_less_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    target_ms: float,
    factor: float,
    model: str,
    rate_per_s: float,
) -> None:
    path = tmp_path_factory.getbasetemp() / "law.csv"
    if not path.exists():
        write_profile(path)
    capacities = []
    for latency_ms in (target_ms, target_ms * factor):
        spec = spec_of(path, latency_ms=latency_ms, rate_per_s=rate_per_s)
        try:
            offers = _offers(spec, latency_model=model)
        except Infeasible:
            offers = ()
        capacities.append({(each.profile, each.serving): each.capacity_per_s for each in offers})
    tight, loose = capacities
    assert tight.keys() <= loose.keys()
    assert all(loose[key] >= tight[key] * (1 - 1e-9) for key in tight)


def test_a_target_that_nothing_meets_tells_the_best_possible_and_where(profile: Path) -> None:
    with pytest.raises(Infeasible, match=r"workload 'a' within 5\.00 ms") as caught:
        pack([spec_of(profile, latency_ms=5.0)], devices=[A100])
    # batch 1 on 7g takes 3 ms, 0.45 of 6.67 ms
    assert "7g.80gb with batch 1, 3.00 ms for a batch" in str(caught.value)
    assert "keeps a target of 6.67 ms" in str(caught.value)
    pack([spec_of(profile, latency_ms=6.67)], devices=[A100])


def test_a_model_larger_than_the_card_is_told_with_both_sizes(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "huge.csv", gib=200.0)
    with pytest.raises(Infeasible, match=r"needs 200 GiB at batch 1, .*7g.80gb, has 78") as caught:
        pack([spec_of(path)], devices=[A100])
    assert caught.value.exit_code == 6
