"""Kill a process that adds records, at random moments, and look for what it lost.

    python -m benchmarks.store_kill

A child adds records and tells each one that was acknowledged over a pipe. It is killed (SIGKILL)
after a random number of them, while it goes on adding; a part of the kills hit while it makes the
file. All kills use one store, as a campaign does that is started again and again.
"""

import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import write_result
from slicewise.store.records import RecordStore
from slicewise.testing.records import tiny_measurement

KILLS = 100
_MOST = 30  # records acknowledged before a kill

_CHILD = """
import os, sys
from pathlib import Path
from slicewise.store.records import RecordStore
from slicewise.testing.records import tiny_measurement

path, campaign = Path(sys.argv[1]), sys.argv[2]
os.write(1, b"opening\\n")
with RecordStore(path) as store:
    number = 0
    while True:
        made = tiny_measurement(number, samples=60)
        done = store.add(made, campaign=campaign, point=str(number))
        os.write(1, f"{done} {number}\\n".encode())
        number += 1
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """What one kill left: records acknowledged, acknowledged but lost, found though not
    acknowledged (at most the last one), found but not as they were added."""

    acknowledged: int
    lost: int
    beyond: int
    wrong: int


def kill_once(path: Path, *, campaign: str, after: int) -> Kill:
    """Add records in a child, kill it once `after` of them are acknowledged, and look.

    `after` 0 kills it as soon as it opens the store.
    """
    command = [sys.executable, "-c", _CHILD, str(path), campaign]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(after + 1)]
        child.kill()
        lines += child.stdout.readlines()  # acknowledged between the last one read and the kill
    told = [line.split() for line in lines[1:] if line.endswith(b"\n")]
    if len(told) < after:
        raise RuntimeError(f"the child ended by itself after {len(told)} records")
    acknowledged = {int(number): int(which) for number, which in told}
    with RecordStore(path) as store:
        found = {record.id: record for record in store.find(campaign=campaign)}
        done = store.points_done(campaign)
    wrong = sum(
        record.measurement != tiny_measurement(int(record.point), samples=60)
        for record in found.values()
    )
    lost = [n for n, which in acknowledged.items() if n not in found or str(which) not in done]
    return Kill(len(acknowledged), len(lost), len(found.keys() - acknowledged.keys()), wrong)


def kill_often(path: Path, *, kills: int, seed: int) -> list[Kill]:
    """Return what each of `kills` kills left, after numbers of records drawn with `seed`."""
    draw = random.Random(seed)
    return [
        kill_once(path, campaign=f"run {i}", after=0 if i % 5 == 0 else draw.randint(1, _MOST))
        for i in range(kills)
    ]


def damage(path: Path) -> str:
    """Return 'ok', or what SQLite's own check of the whole file found."""
    import sqlite3

    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def main() -> None:
    """Kill and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.sqlite"
        found = kill_often(path, kills=KILLS, seed=0)
        health = damage(path)
    rows = [
        ("kills", str(len(found)), "100"),
        ("of them while the store is opened", str(sum(k.acknowledged == 0 for k in found)), ""),
        ("records acknowledged", f"{sum(k.acknowledged for k in found):,}", ""),
        ("acknowledged and lost", str(sum(k.lost for k in found)), "0"),
        ("half written or changed", str(sum(k.wrong for k in found)), "0"),
        (
            "kept though the kill came before the acknowledgement",
            str(sum(k.beyond for k in found)),
            "at most 1 a kill",
        ),
        ("integrity check of the file afterwards", health, "ok"),
    ]
    write_result(
        "store_kill",
        title="Records after 100 kills",
        command="python -m benchmarks.store_kill",
        words="A process adds records one after the other and is killed with SIGKILL after a"
        f" random number of acknowledged ones (0 to {_MOST}), all in one store.",
        columns=("what", "found", "to reach"),
        rows=rows,
    )


if __name__ == "__main__":
    main()
