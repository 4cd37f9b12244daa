"""MetaSchedule's evolutionary search, one piece at a time, and the building of what it finds.

A piece is searched from what its order says and nothing else: the trials known of the workload
and the seed. What a client keeps from one piece to the next (design spaces, schedules made from
text, trained cost models) only saves making it again, so that any client can take any piece.

Differences to `tune_tasks` of TVM 0.27, which searches, builds and measures one after another:

- Candidates are built here, in the client's process: no worker that imports TVM for each batch.
- The cost model is that of the workload, not of all operators together, and is trained once
  `WARM_UP` trials of it are known. TVM trains one for all from the first batch and lets it speak
  once 100 candidates are measured; until then its scores are random numbers.
- Evolving a population of 512 over 4 generations against random numbers costs 5 to 8 s for each
  batch, and what it picks is a random sample. So where no model speaks, a sample of the design
  space is taken at once, in 0.1 to 0.3 s (`search=lean`, the default). Of 40 candidates each for
  three products of a BERT, the best of 8 is expected at 1.64, 0.95 and 0.21 ms so, and at 1.42,
  0.68 and 0.25 ms evolved (medians 3.5, 2.9, 0.6 and 7.1, 3.4, 1.1). With `search=stock` the
  population evolves all the same, as in TVM.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicewise.core.crew import Tell
from slicewise.core.tuning import Building, Built, Proposal, SearchOrder, Trial, TrialOutcome
from slicewise.tune.backends.tvm.build import build_library, first_line
from slicewise.tune.backends.tvm.imports import import_tvm_alone
from slicewise.tune.backends.tvm.problem import TvmProblem
from slicewise.tune.backends.tvm.trace import DEFAULT_CONFIG, adapted, config_of, schedule_of

# Trials of a workload from which a model of its own ranks better than chance does.
WARM_UP = 32
# A sample as large as this gives a piece of distinct candidates from all but the smallest spaces.
_SAMPLE = 64
# A model is trained anew when a fifth more is known, as TVM does (XGBModel, adaptive training).
_GROWTH = 1.2
_ATTEMPTS = 3
_NEVER = 1 << 30  # trials after which TVM's search would stop: the coordinator decides that
_FAILED_S = 1e10  # the latency that TVM gives a candidate which did not run
_LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with its configuration."""

    config: str
    schedule: Any


