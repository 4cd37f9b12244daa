"""Finding a device: names, aliases, parts, reports of measured data, and what is refused."""

import csv
import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import DeviceError
from slicewise.hardware.aliases import ALIASES, DEFAULTED, NOTED, REFUSED, fold
from slicewise.hardware.catalogue import device_names, find_device, load_device_file
from slicewise.hardware.nearest import nearest_devices

SEPARATORS = st.sampled_from(["-", " ", "_", ""])


def test_names_are_sorted_lower_case_and_without_separators_of_the_command_line() -> None:
    names = device_names()
    assert list(names) == sorted(set(names))
    assert all(name == name.lower() and not set(name) & set("/@, ") for name in names)


def test_no_two_devices_fold_to_the_same_name() -> None:
    folded = [fold(name) for name in device_names()]
    assert len(set(folded)) == len(folded)
    assert "" not in folded


def test_every_alias_leads_to_a_device_and_hides_none() -> None:
    own = {fold(name) for name in device_names()}
    tables = (ALIASES, DEFAULTED, NOTED, REFUSED)
    keys = [key for table in tables for key in table]
    assert not own & set(keys)
    assert len(keys) == len(set(keys))
    assert set(ALIASES.values()) <= set(device_names())
    assert {name for name, _ in NOTED.values()} <= set(device_names())
    for names in (*DEFAULTED.values(), *REFUSED.values()):
        assert len(names) > 1
        assert set(names) <= set(device_names())


@given(st.sampled_from(device_names()), SEPARATORS, st.booleans())
def test_case_spaces_and_dashes_do_not_matter(name: str, mark: str, upper: bool) -> None:
    text = name.replace("-", mark)
    assert find_device(f" {text.upper() if upper else text} ").name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Intel(R) Core(TM) i9-10940X CPU", "i9-10940x"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("AMD Instinct MI300X OAM", "mi300x"),
    ],
)
def test_the_names_that_drivers_print_are_known(text: str, name: str) -> None:
    device = find_device(text)
    assert device.name == name
    assert "device-ambiguous" not in {note.code for note in device.notes}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("L40-48GB", "l40"),
        ("l40s 48 GB", "l40s"),
        ("T4-16GB", "t4"),
        ("rtx 4090 24gb", "rtx-4090"),
        ("NVIDIA GeForce RTX 3080 10GB", "rtx-3080"),
        ("AMD Instinct MI300X 192GB", "mi300x"),
        ("B200 180GB", "b200-sxm"),
        ("B200-192GB", "b200-sxm"),
        ("B300 288GB", "b300-sxm"),  # decimal, as the vendor counts
        ("h100 94gb", "h100-nvl-94gb"),
        ("H100 NVL 94 GiB", "h100-nvl-94gb"),
        ("GH200 144GB", "gh200-144gb"),
        ("a30_24gb/1g.6gb", "a30/1g.6gb"),
        ("Jetson AGX Orin 64GB", "jetson-agx-orin"),
    ],
)
def test_a_name_followed_by_the_memory_of_the_card_is_that_card(text: str, name: str) -> None:
    device = find_device(text)
    assert device.name == name
    assert "device-ambiguous" not in {note.code for note in device.notes}


@given(st.sampled_from(device_names()), st.integers(1, 600))
def test_a_card_found_by_its_memory_has_it(name: str, size: int) -> None:
    try:
        device = find_device(f"{name} {size}gb")
    except DeviceError:
        return
    assert 0.92 * size * 1e9 <= device.memory_bytes <= 1.08 * (size + 1) * 2**30


@pytest.mark.parametrize(
    ("text", "name", "other"),
    [
        ("H100-96GB", "gh200-96gb", "bandwidth of H100 SXM5"),
        ("H200-141GB", "h200-sxm-141gb", "h200-nvl-141gb"),
        ("Tesla P100 PCIe", "p100-pcie-16gb", "12 GB"),
        ("NVIDIA RTX PRO 5000 Blackwell", "rtx-pro-5000-48gb", "72 GB"),
        ("NVIDIA Orin NX", "jetson-orin-nx", "8 GB"),
        ("AGX Orin", "jetson-agx-orin", "32 GB"),
        ("V100-32GB", "v100-sxm2", "v100-sxm3-32gb"),
    ],
)
def test_a_name_that_another_product_bears_too_is_noted(text: str, name: str, other: str) -> None:
    device = find_device(text)
    assert device.name == name
    assert device.notes[0].code == "device-ambiguous"
    assert other in device.notes[0].text
    assert device.notes[0].text.endswith(f"{name} is taken")


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("h1o0", ["h100-sxm5-80gb", "h100-pcie-80gb", "h100-nvl-94gb"]),
        ("L4o", ["l40"]),
        ("mi300", ["mi300x"]),
        ("3080", ["rtx-3080"]),
        ("orin", ["jetson-orin-nx", "jetson-agx-orin"]),
        ("MI250X", ["mi250"]),
        ("rtx 4080 super", ["rtx-4080"]),
        ("RTX 5090 Laptop GPU", ["rtx-5090"]),
        ("a100-sxm5-80gb", ["a100-sxm4-40gb", "a100-sxm4-80gb"]),
        ("gpu:x", ["gpu:0"]),
        ("GPU 0", ["gpu:0"]),
        ("cuda:", ["gpu:0"]),
        ("cpu:0", ["cpu"]),
    ],
)
def test_a_misspelt_name_gets_the_likeliest_and_no_others(text: str, hints: list[str]) -> None:
    with pytest.raises(DeviceError) as caught:
        find_device(text)
    assert f"is unknown; did you mean {', '.join(hints)}?" in str(caught.value)


