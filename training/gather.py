"""All samples as files, so that they are gathered once: `build/training/samples-*.npz`."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from slicewise.predict.weights import schema_digest
from training import graphs
from training.model_rows import ModelRow, other_rows, timm_rows
from training.samples import Gatherer, Samples, add_others, add_timm

_ARRAYS = ("contexts", "context", "basis", "count", "starts")


def samples(name: str, *, anew: bool = False) -> Samples:
    """Return the samples called `timm` or `others`, gathered now if they are not at hand."""
    path = folder() / f"samples-{name}-{schema_digest()}.npz"
    if path.exists() and not anew:
        return _read(path)
    gatherer = Gatherer()
    if name == "timm":
        add_timm(gatherer, timm_rows(), graphs.kept())
    else:
        add_others(gatherer, other_rows())
    made = gatherer.gathered()
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = json.dumps([asdict(row) for row in made.rows])
    arrays = {key: getattr(made, key) for key in _ARRAYS}
    left_out = json.dumps(made.left_out)
    np.savez(path, rows=np.array(rows), left_out=np.array(left_out), **arrays)
    return made


def folder() -> Path:
    return graphs.WORK.parent


def _read(path: Path) -> Samples:
    with np.load(path, allow_pickle=False) as file:
        rows = [_row(each) for each in json.loads(str(file["rows"]))]
        arrays = {key: file[key] for key in _ARRAYS}
        return Samples(rows, **arrays, left_out=json.loads(str(file["left_out"])))


def _row(plain: dict[str, object]) -> ModelRow:
    tuples = {"version", "flags"}
    return ModelRow(**{
        each.name: tuple(plain[each.name]) if each.name in tuples else plain[each.name]  # type: ignore[arg-type]
        for each in fields(ModelRow)
    })  # fmt: skip


def joined(parts: list[Samples]) -> Samples:
    """Return several sets of samples as one."""
    gatherer_rows = [row for part in parts for row in part.rows]
    offsets = np.cumsum([0, *(len(part.contexts) for part in parts)])
    entries = np.cumsum([0, *(len(part.context) for part in parts)])
    return Samples(
        gatherer_rows,
        np.concatenate([part.contexts for part in parts]),
        np.concatenate(
            [part.context + start for part, start in zip(parts, offsets, strict=False)]
        ),
        np.concatenate([part.basis for part in parts]),
        np.concatenate([part.count for part in parts]),
        np.concatenate(
            [parts[0].starts[:1]]
            + [part.starts[1:] + start for part, start in zip(parts, entries, strict=False)]
        ),
    )
