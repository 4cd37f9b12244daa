"""Packing: the published scenarios against the published rule, planted optima, and a large fleet.

    python -m benchmarks.packing [--time-limit 60]

The scenarios are those of ParvaGPU (SC'24), reduced to the models whose profiles are open. Its
rule is run again on the same reduction (`packing_rule.py`): how well that copies the original is
told by the capacity of each model, which the original publishes. Every answer goes through
`verify`, every workload of the scenarios through the simulation. CPU seconds are of all threads.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.open_rows import data_folder
from benchmarks.packing_rule import (
    PROFILES,
    Scenario,
    by_rule,
    open_profiles,
    open_scenarios,
)
from benchmarks.tables import markdown, write_result
from slicewise.core.device import Device
from slicewise.core.packing import (
    GpuStock,
    LatencyModel,
    Offer,
    Packing,
    PackObjective,
    PackProblem,
    PackWorkload,
    Serving,
)
from slicewise.flows.devices import device as device_named
from slicewise.slices.latency import offer
from slicewise.slices.layouts import Multiset, multisets
from slicewise.slices.pack import pack
from slicewise.slices.simulate import arrivals_of, simulate
from slicewise.slices.verify import verify
from slicewise.testing.packings import Layouts, fleet, planted

CARD = "a100-sxm4-80gb"  # ParvaGPU measured on A100 80 GB
FLEET = {"a100-sxm4-80gb": 90, "h100-sxm5-80gb": 70, "a30": 80, "a100-sxm4-40gb": 60}
PLANTED = (
    (2, 3),
    (4, 6),
    (6, 8),
    (8, 10),
    (10, 14),
    (12, 16),
    (14, 20),
    (16, 8),
    (16, 20),
    (16, 40),
)
SEEDS = range(5)


def main() -> None:
    """Run everything and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0)
    asked = parser.parse_args()
    card = device_named(CARD)
    profiles = open_profiles(data_folder() / "sharing")
    scenarios = list(open_scenarios(data_folder() / "sharing", profiles))
    rows, copied = parva(card, profiles, scenarios, time_limit_s=asked.time_limit)
    more = [
        "## Planted optima",
        "",
        "Layouts without waste are drawn and their slices dealt to workloads: exactly so many",
        f"cards are needed ({len(SEEDS)} problems each, A100 80 GB).",
        "",
        *markdown(
            ["cards", "workloads", "proven", "slowest s", "CPU s"],
            planted_rows(card, time_limit_s=asked.time_limit),
        ),
        "",
        "## Drawn problems",
        "",
        "Workloads of very unlike rates; the optimum is not known before. 24 problems each: 5,",
        "10, 20 or 40 workloads; loads of 5, 12 and 20 cards; 2 seeds; 30 s each.",
        "",
        *markdown(
            ["cards of", "proven", "largest gap %", "most cards", "median CPU s", "most CPU s"],
            drawn_rows(),
        ),
        "",
        "## Large fleet",
        "",
        f"1,000 workloads, rates log-normal, on 300 cards of 4 types ({told_fleet()}).",
        "",
        *markdown(
            [
                "seed",
                "load",
                "objective",
                "value",
                "bound",
                "gap %",
                "unserved",
                "s",
                "CPU s",
                "by",
            ],
            fleet_rows(time_limit_s=asked.time_limit),
        ),
    ]
    write_result(
        "packing",
        title="Packing workloads on few GPUs",
        command="python -m benchmarks.packing",
        words=(
            f"The scenarios of ParvaGPU, reduced to the {len(profiles)} models whose profiles are"
            " open: GPUs by its rule (run again on the same reduction; it gives"
            f" {copied} of the models the capacity that was published), by `pack` with the same"
            " latency rule (service <= 0.45 of the target), and with queueing at random arrivals"
            " (99 % within the target). Bound: no packing has fewer GPUs; exact: in exact"
            " arithmetic. Latency: the worst workload's simulated one over its target; evenly"
            " spaced arrivals for the service rule, Poisson for queueing (99th percentile). Every"
            " packing passed `verify`. Two cores, shared with other work: CPU seconds beside the"
            " seconds."
        ),
        columns=[
            "scenario", "models", "rule's GPUs", "GPUs", "bound", "proof", "s", "CPU s",
            "latency / target", "queueing: GPUs", "bound", "s", "p99 / target",
        ],
        rows=rows,
        more="\n".join(more),
    )  # fmt: skip