@given(st.text(alphabet="abghlrtx0123456789 -", min_size=1, max_size=12))
def test_hints_are_few_and_can_be_typed(text: str) -> None:
    hints = nearest_devices(text, device_names())
    assert len(hints) <= 4
    assert set(hints) <= {*device_names(), "cpu", "gpu:0"}


@pytest.mark.parametrize("text", ["a100", "A100", "h100", "v100", "a100-sxm4", "rtx pro 6000"])
def test_a_short_name_of_several_devices_is_refused_with_the_choice(text: str) -> None:
    with pytest.raises(DeviceError, match=r"is ambiguous; choose one of .+, .+"):
        find_device(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB", "a100-sxm4-80gb"),
        ("A100-80GB", "a100-sxm4-80gb"),
        ("NVIDIA V100 (memory size not stated)", "v100-sxm2-16gb"),
        ("NVIDIA V100 32GB", "v100-sxm2"),
        ("NVIDIA TITAN X", "titanx-pascal"),
    ],
)
def test_a_report_that_leaves_the_variant_open_takes_one_and_says_so(text: str, name: str) -> None:
    device = find_device(text)
    assert device.name == name
    assert device.notes[0].code == "device-ambiguous"
    assert name in device.notes[0].text
    assert text in device.notes[0].text


def test_a_slice_in_a_report_is_found() -> None:
    part = find_device("NVIDIA A100 40GB MIG 1g.5gb")
    assert part.name == "a100-sxm4-40gb/1g.5gb"
    assert part.compute_units == 14


