"""How tuning scales with clients, servers and devices, on a simulated device.

    python -m benchmarks.tune_scaling

The phases' times are those of a real run with TVM where `results/tune_tvm.json` is there, and the
simulation first predicts the wall times of those runs, each from runs of other seeds. All figures
of a table are for equal numbers of trials. Nothing is timed, so a busy machine changes nothing.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from benchmarks.tables import RESULTS, markdown, write_result
from slicewise.core.tuning import Budget, Workload
from slicewise.measure.quiet import QUIET_SHARE
from slicewise.tune import schedule
from slicewise.tune.backends.simulated import (
    SimulatedProblem,
    best_levels,
    latency_ms,
    levels_of,
    text_of,
)
from slicewise.tune.outlook import outlook
from slicewise.tune.phases import PhaseTimes, phase_times, serial_wall_s
from slicewise.tune.records import PieceRecord, RunResult, RunSettings
from slicewise.tune.simulate import Machine, simulate_run

NAME = "tune_scaling"
TRIALS, WORKLOADS, PIECE = 2048, 20, 8
SEEDS = (0, 1, 2)
# What nobody measured here: how much a server slows its neighbour on a device down, and how far
# its latencies then stray. Stated beside every table that it enters.
INTERFERENCE, NOISE = 0.1, 0.3
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
RATIOS = (0.02, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
DEFAULT = text_of([8, 8, 8, 8])
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Farm:
    """So many clients, each on a core of its own, and servers on each of the devices."""

    clients: int
    servers: int = 1
    devices: int = 1


def workloads(count: int) -> tuple[Workload, ...]:
    """Return operators whose times fall off as those of a real model do: few take most."""
    return tuple(
        Workload(
            f"w{i}", f"operator {i}", ("MatMul",), count=1 + i % 3, weight_ms=10.0 / (i + 1),
            default_config=DEFAULT,
        )
        for i in range(count)
    )  # fmt: skip


def problem_of(work: Sequence[Workload], times: PhaseTimes) -> SimulatedProblem:
    """Return the simulated problem with these phase times."""
    return SimulatedProblem(
        base_ms={each.key: each.mean_ms / 2 for each in work},
        defaults={each.key: each.default_config for each in work},
        times=times,
        is_virtual=True,
    )


def machine_of(times: PhaseTimes, *, interference: float = INTERFERENCE) -> Machine:
    """Return the machine that those times are of."""
    return Machine(
        client_start_s=times.client_start_s,
        server_start_s=times.server_start_s,
        core_efficiency=times.core_efficiency,
        interference=interference,
        interference_noise=NOISE,
    )


def simulated(
    farm: Farm,
    times: PhaseTimes,
    *,
    trials: int = TRIALS,
    seed: int = 0,
    interference: float = INTERFERENCE,
    **changes: Any,
) -> RunResult:
    """Return a run of the farm, two clients to a host."""
    work = workloads(WORKLOADS)
    settings = RunSettings(Budget(trials), piece_size=PIECE, seed=seed)
    return simulate_run(
        work, problem_of(work, times), settings=replace(settings, **changes),
        machine=machine_of(times, interference=interference), clients=farm.clients,
        servers=farm.servers, devices=farm.devices, clients_per_host=2, seed=seed,
    )  # fmt: skip


def over_optimum(result: RunResult) -> float:
    """Return the true latency of what was chosen over that of the known optimum."""
    reached = floor = 0.0
    for work in workloads(WORKLOADS):
        base = work.mean_ms / 2
        chosen = result.best[work.key].config if work.key in result.best else DEFAULT
        levels = levels_of(chosen)
        assert levels is not None
        reached += work.count * latency_ms(work.key, levels, base_ms=base, share=1.0)
        best = best_levels(work.key, 1.0)
        floor += work.count * latency_ms(work.key, best, base_ms=base, share=1.0)
    return reached / floor


# -- the real runs ----------------------------------------------------------------------------


def real_runs() -> list[Mapping[str, Any]]:
    """Return the real runs with TVM, none where there is no such file."""
    path = RESULTS / "tune_tvm.json"
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    return [run for run in document.get("runs", []) if run.get("pieces")]


def pieces_of(runs: Sequence[Mapping[str, Any]]) -> list[PieceRecord]:
    """Return the pieces of real runs."""
    return [
        PieceRecord(
            i, str(piece["workload"]), int(piece["size"]), 0, float(piece["search_s"]),
            float(piece["build_s"]), float(piece["measure_s"]),
        )
        for run in runs
        for i, piece in enumerate(run["pieces"])
    ]  # fmt: skip


def each_s(pieces: Sequence[PieceRecord], *phases: str) -> float:
    """Return the time of these phases for a candidate in s."""
    candidates = sum(piece.size for piece in pieces)
    spent = sum(float(getattr(piece, phase)) for piece in pieces for phase in phases)
    return spent / candidates


def times_of(runs: Sequence[Mapping[str, Any]]) -> PhaseTimes:
    """Return the phase times of our own schedule's runs: those of one client, and how much slower
    a client is while the other core works, too."""
    ours = [run for run in runs if run["schedule"] == "ours"]
    single = pieces_of([run for run in ours if run["clients"] == 1])
    double = pieces_of([run for run in ours if run["clients"] == 2])
    efficiency = 1.0
    if single and double:
        alone, beside = (each_s(each, "search_s", "build_s") for each in (single, double))
        efficiency = min(1.0, alone / beside)
    start_s = statistics.fmean(float(run.get("startup_s", 0.0)) for run in ours)
    # pieces of one client are of a core that is alone; those of two are not
    told = phase_times(
        single or double, client_start_s=start_s, server_start_s=start_s,
        core_efficiency=1.0 if single else efficiency, careful=careful_of(ours),
    )  # fmt: skip
    return replace(told, core_efficiency=efficiency)


def careful_of(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return how many times as long a finalist takes: what the runs measured beyond their
    pieces, over three finalists for each workload."""
    found = []
    for run in runs:
        pieces = pieces_of([run])
        quick = sum(piece.measure_s for piece in pieces)
        finalists = 3 * len({piece.workload for piece in pieces})
        beyond = max(0.0, float(run["measure_s"]) - quick)
        if quick > 0:
            found.append(beyond / finalists / each_s(pieces, "measure_s"))
    return statistics.fmean(found) if found else 3.0


