"""The graph cache: an exact round trip, and never the reason why a call fails."""

import os
import pickle
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slicewise
from slicewise.core.graph import AttrValue, Binding, Constant, Graph, Node, Role, Source, Tensor
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.store import graphs as cache
from slicewise.store.graph_codec import DecodeError, decode_graph, encode_graph
from slicewise.store.graphs import CachedSource, GraphKey, cached
from slicewise.store.home import home
from slicewise.testing.graphs import graphs as sketched

Light = Callable[[str], Path]
KEY = GraphKey("torch", "timm:resnet18", Binding(1), {"slicewise": "1", "torch": "2"})

names = st.text(max_size=5)
ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
attrs: st.SearchStrategy[AttrValue] = st.one_of(
    ints, floats, names, st.booleans(),
    st.lists(ints, max_size=3).map(tuple),
    st.lists(floats, max_size=3).map(tuple),
    st.lists(names, max_size=3).map(tuple),
)  # fmt: skip
shapes = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
bindings = st.builds(
    Binding,
    st.none() | st.integers(1, 9),
    st.dictionaries(names, st.integers(1, 9), max_size=2),
    st.dictionaries(names, shapes, max_size=2),
    st.dictionaries(names, st.none() | st.integers(-2, 2), max_size=2),
    st.frozensets(names, max_size=2),
)
tuples = st.lists(names, max_size=3).map(tuple)


def _nodes(bodies: st.SearchStrategy[tuple[Graph, ...]]) -> st.SearchStrategy[Node]:
    return st.builds(
        Node, names, names, tuples, tuples, st.dictionaries(names, attrs, max_size=3), names,
        bodies, st.integers(1, 9), names, st.none() | names,
    )  # fmt: skip


def _any_graph(bodies: st.SearchStrategy[tuple[Graph, ...]]) -> st.SearchStrategy[Graph]:
    tensors = st.builds(Tensor, st.none() | shapes, st.sampled_from(DType))
    constants = st.builds(
        Constant, st.sampled_from(Role), st.integers(0, 99), st.none() | st.integers(0, 99)
    )
    return st.builds(
        Graph,
        names,
        st.lists(_nodes(bodies), max_size=3).map(tuple),
        st.dictionaries(names, tensors, max_size=3),
        tuples,
        tuples,
        st.dictionaries(names, constants, max_size=3),
        st.integers(1, 9),
        st.dictionaries(names, st.integers(0, 3), max_size=2),
        st.lists(st.builds(Note, names, names, names), max_size=2).map(tuple),
        st.dictionaries(names, names, max_size=2),
        st.none(),
        bindings,
    )


any_graph = st.recursive(
    _any_graph(st.just(())),
    lambda inner: _any_graph(st.lists(inner, max_size=2).map(tuple)),
    max_leaves=4,
)


def _typed(value: object) -> object:
    """Return a value in which 1, 1.0 and True differ, and a list from a tuple."""
    if isinstance(value, Graph | Node | Tensor | Constant | Binding | Note):
        parts = [_typed(getattr(value, f.name)) for f in fields(value) if f.name != "source"]
        return (type(value), *parts)
    if isinstance(value, dict):
        return [(key, _typed(each)) for key, each in value.items()]
    if isinstance(value, frozenset):
        return (frozenset, sorted(value))
    if isinstance(value, tuple):
        return (tuple, *map(_typed, value))
    return (type(value), repr(value))


def _again(graph: Graph) -> Graph:
    return decode_graph(encode_graph(graph, "torch-eager"))[0]


@given(any_graph)
@settings(deadline=None, max_examples=60)
def test_a_graph_survives_with_every_type_of_every_value(graph: Graph) -> None:
    assert _typed(_again(graph)) == _typed(graph)


@given(sketched())
@settings(deadline=None, max_examples=30)
def test_graphs_of_models_survive(graph: Graph) -> None:
    again = _again(graph)
    assert again == graph and again.digest == graph.digest and again.binding == graph.binding


@pytest.mark.parametrize("name", ["resnet50", "densenet121"])
def test_a_real_model_survives(light: Light, name: str) -> None:
    graph = slicewise.load(light(name), batch=4)
    assert _typed(_again(graph)) == _typed(replace(graph, source=None))


@given(st.binary(max_size=40))
def test_other_bytes_are_no_graph(content: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_graph(content)


@given(st.data())
@settings(deadline=None)
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    content = bytearray(encode_graph(_graph(), ""))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        decode_graph(bytes(content))


def _graph(name: str = "g", batch: int = 1) -> Graph:
    x = Tensor((batch, 4), DType.FP32)
    node = Node("n", "Relu", ("x",), ("y",), {"axes": (1, 2)})
    return Graph(
        name, (node,), {"x": x, "y": x}, ("x",), ("y",), {}, batch, binding=Binding(batch)
    )


def _read(location: str, binding: Binding, live: Source | None = None) -> Graph:
    return _graph(location, binding.batch_size or 1)


class Maker:
    """Makes a graph and counts how often."""

    def __init__(self, name: str = "g") -> None:
        self.count = 0
        self.name = name

    def __call__(self) -> Graph:
        self.count += 1
        return _graph(self.name)


def _cached(folder: Path, make: Maker, key: GraphKey = KEY, *, limit_bytes: int = 2**20) -> Graph:
    return cached(
        key, make, location="timm:resnet18", read=_read, folder=folder, limit_bytes=limit_bytes
    )


def test_a_graph_is_made_once(tmp_path: Path) -> None:
    make = Maker()
    first, second = (
        _cached(tmp_path / "deep" / "er", make),
        _cached(tmp_path / "deep" / "er", make),
    )
    assert first == second == _graph()
    assert first.source == second.source
    assert make.count == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, frontend="onnx"),
        replace(KEY, model="timm:resnet34"),
        replace(KEY, binding=Binding(2)),
        replace(KEY, binding=Binding(1, {"seq": 4})),
        replace(KEY, binding=Binding(1, inputs={"x": (1, 4)})),
        replace(KEY, binding=Binding(1, batch_axes={"x": None})),
        replace(KEY, versions={"slicewise": "2", "torch": "2"}),
    ],
)
def test_whatever_a_graph_depends_on_is_in_its_key(tmp_path: Path, other: GraphKey) -> None:
    make = Maker()
    _cached(tmp_path, make)
    _cached(tmp_path, make, other)
    assert make.count == 2


