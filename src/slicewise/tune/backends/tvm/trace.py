"""A candidate as text: the trace of a schedule, which makes the schedule again.

The text is the JSON of TVM's trace, tight: [instructions, decisions]. The untuned operator is the
empty trace.
"""

import json
from collections.abc import Mapping
from typing import Any

DEFAULT_CONFIG = "[[],[]]"
# From here on a trace holds what the post-processors of the search did.
_POST = "EnterPostproc"


def config_of(schedule: Any) -> str:
    """Return the configuration of a schedule; equal texts are equal candidates."""
    return json.dumps(_plain(schedule.trace.as_json()), sort_keys=True, separators=(",", ":"))


def schedule_of(module: Any, config: str) -> Any:
    """Return the schedule of `module` that `config` describes.

    Raises what TVM or the JSON reader raises where it describes none.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(module)
    if config != DEFAULT_CONFIG:
        Trace.apply_json_to_schedule(json.loads(config), schedule)
    return schedule


def adapted(module: Any, config: str, postprocessors: Any) -> Any | None:
    """Return the schedule that `config`, a good one of an operator of other sizes, becomes here.

    Its decisions are kept where they fit (TVM makes a tiling perfect again where sizes differ);
    what post-processors did is done anew. None where they refuse it. Raises as `schedule_of`.
    """
    instructions, decisions = json.loads(config)
    names = [instruction[0] for instruction in instructions]
    end = names.index(_POST) if _POST in names else len(names)
    kept = [instructions[:end], [pair for pair in decisions if pair[0] < end]]
    schedule = schedule_of(module, json.dumps(kept, sort_keys=True, separators=(",", ":")))
    schedule.enter_postproc()
    if not all(each.apply(schedule) for each in postprocessors):
        return None
    return schedule


def _plain(value: Any) -> Any:
    """Return TVM's value as one of Python's own."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "value"):  # IntImm, FloatImm
        return _plain(value.value)
    return [_plain(each) for each in value]
