"""The tables of the record store, and how older ones are brought up.

The first schema and each step after it are written here once and never changed.
"""

import sqlite3
from collections.abc import Callable

from slicewise.core.errors import StoreError
from slicewise.store.keys import shown_text
from slicewise.store.record_codec import CodecError, content_digest, decode
from slicewise.store.sqlite import FileKind

APPLICATION_ID = 0x736C6377  # 'slcw': an SQLite file that is a store of ours says so
_ELSEWHERE = "give --store FILE, or set SLICEWISE_HOME to another folder"


def _first_schema(connection: sqlite3.Connection) -> None:
    """Records with what they are asked by, and an index of keys."""
    connection.execute(
        """
        CREATE TABLE record (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            added_at TEXT NOT NULL,
            key TEXT NOT NULL,
            digest TEXT NOT NULL,
            model TEXT NOT NULL,
            device TEXT NOT NULL,
            slice TEXT,
            runtime TEXT NOT NULL,
            batch INTEGER NOT NULL,
            precision TEXT NOT NULL,
            threads INTEGER NOT NULL,
            outcome TEXT NOT NULL,
            latency_ms REAL,
            energy_j REAL,
            memory_bytes INTEGER,
            body TEXT NOT NULL,
            samples BLOB NOT NULL,
            nodes BLOB
        )
        """
    )
    connection.execute("CREATE INDEX record_key ON record (key, id)")


def _campaigns_and_content(connection: sqlite3.Connection) -> None:
    """The campaign and point of a record, where its model was read from, its content digest."""
    for column in ("location", "campaign", "point", "content"):
        connection.execute(f"ALTER TABLE record ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    numbers = [row[0] for row in connection.execute("SELECT id FROM record")]
    for number in numbers:
        row = connection.execute(
            "SELECT CAST(body AS BLOB), samples, nodes FROM record WHERE id = ?", (number,)
        ).fetchone()
        try:
            measurement = decode(*row)
        except CodecError as err:
            raise StoreError(
                f"record {number} is damaged, so the record store cannot be brought to schema 2:"
                f" {err}; move the file away, or {_ELSEWHERE}"
            ) from err
        connection.execute(
            "UPDATE record SET location = ?, content = ? WHERE id = ?",
            (shown_text(measurement.location), content_digest(measurement), number),
        )
    connection.execute("CREATE INDEX record_content ON record (content)")
    connection.execute(
        "CREATE INDEX record_point ON record (campaign, point) WHERE campaign <> ''"
    )


# The n-th brings a store from version n to n + 1; one that is published is never changed.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _first_schema,
    _campaigns_and_content,
)

RECORDS = FileKind(
    name="record store",
    application_id=APPLICATION_ID,
    migrations=MIGRATIONS,
    elsewhere=_ELSEWHERE,
    damaged="move it away, and import what was exported of it",
    absent="`slicewise measure` makes one, or give --store FILE of one that is there",
)
