"""Every shipped device file is complete, sourced and agrees with second sources."""

import csv
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from slicewise.core.device import Device
from slicewise.core.errors import DeviceError
from slicewise.core.precision import PRECISIONS, DType
from slicewise.hardware.catalogue import device_names, find_device
from slicewise.hardware.device_file import BASES, POWER_FLOOR_FRACTION, SOURCED
from slicewise.hardware.figures import FIGURES

FILES = resources.files("slicewise.hardware") / "devices"
DEVICES = {name: find_device(name) for name in device_names()}

# fp32 lanes of a compute unit, by the beginning of the architecture (data sheets and white papers)
LANES = {
    "Maxwell": 128, "Pascal GP100": 64, "Pascal": 128, "Volta GV10B": 64, "Volta": 64,
    "Turing": 64, "Ampere GA100": 64, "Ampere": 128, "Ada": 128, "Hopper": 128, "Blackwell": 128,
    "Vega": 64, "CDNA": 64, "Xe2": 128,
}  # fmt: skip
# File -> (ratio of its fp32 figure to units x lanes x 2 x clock, why it is not 1)
FP32_EXCEPTIONS = {
    "b200-sxm": (1.075, "vendor figure; the clock is recalled"),
    "gb200": (1.122, "vendor figure; the clock is recalled"),
    "b300-sxm": (1.075, "as B200"),
    "gb300": (1.122, "as GB200"),
    "p4": (0.965, "vendor figure at a lower boost clock"),
    "mi300x": (2.0, "two operations a lane and clock"),
}
# fp64 over fp32 by the beginning of the architecture; matrix units count where they do fp64 (data
# sheets; arithmetic throughput table of the CUDA programming guide)
FP64_RATIOS = {
    "Maxwell": 1 / 32, "Pascal GP100": 1 / 2, "Pascal": 1 / 32, "Volta": 1 / 2,
    "Turing": 1 / 32, "Ampere GA100": 1, "Ampere": 1 / 64, "Ada": 1 / 64, "Hopper": 1,
    "Blackwell GB100": 1 / 2, "Blackwell Ultra": 1 / 64, "Blackwell GB202": 1 / 64,
    "Blackwell GB203": 1 / 64, "Blackwell GB205": 1 / 64, "Vega": 1 / 16, "CDNA1": 1 / 2,
    "CDNA2": 2, "CDNA3": 1,
}  # fmt: skip
# File -> its ratio of fp64 where it is not that of the architecture, why
FP64_EXCEPTIONS = {
    "h20-96gb": (1 / 39.5, "cut for export"),
    "b200-sxm": (37 / 80, "later sheet than that of its fp32"),
    "gb200": (40 / 90, "later sheet than that of its fp32"),
}
# no figure that two sources agree on
WITHOUT_FP64 = {"arc-pro-b60", "jetson-agx-orin", "jetson-agx-xavier", "jetson-orin-nx"}
COLUMNS = {
    "tf32_tflops_dense": DType.TF32,
    "fp16_tflops_dense": DType.FP16,
    "bf16_tflops_dense": DType.BF16,
    "int8_tops_dense": DType.INT8,
    "fp8_tflops_dense": DType.FP8,
    "fp4_tflops_dense": DType.FP4,
}


def content(name: str) -> dict[str, object]:
    return tomllib.loads((FILES / f"{name}.toml").read_text())


def rows(data: Path) -> list[dict[str, str]]:
    with (data / "kernel_level" / "devices.csv").open() as file:
        return list(csv.DictReader(file))


def codes(device: Device) -> set[str]:
    return {note.code for note in device.notes}


def test_the_catalogue_holds_the_named_devices() -> None:
    assert {
        "a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "h100-sxm5-80gb",
        "h100-pcie-80gb", "h100-nvl-94gb", "h200-sxm-141gb", "rtx-4090", "rtx-pro-6000-server",
        "t4", "v100-sxm2", "i9-10940x",
    } <= set(device_names())  # fmt: skip
    assert len(device_names()) >= 42


@pytest.mark.parametrize("name", device_names())
def test_a_file_is_named_after_its_device_and_leaves_no_figure_out(name: str) -> None:
    table = content(name)
    assert table["name"] == name
    assert set(FIGURES) <= set(table)
    assert {"title", "kind", "vendor", "architecture", "peak_flop_per_s", "sources"} <= set(table)


