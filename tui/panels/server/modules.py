"""The panels of a server that tells no steps: by the name that keys go to, and by their place on the screen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from tui.focus import PanelName
from tui.look import Look
from tui.panels.line import Line
from tui.panels.server import batch, blocks, control, header, inspect, ledgers, requests, sharing, speed, waste
from tui.view import Frame

MODULES: dict[PanelName, ModuleType] = {
    "blocks": blocks,
    "batch": batch,
    "sharing": sharing,
    "ledgers": ledgers,
    "requests": requests,
    "control": control,
}
TITLES: dict[PanelName, str] = {
    "blocks": "KV memory",
    "batch": "running and waiting",
    "sharing": "prefix cache",
    "ledgers": "speed and latency",
    "requests": "requests",
    "control": "about the server",
}
PANELS: dict[str, Callable[[Frame, int, int, Look], list[Line]]] = {
    "header": header.draw,
    "blocks": blocks.draw,
    "batch": batch.draw,
    "sharing": sharing.draw,
    "sharing-open": partial(sharing.draw, open_bottom=True),
    "ledgers": ledgers.draw,
    "waste": waste.draw,
    "waste-joint": partial(waste.draw, top_joint=True),
    "speed": speed.draw,
    "requests": requests.draw,
    "control": control.draw,
    "inspect": inspect.draw,
}
