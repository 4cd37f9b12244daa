"""A user's device file: few lines are enough, and every mistake gives one clear line."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import DeviceError
from slicewise.core.precision import DType
from slicewise.hardware.catalogue import find_device, load_device_file

MINIMAL = {
    "name": '"mine"',
    "kind": '"gpu"',
    "compute_units": "80",
    "memory_bytes": "34359738368",
    "memory_bandwidth_bytes_per_s": "9.0e11",
    "cache_bytes": "6291456",
    "max_power_w": "300",
}
PEAKS = "[peak_flop_per_s]\nfp32 = 1.57e13\nfp16 = 1.25e14\n"
PROFILE = {
    "name": '"1g.5gb"',
    "compute_units": "14",
    "memory_bytes": "5_000_000_000",
    "starts": "[0, 1, 2, 3]",
    "size": "1",
}


def text_of(
    changes: Mapping[str, str | None] | None = None, *, peaks: str = PEAKS, tail: str = ""
) -> str:
    """A device file with some keys changed, or left out where the change is None."""
    keys = {**MINIMAL, **(changes or {})}
    top = "".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None)
    return f"{top}{peaks}{tail}"


def profile_of(**changes: str | None) -> str:
    keys = {**PROFILE, **changes}
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None)
    return f"[[profile]]\n{lines}"


def write(folder: Path, text: str | bytes, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def error_of(path: Path) -> str:
    with pytest.raises(DeviceError) as caught:
        load_device_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def test_a_minimal_file_makes_a_device_and_notes_every_default(tmp_path: Path) -> None:
    path = write(tmp_path, text_of())
    device = load_device_file(path)
    assert (device.name, device.kind, device.compute_units) == ("mine", "gpu", 80)
    assert device.peak_flop_per_s == {DType.FP32: 1.57e13, DType.FP16: 1.25e14}
    assert device.idle_power_w == pytest.approx(0.18 * 300)
    assert {note.code for note in device.notes} == {
        "clock-assumed", "idle-power-estimated", "launch-estimated", "host-estimated",
    }  # fmt: skip
    assert device.link is None
    assert device.profiles == ()


def test_a_complete_file_leaves_no_note(tmp_path: Path) -> None:
    figures = {"clock_hz": "1.53e9", "idle_power_w": "40", "launch_s": "4e-6", "host_s": "2e-5"}
    words = {"title": '"My card"', "vendor": '"Me"', "architecture": '"None"'}
    link = '[link]\nname = "wire"\nbandwidth_bytes_per_s = 1e10\nlatency_s = 0\n'
    whole = text_of({**figures, **words}, tail=link)
    device = load_device_file(write(tmp_path, whole))
    assert device.notes == ()
    assert device.link is not None
    assert (device.link.bandwidth_bytes_per_s, device.link.latency_s) == (1e10, 0)


def test_a_file_takes_a_share_or_a_slice_behind_its_path(tmp_path: Path) -> None:
    path = write(tmp_path, text_of({"memory_slots": "4"}, tail=profile_of()))
    assert find_device(str(path)).name == "mine"
    assert find_device(f"{path}/1g.5gb").compute_units == 14
    assert find_device(f"{path}@25%").compute_units == 20
    with pytest.raises(DeviceError, match=r"has no slice profile '2g\.5gb'; it has 1g\.5gb"):
        find_device(f"{path}/2g.5gb")


def test_a_file_may_give_a_matrix_rate_of_fp32_and_remarks(tmp_path: Path) -> None:
    text = text_of({"remarks": '["one of two", "loud"]'}, peaks=f"{PEAKS}fp32_matrix = 3.14e13\n")
    device = load_device_file(write(tmp_path, text))
    assert device.peak_flop_per_s[DType.FP32] == 1.57e13
    assert device.matrix_flop_per_s(DType.FP32) == 3.14e13
    remarks = [note.text for note in device.notes if note.code == "device-remark"]
    assert remarks == ["mine: one of two", "mine: loud"]


def test_remarks_that_are_no_list_are_refused(tmp_path: Path) -> None:
    assert "remarks='one' must be a list of strings" in error_of(
        write(tmp_path, text_of({"remarks": "'one'"}))
    )


def test_a_default_of_idle_power_is_called_a_floor_under_work(tmp_path: Path) -> None:
    device = load_device_file(write(tmp_path, text_of()))
    text = next(n.text for n in device.notes if n.code == "idle-power-estimated")
    assert "the floor of power while work runs: 18% of max_power_w taken" in text


def test_a_relative_path_and_capital_suffix_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text_of(), "Mine.TOML")
    assert find_device("./Mine.TOML").name == "mine"
    assert find_device("Mine.TOML@50").compute_units == 40


def test_a_file_borrows_the_profiles_of_a_shipped_board(tmp_path: Path) -> None:
    big = text_of({"mig": '"a100-40gb"', "compute_units": "108", "memory_bytes": "42949672960"})
    device = load_device_file(write(tmp_path, big))
    assert device.profiles == find_device("a100-sxm4-40gb").profiles
    assert device.memory_slots == 8


def test_profile_defaults_follow_from_name_and_starts(tmp_path: Path) -> None:
    tail = profile_of(name='"2g.10gb"', starts="[0, 2]", size="2", compute_units="28")
    device = load_device_file(write(tmp_path, text_of({"memory_slots": "4"}, tail=tail)))
    (profile,) = device.profiles
    assert (profile.compute_slices, profile.memory_slices, profile.max_instances) == (2, 2, 2)


@pytest.mark.parametrize("key", list(MINIMAL))
def test_a_missing_figure_is_named_with_a_line_to_add(tmp_path: Path, key: str) -> None:
    without: dict[str, str | None] = {key: None}
    message = error_of(write(tmp_path, text_of(without)))
    assert re.search(rf"mine\.toml: lacks {key} \(.+\); add a line like: {key} = ", message)


@pytest.mark.parametrize("key", [key for key in MINIMAL if key not in ("name", "kind")])
@pytest.mark.parametrize(
    "value",
    ["-1", "0", "nan", "inf", "-inf", "true", '"80"', "[1]", "{}", "1979-05-27", "9" * 400],
)
def test_an_impossible_figure_is_named_with_its_value(
    tmp_path: Path, key: str, value: str
) -> None:
    message = error_of(write(tmp_path, text_of({key: value})))
    assert f"mine.toml: {key}=" in message
    assert re.search(r"must be a number|lies between", message)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"memory_bandwidth_bytes_per_s": "1e3"},
         r"=1000\.0 is impossible; .* did you mean 1e\+12 \(1000 GB/s\)\?"),
        ({"memory_bandwidth_bytes_per_s": "2"}, r"did you mean 2e\+12 \(2 TB/s\)\?"),
        ({"memory_bytes": "80"}, r"did you mean 85899345920 \(80 GiB\)\?"),
        ({"memory_bytes": "81920"}, r"did you mean 85899345920 \(81920 MiB\)\?"),
        ({"clock_hz": "1410"}, r"did you mean 1\.41e\+09 \(1410 MHz\)\?"),
        ({"cache_bytes": "40"}, r"did you mean 41943040 \(40 MiB\)\?"),
        ({"launch_s": "5"}, r"did you mean 5e-06 \(5 us\)\?"),
        ({"compute_units": "80.5"}, r"compute_units=80\.5 must be a whole number"),
        ({"compute_units": "1_000_000"}, r"compute_units=1000000 is impossible"),
        ({"idle_power_w": "301"}, r"idle_power_w=301 is above max_power_w=300"),
        ({"idle_power_w": "-1"}, r"idle_power_w=-1 is impossible"),
        ({"cache_bytes": "68719476736"}, r"cache_bytes=68719476736 is above memory_bytes"),
        ({"kind": '"tpu"'}, r"kind='tpu' is unknown; allowed are gpu, cpu"),
        ({"kind": "1"}, r"kind=1 must be a string"),
        ({"name": '""'}, r"name='' must have 1 to 100 characters"),
        ({"name": '"a/b"'}, r"none of them / @ ,"),
        ({"name": '"a\\nb"'}, r"must be a string of one line"),
        ({"title": "3"}, r"title=3 must be a string"),
        ({"memory_byte": "1"}, r"unknown key memory_byte; .*; did you mean memory_bytes\?"),
        ({"colour": '"red"'}, r"unknown key colour; allowed are name"),
        ({"mig": '"a100"'}, r"mig='a100' is no board; known are a100-40gb"),
        ({"mig": '"../mig/a100-40gb"'}, r"is no board"),
        ({"mig": '"a100-80gb"', "memory_bytes": "85899345920"},
         r"profile 7g\.80gb has compute_units=98, more than the card's 80"),
        ({"mig": '"a100-80gb"'}, r"profile 3g\.40gb has 39\.2 GiB of memory, more than the"),
        ({"memory_slots": "0"}, r"memory_slots=0 is impossible"),
        ({"memory_slots": "4", "mig": '"a100-40gb"'}, r"has both mig and its own profiles"),
        ({"profile": "3"}, r"must be tables, each opened by \[\[profile\]\]"),
    ],
)  # fmt: skip
def test_a_mistake_gets_the_hint_that_mends_it(
    tmp_path: Path, changes: dict[str, str], match: str
) -> None:
    assert re.search(match, error_of(write(tmp_path, text_of(changes))))


@pytest.mark.parametrize(
    ("peaks", "match"),
    [
        ("", r"lacks the table \[peak_flop_per_s\]"),
        ("[peak_flop_per_s]\n", r"lacks peak_flop_per_s\.fp32"),
        ("[peak_flop_per_s]\nfp16 = 1e14\n", r"lacks peak_flop_per_s\.fp32"),
        ("[peak_flop_per_s]\nfp32 = 19.5\n", r"did you mean 1\.95e\+13 \(19\.5 Tflop/s\)\?"),
        ("[peak_flop_per_s]\nfp32 = 0\n", r"peak_flop_per_s\.fp32=0 is impossible"),
        ("[peak_flop_per_s]\nfp32 = nan\n", r"peak_flop_per_s\.fp32=nan is impossible"),
        ("[peak_flop_per_s]\nfp32 = 1e13\nfp61 = 1e13\n",
         r"unknown key peak_flop_per_s\.fp61; .*did you mean peak_flop_per_s\.fp"),
        ("[peak_flop_per_s]\nfp32 = 2e13\nfp32_matrix = 1e13\n",
         r"fp32_matrix=1e\+13 is below fp32=2e\+13; .*correct it or leave it out"),
        ("[peak_flop_per_s]\nfp32 = 2e13\nfp32_matrix = 40\n",
         r"fp32_matrix=40 is impossible; .*did you mean 4e\+13 \(40 Tflop/s\)"),
        ("peak_flop_per_s = 1e13\n", r"peak_flop_per_s=.* must be a table"),
    ],
)  # fmt: skip
def test_a_wrong_peak_is_named(tmp_path: Path, peaks: str, match: str) -> None:
    assert re.search(match, error_of(write(tmp_path, text_of(peaks=peaks))))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"memory_bytes": "50_000_000_000"},
         r"profile 1g\.5gb has 46\.6 GiB of memory, more than the card's"),
        ({"compute_units": "81"},
         r"profile 1g\.5gb has compute_units=81, more than the card's 80"),
        ({"compute_units": None}, r"lacks profile\[1g\.5gb\]\.compute_units"),
        ({"memory_bytes": None}, r"lacks profile\[1g\.5gb\]\.memory_bytes"),
        ({"starts": None}, r"lacks profile\[1g\.5gb\]\.starts"),
        ({"starts": "[]"}, r"starts=\[\] must be a list of different slots between 0 and 3"),
        ({"starts": "[0, 0]"}, r"must be a list of different slots"),
        ({"starts": "[4]"}, r"must be a list of different slots"),
        ({"starts": "[-1]"}, r"must be a list of different slots"),
        ({"starts": "[true]"}, r"must be a list of different slots"),
        ({"starts": "3"}, r"must be a list of different slots"),
        ({"size": "2"}, r"profile 1g\.5gb from slot 3 with size=2 ends beyond memory_slots=4"),
        ({"size": "5"}, r"size=5 is impossible"),
        ({"max_instances": "5"}, r"max_instances=5 is impossible"),
        ({"name": '"big"'}, r"profile name 'big' is not of the form 2g\.10gb"),
        ({"name": None}, r"lacks profile\[0\]\.name"),
        ({"cache_fraction": "1.5"}, r"cache_fraction=1\.5 is impossible"),
        ({"aliases": '["1g.5gb"]'}, r"profile name '1g\.5gb' is given twice"),
        ({"aliases": "[3]"}, r"must be a list of strings"),
        ({"estimated": '["nothing"]'}, r"estimated names no figure: nothing"),
        ({"start": "[0]"},
         r"unknown key profile\[1g\.5gb\]\.start; .*mean profile\[1g\.5gb\]\.starts"),
    ],
)  # fmt: skip
def test_a_wrong_profile_is_named(
    tmp_path: Path, changes: dict[str, str | None], match: str
) -> None:
    text = text_of({"memory_slots": "4"}, tail=profile_of(**changes))
    assert re.search(match, error_of(write(tmp_path, text)))


def test_profiles_need_the_number_of_slots(tmp_path: Path) -> None:
    assert "lacks memory_slots" in error_of(write(tmp_path, text_of(tail=profile_of())))


@pytest.mark.parametrize(
    ("tail", "match"),
    [
        ("[link]\n", r"lacks link\.bandwidth_bytes_per_s"),
        ("[link]\nbandwidth_bytes_per_s = 25\n", r"did you mean 2\.5e\+10 \(25 GB/s\)\?"),
        ("[link]\nbandwidth = 25\n", r"unknown key link\.bandwidth"),
        ("[link]\nbandwidth_bytes_per_s = 1e10\nlatency_s = -1\n", r"link\.latency_s=-1"),
        ("[sources]\nnothing = 'x'\n", r"unknown key sources\.nothing"),
        ("[sources]\nfigures = 3\n", r"sources\.figures=3 must be a string"),
        ("[sources]\nrecalled = ['speed']\n", r"sources\.recalled names 'speed'"),
        ("[sources]\nrecalled = 'fp32'\n", r"sources\.recalled='fp32' must be a list of strings"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, tail: str, match: str) -> None:
    assert re.search(match, error_of(write(tmp_path, text_of(tail=tail))))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"lacks name"),
        (b"name = \n", r"is not TOML: .*line 1"),
        (b"{}", r"is not TOML"),
        (b"\xff\xfe\x00", r"is not UTF-8 text \(byte 0\)"),
        (b"\x00", r"is not TOML"),
        (b'name = "a"\nname = "b"\n', r"is not TOML"),
        (b"x = " + b"[" * 100_000, r"is nested too deeply|is not TOML"),
        (b"#" * (2**20 + 1), r"has 1048577 bytes; a device file is a page of text"),
    ],
)
def test_what_is_not_a_device_file_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    assert re.search(match, error_of(write(tmp_path, content)))


def test_a_directory_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    assert "is a directory" in error_of(tmp_path)
    assert "no such device file" in error_of(tmp_path / "absent.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    assert "no such device file" in error_of(tmp_path / "pipe.toml")


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, text_of())

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot be read: Permission denied; check path and permissions" in error_of(path)


def test_a_name_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: File name too long" in error_of(tmp_path / ("x" * 300 + ".toml"))


@given(
    st.sampled_from(sorted(set(MINIMAL) - {"name", "kind"})),
    st.one_of(st.floats(allow_nan=True), st.integers(-(2**70), 2**70)),
)
def test_any_number_gives_a_device_or_a_device_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: float
) -> None:
    written = value if math.isfinite(value) else ("nan" if math.isnan(value) else "inf")
    path = write(tmp_path_factory.mktemp("device"), text_of({key: str(written)}))
    try:
        device = load_device_file(path)
    except DeviceError as err:
        assert "mine.toml" in str(err)
    else:
        assert getattr(device, key) > 0