def workload(
    model: str,
    servings: Sequence[tuple[str, Serving]],
    slo_ms: float,
    rate: float,
    how: LatencyModel,
) -> PackWorkload:
    """Return a model of a scenario as a workload; measured servings, so no safety."""
    offers = []
    for size, serving in servings:
        found = offer(
            serving, device=CARD, profile=PROFILES[size], rate_per_s=rate, latency_ms=slo_ms,
            percentile=99.0, model=how, safety=0.0,
        )  # fmt: skip
        if found is not None:
            offers.append(found)
    return PackWorkload(model, rate, slo_ms, 99.0, tuple(offers))


def problem_of(
    card: Device,
    profiles: Mapping[str, Sequence[tuple[str, Serving]]],
    scenario: Scenario,
    how: LatencyModel,
) -> PackProblem:
    """Return a scenario as a problem on as many cards as needed."""
    works = tuple(
        workload(model, profiles[model], slo_ms, rate, how)
        for model, (slo_ms, rate) in scenario.wanted.items()
    )
    return PackProblem(works, (GpuStock(card),))


def solved(problem: PackProblem, *, time_limit_s: float) -> tuple[Packing, float]:
    """Return the verified answer and the CPU seconds of all threads."""
    before = time.process_time()
    found = pack(problem, time_limit_s=time_limit_s, workers=2)
    seconds = time.process_time() - before
    verify(problem, found)
    return found, seconds


def worst_ratio(problem: PackProblem, found: Packing, how: LatencyModel) -> float:
    """Return the largest simulated latency over its target: 99th percentile, or the longest."""
    worst = 0.0
    for each in problem.workloads:
        parts: list[tuple[Offer, float]] = [
            (placed.offer, placed.rate_per_s)
            for gpu in found.gpus
            for placed in gpu.slices
            if placed.workload == each.name and placed.offer is not None and placed.rate_per_s > 0
        ]
        percentile = 99.0 if how is LatencyModel.QUEUE else 100.0
        told = simulate(
            parts, percentiles=(percentile,), requests=200_000, arrivals=arrivals_of(how)
        )
        worst = max(worst, told.percentiles_ms[0] / each.latency_ms)
    return worst


def parva(
    card: Device,
    profiles: Mapping[str, Sequence[tuple[str, Serving]]],
    scenarios: Sequence[Scenario],
    *,
    time_limit_s: float,
) -> tuple[list[list[str]], str]:
    """Return a row for each scenario, and how many of the rule's capacities are published."""
    rows = []
    same = 0
    for scenario in scenarios:
        gpus, matched = by_rule(card, profiles, scenario)
        same += matched
        cells = [scenario.name, str(len(scenario.wanted)), str(gpus)]
        for how in (LatencyModel.SERVICE, LatencyModel.QUEUE):
            problem = problem_of(card, profiles, scenario, how)
            found, cpu_s = solved(problem, time_limit_s=time_limit_s)
            proof = found.bounds[0]
            cells += [f"{found.gpus_used}", f"{found.bound:g}"]
            if how is LatencyModel.SERVICE:
                cells.append(f"{proof.method}{', exact' if proof.is_exact else ''}")
            cells.append(f"{found.seconds:.2f}")
            if how is LatencyModel.SERVICE:
                cells.append(f"{cpu_s:.2f}")
            cells.append(f"{worst_ratio(problem, found, how):.3f}")
        rows.append(cells)
        print(*cells, flush=True)
    return rows, f"{same} of {sum(len(each.wanted) for each in scenarios)}"


def layouts_of(devices: Sequence[Device]) -> Layouts:
    """Return what can stand on each card, as rows of counts."""
    found: dict[str, list[Mapping[str | None, int]]] = {}
    for device in devices:
        whole: Mapping[str | None, int] = {None: 1}
        found[device.name] = [whole, *(_row(each) for each in multisets(device))]
    return found


def _row(multiset: Multiset) -> Mapping[str | None, int]:
    return dict(multiset)


