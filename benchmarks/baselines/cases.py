"""What all baselines are trained on: the samples of timm's files that ours is trained on.

As arrays, with DIPPM's view of each graph beside them. Made once and kept in the work folder
($SLICEWISE_TRAINING, else build/training); nothing is fitted here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.chain import node_features, operator_counts
from benchmarks.baselines.pooled import pool
from slicewise.core.whole_file import whole_file
from training.graphs import Kept
from training.model_rows import ModelRow, graph_keys
from training.samples import Samples

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.str_]

FOLD_KINDS = ("family_fold", "model_fold")
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Cases:
    """Rows as columns, and the graphs that they are of.

    `scalars` [rows, 7]; `where` [rows, one-hots of file, device, runtime, layout, precision, and
    the version]; `pooled` [rows, len(pooled.COLUMNS)]. `graph`: which graph a row is of; graph i
    has the nodes `starts[i]` to `starts[i + 1]` of `nodes` [all nodes, chain.WIDTH], and
    `counts[i]` are its `chain.COUNTED` operators.
    """

    source_file: Words
    model_name: Words
    key: Words
    batch: Floats
    measured_s: Floats
    roofline_s: Floats
    gmacs: Floats
    family_fold: Integers
    model_fold: Integers
    scalars: Floats
    where: Floats
    pooled: NDArray[np.float32]
    graph: Integers
    nodes: NDArray[np.float32]
    starts: Integers
    counts: Floats

    @property
    def files(self) -> list[str]:
        """The files, by name."""
        return sorted(set(self.source_file.tolist()))

    @property
    def file_one_hot(self) -> Floats:
        """[rows, files]"""
        return one_hot(self.source_file.tolist())

    def fold(self, kind: str) -> Integers:
        """Return the fold of each row: `kind` is one of `FOLD_KINDS`."""
        return self.family_fold if kind == "family_fold" else self.model_fold


def cases_of(samples: Samples, models: Iterable[Kept]) -> Cases:
    """Return the samples as cases; `models` are the graphs that they are of."""
    chains = {
        str(model.key): (node_features(model.graphs[0]), operator_counts(model.graphs[0]))
        for model in models
    }
    known = frozenset(chains)
    keys = [graph_keys(row, known) or "" for row in samples.rows]
    used = sorted(set(keys))
    place = {key: i for i, key in enumerate(used)}
    nodes = [chains[key][0] for key in used]
    rows = samples.rows
    pooled, roofline_s = pool(samples)
    return Cases(
        source_file=np.array([row.file for row in rows]),
        model_name=np.array([row.model_name for row in rows]),
        key=np.array(keys),
        batch=np.array([row.batch for row in rows], dtype=np.float64),
        measured_s=samples.measured_s,
        roofline_s=roofline_s,
        gmacs=np.array([row.gmacs for row in rows]),
        family_fold=np.array([row.family_fold for row in rows]),
        model_fold=np.array([row.model_fold for row in rows]),
        scalars=np.array([_scalars(row) for row in rows]),
        where=_where(rows),
        pooled=pooled,
        graph=np.array([place[key] for key in keys]),
        nodes=np.concatenate(nodes),
        starts=np.concatenate([[0], np.cumsum([len(each) for each in nodes])]),
        counts=np.array([chains[key][1] for key in used], dtype=np.float64),
    )


def save(cases: Cases, path: Path) -> None:
    """Keep the arrays in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        np.savez(file, **{each.name: getattr(cases, each.name) for each in fields(cases)})


def saved(path: Path) -> Cases:
    """Return what `save` kept."""
    with np.load(path) as arrays:
        return Cases(**{each.name: arrays[each.name] for each in fields(Cases)})


_OF_GRAPHS = frozenset({"nodes", "starts", "counts"})


def part_of(cases: Cases, taken: NDArray[np.bool_]) -> Cases:
    """Return some of the rows, among all graphs."""
    its = {
        each.name: getattr(cases, each.name)[taken]
        for each in fields(cases)
        if each.name not in _OF_GRAPHS
    }
    return replace(cases, **its)


def one_hot(values: Sequence[object]) -> Floats:
    """Return a column for each distinct value, in their order.

    >>> one_hot(["b", "a", "b"]).tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    places = {value: i for i, value in enumerate(sorted(set(values), key=str))}
    return np.eye(len(places))[[places[value] for value in values]]


def _scalars(row: ModelRow) -> list[float]:
    """Return MACs, activations, parameters, two ratios, batch and image side, as logarithms."""
    macs, activations, parameters = (
        math.log(max(each, 1e-3)) for each in (row.gmacs, row.macts, row.params_m)
    )
    height, width = (int(side) for side in row.key.partition("@")[2].split("x"))
    return [
        macs, activations, parameters, macs - activations, macs - parameters, math.log(row.batch),
        math.log(height * width) / 2,
    ]  # fmt: skip


def _where(rows: Sequence[ModelRow]) -> Floats:
    version = [[float(row.version[0]), float(row.version[1])] for row in rows]
    told = (
        [row.file for row in rows], [row.device for row in rows], [row.runtime for row in rows],
        [row.layout for row in rows], [row.precision for row in rows],
    )  # fmt: skip
    return np.concatenate([*(one_hot(each) for each in told), np.array(version)], axis=1)
