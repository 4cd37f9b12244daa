"""Multiply-adds and parameters of the nine CNNs of the onnx package beside their references.

References with their sources: tests/reference/light_cnns.toml, derived again layer by layer in
tests/graph/test_light_cnns.py. Run: python -m benchmarks.light_cnns
"""

import tomllib
from pathlib import Path
from typing import Any

import onnx

from benchmarks.tables import write_result
from slicewise.core.graph import Binding
from slicewise.graph.frontends._base import load
from slicewise.graph.work import count_work

REFERENCE = Path(__file__).parents[1] / "tests" / "reference" / "light_cnns.toml"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def row(name: str, reference: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the table."""
    graph = load(str(LIGHT / f"light_{name}.onnx"), Binding())
    macs = count_work(graph).total.macs
    return (
        name,
        f"{macs:,}",
        f"{reference['macs']:,}",
        percent(macs, reference["macs"]),
        f"{graph.parameters:,}",
        f"{reference['parameters']:,}",
        percent(graph.parameters, reference["parameters"]),
        str(reference.get("published_source", "")),
    )


def percent(ours: int, theirs: int) -> str:
    """Return the signed difference in percent."""
    return f"{100 * (ours - theirs) / theirs:+.3f}"


def main() -> None:
    """Count and write the table."""
    references = tomllib.loads(REFERENCE.read_text())
    differences = [
        f"- **{name}**: {reference['geometry']}"
        + (
            f" As defined: {reference['macs_as_defined']:,} macs."
            if "macs_as_defined" in reference
            else ""
        )
        for name, reference in references.items()
    ]
    write_result(
        "light_cnns",
        title="Multiply-adds and parameters of nine CNNs",
        command="python -m benchmarks.light_cnns",
        words=(
            "Batch 1, 3 x 224 x 224. Reference: the layers of paper and definition added up, and"
            " the figures that the named source prints where there is one"
            " (`tests/reference/light_cnns.toml`)."
        ),
        columns=(
            "model",
            "macs",
            "macs, reference",
            "difference %",
            "parameters",
            "parameters, reference",
            "difference in parameters %",
            "also printed by",
        ),
        rows=[row(name, reference) for name, reference in references.items()],
        more="## How the files differ from the definitions\n\n" + "\n".join(differences),
    )


if __name__ == "__main__":
    main()
