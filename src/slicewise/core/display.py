"""How a type of `core` shows itself in a notebook: a table of who renders what, loaded when asked.

The renderers live on a higher floor; core knows only where, so that nothing is imported upwards.
"""

from collections.abc import Callable
from typing import cast

from slicewise.core.plugins import PluginTable

DISPLAYS = PluginTable(
    "notebook display",
    {
        "prediction": "slicewise.app.html.predict.card:prediction_card",
        "exploration": "slicewise.app.html.explore_card:exploration_card",
        "fit": "slicewise.app.slicing.fit_card:fit_card",
        "fits": "slicewise.app.slicing.fit_card:fits_card",
        "tuning": "slicewise.app.tuning.card:tune_card",
        "tuning matrix": "slicewise.app.tuning.card:matrix_card",
        "prediction set": "slicewise.app.html.predict.card:predictions_card",
    },
)


def as_html(name: str, thing: object) -> str:
    """Return the HTML fragment of `thing`, rendered by the row `name` of `DISPLAYS`."""
    render = cast(Callable[[object], str], DISPLAYS.load(name))
    return render(thing)
