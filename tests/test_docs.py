"""Documents cannot drift: generated pages are fresh, shown commands run, links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import slicewise
from slicewise.app.cli import run
from slicewise.testing import onnx_models
from tools import reference_pages

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_generated_pages_and_the_list_of_notes_are_fresh() -> None:
    assert reference_pages.main(["--check"]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def _commands(page: Path) -> Iterator[str]:
    """Yield the `$ slicewise ...` lines of console blocks, continued lines joined."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ slicewise ") and "|" not in line:
                yield line.removeprefix("$ ").partition("  #")[0].strip()


@pytest.fixture
def workplace(
    tmp_path: Path, light: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with the files that the documents name."""
    for name in ("model.onnx", "resnet50.onnx", "a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(light("resnet50").read_bytes())
    for name in ("squeezenet", "densenet121", "inception_v1"):
        (tmp_path / f"{name}.onnx").write_bytes(light(name).read_bytes())
    onnx_models.save(onnx_models.small_decoder(layers=1), tmp_path / "bert.onnx")
    guide = (ROOT / "docs" / "how-to" / "add-a-device.md").read_text()
    example = re.search(r"```toml\n(.*?)```", guide, flags=re.DOTALL)
    assert example is not None
    (tmp_path / "my-card.toml").write_text(example[1])
    guide = (ROOT / "docs" / "how-to" / "partition.md").read_text()
    for name, language in (("constraints.yaml", "yaml"), ("problem.json", "json")):
        example = re.search(rf"```{language}\n(.*?)```", guide, flags=re.DOTALL)
        assert example is not None
        (tmp_path / name).write_text(example[1])
    guide = (ROOT / "docs" / "how-to" / "new-device.md").read_text()
    for name, start in (("rtx-5075.toml", "toml\n"), ("one.yaml", "yaml\n(?=name: one)")):
        example = re.search(rf"```{start}(.*?)```", guide, flags=re.DOTALL)
        assert example is not None
        (tmp_path / name).write_text(example[1])
    guide = (ROOT / "docs" / "how-to" / "fit.md").read_text()
    example = re.search(r"```csv\n(.*?)```", guide, flags=re.DOTALL)
    assert example is not None
    (tmp_path / "full.csv").write_text(example[1])
    guide = (ROOT / "docs" / "how-to" / "pack.md").read_text()
    names = ("workloads.yaml", "more.yaml", "measured.yaml")
    texts = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_text(text)
    (text,) = re.findall(r"```csv\n(.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "resnet50.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", str(light("resnet50")))
    return tmp_path


# Commands of these pages build on each other: what one keeps the next one uses.
STORIES = [
    ROOT / "README.md",
    ROOT / "docs/how-to/measure.md",
    ROOT / "docs/how-to/new-device.md",
    ROOT / "docs/how-to/keep-records.md",
    ROOT / "docs/how-to/partition.md",
    ROOT / "docs/how-to/pack.md",
    ROOT / "docs/how-to/tune.md",
]


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page in PAGES if page not in STORIES for command in _commands(page)],
    ids=lambda value: value.name if isinstance(value, Path) else str(value)[:60],
)
def test_every_command_shown_runs(
    page: Path, command: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(command, capsys)


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLICEWISE_HOME", str(workplace / "home"))
    for command in _commands(page):
        _run(command, capsys)


def _run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command.replace("$MODEL", os.environ["MODEL"]))[1:]
    needs_dim = "bert.onnx" in words and "--dim" not in words
    code = run(words)
    captured = capsys.readouterr()
    assert code == (3 if needs_dim else 0), f"{command}: {captured.err}"
    assert ("--dim" in captured.err) if needs_dim else captured.out


# Pages whose Python is whole programs; that of the others are fragments of a plug-in.
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/how-to/explore.md",
        "docs/how-to/fit.md",
        "docs/how-to/pack.md",
        "docs/how-to/pytorch.md",
        "docs/tutorial/choose-a-device.md",
    ],
)
def test_the_python_shown_runs(name: str, workplace: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, cwd=workplace
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout or "print" not in block


def test_every_public_name_has_an_example() -> None:
    names = [name for name in slicewise.__all__ if not name.startswith("__")]
    assert [n for n in names if ">>>" not in (getattr(slicewise, n).__doc__ or "")] == []