@dataclass(slots=True)
class WorkloadSearch:
    """The search of one workload in this process."""

    module: Any
    target: Any
    is_lean: bool
    population: int = 512  # MetaSchedule's default, as all of the search's other settings
    _spaces: Any = None
    _made: dict[str, Any] = field(default_factory=dict)  # configuration -> MeasureCandidate
    _model: tuple[tuple[str, ...], Any] | None = None  # what it was trained on, and itself

    def candidates(self, order: SearchOrder) -> tuple[tuple[Candidate, ...], bool]:
        """Return the candidates for an order, and whether there are no others.

        First the default in round 0, then hints (half of the piece at most), then the search.
        """
        taken = {trial.config for trial in order.known} | order.avoid
        found: dict[str, Candidate] = {}
        size = order.piece.size
        if order.piece.round == 0 and DEFAULT_CONFIG not in taken:
            found[DEFAULT_CONFIG] = Candidate(
                DEFAULT_CONFIG, schedule_of(self.module, DEFAULT_CONFIG)
            )
        hinted = self._hinted(order, taken)
        for candidate in hinted[: max(1, size // 2)]:
            if len(found) < size:
                found.setdefault(candidate.config, candidate)
        if len(found) < size:
            self._fill(found, order, taken)
        # several samples of the space, each larger, do not even hold a piece that is new
        return tuple(found.values()), len(found) < size

    @property
    def training(self) -> int:
        """Number of trials that the cost model in use was trained on; 0 without one."""
        return 0 if self._model is None else len(self._model[0])

    def candidate(self, config: str) -> Candidate:
        """Return the candidate of a configuration; raises what TVM raises where there is none."""
        return Candidate(config, self._measurable(config).sch)

    def _hinted(self, order: SearchOrder, taken: set[str]) -> list[Candidate]:
        found: dict[str, Candidate] = {}
        for hint in order.hints:
            try:
                schedule = adapted(self.module, hint, self._context(order.piece.seed).postprocs)
            except Exception:  # it was made for another operator: whatever TVM makes of that
                continue
            if schedule is not None and (config := config_of(schedule)) not in taken:
                found.setdefault(config, Candidate(config, schedule))
        return list(found.values())

    def _fill(self, found: dict[str, Candidate], order: SearchOrder, taken: set[str]) -> None:
        """Fill `found` up from the search, as far as that knows others."""
        from tvm.s_tir.meta_schedule.utils import shash2hex

        hashes = {shash2hex(found[config].schedule.mod) for config in found}
        hashes |= {
            shash2hex(self._made[config].sch.mod) for config in taken if config in self._made
        }
        for attempt in range(_ATTEMPTS):
            for picked in self._picks(order, attempt, missing=order.piece.size - len(found)):
                config, made = config_of(picked.sch), shash2hex(picked.sch.mod)
                if config in taken or config in found or made in hashes:
                    continue
                hashes.add(made)
                self._made[config] = picked
                found[config] = Candidate(config, picked.sch)
                if len(found) == order.piece.size:
                    return

    def _picks(self, order: SearchOrder, attempt: int, *, missing: int) -> Sequence[Any]:
        """Return what the evolutionary search picks, best first, with some to spare: those that
        are known already are among them."""
        import numpy as np
        from tvm.s_tir import meta_schedule as ms

        seed = 1 + (order.piece.seed + attempt * 7919) % (_LARGEST_SEED - 1)
        model = self._trained(order)
        is_sampled = model is None and self.is_lean
        strategy = ms.search_strategy.EvolutionarySearch(population_size=self.population)
        database = ms.database.MemoryDatabase()
        if is_sampled:
            sample = _SAMPLE * (1 + attempt)
            strategy = ms.search_strategy.EvolutionarySearch(
                population_size=sample, init_min_unmeasured=1, genetic_num_iters=0
            )
            spare = sample
        else:
            spare = self._commit(database, order) * (1 + attempt)
        context = self._context(seed, strategy)
        np.random.seed(seed)  # scores without a model, and the sampling of XGBModel
        context.tuning.pre_tuning(
            _NEVER, missing + spare, self._design(), database, model or _random_model()
        )
        return context.tuning.generate_measure_candidates() or ()

    def _context(self, seed: int, strategy: Any = None) -> "_Context":
        from tvm.s_tir import meta_schedule as ms

        made = ms.TuneContext(
            mod=self.module,
            target=self.target,
            space_generator="post-order-apply",
            search_strategy=strategy or ms.search_strategy.EvolutionarySearch(),
            rand_state=1 + seed % (_LARGEST_SEED - 1),
            num_threads=1,
        )
        return _Context(made, made.space_generator.postprocs)

    def _design(self) -> Any:
        """Return the design spaces. The seed is fixed: they are those of the workload."""
        if self._spaces is None:
            self._spaces = self._context(0).tuning.generate_design_space()
        return self._spaces

    def _commit(self, database: Any, order: SearchOrder) -> int:
        """Enter the known trials into TVM's database; return their number."""
        from tvm.s_tir.meta_schedule.database import TuningRecord

        workload = database.commit_workload(self.module)
        count = 0
        for made, seconds in self._known(order.known):
            if seconds < _FAILED_S:
                database.commit_tuning_record(
                    TuningRecord(made.sch.trace, workload, [seconds], self.target, made.args_info)
                )
                count += 1
        return count

    def _known(self, trials: Sequence[Trial]) -> Iterator[tuple[Any, float]]:
        """Yield what TVM calls a candidate, and its latency in s, for the trials of schedules that
        its search could have made."""
        for trial in trials:
            if trial.config == DEFAULT_CONFIG:
                continue  # not of the design space
            try:
                made = self._measurable(trial.config)
            except Exception:  # tuned for another module of the same key: it teaches nothing
                continue
            latency = trial.latency_ms
            yield made, _FAILED_S if latency is None else latency.value / 1e3

    def _measurable(self, config: str) -> Any:
        if config not in self._made:
            from tvm.s_tir.meta_schedule import MeasureCandidate
            from tvm.s_tir.meta_schedule.arg_info import ArgInfo

            schedule = schedule_of(self.module, config)
            self._made[config] = MeasureCandidate(
                schedule, ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            )
        return self._made[config]

    def _trained(self, order: SearchOrder) -> Any | None:
        """Return TVM's cost model of this workload, None while too little is known.

        It is trained on the first trials, so many that it need not be made anew at every piece;
        the number follows from how many are known, and from nothing else.
        """
        from tvm.s_tir import meta_schedule as ms
        from tvm.s_tir.meta_schedule.cost_model import XGBModel
        from tvm.s_tir.meta_schedule.runner import RunnerResult

        usable = [trial for trial in order.known if trial.config != DEFAULT_CONFIG]
        count = training_size(len(usable))
        if count == 0:
            return None
        basis = tuple(trial.config for trial in usable[:count])
        if self._model is not None and self._model[0] == basis:
            return self._model[1]
        pairs = list(self._known(usable[:count]))
        if sum(seconds < _FAILED_S for _, seconds in pairs) < 2:
            return None
        model = XGBModel(num_warmup_samples=1, num_tuning_cores=1)
        context: ms.TuneContext = self._context(0).tuning
        results = [
            RunnerResult([seconds], None) if seconds < _FAILED_S else RunnerResult(None, "failed")
            for _, seconds in pairs
        ]
        model.update(context, [made for made, _ in pairs], results)
        self._model = (basis, model)
        return model


@dataclass(frozen=True, slots=True)
class _Context:
    """A `TuneContext`, and its post-processors."""

    tuning: Any
    postprocs: Any


def _random_model() -> Any:
    """Return a cost model that knows nothing: its scores are random numbers."""
    from tvm.s_tir.meta_schedule.cost_model import XGBModel

    return XGBModel(num_tuning_cores=1)


def training_size(known: int) -> int:
    """Return how many of `known` trials a model is trained on: 0 below `WARM_UP`, else the
    greatest of a row that grows by a fifth.

    >>> [training_size(n) for n in (31, 32, 38, 39, 100)]
    [0, 32, 38, 38, 91]
    """
    if known < WARM_UP:
        return 0
    size = WARM_UP
    while (larger := int(size * _GROWTH)) <= known:
        size = larger
    return size


@dataclass(slots=True)
class TvmClient:
    """Searches and builds; see the protocol.

    NOTE: TVM's own builder ends its workers after each batch since they keep memory. Here 64
    candidates left 18 MB behind, of which a part are their schedules, kept on purpose.
    """

    problem: TvmProblem
    _target: Any = None
    _searches: dict[str, WorkloadSearch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import_tvm_alone()
        self._target = self.problem.make_target()

    def propose(self, order: SearchOrder, tell: Tell) -> Proposal:
        """Search a piece and build what was found; see the protocol."""
        start = time.perf_counter()
        search = self._search(order.piece.workload)
        failed: list[Trial] = []
        if order.rebuild:
            candidates, is_exhausted = self._again(search, order, failed), False
        else:
            candidates, is_exhausted = search.candidates(order)
        search_s = time.perf_counter() - start
        made: list[Built | Trial] = []
        with tempfile.TemporaryDirectory(prefix="slicewise-tvm-") as folder:
            for candidate in candidates:
                tell(Building(order.piece.workload, candidate.config))
                made.append(self._build(candidate, order, Path(folder)))
        built = tuple(each for each in made if isinstance(each, Built))
        failed += [each for each in made if isinstance(each, Trial)]
        return Proposal(
            order.piece,
            built,
            tuple(failed),
            is_exhausted=is_exhausted,
            search_s=search_s,
            build_s=time.perf_counter() - start - search_s,
        )

    def _search(self, workload: str) -> WorkloadSearch:
        if workload not in self._searches:
            module = self.problem.load_module(workload)
            self._searches[workload] = WorkloadSearch(module, self._target, self.problem.is_lean)
        return self._searches[workload]

    def _again(
        self, search: WorkloadSearch, order: SearchOrder, failed: list[Trial]
    ) -> tuple[Candidate, ...]:
        """Return the candidates of the configurations to build again."""
        found = []
        for config in order.rebuild:
            try:
                found.append(search.candidate(config))
            except Exception as err:  # TVM's own, or the JSON reader's
                failed.append(_failed(order, config, first_line(err)))
        return tuple(found)

    def _build(self, candidate: Candidate, order: SearchOrder, folder: Path) -> Built | Trial:
        start = time.perf_counter()
        path = folder / "kernel.so"
        try:
            build_library(candidate.schedule.mod, self._target, path)
            artifact = path.read_bytes()
        except Exception as err:  # whatever the compiler refuses it with
            return _failed(order, candidate.config, first_line(err), time.perf_counter() - start)
        took_s = time.perf_counter() - start
        return Built(order.piece.workload, candidate.config, artifact, build_s=took_s)


def _failed(order: SearchOrder, config: str, error: str, build_s: float = 0.0) -> Trial:
    return Trial(
        order.piece.workload,
        config,
        TrialOutcome.BUILD_FAILED,
        error=error,
        piece=order.piece.number,
        build_s=build_s,
    )
