"""The panels that keys go to, by name: each a module of pure functions."""

from __future__ import annotations

from types import ModuleType

from tui.focus import PanelName
from tui.panels import batch, block_map, control, ledgers, requests, sharing

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
