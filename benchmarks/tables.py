"""Result tables kept in git: one Markdown page and one JSON file with the same rows."""

import json
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def write_result(
    name: str,
    *,
    title: str,
    command: str,
    words: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    more: str = "",
) -> None:
    """Write `results/<name>.md` and `.json`; `more` is Markdown put after the table."""
    RESULTS.mkdir(exist_ok=True)
    lines = [f"# {title}", "", f"Made by `{command}`. {words}", "", *markdown(columns, rows)]
    if more:
        lines += ["", more]
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    document = {"title": title, "command": command, "rows": table}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table as lines."""
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return head + [f"| {' | '.join(row)} |" for row in rows]
