"""What a folder of stage files holds: the types of `stages.json`, written and read again.

The schema is `slicewise.stages/1`: fields are added to, never renamed. Names of files in it are
plain names of files of the same folder; anything else is refused, so that nothing outside the
folder is opened on the word of a document. No model is opened here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from slicewise.core.errors import ModelError, UsageError
from slicewise.core.notes import Note

SCHEMA = "slicewise.stages/1"
MANIFEST = "stages.json"
WHOLE = "model.onnx"
POINTS = "split_points.py"

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class StageTensor:
    """A tensor that a stage reads or gives.

    `dims` are those of the files: a number, a symbol, or None where it is free; `dims` None: the
    rank is free too. `shape` is what the dimensions were bound to when the cut was made. `kind` is
    'tensor', 'sequence', 'optional' or 'sparse'; `dtype` the element type, '?' where no one knows.
    """

    dtype: str
    dims: Dims | None = None
    shape: tuple[int, ...] | None = None
    kind: str = "tensor"


@dataclass(frozen=True, slots=True)
class PredictedLoad:
    """What the cut says of a stage, in ms for one item; `load_ms` is per replica already."""

    work_ms: float
    receive_ms: float
    send_ms: float
    load_ms: float
    memory_bytes: float = 0.0
    replicas: int = 1
    device: str = ""


@dataclass(frozen=True, slots=True)
class StageFile:
    """One stage: its number, its ONNX file, and what it reads and gives by name.

    `data` is the file of its weights where they are external, '' where the ONNX file holds them.
    """

    index: int
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int
    weight_bytes: int
    data: str = ""
    predicted: PredictedLoad | None = None


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A tensor that crosses: the stage that gives it and the stages that read it."""

    name: str
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageFiles:
    """A model as one ONNX file for each stage that is not empty.

    `inputs` and `outputs` are the model's, in its order; an output that is an input as it came is
    in `passed`, and no stage gives it. `whole` is the annotated model in the same folder.
    `whole_ms` is the predicted time of the model as one stage, None where nobody said.
    """

    directory: Path
    model: str
    digest: str
    graph_digest: str
    stages: tuple[StageFile, ...]
    tensors: Mapping[str, StageTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cuts: tuple[CutTensor, ...]
    passed: tuple[str, ...] = ()
    whole: str = WHOLE
    whole_ms: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of all files of the folder, `stages.json` too."""
        own = {name for stage in self.stages for name in (stage.file, stage.data) if name}
        return frozenset({*own, self.whole, MANIFEST})


def stages_document(files: StageFiles) -> dict[str, object]:
    """Return `slicewise.stages/1` as plain values; the folder itself is not in it."""
    document = asdict(files)
    del document["directory"]
    return {"schema": SCHEMA, **document}


def write_manifest(files: StageFiles, folder: Path) -> None:
    """Write `stages.json` into `folder`."""
    text = json.dumps(stages_document(files), indent=2, ensure_ascii=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> StageFiles:
    """Return what `stages.json` of a folder says.

    `UsageError` if there is none; `ModelError` if it is damaged, of another schema, or names a
    file that is not a plain name or is not there.
    """
    path = directory / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise UsageError(
            f"folder {str(directory)!r} has no readable {MANIFEST} ({err.strerror}); give the"
            " folder that `slicewise partition MODEL --split DIR` wrote"
        ) from err
    except ValueError as err:
        raise _damaged(path, f"it is no JSON: {err}") from err
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise _damaged(path, f"its schema is {schema!r}, not {SCHEMA!r}")
    try:
        files = _decode(document, directory)
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise _damaged(path, f"{type(err).__name__} {str(err)[:100]}") from err
    for name in sorted(files.names):
        _check_name(name, path)
        if not (directory / name).is_file():
            raise _damaged(path, f"it names {name!r}, which is not in the folder")
    _check_wiring(files, path)
    return files


def _decode(document: Mapping[str, Any], directory: Path) -> StageFiles:
    whole_ms = document["whole_ms"]
    return StageFiles(
        directory=directory,
        model=str(document["model"]),
        digest=str(document["digest"]),
        graph_digest=str(document["graph_digest"]),
        stages=tuple(_stage(each) for each in document["stages"]),
        tensors={str(name): _tensor(each) for name, each in document["tensors"].items()},
        inputs=_texts(document["inputs"]),
        outputs=_texts(document["outputs"]),
        cuts=tuple(
            CutTensor(str(cut["name"]), int(cut["source"]), tuple(map(int, cut["targets"])))
            for cut in document["cuts"]
        ),
        passed=_texts(document["passed"]),
        whole=str(document["whole"]),
        whole_ms=None if whole_ms is None else float(whole_ms),
        versions={str(name): str(version) for name, version in document["versions"].items()},
        notes=tuple(Note(**note) for note in document["notes"]),
    )


def _stage(each: Mapping[str, Any]) -> StageFile:
    predicted = each["predicted"]
    return StageFile(
        index=int(each["index"]),
        file=str(each["file"]),
        inputs=_texts(each["inputs"]),
        outputs=_texts(each["outputs"]),
        nodes=int(each["nodes"]),
        weight_bytes=int(each["weight_bytes"]),
        data=str(each["data"]),
        predicted=None if predicted is None else _load(predicted),
    )


def _load(each: Mapping[str, Any]) -> PredictedLoad:
    made = PredictedLoad(**each)
    times = {name: value for name, value in each.items() if name.endswith("_ms")}
    bad = [name for name, value in times.items() if not _is_cost(value)]
    if bad or not isinstance(made.device, str) or type(made.replicas) is not int:
        raise ValueError(f"a predicted load is not one: {str(dict(each))[:80]}")
    if made.replicas < 1:
        raise ValueError(f"a stage has {made.replicas} replicas")
    return made


def _is_cost(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _tensor(each: Mapping[str, Any]) -> StageTensor:
    dims, shape = each["dims"], each["shape"]
    return StageTensor(
        dtype=str(each["dtype"]),
        dims=None if dims is None else tuple(dims),
        shape=None if shape is None else tuple(map(int, shape)),
        kind=str(each["kind"]),
    )


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError(f"{values!r} is no list")
    return tuple(map(str, values))


def _check_name(name: str, path: Path) -> None:
    """Refuse what could lead out of the folder, on any system."""
    plain = PurePosixPath(name).name == name and PureWindowsPath(name).name == name
    if not plain or name in ("", ".", "..") or "\0" in name:
        raise _damaged(path, f"it names {name!r}, which is no plain name of a file")


def _check_wiring(files: StageFiles, path: Path) -> None:
    """Refuse stages that read or give what no one describes, or out of order."""
    if not files.stages:
        raise _damaged(path, "it has no stages")
    indices = [stage.index for stage in files.stages]
    if indices != sorted(set(indices)):
        raise _damaged(path, f"its stages are numbered {indices}, not in rising order")
    known = set(files.inputs)
    for stage in files.stages:
        for name in stage.inputs:
            if name not in known:
                raise _damaged(path, f"stage {stage.index} reads {name!r}, which nothing gives")
        known.update(stage.outputs)
    named = {*known, *files.outputs}
    lacking = sorted(named - files.tensors.keys()) or sorted(set(files.outputs) - known)
    if lacking:
        raise _damaged(path, f"it does not describe {lacking[0]!r}")


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{str(path)!r} is damaged or not ours: {why}; remove the folder"
        " and write it again with `slicewise partition MODEL --split DIR`"
    )
