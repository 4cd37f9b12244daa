"""Cards as drawings, in text and on a page: every slice is named, nothing is out of its slots."""

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from slicewise.app.cli import run
from slicewise.app.html.slots import fleet_slots, gpu_slots
from slicewise.app.slicing.drawing import (
    alike,
    fleet_drawing,
    gpu_drawing,
    layout_bar,
    room_words,
    slice_words,
)
from slicewise.app.slicing.layouts_report import layouts_report
from slicewise.core.packing import Packing, PackProblem, PlacedGpu
from slicewise.hardware.catalogue import find_device
from slicewise.slices.layouts import maximal_layouts, multisets
from tests.slices.cards import A30, A100, L4, NASTY, packing, packings, placed, problem

Golden = Callable[[str, str], None]
LONG = "a-workload-with-a-long-name"


def text(made: RenderableType, *, width: int = 118, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, highlight=False, markup=False, emoji=False).print(made)
    file.flush()
    content = file.buffer
    assert isinstance(content, io.BytesIO)
    lines = content.getvalue().decode(encoding).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def fleet() -> tuple[Packing, PackProblem]:
    """Cards that show all that a drawing can: shares of load, free slices, room, whole cards."""
    twin = (
        placed(A100, "1g.10gb", 0, LONG, batch=1),
        placed(A100, "3g.40gb", 4),
    )
    made = packing(
        PlacedGpu(
            A100.name, 0,
            (
                placed(A100, "2g.20gb", 0, "bert"),
                placed(A100, "1g.10gb", 2, "resnet50", batch=1, in_use=True),
                placed(A100, "1g.10gb", 3, "resnet50", batch=1),
                placed(A100, "3g.40gb", 4, "vgg16", batch=16, processes=2),
            ),
        ),
        PlacedGpu(A100.name, 1, twin),
        PlacedGpu(A100.name, 2, twin),
        PlacedGpu(A100.name, 3, (placed(A100, None, 0, "llama"),)),
        PlacedGpu(A30.name, 0, (placed(A30, "1g.6gb", 3, "cat"),)),
        PlacedGpu(L4.name, 0, (placed(L4, None, 0, "vgg16"),)),
    )  # fmt: skip
    return made, problem(A100, A30, L4)


def drawn(width: int = 118, encoding: str = "utf-8") -> str:
    made, asked = fleet()
    return text(fleet_drawing(made.gpus, asked.device), width=width, encoding=encoding)


def test_cards_read_as_agreed(golden: Golden) -> None:
    golden("fleet.txt", drawn())


def test_cards_read_as_agreed_in_a_narrow_terminal(golden: Golden) -> None:
    golden("fleet_narrow.txt", drawn(width=48))


def test_a_terminal_without_frames_gets_plain_characters() -> None:
    shown = drawn(encoding="ascii")
    assert shown.isascii()
    assert "+-----" in shown and "|bert" in shown


@settings(deadline=None)
@given(packings(), st.integers(30, 150))
def test_every_line_of_a_bar_has_its_width_and_every_slice_its_name(
    case: tuple[Packing, PackProblem], width: int
) -> None:
    made, asked = case
    for gpu in made.gpus:
        device = asked.device(gpu.device)
        shown = text(gpu_drawing(device, gpu, heading="card"), width=width)
        bar = [line for line in shown.splitlines() if line[0] in "┌│└"]
        assert len({cell_len(line) for line in bar}) == 1
        assert cell_len(bar[0]) <= max(width, 3 * (device.memory_slots or 4) + 1)
        joined = "".join(shown.split())
        for each in gpu.slices:
            for words in slice_words(each):
                assert "".join(words.split()) in joined


@settings(deadline=None)
@given(packings())
def test_cards_alike_are_drawn_once_and_none_is_lost(case: tuple[Packing, PackProblem]) -> None:
    made, _ = case
    groups = alike(made.gpus)
    assert sorted((first.device, n) for first, numbers in groups for n in numbers) == sorted(
        (gpu.device, gpu.index) for gpu in made.gpus
    )
    told = [(first.device, tuple((s.start, slice_words(s)) for s in first.slices))
            for first, _ in groups]  # fmt: skip
    assert len(set(told)) == len(told)


def test_what_is_not_drawn_is_counted() -> None:
    cards = [PlacedGpu(A30.name, i, (placed(A30, "1g.6gb", 0, f"w{i}"),)) for i in range(5)]
    asked = problem(A30)
    shown = text(fleet_drawing(cards, asked.device, most=2))
    assert "3 more cards, not drawn" in shown and "w2" not in shown
    page = fleet_slots(cards, asked.device, most=2)
    assert "3 more cards, not drawn" in page and "w2" not in page


def test_room_that_is_left_is_told() -> None:
    made, asked = fleet()
    told = [room_words(asked.device(gpu.device), gpu) for gpu in made.gpus]
    assert told == ["no room for another slice", "room for a 2g.20gb", "room for a 2g.20gb", "",
                    "room for a 2g.12gb", ""]  # fmt: skip


