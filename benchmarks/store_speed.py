"""How fast the record store is with 100,000 records: look-up, adding, listing, export, import.

    python -m benchmarks.store_speed

Wall seconds, the best of some runs: the machine is shared. Records are drawn with a seed; each
has 50 samples that compress as little as real ones.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.tables import write_result
from slicewise.core.cost import Estimate
from slicewise.core.measurement import Measurement
from slicewise.store.parquet import export_parquet
from slicewise.store.records import RecordStore
from slicewise.store.transfer import export_jsonl, import_jsonl
from slicewise.testing.records import tiny_measurement

RECORDS = 100_000
SAMPLES = 50
LOOK_UPS = 2000
SINGLE = 200
RUNS = 3


def measurements(count: int, *, seed: int = 0) -> Iterator[Measurement]:
    """Yield measurements of 500 models under 200 conditions each, with samples of their own."""
    draw = random.Random(seed)
    blank = tiny_measurement()
    for i in range(count):
        middle_ms = 2.0 + i % 500
        samples = tuple(middle_ms * (1 + draw.gauss(0, 0.02)) for _ in range(SAMPLES))
        yield replace(
            blank,
            model=f"net{i % 500}",
            location=f"models/net{i % 500}.onnx",
            digest=f"{i % 500:064x}",
            batch=1 + i // 500,
            latency_ms=Estimate(sorted(samples)[SAMPLES // 2], min(samples), max(samples)),
            samples_ms=samples,
        )


def seconds(work: Callable[[], object]) -> float:
    """Return the wall seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work: Callable[[], object]) -> float:
    """Return the least wall seconds of some runs."""
    return min(seconds(work) for _ in range(RUNS))


def look_up_s(store: RecordStore, keys: list[str]) -> tuple[float, float]:
    """Return the median and the 99th percentile of single look-ups, keys in random order."""
    times = sorted(seconds(lambda key=key: store.latest(key)) for key in keys)  # type: ignore[misc]
    return times[len(times) // 2], times[len(times) * 99 // 100]


def main() -> None:
    """Measure and write the table."""
    rows: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, lines = folder / "records.sqlite", folder / "records.jsonl"
        with RecordStore(path) as store:
            made = measurements(RECORDS)
            filling = seconds(
                lambda: [
                    store.add_all(batch) for batch in iter(lambda: list(islice(made, 500)), [])
                ]
            )
            draw = random.Random(1)
            wanted = set(draw.sample(range(RECORDS), LOOK_UPS))
            keys = [m.key for i, m in enumerate(measurements(RECORDS)) if i in wanted]
            draw.shuffle(keys)
            middle, late = look_up_s(store, keys)
            rows.append(("look-up of the latest by key, median", ms(middle), "< 1 ms"))
            rows.append(("look-up of the latest by key, 99th percentile", ms(late), ""))
            absent = best(lambda: [store.has("0" * 64) for _ in range(1000)]) / 1000
            rows.append(("look-up of a key that is not there", ms(absent), "< 1 ms"))

            def export(write: Callable[..., int] = export_jsonl, to: Path = lines) -> None:
                with to.open("wb") as file:
                    assert write(store, file) == RECORDS

            rows.append(("export as JSON lines", s(best(export)), "< 5 s"))
            table = folder / "records.parquet"
            rows.append(
                ("export as parquet", s(seconds(lambda: export(export_parquet, table))), "")
            )
            rows.append(
                (
                    "find by a pattern of the model: 200 records, 'net7'",
                    ms(best(lambda: list(store.find(model="net7")))),
                    "",
                )
            )
            rows.append(
                (
                    "count of the latest of every key",
                    ms(best(lambda: store.count(latest=True))),
                    "",
                )
            )
            one = best(lambda: [store.add(tiny_measurement(i)) for i in range(SINGLE)]) / SINGLE
            rows.append(("add one record, on the disk", ms(one), ""))
        rows.append(("add all, 500 in a transaction", s(filling), ""))
        with RecordStore(folder / "other.sqlite") as other:

            def take(added: int) -> None:
                with lines.open("rb") as file:
                    assert import_jsonl(other, file).added == added

            rows.append(("import of the JSON lines", s(seconds(lambda: take(RECORDS))), ""))
            rows.append(("the same import again, all known", s(seconds(lambda: take(0))), ""))
        sizes = [f"{file.stat().st_size / 1e6:.0f} MB" for file in (path, lines, table)]
    write_result(
        "store_speed",
        title="Speed of the record store with 100,000 records",
        command="python -m benchmarks.store_speed",
        words=f"{RECORDS:,} records with {SAMPLES} samples each, 2 shared cores, wall time, the"
        f" best of {RUNS} where it can be repeated. Look-ups are single calls of"
        f" `RecordStore.latest` that decode the record, {LOOK_UPS:,} keys in random order.",
        columns=("what", "time", "to reach"),
        rows=rows,
        more=f"Sizes: store {sizes[0]}, JSON lines {sizes[1]}, parquet {sizes[2]}.",
    )


def ms(value_s: float) -> str:
    """Return milliseconds with three digits."""
    return f"{value_s * 1e3:.3g} ms"


def s(value_s: float) -> str:
    """Return seconds with two decimals."""
    return f"{value_s:.2f} s"


if __name__ == "__main__":
    main()
