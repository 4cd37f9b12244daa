"""Fixtures of all tests: golden files, the measured data, models that the onnx package ships."""

import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# Kernels are made when their module is imported: without triton there is nothing to collect.
collect_ignore = [] if find_spec("triton") else ["src/slicewise/tune/backends/triton/kernels.py"]
GOLDEN = ROOT / "tests" / "golden"


def pytest_configure() -> None:
    """Take Ctrl-C as a terminal gives it: what a shell starts in the background ignores it, and so
    would every process that a test starts to interrupt it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the golden files, to be read in review",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name, or rewrite it when asked."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {name}; make it with --update-golden"
        assert text == path.read_text()

    return compare


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test keeps lands in the user's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLICEWISE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measured data; the test is skipped where it is absent."""
    folder = Path(os.environ.get("SLICEWISE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("measured data is absent: set SLICEWISE_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def light() -> Callable[[str], Path]:
    """Path of one of the nine CNNs that the onnx package ships, by short name."""
    return _light


def _light(name: str) -> Path:
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return folder / f"light_{name}.onnx"


@pytest.fixture(autouse=True)
def _names_in_examples(
    doctest_namespace: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Docstring examples may use `model`, the path of a real ResNet-50, and `folder`, the path of
    a folder that is not there yet."""
    doctest_namespace["model"] = str(_light("resnet50"))
    doctest_namespace["folder"] = tmp_path_factory.getbasetemp() / "example-folder"
