"""Where things are kept: a folder that is really there, or an error; never one called '~'."""

import os
from pathlib import Path

import pytest

from slicewise.core.errors import StoreError
from slicewise.core.graph import Binding, Graph
from slicewise.store.graphs import GraphKey, cached
from slicewise.store.home import home
from slicewise.testing.graphs import mlp


def _never(location: str, binding: Binding, live: object) -> Graph:
    raise AssertionError(location)


def test_a_user_without_a_home_is_told_and_gets_no_folder_called_tilde(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda text: text)  # as for an unknown user id
    environments: tuple[dict[str, str], ...] = ({}, {"SLICEWISE_HOME": "~nobody/x"})
    for environment in environments:
        with pytest.raises(StoreError, match="set SLICEWISE_HOME"):
            home(environment)


def test_the_cache_never_fails_a_call_for_lack_of_a_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLICEWISE_HOME", "~no-such-user/x")
    monkeypatch.delenv("SLICEWISE_NO_CACHE", raising=False)
    graph = mlp()
    key = GraphKey("torch", "m", Binding(1))
    assert cached(key, lambda: graph, location="m", read=_never) is graph
    assert list(tmp_path.iterdir()) == []
