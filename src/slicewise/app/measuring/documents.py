"""`slicewise.measure/1` and its neighbours: measurements as plain values for scripts."""

from collections.abc import Sequence

import msgspec

from slicewise.core.measurement import Measurement

Json = dict[str, object]


def measure_document(measurements: Sequence[Measurement]) -> Json:
    """Return `slicewise.measure/1`: one entry for each measurement, in the order taken."""
    return {
        "schema": "slicewise.measure/1",
        "measurements": [measurement_entry(each) for each in measurements],
    }


def measurement_entry(measurement: Measurement) -> Json:
    """Return one measurement: figures by name, null where there is none.

    `samples` are the raw samples in ms; `memory_bytes` is the peak of the process and `memory` how
    it was told.
    """
    plain: Json = msgspec.to_builtins(measurement)
    latency = measurement.latency_ms
    memory = measurement.memory
    for gone in ("samples_ms", "latency_ms", "protocol", "binding", "nodes", "location"):
        del plain[gone]
    return {
        **plain,
        "source": measurement.location,
        "latency_ms": (
            None
            if latency is None
            else {"value": latency.value, "low": latency.low, "high": latency.high}
        ),
        "throughput_per_s": None if latency is None else measurement.batch / latency.value * 1e3,
        "memory_bytes": None if memory is None else memory.peak_bytes,
        "samples": list(measurement.samples_ms),
        "operators": msgspec.to_builtins(measurement.nodes),
        "key": measurement.key,
    }
