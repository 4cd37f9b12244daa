"""Write the generated reference pages, or with `--check` fail where one is stale.

The command-line page is the live `--help`; the Python page is `slicewise.__all__` with docstrings;
the notes page is checked against the codes that occur in the source.
"""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = (
    "", "predict", "explore", "support", "devices", "fit", "pack", "collocate", "partition",
    "run-pipeline", "tune", "measure", "campaign", "calibrate", "check", "compare", "records",
    "records list", "records show", "records export", "records import", "records remove",
)  # fmt: skip


def cli_page() -> str:
    """Return the command-line reference made of every `--help`."""
    parts = [
        "# Command line",
        "",
        "Generated from `--help` by `make docs-reference`.",
        "",
        "Exit codes: 0 done, 1 other error, 2 wrong use, 3 model, 4 device, 5 prediction,"
        " 6 partition, 7 measurement, 8 tuning, 9 store (records, cards, the journal of a sweep),"
        " 130 interrupted.",
    ]
    for command in COMMANDS:
        words = ["slicewise", *command.split()]
        parts += ["", f"## {' '.join(words)}", "", "```text", _help(command), "```"]
    return "\n".join(parts) + "\n"


def _help(command: str) -> str:
    environment = {**os.environ, "COLUMNS": "96", "TERMINAL_WIDTH": "96", "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", "slicewise", *command.split(), "--help"]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=True, env=environment, cwd=ROOT
    )
    lines = [line.rstrip() for line in done.stdout.strip().splitlines()]
    return "\n".join(lines).replace("python -m slicewise", "slicewise")


def python_page() -> str:
    """Return the public names with signatures and docstrings."""
    import slicewise

    parts = ["# Python", "", "Every public name of `import slicewise`. Generated.", ""]
    for name in slicewise.__all__:
        if name.startswith("__"):
            continue
        thing = getattr(slicewise, name)
        title = name
        if inspect.isfunction(thing):
            title = f"{name}{inspect.signature(thing, eval_str=False)}"
        doc = inspect.getdoc(thing) or ""
        parts += [f"## {name}", "", f"`{title}`", "", *_plain(doc), ""]
    return "\n".join(parts).rstrip() + "\n"


def _plain(doc: str) -> list[str]:
    """Return docstring lines with examples and indented formulas fenced."""
    out: list[str] = []
    fenced = False
    for line in doc.splitlines():
        if line.startswith(">>>") and not fenced:
            out.append("```python")
            fenced = True
        elif fenced and not line.strip():
            out.append("```")
            fenced = False
        out.append(line)
    if fenced:
        out.append("```")
    return out


def note_codes() -> set[str]:
    """Return every code given to `Note(...)` in the source, and in the device files' loader."""
    codes: set[str] = set()
    for path in sorted((ROOT / "src" / "slicewise").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Note":
                given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "code")]
                codes.update(
                    value.value
                    for argument in given
                    for value in ast.walk(argument)
                    if isinstance(value, ast.Constant) and isinstance(value.value, str)
                )
    return codes


PAGES = {"cli.md": cli_page, "python.md": python_page}


def main(arguments: list[str]) -> int:
    """Write or check the pages; return the exit code."""
    stale = []
    for name, make in PAGES.items():
        path = REFERENCE / name
        content = make()
        if "--check" not in arguments:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            stale.append(f"docs/reference/{name} is stale: run `make docs-reference`")
    listed = (REFERENCE / "notes.md").read_text()
    stale += [
        f"docs/reference/notes.md does not explain the note code {code!r}"
        for code in sorted(note_codes())
        if f"`{code}`" not in listed
    ]
    for line in stale:
        sys.stderr.write(line + "\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
