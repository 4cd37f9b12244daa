"""Constraints files: every field read, every mistake with file, line and the nearest word."""

from pathlib import Path

import pytest

from slicewise.core.device import Link
from slicewise.core.errors import UsageError
from slicewise.core.pipeline import FastMemory, Objective
from slicewise.flows.partitioning.constraints_file import FIELDS, read_constraints
from slicewise.flows.partitioning.wishes import LAST, MemoryWish, Selector, Wishes, parse_link

WHOLE = """\
schema: slicewise.constraints/1
devices: [a, b]
order: any
links:
  - 25GB/s:5us
  - {bandwidth: 100GB/s, latency: 0.001ms}
memory:
  limit: 20GiB
  reserve: 1GiB
  stages: {0: {limit: 10GiB}}
  devices: {b: {reserve: 2GiB}}
  nodes: {"*attn*": 64MiB}
fast_memory: {capacity: 8MiB, bandwidth: 4GB/s}
overlap: true
hops: false
replicate: true
together: [[x, y], "re:layer(\\\\d+)"]
pin: {embed: 0, head: last}
forbid_cuts: [[x, y], z]
objective: energy
limit_ms: 12.5
link_w: 30
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def test_every_field_is_read(path: Path) -> None:
    path.write_text(WHOLE)
    made = read_constraints(path)
    gib = 2.0**30
    assert made.devices == ("a", "b")
    assert made.links == (Link("25GB/s:5us", 25e9, 5e-6), Link("100GB/s", 100e9, 1e-6))
    assert made.memory == MemoryWish(20 * gib, gib)
    assert made.stage_memory == {0: MemoryWish(10 * gib)}
    assert made.device_memory == {"b": MemoryWish(None, 2 * gib)}
    assert [(each.text, size) for each, size in made.node_bytes] == [("*attn*", gib / 16)]
    assert made.fast_memory == FastMemory(8 * 2**20, 1e3 / 4e9)
    assert (made.any_order, made.overlaps, made.hops, made.replicates) == (True, True, False, True)
    assert [[each.text for each in group] for group in made.together] == [
        ["x", "y"], ["re:layer(\\d+)"],
    ]  # fmt: skip
    assert [(each.text, stage) for each, stage in made.pins] == [("embed", 0), ("head", LAST)]
    (first, second), (alone, none) = made.forbidden
    assert (first.text, second and second.text, alone.text, none) == ("x", "y", "z", None)
    assert (made.objective, made.limit_ms, made.link_w) == (Objective.ENERGY, 12.5, 30.0)
    assert all(f"{name}:" in WHOLE for name in FIELDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("overlpa: true", "line 1: 'overlpa' is unknown .*did you mean overlap"),
        ("hops: 3", "line 1: hops is neither true nor false"),
        ("\nmemory: {limit: 20}\nmemory: {}", "line 3: 'memory' stands twice"),
        ("memory: {limit: 20Gib}", "line 1: size '20Gib'"),
        ("memory: {stages: {x: {limit: 1}}}", "line 1: 'x' is no stage"),
        ("memory: {stage: {}}", "'stage' is unknown .*did you mean stages"),
        ("links: 25GB", "line 1: link '25GB'"),
        ("links: 0GB/s", "line 1: link '0GB/s': '0GB/s' is not a positive rate"),
        ("links: 25GB/s:5", "'5' is not a time with its unit"),
        ("links: {latency: 5us}", "lacks 'bandwidth'"),
        ("links: []", "links is an empty list"),
        ("fast_memory: {capacity: 8MiB}", "lacks 'bandwidth'"),
        ("pin: {a: first}", "line 1: 'first' is no stage"),
        ("pin: [a]", "pin is no mapping"),
        ("forbid_cuts: [[a, b, c]]", "holds pairs"),
        ("objective: speed", "objective 'speed' is unknown; known are bottleneck, energy"),
        ("order: best", "order 'best' is unknown"),
        ("limit_ms: -1", "limit_ms -1 is not a number over 0"),
        ("schema: slicewise.constraints/2", "this release reads 'slicewise.constraints/1'"),
        ("", "is empty"),
    ],
)
def test_a_mistake_names_its_line(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as raised:
        read_constraints(path)
    assert "c.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_go_over_the_file_and_what_they_leave_open_is_the_file_s() -> None:
    file = Wishes(devices=("a",), memory=MemoryWish(5.0, 1.0), hops=True)
    made = Wishes(memory=MemoryWish(7.0), overlaps=True).over(file)
    assert made == Wishes(devices=("a",), memory=MemoryWish(7.0, 1.0), hops=True, overlaps=True)


NAMES = ("embed", "layer.0.a", "layer.0.b", "layer.1.a", "odd[1]")


def test_a_selector_picks_by_name_pattern_and_expression() -> None:
    assert Selector("embed").pick(NAMES) == [0]
    assert Selector("layer.*").pick(NAMES) == [1, 2, 3]
    assert Selector("odd[1]").pick(NAMES) == [4]
    assert Selector("re:a$").pick(NAMES) == [1, 3]
    assert Selector("re:layer.([0-9])").groups(NAMES) == [[1, 2], [3]]


def test_a_selector_of_nothing_names_the_nearest_and_its_line() -> None:
    with pytest.raises(UsageError, match=r"c.yaml, line 3: no node .*did you mean embed"):
        Selector("embedd", "c.yaml, line 3: ").pick(NAMES)
    with pytest.raises(UsageError, match="no regular expression"):
        Selector("re:(").pick(NAMES)


@pytest.mark.parametrize("text", ["", "25", "25GB", "0GB/s", "-1GB/s", "25GB/s:", "25GB/s:5"])
def test_a_link_needs_a_positive_rate_and_units(text: str) -> None:
    with pytest.raises(UsageError, match="link"):
        parse_link(text)