@pytest.mark.parametrize("name", device_names())
def test_every_figure_has_a_dated_source(name: str) -> None:
    sources = content(name)["sources"]
    assert isinstance(sources, dict)
    assert "2026-11" in sources["figures"]
    assert all(len(text) > 10 for key, text in sources.items() if key not in BASES)
    for basis in BASES:
        assert set(sources.get(basis, [])) <= set(SOURCED)
    # a figure that was worked out says how
    worked_out = [*sources.get("derived", []), *sources.get("estimated", [])]
    assert set(worked_out) <= set(sources)


def test_a_device_carries_its_sources_and_its_slices_too() -> None:
    part = find_device("a100-sxm4-80gb/2g.20gb")
    assert "aiconfigurator" in part.sources["figures"]
    assert "graph-replay floor" in part.sources["launch_s"]


@pytest.mark.parametrize("name", device_names())
def test_a_recalled_derived_or_estimated_figure_leaves_a_note(name: str) -> None:
    sources = content(name)["sources"]
    assert isinstance(sources, dict)
    notes = {note.code: note.text for note in DEVICES[name].notes}
    for basis, code in (("recalled", "spec-recalled"), ("derived", "spec-derived")):
        listed = set(sources.get(basis, [])) - {"fp64"}
        assert (code in notes) == bool(listed)
        assert all(figure in notes[code] for figure in listed)
    assert ("idle-power-estimated" in notes) == ("idle_power_w" in sources.get("estimated", []))
    assert ("launch-estimated" in notes) == ("launch_s" in sources.get("estimated", []))


def test_a_recalled_fp64_is_noted_only_for_who_computes_in_it() -> None:
    card = find_device("a100-sxm4-80gb")
    assert not any("fp64" in note.text for note in card.notes)
    for device in (card, card.slice("2g.20gb"), card.share(50)):
        assert set(device.rate_notes) == {DType.FP64}
        assert device.rate_notes[DType.FP64].code == "spec-recalled"
        assert device.rate_notes[DType.FP64].text.endswith(": fp64")


@pytest.mark.parametrize("name", device_names())
def test_fp64_has_the_ratio_of_its_architecture(name: str) -> None:
    device = DEVICES[name]
    assert (DType.FP64 not in device.peak_flop_per_s) == (name in WITHOUT_FP64)
    if name in WITHOUT_FP64:
        return
    ratio = 0.5 if device.kind == "cpu" else None
    if ratio is None:
        known = (r for begin, r in FP64_RATIOS.items() if device.architecture.startswith(begin))
        ratio = FP64_EXCEPTIONS[name][0] if name in FP64_EXCEPTIONS else next(known)
    fp32 = device.peak_flop_per_s[DType.FP32]
    # data sheets round to two digits
    assert device.peak_flop_per_s[DType.FP64] / fp32 == pytest.approx(ratio, rel=0.09)
    assert "fp64" in device.sources


@pytest.mark.parametrize(
    ("name", "vector", "matrix"),
    [("mi100", 23.1, 46.1), ("mi210", 22.6, 45.3), ("mi250", 45.3, 90.5)],
)
def test_the_fp32_rates_of_vector_and_matrix_units_are_kept_apart(
    name: str, vector: float, matrix: float
) -> None:
    device = find_device(name)
    assert device.peak_flop_per_s[DType.FP32] == vector * 1e12
    assert device.fp32_matrix_flop_per_s == matrix * 1e12
    assert device.matrix_flop_per_s(DType.FP32) == matrix * 1e12
    assert device.peak_for(PRECISIONS["fp32"]) == matrix * 1e12
    assert device.share(50).matrix_flop_per_s(DType.FP32) == matrix * 1e12 / 2


def test_a_device_without_fp32_matrix_units_contracts_at_the_vector_rate() -> None:
    device = find_device("a100-sxm4-80gb")
    assert device.fp32_matrix_flop_per_s is None
    assert device.slice("2g.20gb").fp32_matrix_flop_per_s is None
    for dtype in (DType.FP32, DType.FP16, DType.FP64):
        assert device.matrix_flop_per_s(dtype) == device.peak_flop_per_s[dtype]
    assert device.matrix_flop_per_s(DType.FP8) is None


def test_two_dies_sold_as_one_board_are_remarked_upon() -> None:
    remarks = [note for note in find_device("mi250").notes if note.code == "device-remark"]
    assert len(remarks) == 1
    assert "two devices of half these figures" in remarks[0].text
    single = find_device("mi210")
    for figure in ("compute_units", "memory_bytes", "cache_bytes"):
        assert getattr(find_device("mi250"), figure) == 2 * getattr(single, figure)


