"""Which crews there are; `core/crew.py` holds the protocol.

A crew is a row of the table: a name and what makes an empty one.
"""

from collections.abc import Callable
from typing import cast

from slicewise.core.crew import Crew
from slicewise.core.plugins import PluginTable

CREWS = PluginTable(
    what="executor",
    rows={
        "inline": "slicewise.execute.crews.inline:InlineCrew",
        "local": "slicewise.execute.crews.local:LocalCrew",
        "ray": "slicewise.execute.crews.ray:RayCrew",
    },
)


def make_crew(name: str) -> Crew:
    """Return an empty crew of the kind called `name`; `UsageError` lists the known.

    >>> crew = make_crew("inline")
    >>> crew.wait(timeout_s=0)
    ()
    """
    return cast(Callable[[], Crew], CREWS.load(name))()
