"""What clients and servers are made from, in processes of their own. Picklable."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TvmProblem:
    """The operators to tune.

    `target` is TVM's target as JSON, `modules` TVM's JSON of each workload's module by key;
    weights' values are in none of them. `is_lean` is how the search behaves while nothing is
    known (`search.py`).
    """

    target: str
    threads: int
    modules: Mapping[str, str]
    is_lean: bool = True

    def make_target(self) -> Any:
        """Return TVM's target."""
        from tvm.target import Target

        return Target(json.loads(self.target))

    def load_module(self, workload: str) -> Any:
        """Return TVM's module of a workload."""
        from tvm.ir import load_json

        return load_json(self.modules[workload])
