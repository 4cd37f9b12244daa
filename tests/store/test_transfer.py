"""Export and import: the same records on the other side, once, and bad lines named."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.core.errors import MissingDependency, StoreError
from slicewise.core.measurement import Measurement
from slicewise.store import transfer
from slicewise.store.parquet import COLUMNS, export_parquet, import_parquet
from slicewise.store.records import RecordStore
from slicewise.store.transfer import BadLine, export_jsonl, import_jsonl
from slicewise.testing.records import failed_measurement, measurements, tiny_measurement


def _exported(made: list[Measurement]) -> bytes:
    file = io.BytesIO()
    with RecordStore.in_memory() as store:
        for i, each in enumerate(made):
            store.add(each, campaign="c", point=f"{i}")
        assert export_jsonl(store, file) == len(made)
    return file.getvalue()


@given(st.lists(measurements(), max_size=3))
@settings(deadline=None, max_examples=50)
def test_what_is_exported_and_imported_is_the_same_and_comes_once(
    made: list[Measurement],
) -> None:
    lines = _exported(made)
    unlike = [each for i, each in enumerate(made) if each not in made[:i]]
    with RecordStore.in_memory() as store:
        first = import_jsonl(store, io.BytesIO(lines))
        assert (first.added, first.known) == (len(unlike), len(made) - len(unlike))
        again = import_jsonl(store, io.BytesIO(lines))
        assert (again.added, again.known, again.bad) == (0, len(made), ())
        found = list(store.find())
        assert [record.measurement for record in found] == unlike
        assert {record.campaign for record in found} <= {"c"}
        assert len({record.point for record in found}) == len(found)


@given(st.lists(measurements(), max_size=3))
@settings(deadline=None, max_examples=15)
def test_parquet_carries_whole_records_too(made: list[Measurement]) -> None:
    unlike = [each for i, each in enumerate(made) if each not in made[:i]]
    file = io.BytesIO()
    with RecordStore.in_memory() as store:
        store.add_all(unlike)
        assert export_parquet(store, file) == len(unlike)
    with RecordStore.in_memory() as store:
        assert import_parquet(store, io.BytesIO(file.getvalue())).added == len(unlike)
        assert import_parquet(store, io.BytesIO(file.getvalue())).known == len(unlike)
        assert [record.measurement for record in store.find()] == unlike


def test_each_line_is_a_json_document_with_its_schema_and_all_fields() -> None:
    [line] = _exported([tiny_measurement()]).splitlines()
    document = json.loads(line)
    assert document["schema"] == "slicewise.record/1"
    assert document["campaign"] == "c"
    assert set(document["measurement"]) == set(Measurement.__dataclass_fields__)
    assert document["measurement"]["samples_ms"] == list(tiny_measurement().samples_ms)


def test_what_others_do_to_a_line_on_its_way_does_not_make_it_another_record() -> None:
    document = json.loads(_exported([tiny_measurement()]))
    document["measurement"] = dict(sorted(document["measurement"].items()))
    document["unheard"] = 1
    document["measurement"]["of"] = [2]
    with RecordStore.in_memory() as store:
        store.add(tiny_measurement())
        line = json.dumps(document, indent=None, separators=(" , ", " : ")).encode()
        assert import_jsonl(store, io.BytesIO(line)).known == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "it is not JSON: Expecting value at character 0"),
        (b"[]", "object"),
        (b'{"schema":"slicewise.record/2"}', "slicewise.record/2"),
        (b'{"schema":"slicewise.record/1"}', "measurement"),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b'{"schema":"slicewise.record/1","measurement":{"model":"\\udc80"}}', "required"),
    ],
)
def test_a_bad_line_is_named_and_costs_no_other(line: bytes, reason: str) -> None:
    good = _exported([tiny_measurement(0), failed_measurement(1)]).splitlines()
    content = b"\n".join([good[0], b"", line, good[1]])
    with RecordStore.in_memory() as store:
        done = import_jsonl(store, io.BytesIO(content))
        assert (done.added, done.known) == (2, 0)
        [bad] = done.bad
        assert bad.number == 3
        assert reason in bad.reason
        assert store.count() == 2


@pytest.mark.parametrize(
    ("field", "value"), [("batch", -1), ("threads", 2**63), ("outcome", "lost"), ("seconds", "x")]
)
def test_a_record_that_cannot_be_is_a_bad_line(field: str, value: object) -> None:
    document = json.loads(_exported([tiny_measurement()]))
    document["measurement"][field] = value
    with RecordStore.in_memory() as store:
        done = import_jsonl(store, io.BytesIO(json.dumps(document).encode()))
        assert len(done.bad) == 1
        assert store.count() == 0


def test_a_line_too_long_is_read_past(monkeypatch: pytest.MonkeyPatch) -> None:
    good = _exported([tiny_measurement()])
    monkeypatch.setattr(transfer, "_LONGEST_LINE", 4 * len(good))
    content = b"x" * (9 * len(good)) + b"\n" + good
    with RecordStore.in_memory() as store:
        done = import_jsonl(store, io.BytesIO(content))
    assert done.added == 1
    assert [bad.number for bad in done.bad] == [1]
    assert isinstance(done.bad[0], BadLine)


def test_an_export_holds_what_was_asked_for_only() -> None:
    file = io.BytesIO()
    with RecordStore.in_memory() as store:
        store.add_all([tiny_measurement(0), failed_measurement(1), tiny_measurement(2)])
        assert export_jsonl(store, file, outcome=tiny_measurement().outcome, limit=1) == 1
    assert json.loads(file.getvalue())["measurement"]["model"] == "net2"


def test_the_columns_of_the_parquet_file_are_flat_with_the_samples_as_a_list() -> None:
    import pyarrow.parquet

    file = io.BytesIO()
    made = replace(tiny_measurement(1), slice="50%", location="caf\udce9.onnx")
    with RecordStore.in_memory() as store:
        store.add_all([made, failed_measurement(2)])
        export_parquet(store, file)
    first, second = pyarrow.parquet.read_table(io.BytesIO(file.getvalue())).to_pylist()
    assert tuple(first) == tuple(COLUMNS)
    assert first["samples_ms"] == list(made.samples_ms)
    assert (first["slice"], first["latency_ms"], first["memory_bytes"]) == (
        "50%", made.latency_ms and made.latency_ms.value, 2**27 + 1,
    )  # fmt: skip
    assert (second["outcome"], second["latency_ms"], second["samples_ms"]) == ("crashed", None, [])


def test_parquet_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with RecordStore.in_memory() as store:
        for use in (export_parquet, import_parquet):
            with pytest.raises(MissingDependency, match=r"slicewise\[parquet\]"):
                use(store, io.BytesIO())


def test_a_parquet_file_that_is_none_or_of_others_is_told() -> None:
    import pyarrow
    import pyarrow.parquet

    other = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), other)
    with RecordStore.in_memory() as store:
        with pytest.raises(StoreError, match="cannot be read"):
            import_parquet(store, io.BytesIO(b"PAR1 and no more"))
        with pytest.raises(StoreError, match="no column 'record'"):
            import_parquet(store, io.BytesIO(other.getvalue()))
