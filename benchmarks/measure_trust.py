"""Whether measurements can be trusted: repeats, the cost of the harness, agreement with loops.

    python -m benchmarks.measure_trust

Wants a quiet machine; cores that are not ours are told in the table. Everything that is compared
runs in turn, in one go.
"""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.tables import markdown, write_result
from slicewise.core.measurement import Job, Measurement, Protocol
from slicewise.flows.campaign import run_campaign
from slicewise.flows.campaign_spec import CampaignModel, CampaignSpec
from slicewise.flows.measure import MeasureOptions, jobs_of, run_job, target_here
from slicewise.measure.inputs import make_values
from slicewise.measure.sampling import Stopwatch, take_samples
from slicewise.store.records import RecordStore

REPEATED = (
    "timm:resnet18", "timm:mobilenetv3_small_100", "timm:efficientnet_b0", "timm:convnext_atto",
    "timm:vit_tiny_patch16_224", "timm:mixer_s32_224", "timm:regnetx_008",
    "torchvision:squeezenet1_1",
)  # fmt: skip
COMPARED = (
    "timm:resnet18", "timm:mobilenetv3_small_100", "timm:vit_tiny_patch16_224",
    "torchvision:squeezenet1_1", "timm:regnetx_008",
)  # fmt: skip
PROTOCOL = Protocol(warmup_s=0.5, budget_s=3.0, min_samples=20, relative_width=0.01)
ROUNDS = 3
LOOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Medians of one model in ms, each the middle of several turns."""

    model: str
    runtime: str
    ours_ms: float
    theirs_ms: float

    @property
    def difference(self) -> float:
        """Relative difference of ours from theirs."""
        return self.ours_ms / self.theirs_ms - 1


def main() -> None:
    """Take all three and write the table."""
    pairs = repeats()
    overheads = [overhead(run_s) for run_s in (0.0002, 0.001, 0.01)]
    agreements = [agreement(model, rt) for model in COMPARED for rt in PLAIN]
    differences = [abs(b / a - 1) for _, a, b, _ in pairs]
    worst = max(overheads, key=lambda each: each[1])
    rows = [
        [
            "the same model twice in one campaign: median difference",
            f"{statistics.median(differences):.2%}",
            "3 %",
            f"{len(pairs)} pairs; largest {max(differences):.1%}",
        ],
        [
            "cost of the harness, part of a sample",
            f"{worst[1]:.3%}",
            "2 %",
            f"largest of {len(overheads)}, at runs of {worst[0] * 1e3:g} ms",
        ],
        [
            "against a plain onnxruntime loop: largest difference",
            _largest(agreements, "onnxruntime"),
            "3 %",
            f"{len(COMPARED)} models",
        ],
        [
            "against torch.utils.benchmark: largest difference",
            _largest(agreements, "torch-eager"),
            "3 %",
            f"{len(COMPARED)} models",
        ],
    ]
    write_result(
        "measure_trust",
        title="Can measurements be trusted?",
        command="python -m benchmarks.measure_trust",
        words=(
            "CPU, one thread, batch 1, random weights. A pair is two records of one campaign, in"
            " processes of their own, far apart in time. Loops run in turn with ours, each"
            f" {ROUNDS} times in a fresh process; the middle of the turns is compared."
        ),
        columns=("claim", "measured", "to reach", "on"),
        rows=rows,
        more="\n".join(
            [
                "## Agreement",
                "",
                *markdown(
                    ("model", "runtime", "ours ms", "plain loop ms", "difference"),
                    [
                        [
                            each.model,
                            each.runtime,
                            f"{each.ours_ms:.3f}",
                            f"{each.theirs_ms:.3f}",
                            f"{each.difference:+.2%}",
                        ]
                        for each in agreements
                    ],
                ),
                "",
                "## Repeats",
                "",
                *markdown(
                    ("case", "first ms", "second ms", "difference", "cores ours"),
                    [
                        [name, f"{a:.3f}", f"{b:.3f}", f"{b / a - 1:+.2%}", f"{share:.0%}"]
                        for name, a, b, share in pairs
                    ],
                ),
            ]
        ),
    )


def _largest(agreements: Sequence[Agreement], runtime: str) -> str:
    return f"{max(abs(e.difference) for e in agreements if e.runtime == runtime):.2%}"


def repeats() -> list[tuple[str, float, float, float]]:
    """Return (case, first ms, second ms, share of the cores) of each pair of a campaign."""
    spec = CampaignSpec(
        "repeats",
        tuple(CampaignModel(name) for name in REPEATED),
        (1,),
        ("onnxruntime", "torch-eager"),
        (1,),
        repeats=2,
        device="cpu",
        protocol=PROTOCOL,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "repeats.sqlite"
        run_campaign(spec, store=store, progress=lambda made: print(made.done, made.last))
        with RecordStore(store, read_only=True) as records:
            found = [record.measurement for record in records.find()]
    groups: dict[str, list[Measurement]] = {}
    for each in found:
        groups.setdefault(f"{each.location}, {each.runtime}", []).append(each)
    pairs = []
    for name, (first, second) in sorted(groups.items()):
        shares = [m.environment.core_share for m in (first, second)]
        ours = min(share for share in shares if share is not None)
        pairs.append((name, _ms(first), _ms(second), ours))
    return pairs


def _ms(made: Measurement) -> float:
    assert made.latency_ms is not None, made.error
    return made.latency_ms.value


def overhead(run_s: float) -> tuple[float, float]:
    """Return the run's seconds and the part of a sample that the harness itself takes.

    A run that spins to a set time; what a sample has beyond its runs is ours.
    """

    def spin() -> None:
        end = time.perf_counter() + run_s
        while time.perf_counter() < end:
            pass

    samples = []
    gc.disable()
    try:
        group = max(1, round(1e-3 / run_s))
        watch = Stopwatch(spin, time.perf_counter)
        made = take_samples(watch, PROTOCOL, runs_per_sample=group, has_time=lambda: True)
        samples = made.samples_ms
    finally:
        gc.enable()
    # the spin itself overshoots by up to one reading of the clock
    return run_s, max(0.0, statistics.median(samples) / (run_s * 1e3) - 1)


def agreement(model: str, runtime: str) -> Agreement:
    """Return the medians of ours and of a plain loop, in turn."""
    target = target_here("cpu")
    options = MeasureOptions(runtime=runtime, threads=1, protocol=PROTOCOL)
    (job,) = jobs_of(model, target, [1], options=options)
    ours, theirs = [], []
    for turn in range(ROUNDS):
        sides: list[Callable[[], None]] = [
            lambda: ours.append(_ms(run_job(job))),
            partial(lambda its: theirs.append(plain(its, runtime)), job),
        ]
        for side in sides if turn % 2 == 0 else reversed(sides):
            side()
    made = Agreement(model, runtime, statistics.median(ours), statistics.median(theirs))
    print(made)
    return made


def plain(job: Job, runtime: str) -> float:
    """Return the median ms of a loop that anyone would write, in a process of its own on the
    same cores."""
    import pickle

    cores = job.share.cores if job.share is not None else tuple(os.sched_getaffinity(0))

    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(pickle.dumps(job))
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.measure_trust", runtime, file.name],
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=partial(os.sched_setaffinity, 0, cores),
        )
    return float(done.stdout.splitlines()[-1])


def loop_onnxruntime(job: Job) -> float:
    """Return the median ms of `session.run` in a loop."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    path = str(job.subject.open())
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    values = make_values(job.subject.inputs, seed=0)
    feeds = {spec.name: value for spec, value in zip(job.subject.inputs, values, strict=True)}
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        session.run(None, feeds)
    times = []
    end = time.perf_counter() + LOOP_S
    while time.perf_counter() < end:
        begin = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def loop_torch(job: Job) -> float:
    """Return the median ms of `torch.utils.benchmark.Timer.blocked_autorange`."""
    import torch
    from torch.utils.benchmark import Timer

    torch.set_num_threads(1)
    module = job.subject.open()
    values = [torch.from_numpy(v) for v in make_values(job.subject.inputs, seed=0)]
    with torch.inference_mode():
        timer = Timer(
            "module(*values)", globals={"module": module, "values": values}, num_threads=1
        )
        timer.timeit(10)
        return float(timer.blocked_autorange(min_run_time=LOOP_S).median) * 1e3


PLAIN: dict[str, Callable[[Job], float]] = {
    "onnxruntime": loop_onnxruntime,
    "torch-eager": loop_torch,
}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        import pickle

        asked: Job = pickle.loads(Path(sys.argv[2]).read_bytes())
        print(PLAIN[sys.argv[1]](asked))
    else:
        main()
