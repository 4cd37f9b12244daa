"""How much of the zoos can be loaded: torchvision whole, samples of timm and transformers.

    python -m benchmarks.zoo_coverage [FOLDER [ZOO]]

timm is sampled by the file that an architecture is defined in, transformers at random from every
type that an auto class can build, at two layers where a field sets their number (sizes do not
matter on the meta device, the number of nodes does). FOLDER keeps results between runs; with
ZOO only that one is loaded, for the next run to find, and no table is written.
"""

import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import slicewise
from benchmarks.tables import markdown, write_result
from slicewise.graph.frontends import zoo
from slicewise.graph.frontends.zoo import timm as zoo_timm
from slicewise.graph.frontends.zoo import torchvision as zoo_torchvision
from slicewise.graph.frontends.zoo import transformers as zoo_transformers

SEED = 5
TIMM, TRANSFORMERS = 100, 100
SECONDS = 60  # of CPU time
LAYERS = (
    "num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer", "n_layers",
    "num_decoder_layers", "num_encoder_layers", "depth", "n_encoder_layers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one name; `reason` is empty where it loaded."""

    location: str
    nodes: int
    parameters: int
    cpu_s: float
    notes: tuple[str, ...] = ()
    reason: str = ""


class _TooLong(BaseException):
    """No Exception, so that nothing on the way takes it for a failure of the model."""


def attempt(location: str) -> Outcome:
    """Load one name, stopped after `SECONDS`."""

    def stop(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    start = time.process_time()
    try:
        graph = slicewise.load(location)
    except slicewise.SlicewiseError as err:
        return Outcome(location, 0, 0, time.process_time() - start, (), str(err))
    except _TooLong:
        return Outcome(location, 0, 0, SECONDS, (), f"longer than {SECONDS} CPU s")
    except Exception as err:
        return Outcome(location, 0, 0, 0.0, (), f"BUG {type(err).__name__}: {err}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    codes = tuple(sorted({note.code for note in graph.notes}))
    seconds = time.process_time() - start
    return Outcome(location, len(graph.nodes), graph.parameters, seconds, codes)


def timm_names(count: int) -> list[str]:
    """Return architectures, one of each defining file in turn, until there are `count`."""
    import timm

    by_file: dict[str, list[str]] = defaultdict(list)
    for name in zoo_timm.names():
        by_file[timm.models._registry._model_to_module[name]].append(name)
    generator = random.Random(SEED)
    rounds = [generator.sample(names, len(names)) for _, names in sorted(by_file.items())]
    found = [names[i] for i in range(max(map(len, rounds))) for names in rounds if i < len(names)]
    return [f"timm:{name}" for name in found[:count]]


def transformers_names(count: int) -> Iterator[str]:
    """Yield types with two layers, where their configuration says how many."""
    for name in random.Random(SEED).sample(zoo_transformers.names(), count):
        yield f"transformers:{name}{_small(name)}"


def _small(name: str) -> str:
    from transformers import AutoConfig

    try:
        fields = list(_layer_fields(AutoConfig.for_model(name), ""))
    except Exception:  # the type cannot be made by default at all: counted as a failure below
        return ""
    return f"?{'&'.join(f'{field}=2' for field in fields)}" if fields else ""


def _layer_fields(config: Any, prefix: str) -> Iterator[str]:
    for key in LAYERS:
        if key in vars(config) and isinstance(getattr(config, key), int):
            yield f"{prefix}{key}"
    for part in getattr(config, "sub_configs", {}):
        if getattr(config, part, None) is not None:
            yield from _layer_fields(getattr(config, part), f"{prefix}{part}.")


def outcomes(locations: list[str], cache: Path) -> list[Outcome]:
    known = {}
    if cache.exists():
        known = {row["location"]: Outcome(**row) for row in map(json.loads, cache.open())}
    made = []
    with cache.open("a") as file:
        for location in locations:
            outcome = known.get(location) or known.get(location.partition("?")[0])
            if outcome is None:
                outcome = attempt(location)
                if outcome.reason and "?" in location:  # some types refuse to be that small
                    whole = attempt(location.partition("?")[0])
                    outcome = outcome if whole.reason else whole
                file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
                print(
                    location,
                    outcome.nodes,
                    f"{outcome.cpu_s:.1f}",
                    outcome.reason[:150],
                    flush=True,
                )
            made.append(outcome)
    return made


def main() -> None:
    """Load all samples and write the table and the list of failures."""
    logging.disable(logging.WARNING)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    zoo.import_torchvision()
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    detectors = "is a detector"
    rows, failures = [], []
    for title, locations in (
        ("torchvision, all", [f"torchvision:{name}" for name in zoo_torchvision.names()]),
        (f"timm, {TIMM} stratified by file", timm_names(TIMM)),
        (f"transformers, {TRANSFORMERS} types at random", list(transformers_names(TRANSFORMERS))),
    ):
        if not title.startswith(only):
            continue
        made = outcomes(locations, folder / f"{title.partition(',')[0]}.jsonl")
        loaded = [each for each in made if not each.reason]
        refused = [each for each in made if detectors in each.reason]
        seconds = sorted(each.cpu_s for each in loaded)
        notes = Counter(code for each in loaded for code in each.notes)
        rows.append(
            (
                title, str(len(made)), str(len(loaded)),
                f"{100 * len(loaded) / (len(made) - len(refused)):.1f} %",
                f"{seconds[len(seconds) // 2]:.2f}",
                f"{seconds[-1]:.1f}",
                ", ".join(f"{code} {count}" for code, count in notes.most_common()) or "none",
            )
        )  # fmt: skip
        failures += [
            (each.location.partition("?")[0], " ".join(each.reason.split())[:220])
            for each in made
            if each.reason and each not in refused
        ]
    if only:
        return
    write_result(
        "zoo_coverage",
        title="How much of the zoos can be loaded",
        command="python -m benchmarks.zoo_coverage",
        words="Detectors of torchvision are told apart and not counted in the share.",
        columns=("zoo", "names", "loaded", "share", "median CPU s", "greatest", "notes"),
        rows=rows,
        more="\n".join(["## Not loaded", "", *markdown(("name", "why"), failures)]),
    )


if __name__ == "__main__":
    main()
