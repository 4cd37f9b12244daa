"""Operators tuned by TVM's MetaSchedule, on the cores that they will be served on (extra `tvm`).

`engine.py` is the engine; `imports.py` brings TVM in quickly; `relax.py` takes a model apart into
workloads and `weights.py` weighs them; `search.py` proposes and builds (a client's work),
`timing.py` runs (a server's); `artefact.py` puts the best together.
"""

from slicewise.tune.backends.tvm.engine import ENGINE

__all__ = ["ENGINE"]
