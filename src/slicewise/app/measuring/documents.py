"""`slicewise.measure/1`: measurements as plain values for scripts."""

from collections.abc import Sequence

import msgspec

from slicewise.app.documents import Json
from slicewise.app.records_documents import measurement_entry
from slicewise.core.measurement import Measurement


def measure_document(measurements: Sequence[Measurement]) -> Json:
    """Return `slicewise.measure/1`: one entry for each measurement, in the order taken.

    Beside what `slicewise.records/1` tells of a record: items a second, and the operators where
    they were profiled.
    """
    return {
        "schema": "slicewise.measure/1",
        "measurements": [taken_entry(each) for each in measurements],
    }


def taken_entry(measurement: Measurement) -> Json:
    """Return one measurement: figures by name, null where there is none."""
    latency = measurement.latency_ms
    return {
        **measurement_entry(measurement),
        "throughput_per_s": None if latency is None else measurement.batch / latency.value * 1e3,
        "operators": msgspec.to_builtins(measurement.nodes),
        "key": measurement.key,
    }
