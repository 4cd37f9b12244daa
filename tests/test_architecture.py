"""The floor plan as a test: imports go down, siblings are blind, libraries stay at doors."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "slicewise"
FLOOR = {
    "core": 0,
    "graph": 1, "hardware": 1, "predict": 1, "slices": 1, "partition": 1, "tune": 1,
    "measure": 1, "store": 1, "execute": 1, "testing": 1,
    "flows": 2,
    "app": 3,
}  # fmt: skip
DOORS = (
    "graph/frontends/", "hardware/probe.py", "predict/network.py", "slices/solvers/",
    "partition/solvers/", "measure/runtimes/", "measure/meters/", "tune/backends/", "execute/",
)  # fmt: skip
# Library -> the places that may import it besides the doors ('' = anywhere above core).
ALLOWED = {
    "numpy": (
        *("graph/", "predict/", "slices/", "partition/", "tune/", "measure/", "testing/"),
        "flows/pareto.py",
    ),
    "onnx": ("graph/", "partition/split", "testing/"),
    "msgspec": ("app/", "store/"),
    "pyarrow": ("store/parquet.py",),
    "typer": ("app/",),
    "rich": ("app/",),
    "yaml": ("app/", "flows/"),
    "hypothesis": ("testing/",),
    "pytest": ("testing/",),
    "numba": ("partition/",),
}
# Only inside functions, so that importing a room stays light.
LAZY = {"onnx", "onnxruntime", "pynvml", "torch", "numba", "ortools"}
EAGER_ONNX = (
    "graph/frontends/onnx", "graph/shape", "graph/bind", "graph/check",
    "graph/batch", "graph/dimensions", "testing/",
)  # fmt: skip


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (module, at import time) of each import that is not for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            for alias in node.names:
                yield f"{module}.{alias.name}", id(node) not in lazy


def _room(module: str) -> str:
    return module.split(".")[1] if module.startswith("slicewise.") else ""


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only_and_siblings_are_blind(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    room = relative.parts[0] if len(relative.parts) > 1 else ""
    for module, _ in _imports(path):
        other = _room(module)
        if not room or not other or other == room or other not in FLOOR:
            continue
        assert room in FLOOR, f"{relative}: room {room!r} is on no floor"
        assert FLOOR[other] < FLOOR[room], f"{relative} imports {module}: not a lower floor"


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_foreign_libraries_stay_at_their_doors(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    at_door = relative.startswith(DOORS)
    for module, eager in _imports(path):
        library = module.split(".")[0]
        if library == "slicewise" or library in sys.stdlib_module_names:
            continue
        allowed = at_door or relative.startswith(ALLOWED.get(library, ()))
        assert allowed, f"{relative} imports {library}: only {ALLOWED.get(library, DOORS)} may"
        if library in LAZY and eager:
            fine = library == "onnx" and relative.startswith(EAGER_ONNX)
            assert fine, f"{relative} imports {library} when it is itself imported"


def test_core_uses_the_standard_library_only() -> None:
    for path in sorted((PACKAGE / "core").rglob("*.py")):
        for module, _ in _imports(path):
            library = module.split(".")[0]
            ok = library in sys.stdlib_module_names or module.startswith("slicewise.core")
            assert ok, f"{path.name} imports {module}"


@pytest.mark.parametrize("statement", ["import slicewise", "import slicewise.app.cli"])
def test_importing_loads_no_framework(statement: str) -> None:
    heavy = ["numpy", "onnx", "onnxruntime", "torch", "tensorflow", "jax", "rich.table", "yaml"]
    code = f"import sys; {statement}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_file_of_the_house_outgrows_reading() -> None:
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in _modules()
        if (count := len(path.read_text().splitlines())) > 500
    }
    assert not long
