"""The graphs that a predictor is trained on: timm's architectures through the product's front-end.

    python -m training.graphs build           # traces what is missing, some seconds a model
    python -m training.graphs pack            # writes training/graphs/*.xz from it

A graph says which operators run on which shapes: no weights, no measured figure. Each is kept at
two batches, since sizes are linear in the batch, and without names: a file for each module of
timm, compressed as a whole because its members are alike. `names.csv` lists (architecture, image)
pairs; PyTorch's releases from 2.9 were measured on re-parameterised modules, which are graphs of
their own.
"""

import argparse
import csv
import gc
import lzma
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slicewise.core.errors import SlicewiseError
from slicewise.core.graph import Graph
from slicewise.core.whole_file import whole_file
from slicewise.store.graph_codec import graph_of, plain_graph

FOLDER = Path(__file__).parent / "graphs"
WORK = Path(os.environ.get("SLICEWISE_TRAINING", "build/training")) / "graphs"
NAMES = FOLDER / "names.csv"
BATCHES = (2, 4)
REPARAMETERISED = "+reparam"


@dataclass(frozen=True, slots=True)
class Key:
    """A module of timm, one of its architectures, the image it is built for, and whether its
    branches are merged."""

    module: str
    name: str
    shape: tuple[int, int, int]
    is_merged: bool = False

    def __str__(self) -> str:
        end = REPARAMETERISED if self.is_merged else ""
        return f"{self.name}@{self.shape[1]}x{self.shape[2]}{end}"


@dataclass(frozen=True, slots=True)
class Kept:
    """A model as it is kept: its parameters, and its graph at each of `BATCHES`."""

    key: Key
    parameters: int
    graphs: tuple[Graph, Graph]


def names() -> list[Key]:
    """Return the pairs of architecture and image that are listed."""
    with NAMES.open(encoding="utf-8", newline="") as file:
        return [
            Key(row["module"], row["name"], (3, int(row["height"]), int(row["width"])))
            for row in csv.DictReader(file)
        ]


def packed(module: str = "*") -> Iterator[tuple[Key, dict[str, Any]]]:
    """Yield the key of every packed model of some modules, and the rest as it lies in the file."""
    for path in sorted(FOLDER.glob(f"{module}.xz")):
        for plain in msgspec.msgpack.decode(lzma.decompress(path.read_bytes())):
            shape = tuple(plain["shape"])
            yield Key(path.stem, plain["name"], shape, plain["merged"]), plain


def kept(module: str = "*") -> Iterator[Kept]:
    """Yield every packed model of some modules."""
    for key, plain in packed(module):
        low = graph_of(plain["graph"])
        yield Kept(key, plain["parameters"], (low, _rebatched(low, plain["high"])))


