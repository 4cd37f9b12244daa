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
from slicewise.hardware.device_file import BASES, IDLE_FRACTION, SOURCED
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
    "h20-96gb": (1.113, "vendor figure; the clock is that of H100"),
    "mi100": (2.0, "matrix units"),
    "mi210": (2.0, "matrix units"),
    "mi250": (2.0, "matrix units"),
    "mi300x": (2.0, "two operations a lane and clock"),
}
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
        assert (code in notes) == bool(sources.get(basis))
        assert all(figure in notes[code] for figure in sources.get(basis, []))
    assert ("idle-power-estimated" in notes) == ("idle_power_w" in sources.get("estimated", []))
    assert ("launch-estimated" in notes) == ("launch_s" in sources.get("estimated", []))


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
        if row["fp32_tflops"] and not device.architecture.startswith("CDNA"):
            expected = float(row["fp32_tflops"]) * 1e12
            assert device.peak_flop_per_s[DType.FP32] == pytest.approx(expected, rel=1e-5)
        if row["l2_mb"]:
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
            peak = DEVICES[row["device"].lower()].peak_flop_per_s[DType.FP32]
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


def test_estimated_idle_power_is_the_stated_part_of_the_limit() -> None:
    for device in DEVICES.values():
        if "idle-power-estimated" in codes(device):
            expected = IDLE_FRACTION * device.max_power_w
            assert device.idle_power_w == pytest.approx(expected, rel=0.01)