def test_a_cache_is_the_last_level_before_memory() -> None:
    assert find_device("mi300x").cache_bytes == 256 * 2**20
    assert "Infinity Cache" in find_device("mi300x").sources["cache_bytes"]


@pytest.mark.parametrize(
    ("name", "dtype", "ratio"),
    [
        *(
            (n, DType.INT8, 4)
            for n in ("gtx-1080", "gtx-1080ti", "titanx-pascal", "titanxp", "p4")
        ),
        *(
            (n, DType.INT8, 4)
            for n in ("v100-sxm2", "v100-pcie-16gb", "v100-sxm3-32gb", "titan-v")
        ),
        *((n, DType.FP16, 2) for n in ("mi25", "vega-fe", "p100-pcie-16gb", "p100-unspecified")),
    ],
)
def test_packed_arithmetic_of_vector_units_has_its_multiple_of_fp32(
    name: str, dtype: DType, ratio: float
) -> None:
    peaks = DEVICES[name].peak_flop_per_s
    assert peaks[dtype] / peaks[DType.FP32] == pytest.approx(ratio, rel=0.02)
    if name != "p4":  # vendor figure
        assert any(word in DEVICES[name].sources[dtype] for word in ("DP4A", "vector rate"))


@pytest.mark.parametrize("name", ["gtx-1080", "v100-sxm2", "titan-v", "mi25", "vega-fe"])
def test_packed_arithmetic_from_general_knowledge_is_noted(name: str) -> None:
    recalled = next(n.text for n in DEVICES[name].notes if n.code == "spec-recalled")
    assert ("fp16" if name in ("mi25", "vega-fe") else "int8") in recalled


@pytest.mark.parametrize("name", ["p100-pcie-16gb", "m40", "titanx-maxwell", "jetson-tx2"])
def test_a_gpu_without_dot_products_of_bytes_has_no_int8(name: str) -> None:
    assert DType.INT8 not in DEVICES[name].peak_flop_per_s


def test_a_product_of_a_similar_name_has_its_own_figures() -> None:
    a10, a10g = find_device("a10"), find_device("a10g")
    assert a10g.max_power_w == 2 * a10.max_power_w
    assert a10g.peak_flop_per_s[DType.FP16] < 0.6 * a10.peak_flop_per_s[DType.FP16]
    sxm2, sxm3 = find_device("v100-sxm2"), find_device("v100-sxm3-32gb")
    assert sxm3.clock_hz > sxm2.clock_hz
    assert sxm3.max_power_w > sxm2.max_power_w


@pytest.mark.parametrize("name", [n for n in device_names() if DEVICES[n].kind == "gpu"])
def test_fp32_peak_is_units_times_lanes_times_two_times_clock(name: str) -> None:
    device = DEVICES[name]
    lanes = next(n for begin, n in LANES.items() if device.architecture.startswith(begin))
    product = device.compute_units * lanes * 2 * device.clock_hz
    expected, _ = FP32_EXCEPTIONS.get(name, (1.0, ""))
    assert device.peak_flop_per_s[DType.FP32] / product == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", device_names())
def test_narrower_types_are_never_slower_in_the_matrix_units(name: str) -> None:
    peaks = DEVICES[name].peak_flop_per_s
    ladder = [DType.TF32, DType.FP16, DType.FP8, DType.FP4]
    rates = [peaks[dtype] for dtype in ladder if dtype in peaks]
    assert rates == sorted(rates)
    assert peaks.get(DType.BF16, 0) <= peaks.get(DType.FP16, float("inf"))


@pytest.mark.parametrize("name", device_names())
def test_figures_are_plausible_together(name: str) -> None:
    device = DEVICES[name]
    assert 0 < device.idle_power_w < device.max_power_w
    assert device.cache_bytes < device.memory_bytes / 8
    assert 1e-6 <= device.launch_s <= 3e-5
    assert 5e-6 <= device.host_s <= 1e-4
    if device.link is not None:
        assert device.link.bandwidth_bytes_per_s < device.memory_bandwidth_bytes_per_s
    assert 1 < device.peak_flop_per_s[DType.FP32] / device.memory_bandwidth_bytes_per_s < 200


