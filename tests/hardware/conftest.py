"""Where the measured data lies, for the tests that check the catalogue against it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of measured data; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("SLICEWISE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "kernel_level" / "devices.csv").is_file():
        pytest.skip(f"measured data not found at {folder}: set SLICEWISE_DATA")
    return folder