def _rebatched(low: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    tensors = {
        name: replace(tensor, shape=tuple(shapes[name])) if name in shapes else tensor
        for name, tensor in low.tensors.items()
    }
    return replace(low, tensors=tensors, batch_size=BATCHES[1])


def pack() -> None:
    """Write what was traced into one file for each module."""
    FOLDER.mkdir(exist_ok=True)
    by_module: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(WORK.glob("*.traced")):
        plain = msgspec.msgpack.decode(path.read_bytes())
        low, high = graph_of(plain.pop("low")), graph_of(plain.pop("high"))
        made = _bare(low, high)
        if made is None:
            sys.stderr.write(f"{path.stem}: not the same graph at another batch, left out\n")
            continue
        by_module[plain.pop("module")].append({**plain, **made})
    for module, its in by_module.items():
        content = lzma.compress(msgspec.msgpack.encode(its), preset=6)
        with whole_file(FOLDER / f"{module}.xz") as file:
            file.write(content)


def _bare(low: Graph, high: Graph) -> dict[str, Any] | None:
    """Return a graph without names and the shapes that differ at the other batch."""
    if [node.op_type for node in low.nodes] != [node.op_type for node in high.nodes]:
        return None
    number: dict[str, str] = {"": ""}
    other: dict[str, str] = {}
    for one, two in zip(low.nodes, high.nodes, strict=True):
        for a, b in zip((*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True):
            other[number.setdefault(a, f"t{len(number)}")] = b
    for a, b in zip((*low.inputs, *low.outputs), (*high.inputs, *high.outputs), strict=True):
        other[number.setdefault(a, f"t{len(number)}")] = b
    nodes = tuple(
        replace(
            node,
            name=f"n{i}",
            origin="",
            inputs=tuple(number[name] for name in node.inputs),
            outputs=tuple(number[name] for name in node.outputs),
            storage_of=None if node.storage_of is None else number.get(node.storage_of, ""),
        )
        for i, node in enumerate(low.nodes)
    )
    if any(node.bodies for node in nodes):
        return None
    tensors = {number[name]: tensor for name, tensor in low.tensors.items() if name in number}
    bare = Graph(
        name=low.name,
        nodes=nodes,
        tensors=tensors,
        inputs=tuple(number[name] for name in low.inputs),
        outputs=tuple(number[name] for name in low.outputs),
        constants={number[name]: it for name, it in low.constants.items() if name in number},
        batch_size=low.batch_size,
        batch_axes={number[name]: axis for name, axis in low.batch_axes.items()},
    )
    shapes = {
        name: high.tensors[other[name]].shape
        for name, tensor in tensors.items()
        if other.get(name) in high.tensors and high.tensors[other[name]].shape != tensor.shape
    }
    return {"graph": plain_graph(bare), "high": shapes}


def build(processes: int) -> None:
    """Trace every listed model that was not traced yet."""
    WORK.mkdir(parents=True, exist_ok=True)
    missing = [key for key in names() if not (WORK / f"{key}.traced").exists()]
    with ProcessPoolExecutor(processes) as pool:
        for i, told in enumerate(pool.map(_trace, missing)):
            sys.stderr.write(f"{i + 1}/{len(missing)} {told}\n")


def _trace(key: Key) -> str:
    """Trace one architecture, and with its branches merged where that makes another graph."""
    import timm
    from timm.utils.model import reparameterize_model

    from slicewise.graph.frontends import zoo
    from slicewise.graph.frontends.zoo.meta import built_on_meta

    warnings.filterwarnings("ignore")
    zoo.import_torchvision()
    own = timm.get_pretrained_cfg(key.name, allow_unregistered=True)
    sized: list[dict[str, Any]] = [{"img_size": key.shape[1:]}, {}]
    if own is not None and tuple(own.input_size) == key.shape:
        sized = [{}]
    failure: Exception | None = None
    for options in sized:
        try:
            module = built_on_meta(
                partial(timm.create_model, key.name, pretrained=False, **options)
            ).eval()
            _keep(module, key)
            break
        except (SlicewiseError, TypeError, RuntimeError, AssertionError, AttributeError) as err:
            failure = err
    else:
        return f"{key}: {failure}"
    if any(hasattr(child, way) for child in module.modules() for way in _MERGES):
        # merging computes with the weights, which the meta device does not have
        real = timm.create_model(key.name, pretrained=False, **options).eval()
        merged = reparameterize_model(real, inplace=True).eval().to("meta")
        if _count(merged) != _count(module):
            _keep(merged, replace(key, is_merged=True))
    gc.collect()
    return str(key)


# What timm calls on modules that can merge their branches.
_MERGES = ("fuse", "reparameterize", "switch_to_deploy")


def _count(module: Any) -> int:
    return sum(each.numel() for each in module.parameters())


def _keep(module: Any, key: Key) -> None:
    import torch

    import slicewise

    example = torch.empty((BATCHES[0], *key.shape), device="meta")
    low = slicewise.load(module, example_inputs=(example,), batch=BATCHES[0])
    high = low.bind(batch_size=BATCHES[1])
    _write(Kept(key, _count(module), (low, high)))


def _write(made: Kept) -> None:
    key, (low, high) = made.key, made.graphs
    plain = {
        "name": key.name, "shape": key.shape, "merged": key.is_merged, "module": key.module,
        "parameters": made.parameters, "low": plain_graph(low), "high": plain_graph(high),
    }  # fmt: skip
    with whole_file(WORK / f"{key}.traced") as file:
        file.write(msgspec.msgpack.encode(plain))


def main() -> None:
    """Trace or pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "pack"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.what == "build":
        build(given.processes)
    pack()


if __name__ == "__main__":
    main()