def predicted_s(run: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> float:
    """Return the wall time of a run as runs of other seeds let one expect it."""
    pieces = pieces_of([run])
    trials, size = sum(p.size for p in pieces), max(p.size for p in pieces)
    if run["schedule"] != "ours":
        # one thing after another: what the same schedule spent on each phase with other seeds
        same = [each for each in others if each["schedule"] == run["schedule"]]
        start_s = statistics.fmean(float(each.get("startup_s", 0.0)) for each in same)
        own = phase_times(pieces_of(same), client_start_s=start_s, server_start_s=0.0)
        return serial_wall_s(own, trials=trials, piece_size=size)
    times = times_of(others)
    names = sorted({piece.workload for piece in pieces})
    work = tuple(Workload(name, name, ("op",), weight_ms=1.0) for name in names)
    clients = int(run["clients"])
    holds = {0: tuple(run["holds"])} if "holds" in run else ({0: (1,)} if clients > 1 else {})
    found = [
        simulate_run(
            work, problem_of(work, times),
            settings=RunSettings(Budget(trials), piece_size=size, seed=seed),
            machine=machine_of(times, interference=0.0), clients=clients, clients_per_host=2,
            holds=holds, seed=seed,
        ).phases.wall_s
        for seed in SEEDS
    ]  # fmt: skip
    return statistics.fmean(found)


def is_quiet(run: Mapping[str, Any]) -> bool:
    """True where busy loops before and after our run got both cores. After a stock run its own
    workers still end, so that only what was before tells."""
    names = ("core_share_before", *(("core_share_after",) if run["schedule"] == "ours" else ()))
    return all(run.get(name) is None or float(run[name]) >= QUIET_SHARE for name in names)


def check_rows(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return predicted and real wall time of each real run; phase times are those of the runs of
    other seeds that nobody disturbed."""
    rows: list[Row] = []
    for run in runs:
        others = [each for each in runs if each["seed"] != run["seed"] and is_quiet(each)]
        if not any(each["schedule"] == run["schedule"] for each in others):
            continue
        real, told = float(run["wall_s"]), predicted_s(run, others)
        rows.append(
            (
                str(run["schedule"]), str(run["clients"]), str(run["seed"]), f"{real:.1f}",
                f"{told:.1f}", f"{100 * (told / real - 1):+.0f} %",
                "quiet" if is_quiet(run) else "disturbed",
            )
        )  # fmt: skip
    return rows


def check_words(rows: Sequence[Row]) -> str:
    """Return how far the predictions are off, by schedule and clients."""
    if not rows:
        return "No real run is at hand, so no prediction was checked."
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row[6] != "quiet":
            continue
        name = f"{row[0]} with {row[1]} client{'s' if row[1] != '1' else ''}"
        groups.setdefault(name, []).append(float(row[4]) / float(row[3]) - 1)
    told = [
        f"{name}: {100 * statistics.fmean(errors):+.0f} % on average, at most"
        f" {100 * max(map(abs, errors)):.0f} %"
        for name, errors in sorted(groups.items())
    ]
    words = (
        "The goal is 15 %. Runs that others disturbed (busy loops got less than"
        f" {100 * QUIET_SHARE:.0f} % of the cores) are shown and not counted."
    )
    return f"{'; '.join(told)}. {words}"


# -- the curve --------------------------------------------------------------------------------


def farms() -> list[Farm]:
    """Return the farms of the table."""
    one = [Farm(clients) for clients in CLIENTS]
    more = [Farm(clients, servers) for servers in (2, 4, 8) for clients in (16, 32, 64)]
    wide = [Farm(64, 1, devices) for devices in (2, 4, 16)] + [Farm(64, 8, 16)]
    return one + more + wide


def scaling_rows(times: PhaseTimes, serial_s: float) -> list[Row]:
    """Return wall time and what limits it, for each farm."""
    rows: list[Row] = []
    for farm in farms():
        runs = [simulated(farm, times, seed=seed) for seed in SEEDS]
        wall = statistics.fmean(run.phases.wall_s for run in runs)
        disturbed = [t.slowdown for t in runs[0].trials if t.slowdown and not t.is_alone]
        rows.append(
            (
                str(farm.clients), str(farm.servers), str(farm.devices), f"{wall:.0f}",
                f"{serial_s / wall:.1f}", f"{100 * serial_s / wall / farm.clients:.0f}",
                f"{100 * statistics.fmean(run.phases.busy_share for run in runs):.0f}",
                f"{statistics.fmean(disturbed) if disturbed else 1.0:.2f}",
                f"{statistics.fmean(map(over_optimum, runs)):.3f}", limit_of(runs[0], farm),
            )
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


def limit_of(result: RunResult, farm: Farm) -> str:
    """Return what kept the run from being faster: where most of the time of clients went that
    they did not work, or the clients themselves where they worked."""
    last_handed_in = max(piece.ended_s for piece in result.pieces)
    last_quick = max(trial.at_s for trial in result.trials if not trial.is_alone)
    wall = result.phases.wall_s
    begun = min(piece.began_s for piece in result.pieces)
    busy = (result.phases.search_s + result.phases.build_s) / farm.clients
    # a client that is done for good when others still work has no piece left
    ends = [
        max((p.ended_s for p in result.pieces if p.client == i), default=begun)
        for i in range(farm.clients)
    ]
    unused = statistics.fmean(last_handed_in - end for end in ends)
    parts = {
        "clients": busy,
        "start": begun,
        "last pieces": unused,
        "measuring": max(0.0, last_handed_in - begun - busy - unused)
        + max(0.0, last_quick - last_handed_in),
        "finalists": max(0.0, wall - last_quick),
    }
    told = sorted(parts, key=lambda name: -parts[name])
    return ", ".join(f"{name} {100 * parts[name] / wall:.0f} %" for name in told[:2])


# -- what ratio is needed ---------------------------------------------------------------------


def ratio_rows(times: PhaseTimes) -> list[Row]:
    """Return for each ratio of measuring to search and build what one device can gain, and how
    many clients and servers bring 75 % less time and 5 times the throughput."""
    rows: list[Row] = []
    own = times.search_s + times.build_s + times.piece_s / PIECE
    for ratio in RATIOS:
        tried = replace(times, measure_s=ratio * own)
        serial = serial_wall_s(tried, trials=TRIALS, piece_size=PIECE)
        found = {
            (clients, servers): serial / simulated(Farm(clients, servers), tried).phases.wall_s
            for servers in (1, 4, 8)
            for clients in (4, 8, 16, 64)
        }
        best = {s: max(v for (_, servers), v in found.items() if servers == s) for s in (1, 4, 8)}
        rows.append(
            (
                f"{ratio:g}", f"{(1 + ratio) / ratio:.1f}", f"{best[1]:.1f}", f"{best[4]:.1f}",
                f"{best[8]:.1f}", least(found, 4.0), least(found, 5.0),
            )
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


def least(found: Mapping[tuple[int, int], float], wanted: float) -> str:
    """Return the fewest workers that gain as much as wanted: fewest servers, then clients."""
    enough = [(servers, clients) for (clients, servers), gain in found.items() if gain >= wanted]
    if not enough:
        return "none tried"
    servers, clients = min(enough)
    return f"{clients} clients, {servers} server{'s' if servers > 1 else ''}"


# -- choices ----------------------------------------------------------------------------------


def choice_rows(times: PhaseTimes) -> list[Row]:
    """Return what the schedule's own constants change: time, and how near the optimum it comes."""
    slow = replace(times, measure_s=0.25 * (times.search_s + times.build_s))
    cases: list[tuple[str, PhaseTimes, Farm, dict[str, Any], dict[str, Any]]] = [
        ("as it is", times, Farm(8), {}, {}),
        ("optimism halved", times, Farm(8), {}, {"PRIOR_EXPONENT": 0.125}),
        ("optimism doubled", times, Farm(8), {}, {"PRIOR_EXPONENT": 0.5}),
        ("optimism fades twice as fast", times, Farm(8), {}, {"PRIOR_TRIALS": 8}),
        ("optimism fades half as fast", times, Farm(8), {}, {"PRIOR_TRIALS": 32}),
        ("trials by weight alone", times, Farm(8), {}, {"PRIOR_TRIALS": 10**6}),
        ("last pieces not cut", times, Farm(8), {}, {"_LEAST_PART": 1.0}),
        ("slow measuring: backlog 1", slow, Farm(16), {"backlog": 1}, {}),
        ("slow measuring: backlog 2 (as it is)", slow, Farm(16), {"backlog": 2}, {}),
        ("slow measuring: backlog 4", slow, Farm(16), {"backlog": 4}, {}),
        ("slow measuring: no limit", slow, Farm(16), {"backlog": 10**6}, {}),
    ]
    rows: list[Row] = []
    for name, case, farm, changes, constants in cases:
        with ExitStack() as stack:
            for constant, value in constants.items():
                stack.enter_context(mock.patch.object(schedule, constant, value))
            runs = [simulated(farm, case, trials=512, seed=s, **changes) for s in range(8)]
        over = [over_optimum(run) for run in runs]
        rows.append(
            (
                name, f"{statistics.fmean(run.phases.wall_s for run in runs):.0f}",
                f"{statistics.fmean(over):.3f}",
                f"{statistics.stdev(over) / math.sqrt(len(over)):.3f}",
            )
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


# -- forecasts --------------------------------------------------------------------------------


def forecast_rows(times: PhaseTimes) -> list[Row]:
    """Return how far the outlook after some trials is from what more of them really brought."""
    rows: list[Row] = []
    work = workloads(WORKLOADS)
    for trials in (100, 300, 1000):
        for more in (2, 4):
            errors, inside = [], 0
            for seed in range(10):
                run = simulated(Farm(4), times, trials=more * trials, seed=seed, finalists=0)
                told = outlook(
                    work, run.trials[:trials], seconds=(more - 1.0) * trials, rate_per_s=1.0
                )
                real = run.curve[-1].total_ms
                errors.append(told.value / real - 1)
                inside += told.low <= real <= told.high
            rows.append(
                (
                    str(trials), str(more * trials), f"{100 * statistics.fmean(errors):+.0f} %",
                    f"{100 * max(map(abs, errors)):.0f} %", f"{inside} of 10",
                )
            )  # fmt: skip
            print("  ".join(rows[-1]), flush=True)
    return rows


# -- the page ---------------------------------------------------------------------------------


def main() -> None:
    """Simulate and write the tables."""
    runs = real_runs()
    quiet = [run for run in runs if is_quiet(run)]
    times = times_of(quiet) if any(run["schedule"] == "ours" for run in quiet) else PhaseTimes()
    origin = "those of the real runs in `tune_tvm.json`"
    if not runs:
        origin = "the defaults of `PhaseTimes` (one client, one core, first trials)"
        print(f"results/tune_tvm.json is not there; phase times are {origin}", flush=True)
    serial = serial_wall_s(times, trials=TRIALS, piece_size=PIECE)
    ratio = times.measure_s / (times.search_s + times.build_s + times.piece_s / PIECE)
    checked = check_rows(runs)
    columns = (
        "clients", "servers a device", "devices", "wall s",
        "times faster than one after the other", "of the clients' number %",
        "measuring share %", "slowdown while measuring",
        "latency over optimum", "where the time goes",
    )  # fmt: skip
    rows = scaling_rows(times, serial)
    ratios, choices, forecasts = ratio_rows(times), choice_rows(times), forecast_rows(times)
    ratio_columns = (
        "measure : search + build", "most that 1 server allows", "reached, 1 server", "4 servers",
        "8 servers", "75 % less time from", "5 times the throughput from",
    )  # fmt: skip
    choice_columns = ("choice", "wall s", "latency over optimum", "standard error")
    forecast_columns = (
        "after trials", "told for", "error on average", "at most", "inside the interval",
    )  # fmt: skip
    check_columns = ("schedule", "clients", "seed", "real s", "predicted s", "error", "machine")
    tables = {
        "check": (check_columns, checked),
        "ratios": (ratio_columns, ratios),
        "choices": (choice_columns, choices),
        "forecasts": (forecast_columns, forecasts),
    }
    more = "\n".join(
        (
            "## Predicted and real", "", check_words(checked), "",
            *(markdown(check_columns, checked) if checked else ()), "",
            "## Which ratio is needed", "",
            "One device, up to 64 clients and 8 servers, against one tuner that searches, builds"
            " and measures one after the other. The second column is the limit that one server"
            f" sets, whatever the clients: (1 + r) / r. Here r is {ratio:.3f}. So with one server"
            " 75 % less time needs r below 1/3, and 5 times the throughput r below 1/4; beyond,"
            " servers have to share the device.", "",
            *markdown(ratio_columns, ratios), "",
            "## What the schedule's constants change", "",
            "512 trials, 8 seeds, 8 clients (16 where measuring is slow: a quarter of search and"
            " build), 1 server.", "", *markdown(choice_columns, choices), "",
            "## Forecasts", "",
            "What `outlook` tells after some trials, against what more trials brought; 10 seeds,"
            " 4 clients.", "", *markdown(forecast_columns, forecasts),
        )
    )  # fmt: skip
    write_result(
        NAME,
        title="How tuning scales (simulated)",
        command="python -m benchmarks.tune_scaling",
        words=f"Phase times are {origin}: {words_of(times)}. {TRIALS} trials over {WORKLOADS}"
        f" operators in pieces of {PIECE}, {len(SEEDS)} seeds, two clients to a host; each server"
        " that measures beside another one on its device slows it down by"
        f" {100 * INTERFERENCE:g} % (assumed, not measured). One after the other takes"
        f" {serial:.0f} s. The last column"
        " names the two largest parts of the wall time, as a client sees it.",
        columns=columns,
        rows=rows,
        more=more,
    )
    path = RESULTS / f"{NAME}.json"
    document = json.loads(path.read_text())
    for name, (head, body) in tables.items():
        document[name] = [dict(zip(head, row, strict=True)) for row in body]
    path.write_text(json.dumps(document, indent=1) + "\n")


def words_of(times: PhaseTimes) -> str:
    """Return the phase times in words."""
    return (
        f"search {times.search_s:.2f} s, build {times.build_s:.2f} s, measurement"
        f" {times.measure_s:.3f} s for each candidate, {times.piece_s:.2f} s for each piece,"
        f" {times.client_start_s:.1f} s to start, a core beside a busy one at"
        f" {100 * times.core_efficiency:.0f} % of its speed"
    )


if __name__ == "__main__":
    main()
