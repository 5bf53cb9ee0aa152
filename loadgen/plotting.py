"""One plot for a terminal, as text."""

from __future__ import annotations

from collections.abc import Callable

import plotext
from rich.text import Text

HEIGHT = 14  # lines


def picture(
    title: str, across: str, width: int, color: bool, mark: Callable[[], object], top: float | None = None
) -> Text:
    """What `mark` draws with plotext, over an axis named `across`, `width` columns wide, from 0 to `top` if given.

    plotext has one figure for all, which is empty before and after.
    """
    plotext.clear_figure()
    mark()
    plotext.title(title)
    plotext.xlabel(across)
    plotext.plotsize(width, HEIGHT)
    plotext.ylim(0, top)
    if not color:
        plotext.theme("clear")
    drawn = Text.from_ansi(plotext.build())
    plotext.clear_figure()
    return drawn
