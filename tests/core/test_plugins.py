"""Plug-in tables and nearest names."""

import pytest

from slicewise.core.errors import DeviceError
from slicewise.core.plugins import PluginTable, did_you_mean

TABLE = PluginTable("colour", {"red": "json:dumps", "green": "json:loads"}, DeviceError)


def test_a_row_is_loaded_by_name() -> None:
    import json

    assert TABLE.load("red") is json.dumps
    assert list(TABLE) == ["red", "green"]


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(DeviceError, match=r"colour 'gren' is unknown; known are red, green; did"):
        TABLE.load("gren")


def test_nothing_near_gives_no_hint() -> None:
    assert did_you_mean("zzz", ["red"]) == ""
    assert did_you_mean("RED", ["red"]) == "; did you mean red?"
