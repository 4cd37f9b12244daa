"""Where slicewise keeps what it keeps."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def home(environment: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> Path:
    """Return `$SLICEWISE_HOME`, or the platform's folder for the data of a user's programs.

    Linux: XDG Base Directory Specification 0.8; macOS: ~/Library/Application Support; Windows:
    %LOCALAPPDATA%. The folder need not exist.

    >>> home({"SLICEWISE_HOME": "/data/slicewise"}).as_posix()
    '/data/slicewise'
    """
    if given := environment.get("SLICEWISE_HOME"):
        return Path(given).expanduser()
    user = Path(environment.get("HOME") or os.path.expanduser("~"))
    if platform == "darwin":
        return user / "Library" / "Application Support" / "slicewise"
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else user / "AppData" / "Local") / "slicewise"
    data = environment.get("XDG_DATA_HOME", "")
    # the specification: a relative path is invalid and ignored
    return (Path(data) if data.startswith("/") else user / ".local" / "share") / "slicewise"