def test_a_cached_graph_binds_again_in_any_process(tmp_path: Path) -> None:
    _cached(tmp_path, Maker())
    graph = pickle.loads(pickle.dumps(_cached(tmp_path, Maker())))
    assert graph.bind(batch_size=8).tensors["x"].shape == (8, 4)
    assert graph.source.location == "timm:resnet18"


def test_the_default_runtime_of_the_source_survives(tmp_path: Path) -> None:
    def make() -> Graph:
        return replace(_graph(), source=CachedSource("a", "torch-eager", _read))

    for _ in range(2):
        graph = cached(KEY, make, location="a", read=_read, folder=tmp_path)
        assert graph.source is not None and graph.source.runtime == "torch-eager"


@pytest.mark.parametrize("damage", [b"", b"slicewise.graph/1\n", b"junk" * 100])
def test_a_damaged_entry_is_made_anew_and_mended(tmp_path: Path, damage: bytes) -> None:
    make = Maker()
    _cached(tmp_path, make)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(damage)
    assert _cached(tmp_path, make) == _graph()
    assert _cached(tmp_path, make) == _graph()
    assert make.count == 2


def test_a_place_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    make = Maker()
    assert _cached(blocked / "sub", make) == _cached(blocked / "sub", make) == _graph()
    assert make.count == 2


def test_a_value_that_no_file_can_hold_only_costs_time(tmp_path: Path) -> None:
    def make() -> Graph:
        return replace(_graph(), nodes=(Node("n", "Relu", ("x",), ("y",), {"big": 2**70}),))

    graph = cached(KEY, make, location="a", read=_read, folder=tmp_path)
    assert graph.nodes[0].attrs["big"] == 2**70
    assert list(tmp_path.iterdir()) == []


def test_the_cache_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_NO_CACHE", "1")
    make = Maker()
    _cached(tmp_path, make)
    assert make.count == 1 and list(tmp_path.iterdir()) == []


def test_the_least_recently_used_graphs_go_first(tmp_path: Path) -> None:
    keys = [replace(KEY, model=str(i)) for i in range(3)]
    for age, key in zip((30, 20, 10), keys, strict=True):
        _cached(tmp_path, Maker(), key)
        os.utime(tmp_path / f"{key.digest}.graph", (1e9 - age, 1e9 - age))
    _cached(tmp_path, Maker(), keys[0])  # used: now the youngest
    size = (
        (tmp_path / f"{KEY.digest}.graph", tmp_path / f"{keys[0].digest}.graph")[1].stat().st_size
    )
    _cached(tmp_path, Maker(), KEY, limit_bytes=3 * size)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{key.digest}.graph" for key in (keys[0], keys[2], KEY)}


def test_what_killed_writers_left_is_swept_away(tmp_path: Path) -> None:
    old, new = tmp_path / ".a.tmp", tmp_path / ".b.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    _cached(tmp_path, Maker())
    assert not old.exists() and new.exists()


def test_many_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: _cached(tmp_path, Maker()), range(40)))
    assert all(graph == _graph() for graph in made)
    assert [path.suffix for path in tmp_path.iterdir()] == [".graph"]


def test_the_digest_of_a_file_follows_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(b"one")
    first = cache.file_digest(path)
    path.write_bytes(b"two")
    assert first != cache.file_digest(path) and len(first) == 64


def test_the_digest_of_an_archive_follows_the_content_of_its_members(tmp_path: Path) -> None:
    digests = []
    for i, content in enumerate((b"one", b"two", b"two")):
        path = tmp_path / f"{i}.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            member = zipfile.ZipInfo("weights", (2020, 1, 1 + i, 0, 0, 0))
            archive.writestr(member, content)
        digests.append(cache.file_digest(path))
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize(
    ("environment", "platform", "place"),
    [
        ({"SLICEWISE_HOME": "/data/s", "XDG_DATA_HOME": "/x"}, "linux", "/data/s"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/home/u"}, "linux", "/x/slicewise"),
        ({"XDG_DATA_HOME": "x", "HOME": "/home/u"}, "linux", "/home/u/.local/share/slicewise"),
        ({"HOME": "/u"}, "darwin", "/u/Library/Application Support/slicewise"),
        ({"LOCALAPPDATA": "/l", "HOME": "/u"}, "win32", "/l/slicewise"),
        ({"HOME": "/u"}, "win32", "/u/AppData/Local/slicewise"),
    ],
)
def test_the_home_is_where_the_platform_keeps_data(
    environment: dict[str, str], platform: str, place: str
) -> None:
    assert home(environment, platform=platform).as_posix() == place
