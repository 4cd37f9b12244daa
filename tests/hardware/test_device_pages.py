"""The pages about devices say what the catalogue holds."""

import re
import runpy
from pathlib import Path

from slicewise.core.precision import DType
from slicewise.hardware.catalogue import load_device_file
from slicewise.hardware.device_file import DEFAULTS, DEVICE_KEYS
from slicewise.hardware.slice_file import PROFILE_KEYS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "add-a-device.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)


def test_the_page_of_devices_is_the_one_the_catalogue_gives() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "devices_page.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/devices_page.py"


def test_the_smallest_file_of_the_guide_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(blocks()[0])
    device = load_device_file(path)
    assert device.name == "mine"
    assert device.peak_flop_per_s[DType.FP16] == 1.548e14


def test_all_parts_of_the_guide_together_are_a_device_without_defaults(tmp_path: Path) -> None:
    smallest, link, slices, sources = blocks()
    slots, profiles = slices.split("\n", 1)
    defaults = "clock_hz = 1.8e9\nidle_power_w = 50\nlaunch_s = 8e-6\nhost_s = 2e-5\n"
    path = tmp_path / "mine.toml"
    path.write_text(f"{slots}\n{defaults}{smallest}\n{link}\n{profiles}\n{sources}")
    device = load_device_file(path)
    assert [profile.name for profile in device.profiles] == ["1g.12gb", "2g.24gb"]
    assert device.slice("2g.24gb").memory_bandwidth_bytes_per_s == 3.84e11
    assert {note.code for note in device.notes} == {
        "spec-recalled", "spec-derived", "idle-power-estimated",
    }  # fmt: skip


def test_the_guide_names_every_key() -> None:
    for key in (*DEVICE_KEYS, *PROFILE_KEYS):
        assert re.search(rf"\b{key}\b", GUIDE), key
    for default in DEFAULTS.values():
        assert default.code in GUIDE