def planted_rows(card: Device, *, time_limit_s: float) -> list[list[str]]:
    """Return a row for each size: how many were proven, and the seconds."""
    rows = []
    for cards, workloads in PLANTED:
        proven, slowest, cpu = 0, 0.0, 0.0
        for seed in SEEDS:
            problem = planted(
                card, layouts_of([card]), cards=cards, workloads=workloads, seed=seed
            )
            found, cpu_s = solved(problem, time_limit_s=time_limit_s)
            proven += found.is_optimal and found.value == cards
            slowest, cpu = max(slowest, found.seconds), max(cpu, cpu_s)
        rows.append(
            [
                str(cards),
                str(workloads),
                f"{proven} of {len(SEEDS)}",
                f"{slowest:.2f}",
                f"{cpu:.2f}",
            ]
        )
        print(*rows[-1], flush=True)
    return rows


def drawn_rows() -> list[list[str]]:
    """Return a row for each stock: how many problems were proven, and CPU seconds."""
    rows = []
    for names, costs in (
        (("a100-sxm4-80gb",), (1.0,)),
        (("a100-sxm4-80gb", "h100-sxm5-80gb"), (1.0, 1.0)),
        (("a100-sxm4-80gb", "h100-sxm5-80gb", "a30"), (1.0, 1.7, 0.35)),
    ):
        devices = [device_named(name) for name in names]
        gaps, times, most = [], [], 0
        for workloads, load, seed in itertools.product((5, 10, 20, 40), (5.0, 12.0, 20.0), (0, 1)):
            made = fleet(devices, [None] * len(devices), workloads=workloads, load=load, seed=seed)
            stock = tuple(
                replace(each, cost=cost) for each, cost in zip(made.stock, costs, strict=True)
            )
            found, cpu_s = solved(replace(made, stock=stock), time_limit_s=30.0)
            gaps.append(0.0 if found.is_optimal else found.gap)
            times.append(cpu_s)
            most = max(most, found.gpus_used)
        told = ", ".join(
            f"{name} (cost {cost:g})" for name, cost in zip(names, costs, strict=True)
        )
        rows.append(
            [
                told, f"{sum(gap == 0 for gap in gaps)} of {len(gaps)}", f"{100 * max(gaps):.2f}",
                str(most), f"{statistics.median(times):.2f}", f"{max(times):.2f}",
            ]
        )  # fmt: skip
        print(*rows[-1], flush=True)
    return rows


def told_fleet() -> str:
    """Return the fleet in words."""
    return ", ".join(f"{count} {name}" for name, count in FLEET.items())


def fleet_rows(*, time_limit_s: float) -> list[list[str]]:
    """Return a row for each seed, load and objective."""
    devices = [device_named(name) for name in FLEET]
    rows = []
    for seed, load, objective, costs in (
        (0, 355.0, PackObjective.GPUS, (1.0, 1.0, 1.0, 1.0)),
        (1, 320.0, PackObjective.GPUS, (1.0, 1.0, 1.0, 1.0)),
        (2, 300.0, PackObjective.GPUS, (1.0, 1.0, 1.0, 1.0)),
        (3, 300.0, PackObjective.GPUS, (1.0, 1.8, 0.4, 0.8)),
        (4, 300.0, PackObjective.ENERGY, (1.0, 1.0, 1.0, 1.0)),
    ):
        made = fleet(devices, list(FLEET.values()), workloads=1000, load=load, seed=seed)
        stock = tuple(
            replace(each, cost=cost) for each, cost in zip(made.stock, costs, strict=True)
        )
        problem = replace(made, stock=stock, objective=objective)
        found, cpu_s = solved(problem, time_limit_s=time_limit_s)
        by_cost = len(set(costs)) > 1
        words = "W" if objective is PackObjective.ENERGY else "cost" if by_cost else "GPUs"
        rows.append(
            [
                str(seed), f"{load:g}", words, f"{found.value:.6g}", f"{found.bound:.6g}",
                f"{100 * found.gap:.2f}", str(len(found.unserved)), f"{found.seconds:.1f}",
                f"{cpu_s:.1f}", found.method,
            ]
        )  # fmt: skip
        print(*rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