def test_a_precision_that_the_data_sheet_lacks_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"t4 has no fp8 arithmetic.*fp16"):
        find_device("t4").peak_for(PRECISIONS["fp8"])


def test_every_device_of_the_table_is_in_the_catalogue_with_its_figures(data: Path) -> None:
    for row in rows(data):
        device = DEVICES[row["device"].lower()]
        assert device.compute_units == int(row["sms"])
        assert device.memory_bandwidth_bytes_per_s == float(row["mem_bw_gbs"]) * 1e9
        assert device.vendor == row["vendor"]
        if row["tdp_w"]:
            assert device.max_power_w == float(row["tdp_w"])
        for column, dtype in COLUMNS.items():
            if row[column]:
                expected = float(row[column]) * 1e12
                assert device.peak_flop_per_s[dtype] == pytest.approx(expected, rel=1e-5)
        if row["fp32_tflops"]:
            expected = float(row["fp32_tflops"]) * 1e12
            assert device.peak_flop_per_s[DType.FP32] == pytest.approx(expected, rel=1e-5)
        if row["l2_mb"] and device.name != "mi300x":  # behind its L2 lies another level
            assert device.cache_bytes == int(float(row["l2_mb"]) * 2**20)
        if row["mem_gb"] and device.kind == "gpu":
            # the table mixes GB and GiB: 7 % apart
            assert device.memory_bytes == pytest.approx(float(row["mem_gb"]) * 2**30, rel=0.08)
        assert bool(device.profiles) == (row["mig_capable"] == "True")


def test_a_figure_that_the_table_recalled_carries_a_note(data: Path) -> None:
    for row in rows(data):
        # the optional NVLink bridge is not the link of a PCIe board here
        unused = row["recalled_not_rechecked"] == "nvlink" and "PCIe" in row["device"]
        if row["recalled_not_rechecked"] and not unused:
            noted = codes(DEVICES[row["device"].lower()])
            assert noted & {"spec-recalled", "spec-derived"}, row["device"]


def test_no_measured_rate_exceeds_the_peak(data: Path) -> None:
    seen = 0
    for row in rows(data):
        if row["max_fp32_tflops_seen_in_data"]:
            peak = DEVICES[row["device"].lower()].matrix_flop_per_s(DType.FP32)
            assert peak is not None
            assert float(row["max_fp32_tflops_seen_in_data"]) * 1e12 <= peak * 1.001
            seen += 1
    assert seen == 9


def test_launch_and_idle_power_follow_the_measured_floors(data: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(
        data / "kernel_level" / "kernels_gemm.parquet",
        columns=["source", "device", "latency_us", "power_w"],
        filters=[("source", "=", "aiconfigurator")],
    )
    grouped = table.group_by("device").aggregate([("power_w", "min")]).to_pylist()
    assert len(grouped) == 9
    for group in grouped:
        device = DEVICES[group["device"].lower()]
        latency = table.filter(pc.equal(table["device"], group["device"]))["latency_us"]
        floor_s = pc.quantile(latency, q=0.01)[0].as_py() * 1e-6
        # an eager launch is taken as 2.5 graph replays; the Arc was timed without a graph
        factor = 1.0 if device.name == "arc-pro-b60" else 2.5
        assert device.launch_s == pytest.approx(factor * floor_s, rel=0.03)
        if group["power_w_min"] is not None:
            assert device.idle_power_w == pytest.approx(group["power_w_min"], rel=0.01)
            assert "idle-power-estimated" not in codes(device)


def test_no_eager_launch_is_above_the_least_eager_kernel_seen(data: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(
        data / "kernel_level" / "kernels_elementwise.parquet",
        columns=["source", "device", "latency_us"],
        filters=[("source", "=", "NeuSight")],
    )
    least = table.group_by("device").aggregate([("latency_us", "min")]).to_pylist()
    assert len(least) == 8
    for group in least:
        assert DEVICES[group["device"].lower()].launch_s <= group["latency_us_min"] * 1e-6


def test_an_estimated_power_floor_is_the_stated_part_of_the_limit_and_says_what_it_is() -> None:
    for device in DEVICES.values():
        if "idle-power-estimated" in codes(device):
            text = next(n.text for n in device.notes if n.code == "idle-power-estimated")
            assert "floor of power while work runs (clocks up), not at rest" in text
            expected = POWER_FLOOR_FRACTION * device.max_power_w
            assert device.idle_power_w == pytest.approx(expected, rel=0.01)
