"""Files that users write: every mistake names its line and the nearest known word."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.core.errors import UsageError
from slicewise.flows.spec_file import read_entries


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return path


def test_entries_know_their_lines(tmp_path: Path) -> None:
    entry = read_entries(_written(tmp_path, "a: 1\nb:\n  - x\n  - y\n"), what="spec")
    found = entry.fields(("a", "b"))
    assert (found["a"].line, found["a"].whole()) == (1, 1)
    assert [(item.line, item.text()) for item in found["b"].items()] == [(3, "x"), (4, "y")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a: [1", r"line 1: no YAML"),
        ("a: 1\nb: 2\nbatchs: 3\n", r"line 3: 'batchs' is unknown in spec.*did you mean batch\?"),
        ("a: 1\na: 2\n", r"line 2: 'a' stands twice"),
        ("- a\n- b\n", r"line 1: spec is a list"),
        ("just words", r"spec is 'just words'"),
        ("? [1, 2]\n: 3\n", "a name in spec is no text"),
        ("a: &x [*x]\n", "contains itself"),
        ("a: 2026-02-30\n", "line 1: '2026-02-30' in a is no value"),
        ("a: !!int x\n", "is no value that YAML knows"),
        ("a: !!bool x\n", "is no value that YAML knows"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_entries(_written(tmp_path, text), what="spec").fields(("a", "b", "batch"))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_entries(tmp_path / "none.yaml", what="spec")
    with pytest.raises(UsageError, match="cannot be read"):
        read_entries(tmp_path, what="spec")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(UsageError, match="no UTF-8"):
        read_entries(tmp_path / "latin.yaml", what="spec")


def test_aliases_that_multiply_cost_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]")
    entry = read_entries(_written(tmp_path, "\n".join(lines)), what="spec")
    assert len(entry.value["a11"].items()) == 9


@pytest.mark.parametrize("text", ["a: true", "a: 0", "a: -1", "a: 1.5", "a: x", "a: [1]", "a:"])
def test_only_positive_whole_numbers_are_whole(tmp_path: Path, text: str) -> None:
    entry = read_entries(_written(tmp_path, text), what="spec").fields(("a",))["a"]
    with pytest.raises(UsageError, match="not a positive whole number"):
        entry.whole()


@given(number=st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_taken_only_where_it_is_in_range(
    tmp_path_factory: pytest.TempPathFactory, number: float
) -> None:
    import yaml

    path = tmp_path_factory.mktemp("n") / "spec.yaml"
    path.write_text(yaml.safe_dump({"a": number}))
    entry = read_entries(path, what="spec").fields(("a",))["a"]
    if 0 < number <= 100:
        assert entry.number(most=100) == number
    else:
        with pytest.raises(UsageError, match="not a number over 0 and at most 100"):
            entry.number(most=100)
