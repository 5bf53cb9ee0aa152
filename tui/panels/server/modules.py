"""The panels of a server that tells no steps: by the name that keys go to, and by their place on the screen."""

from __future__ import annotations

from types import ModuleType

from tui.focus import PanelName
from tui.panels.modules import draws
from tui.panels.server import batch, blocks, control, header, inspect, ledgers, requests, sharing, speed, waste

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
PANELS = draws(MODULES, waste, header=header, speed=speed, inspect=inspect)
