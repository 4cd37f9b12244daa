"""The open rows of GPU slices and shares, in the words of this package.

`alone()`, `crowded()` and `pairs()` read `sharing/slices_open.csv.gz` of the data folder; what is
known of each source beside its rows stands in `SOURCES`. No prediction is made here.
"""

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.open_rows import data_folder
from slicewise.predict.measured import PAGEABLE_BYTES_PER_S, PINNED_BYTES_PER_S, MeasuredRow

_IMAGE_BYTES = 224 * 224 * 3 * 4
# Between A100 SXM4 cards: all-reduce of NCCL reaches some 230 GB/s of the 300 GB/s of a direction
# of NVLink 3 (data sheet).
_ALL_REDUCE_BYTES_PER_S = 230e9
_LLAMA = {"7b": (32, 4096), "13b": (40, 5120), "30b": (60, 6656), "65b": (80, 8192)}


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: `largest` is the part that a rule starts from."""

    device: str
    largest: str
    precision: str
    transfer_bytes_per_s: float
    is_fitted: bool = False


# Gpulet states no device; its latencies on the whole card are those of ParvaGPU within 2 %.
# iGniter measured the whole card at batch 1 only, INFless up to half of it.
SOURCES: Mapping[str, Source] = {
    "ParvaGPU": Source("a100-sxm4-80gb", "7g.80gb", "tf32", PAGEABLE_BYTES_PER_S, is_fitted=True),
    "MISO": Source("a100-sxm4-40gb", "7g.40gb", "unknown", PAGEABLE_BYTES_PER_S, is_fitted=True),
    "Gpulet-0909wlgur": Source("a100-sxm4-80gb", "100%", "tf32", PAGEABLE_BYTES_PER_S),
    "MuxServe": Source("a100-sxm4-80gb", "100%", "fp16", _ALL_REDUCE_BYTES_PER_S),
    "iGniter": Source("v100-sxm2-16gb", "80%", "fp32", PINNED_BYTES_PER_S),
    "INFless": Source("rtx-2080-ti", "50%", "fp32", PAGEABLE_BYTES_PER_S),
}
PAIR_SOURCES = {"iGniter-pairs": "iGniter", "Gpulet-0909wlgur-pairs": "Gpulet-0909wlgur"}


@dataclass(frozen=True, slots=True)
class Subject:
    """One model as one source measured it."""

    source: str
    model: str
    family: str
    variant: str = ""

    @property
    def transfer_bytes_per_item(self) -> float | None:
        """What one item moves over the link while the source's clock runs; None: not known.

        Images; of BERT the logits of its masked-language head (128 x 30,522, fp32): not stated,
        but what explains the 2.4 ms for each item that no slice changes. Of LLaMA over several
        cards, two all-reduces for each layer and token.
        """
        if self.source in ("MISO", "INFless"):
            return None
        if self.source == "MuxServe":
            found = re.fullmatch(r"llama-(\w+)-(\w+)-tp(\d)", self.model)
            assert found is not None
            layers, width = _LLAMA[found[1]]
            cards = int(found[3])
            tokens = int(self.variant.partition(",")[0]) if found[2] == "prefill" else 1
            return 2 * layers * width * 2 * 2 * (cards - 1) / cards * tokens
        if self.model == "bert":
            return 128 * 30522 * 4
        return 300 * 300 * 3 * 4 if self.model == "ssd" else _IMAGE_BYTES


def alone() -> dict[Subject, list[MeasuredRow]]:
    """Return the rows of one process without neighbours, by subject."""
    found: dict[Subject, list[MeasuredRow]] = defaultdict(list)
    for row in _rows():
        if row["source"] in SOURCES and row["n_processes"] == "1" and not row["co_runners"]:
            found[_subject(row)].append(_measured(row))
    return dict(found)


def crowded() -> dict[Subject, list[MeasuredRow]]:
    """Return the rows of several equal processes in one slice."""
    found: dict[Subject, list[MeasuredRow]] = defaultdict(list)
    for row in _rows():
        if row["source"] in SOURCES and "same model" in row["co_runners"]:
            found[_subject(row)].append(_measured(row))
    return dict(found)


@dataclass(frozen=True, slots=True)
class Pair:
    """One model beside another on complementary shares: its latency, and what ran beside it."""

    source: str
    model: str
    batch: int
    part: str
    neighbour: str
    neighbour_batch: int
    neighbour_part: str
    latency_ms: float


def pairs() -> Iterator[Pair]:
    """Yield the rows of two unlike neighbours."""
    for row in _rows():
        source = PAIR_SOURCES.get(row["source"])
        if source is not None:
            found = re.fullmatch(r"(.+):b(\d+)@(\d+%)", row["co_runners"])
            assert found is not None, row["co_runners"]
            yield Pair(
                source, row["model"], int(row["batch"]), row["slice"], found[1], int(found[2]),
                found[3], float(row["latency_ms"]),
            )  # fmt: skip


def _rows() -> Iterator[dict[str, str]]:
    with gzip.open(data_folder() / "sharing" / "slices_open.csv.gz", "rt") as file:
        yield from csv.DictReader(file)


def _subject(row: Mapping[str, str]) -> Subject:
    variant = row["seq_len"]
    if row["source"] == "MuxServe":
        variant = f"{row['seq_len']},{row['device']}"
    if row["source"] == "INFless":
        variant = row["notes"]
    return Subject(row["source"], row["model"], row["family"], variant)


def _measured(row: Mapping[str, str]) -> MeasuredRow:
    part = None if row["slice"] == "100%" else row["slice"]
    return MeasuredRow(
        int(row["batch"]), float(row["latency_ms"]), part, processes=int(row["n_processes"])
    )
