"""Where slicewise keeps what it keeps."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slicewise.core.errors import StoreError


def home(environment: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> Path:
    """Return `$SLICEWISE_HOME`, or the platform's folder for the data of a user's programs.

    Linux: XDG Base Directory Specification 0.8; macOS: ~/Library/Application Support; Windows:
    %LOCALAPPDATA%. The folder need not exist. `StoreError` for a user without a home folder, as in
    a container.

    >>> home({"SLICEWISE_HOME": "/data/slicewise"}).as_posix()
    '/data/slicewise'
    """
    if given := environment.get("SLICEWISE_HOME"):
        return _expanded(given)
    user = _expanded(environment.get("HOME") or "~")
    if platform == "darwin":
        return user / "Library" / "Application Support" / "slicewise"
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (Path(local) if local else user / "AppData" / "Local") / "slicewise"
    data = environment.get("XDG_DATA_HOME", "")
    # the specification: a relative path is invalid and ignored
    return (Path(data) if data.startswith("/") else user / ".local" / "share") / "slicewise"


def _expanded(text: str) -> Path:
    found = os.path.expanduser(text)
    if found.startswith("~"):  # left as it was; "~" would become a folder right here
        raise StoreError(
            f"the folder {text!r} is that of a user without a home; set SLICEWISE_HOME to a folder"
            " in full"
        )
    return Path(found)
