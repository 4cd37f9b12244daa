"""One way of serving a model: engine, numerics, threads and the engine's own knobs.

A candidate of the `serving` engine is such settings, written as sorted, tight JSON. What a setting
means to a runtime is said here and nowhere else; whether it pays is not known here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.core.errors import TuningError

ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
AS_IS = "as is"
_ORT_ONLY = ("spinning", "graph_level", "execution")
_OPENVINO_ONLY = ("pinning",)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is served.

    `numerics` is 'as is' or a kind of int8. `threads` work in all, `requests` inferences run at
    once on them. `spinning`, `graph_level` and `execution` are of onnxruntime, `pinning` is of
    OpenVINO; the values here are the runtimes' own defaults.

    >>> Settings(threads=2).text
    '{"batch":1,"engine":"onnxruntime","execution":"sequential","graph_level":"all",\
"numerics":"as is","requests":1,"spinning":"1","threads":2}'
    """

    engine: str = ONNXRUNTIME
    numerics: str = AS_IS
    threads: int = 1
    requests: int = 1
    batch: int = 1
    spinning: str = "1"
    graph_level: str = "all"
    execution: str = "sequential"
    pinning: str = "0"

    @property
    def text(self) -> str:
        """The one way to write these settings: knobs of the other engine are left out."""
        other = _OPENVINO_ONLY if self.engine == ONNXRUNTIME else _ORT_ONLY
        told = {name: getattr(self, name) for name in _NAMES if name not in other}
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @property
    def threads_each(self) -> int:
        """Threads that work on one inference, those that all share counted to each."""
        return self.threads - self.requests + 1

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the runtime."""
        names = _ORT_ONLY if self.engine == ONNXRUNTIME else _OPENVINO_ONLY
        made = {name: str(getattr(self, name)) for name in names}
        return made if self.requests == 1 else {**made, "requests": str(self.requests)}

    @staticmethod
    def parse(text: str) -> "Settings":
        """Return the settings that `text` is; `TuningError` if it is none."""
        try:
            told = json.loads(text)
            made = Settings(**told)
        except (ValueError, TypeError) as err:
            raise TuningError(
                f"configuration {text!r} is none of the serving engine ({err}); it is JSON with"
                f" {', '.join(_NAMES)}; tune anew"
            ) from err
        if made.text != text:
            raise TuningError(
                f"configuration {text!r} is not written as the serving engine does; that is"
                f" {made.text!r}; tune anew"
            )
        return made


_NAMES = tuple(Settings.__dataclass_fields__)