def test_a_layout_is_one_line_as_wide_as_all_others() -> None:
    for device in (A100, A30, find_device("h200-sxm-141gb")):
        lines = [layout_bar(device, layout).plain for layout in maximal_layouts(device)]
        assert len({len(line) for line in lines}) == 1
        assert len(set(lines)) == len(lines)
        for line, layout in zip(lines, maximal_layouts(device), strict=True):
            found = re.findall(r"[0-9]g\.[0-9]+gb", line)
            assert found == [each.profile for each in layout]


# Pages


class Page(HTMLParser):
    """The elements of a fragment; fails where an end tag does not close the last open one."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(markup)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_cards_on_a_page_are_as_agreed(golden: Golden) -> None:
    made, asked = fleet()
    golden("fleet.html", fleet_slots(made.gpus, asked.device).replace("><", ">\n<") + "\n")


@settings(deadline=None)
@given(packings())
def test_blocks_cover_the_slots_once(case: tuple[Packing, PackProblem]) -> None:
    made, asked = case
    for gpu in made.gpus:
        device = asked.device(gpu.device)
        page = Page(gpu_slots(device, gpu))
        slots: list[int] = []
        for tag, attributes in page.tags:
            if tag == "li":
                place = re.fullmatch(r"--start:(\d+);--size:(\d+)", attributes["style"])
                assert place is not None
                start, size = map(int, place.groups())
                slots += range(start - 1, start - 1 + size)
        assert slots == list(range(device.memory_slots or 4))
        blocks = [at for tag, at in page.tags if at.get("class", "").startswith("slice")]
        assert len(blocks) == len(gpu.slices)
        loads = [at["style"] for tag, at in page.tags if tag == "i"]
        assert all(style == "width:50%" for style in loads)


def test_no_name_becomes_markup() -> None:
    gpu = PlacedGpu(A100.name, 0, (placed(A100, "3g.40gb", 4, f"<script>{NASTY}"),))
    page = Page(gpu_slots(A100, gpu, heading="<b>"))
    assert not any(tag == "script" for tag, _ in page.tags)
    assert any("<script>" in words for words in page.words)


def test_a_full_slice_fills_its_bar_and_no_more() -> None:
    from dataclasses import replace

    each = replace(placed(A100, "3g.40gb", 4, "a"), rate_per_s=200.0)
    assert "width:100%" in gpu_slots(A100, PlacedGpu(A100.name, 0, (each,)))


# slicewise devices NAME --layouts


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_layouts_of_a_card_read_as_agreed(golden: Golden) -> None:
    golden("layouts_a30.txt", text(layouts_report(A30)))


def test_all_layouts_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cli(capsys, "devices", "a100-sxm4-80gb", "--layouts")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "a100-sxm4-80gb: 78 layouts into which no further slice fits, 38 combinations of slices,"
        " 10 of them dominated"
    )
    assert sum(line.startswith("  |") for line in lines) == 78
    assert sum("of 108 units" in line for line in lines) == 38
    assert sum(line.endswith(", dominated") for line in lines) == 10
    assert "1g.10gb+me" in lines[-1]


def test_the_layouts_are_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "devices", "a100-sxm4-80gb", "--layouts", "--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "slicewise.devices/1")
    (card,) = document["devices"]
    assert len(card["layouts"]) == 78 and len(card["multisets"]) == 38
    assert sum(each["layouts"] for each in card["multisets"]) == 78
    assert [tuple(sorted(each["profiles"].items())) for each in card["multisets"]] == list(
        multisets(A100)
    )
    assert sum(each["dominated"] for each in card["multisets"]) == 10
    assert card["layouts"][0] == [{"profile": "7g.80gb", "start": 0}]
    assert card["multisets"][0] == {
        "profiles": {"7g.80gb": 1}, "layouts": 1, "compute_units": 98,
        "memory_bytes": A100.profile_named("7g.80gb").memory_bytes, "dominated": False,
    }  # fmt: skip
    plain = json.loads(cli(capsys, "devices", "a100-sxm4-80gb", "--json")[1])
    assert "layouts" not in plain["devices"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("l4", "--layouts"), 4, "l4 has no MIG and cannot be sliced; use it whole or as a share"),
        (("l4", "--layouts", "--json"), 4, "as in l4@50%"),
        (("a30/2g.12gb", "--layouts"), 4, "a30/2g.12gb is a part of a card and is not cut again"),
        (("a30@50%", "--layouts"), 4, "name a30"),
        (("--layouts",), 2, "--layouts draws one card, "),
    ],
)
def test_cards_without_layouts_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = cli(capsys, "devices", *arguments)
    assert (found, out) == (code, "")
    assert message in err and len(err.splitlines()) == 1
