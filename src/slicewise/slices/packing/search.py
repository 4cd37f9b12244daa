"""One search under one deadline: the best choice and the best bounds so far, and who works when.

Every bound kept here was computed in exact arithmetic, except those of CP-SAT, which say so.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from slicewise.core.errors import MissingDependency
from slicewise.core.notes import Note
from slicewise.slices.packing.firstfit import Choice, Filler, first_fit, ruin_and_recreate
from slicewise.slices.packing.material import Material
from slicewise.slices.packing.patterns import Patterns
from slicewise.slices.packing.prices import Proof, first_prices, improve_prices, upper_cost

Told = Callable[[str], None]

_STEPS = 150  # of the search for prices, before and after the first answer
_ROUNDS = 400  # of ruin and recreate, where there is no solver
_ROUNDS_BESIDE = 30  # where there is one


@dataclass
class Search:
    """The state of a search; costs are whole numbers of the material.

    With `enough` it ends once an answer's value is that or less, or none can be.
    """

    material: Material
    deadline: float
    seed: int = 0
    workers: int = 1
    told: Told | None = None
    enough: float | None = None
    patterns: Patterns = field(init=False)
    best: Choice | None = None
    method: str = ""
    proof: Proof | None = None
    solver_bound: int | None = None
    notes: list[Note] = field(default_factory=list)
    is_infeasible: bool = False
    is_interrupted: bool = False

    def run(self) -> None:
        """Search until nothing is left to prove or time is up; Ctrl-C ends it as time does."""
        try:
            self._run()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.is_interrupted = True
            text = "interrupted: the best answer and bound until then"
            self.notes.append(Note("search-interrupted", text))

    def _run(self) -> None:
        material = self.material
        if not material.options:
            self.take(Choice((), (), 0), "nothing to place")
            self.proof = Proof(Fraction(0), first_prices(material))
            return
        self.patterns = Patterns(material)
        if not material.cards:
            self.take(Choice((None,) * len(material.options), (), 0), "no cards")
            self.is_infeasible = True
            return
        found = improve_prices(
            material, self.patterns, first_prices(material), upper=self.upper, steps=_STEPS
        )
        filler = Filler(material, self.patterns, found.prices)
        self.take(first_fit(filler), "first fit")
        self.patterns.stack()
        self.take_proof(found)
        if not self.is_done():
            self.take_proof(
                improve_prices(
                    material, self.patterns, found.prices, upper=self.upper, steps=_STEPS
                )
            )
        if self.is_done():
            return
        self._recreate(filler, _ROUNDS_BESIDE)
        if self.is_done():
            return
        try:
            from slicewise.slices.solvers.plan import run_solvers

            run_solvers(self)
        except MissingDependency as err:
            text = f"{err}; the built-in methods answered alone"
            self.notes.append(Note("solver-missing", text))
            if self.proof is not None:
                filler = Filler(material, self.patterns, self.proof.prices)
                self.take(first_fit(filler), "first fit")
            self._recreate(filler, _ROUNDS)

    def _recreate(self, filler: Filler, rounds: int) -> None:
        ruin_and_recreate(
            filler,
            seed=self.seed,
            rounds=rounds,
            is_over=lambda: self.left_s() == 0 or self.is_done(),
            report=lambda choice: self.take(choice, "first fit"),
        )

    # --- the state

    @property
    def upper(self) -> int:
        """What the answer costs at most."""
        is_whole = self.best is not None and self.best.left_over == 0
        return upper_cost(self.material, self.best.cost if self.best and is_whole else None)

    @property
    def bound(self) -> int:
        """The best bound on the cost, rounded up to what a cost can be."""
        exact = (
            0 if self.proof is None else self.material.round_up(max(self.proof.cost, Fraction(0)))
        )
        return max(exact, self.solver_bound or 0)

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def is_done(self) -> bool:
        """True if nothing is left to find: proven, or proven that some must be left over."""
        if self.is_infeasible:
            return True
        if self.enough is not None:
            most = self.enough * (1 + 1e-9)
            if self.material.value(self.bound) > most or self.has_enough(most):
                return True
        return self.best is not None and not self.best.left_over and self.best.cost <= self.bound

    def has_enough(self, most: float) -> bool:
        """True if the best answer leaves nothing over and its value is at most this."""
        if self.best is None or self.best.left_over:
            return False
        return self.material.value(self.best.cost) <= most

    def take(self, choice: Choice | None, method: str) -> None:
        """Keep a choice if it is the best."""
        if choice is not None and (self.best is None or choice.rank < self.best.rank):
            self.best, self.method = choice, method
            self.tell(method)

    def take_proof(self, proof: Proof) -> None:
        """Keep a proof if it is the best."""
        if self.proof is None or proof.cost > self.proof.cost:
            self.proof = proof
            whole = sum(each.cost * (each.count or 0) for each in self.material.cards)
            is_ended = all(each.count is not None for each in self.material.cards)
            own = sum(max(o.cost for o in options) for options in self.material.options)
            if is_ended and proof.cost > whole + own:
                self.is_infeasible = True
            self.tell("prices")

    def take_solver_bound(self, bound: int | None) -> None:
        """Keep a bound of CP-SAT."""
        if bound is not None and bound > (self.solver_bound or 0):
            self.solver_bound = bound
            self.tell("cp-sat")

    def tell(self, method: str) -> None:
        """Report the state in a line."""
        if self.told is None:
            return
        value = "none yet"
        if self.best is not None:
            value = f"{self.material.value(self.best.cost):.6g}"
            if self.best.left_over:
                value += f" ({self.best.left_over} workloads left over)"
        least = self.material.value(self.bound)
        self.told(f"{method}: {value}, at least {least if math.isfinite(least) else 0:.6g}")
