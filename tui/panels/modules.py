"""The panels that keys go to, by name: each a module of pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

from tui.focus import PanelName
from tui.look import Look
from tui.panels import batch, block_map, control, ledgers, requests, sharing
from tui.panels.line import Line
from tui.view import Frame

Draw = Callable[[Frame, int, int, Look], list[Line]]

MODULES: dict[PanelName, ModuleType] = {
    "blocks": block_map,
    "batch": batch,
    "sharing": sharing,
    "ledgers": ledgers,
    "requests": requests,
    "control": control,
}
TITLES: dict[PanelName, str] = {
    "blocks": "block map",
    "batch": "batch timeline",
    "sharing": "prefix sharing",
    "ledgers": "waste, speed, latency",
    "requests": "requests",
    "control": "controls, advice, replay",
}


def draws(panels: Mapping[PanelName, ModuleType], waste: ModuleType, **others: ModuleType) -> dict[str, Draw]:
    """What draws each place of a screen: panels, `others`, and those whose border a neighbour goes on with."""
    places: dict[str, ModuleType] = {**dict(panels.items()), "waste": waste, **others}
    return {
        **{name: module.draw for name, module in places.items()},
        "sharing-open": partial(panels["sharing"].draw, open_bottom=True),
        "waste-joint": partial(waste.draw, top_joint=True),
    }