def test_a_slice_and_a_share_are_parts_with_their_card_as_parent() -> None:
    part = find_device("H100 SXM5 80GB/2g.20gb")
    assert part.name == "h100-sxm5-80gb/2g.20gb"
    assert part.parent == find_device("h100-sxm5-80gb")
    for text in ("h100-sxm5-80gb@50%", "h100-sxm5-80gb@50", "h100-sxm5-80gb@ 50.0 %"):
        assert find_device(text).name == "h100-sxm5-80gb@50%"
        assert find_device(text).compute_units == 66


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"device '' is no name"),
        ("   ", r"is no name"),
        ("a100\n", None),
        ("a100-sxm4-80gb\x00", r"is no name"),
        ("x" * 5000, r"is no name"),
        ("a100-sxm5-80gb", r"is unknown; did you mean .*a100-sxm4-80gb"),
        ("rtx 4090 48gb", r"'rtx 4090 48gb' is unknown: rtx-4090 has 24.0 GiB; give that name"),
        ("rtx 3080 12gb", r"rtx-3080 has 10.0 GiB"),
        ("a100-sxm4-80g", r"is unknown; did you mean a100-sxm4-80gb\?"),
        ("titan x 12 gb", r"is ambiguous; choose one of titanx-pascal, titanx-maxwell"),
        ("v100s 32gb", r"is unknown; did you mean v100"),
        ("gpu", r"gpu:0"),
        ("nonsense", r"`slicewise devices` lists all \d+; .*\./mine\.toml.*add-a-device"),
        ("2x H100", r"is several devices; slicewise predicts one"),
        ("NVIDIA H100 80GB HBM3 x8", r"is several devices; slicewise predicts one"),
        ("A100-80GB x4 (tensor parallel)", r"is several devices"),
        ("a100-sxm4-80gb/", r"lacks the profile; write a100-sxm4-80gb/1g.10gb, or a100-sxm4-80gb"),
        ("t4/", r"lacks the profile; write t4@50% \(it has no slices\), or t4 for the whole"),
        ("t4@", r"share '' of t4 is not a percentage; write t4@50%"),
        ("a100-sxm4-80gb/5g.50gb", r"has no slice profile '5g.50gb'; it has 1g.10gb"),
        ("a100-sxm4-80gb/2g.10gb", r"did you mean 2g.20gb"),
        ("a100-sxm4-80gb/2g.20gb/1g.10gb", r"more than one part"),
        ("a100-sxm4-80gb/2g.20gb@50%", r"more than one part; give one slice .* or one share"),
        ("a100-sxm4-80gb@50/2g.20gb", r"more than one part"),
        ("a100-sxm4-80gb@", r"share '' .* is not a percentage"),
        ("a100-sxm4-80gb@half", r"share 'half' .* is not a percentage"),
        ("a100-sxm4-80gb@-5", r"is not a percentage"),
        ("a100-sxm4-80gb@nan", r"is not a percentage"),
        ("a100-sxm4-80gb@1e2", r"is not a percentage"),
        ("a100-sxm4-80gb@0", r"over 0 and at most 100"),
        ("a100-sxm4-80gb@100.5%", r"over 0 and at most 100"),
        ("t4/1g.5gb", r"t4 cannot be sliced"),
        ("/2g.20gb", r"looks like a path"),
        ("@50", r"device '' is unknown"),
        ("./mine.json", r"ends in \.toml"),
        ("~/gpu", r"ends in \.toml"),
        ("./absent.toml", r"no such device file"),
        ("~nobody-of-that-name/x.toml", r"no such home folder"),
        ("Huawei Ascend 310", r"is known \(an NPU\), but there is no data sheet of it here"),
        ("unknown NVIDIA GPU", r"no data sheet of it here; write its figures into a TOML file"),
        ("../devices/t4", r"looks like a path"),
        ("mig/a100-40gb", r"device 'mig' is unknown"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_gives_one_clear_line(text: str, match: str | None) -> None:
    with pytest.raises(DeviceError, match=match) as caught:
        find_device(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


@given(st.text(max_size=40))
def test_any_text_gives_a_device_or_a_device_error(text: str) -> None:
    try:
        device = find_device(text)
    except DeviceError as err:
        assert str(err)
    else:
        assert device.compute_units >= 1


def strings_of_the_measured_data(data: Path) -> set[str]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    strings: set[str] = set()
    for name in ("model_level/open.csv.gz", "sharing/slices_open.csv.gz"):
        with gzip.open(data / name, "rt") as file:
            strings |= {row["device"] for row in csv.DictReader(file)}
    for name in ("end_to_end.csv", "model_kernels.csv", "devices.csv"):
        with (data / "kernel_level" / name).open() as file:
            strings |= {row["device"] for row in csv.DictReader(file)}
    for path in sorted((data / "kernel_level").glob("*.parquet")):
        column = pq.read_table(path, columns=["device"])["device"]
        strings |= set(pc.unique(column).to_pylist())
    for name in ("mig_profiles.csv", "mig_placements.csv"):
        with (data / "sharing" / name).open() as file:
            strings |= {row["gpu"] for row in csv.DictReader(file)}
    return strings


def test_every_device_string_of_the_measured_data_is_a_device_or_known_without_data_sheet(
    data: Path,
) -> None:
    strings = strings_of_the_measured_data(data)
    found, refused = set(), {}
    for text in strings:
        try:
            found.add(find_device(text).whole.name)
        except DeviceError as err:
            refused[text] = str(err)
    assert len(strings) > 100
    assert len(found) > 50
    for text, message in refused.items():
        assert "no data sheet of it here" in message or "is several devices" in message, text
    # none of the GPUs that carry the accuracy tables may be among the refused
    assert not any("NVIDIA" in text and " x" not in text for text in refused if text[0] == "N")


def test_loading_a_device_reads_only_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Path.read_bytes

    def watched(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", watched)
    find_device("a100-sxm4-80gb")
    assert read == ["a100-sxm4-80gb.toml", "a100-80gb.toml"]


def test_the_catalogue_loads_no_numeric_library() -> None:
    code = (
        "import sys; from slicewise.hardware.catalogue import find_device;"
        "find_device('a100-sxm4-80gb/2g.20gb'); find_device('cpu');"
        "print([m for m in ('numpy', 'onnx', 'pynvml', 'rich', 'msgspec') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_catalogue_works_from_inside_a_zip(tmp_path: Path) -> None:
    import zipfile

    import slicewise

    package = Path(slicewise.__file__).parent
    archive = tmp_path / "slicewise.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(package.rglob("*")):
            if path.suffix in (".py", ".toml"):
                file.write(path, path.relative_to(package.parent))
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r});"
        "import slicewise.hardware.catalogue as c; assert '.zip' in c.__file__;"
        "print(c.find_device('a100-sxm4-80gb/2g.20gb').name, len(c.device_names()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["a100-sxm4-80gb/2g.20gb", str(len(device_names()))]


def test_a_shipped_file_loads_like_a_users_file(tmp_path: Path) -> None:
    from importlib import resources

    text = (resources.files("slicewise.hardware") / "devices" / "h100-pcie-80gb.toml").read_text()
    path = tmp_path / "copy.toml"
    path.write_text(text)
    assert load_device_file(path) == find_device("h100-pcie-80gb")
