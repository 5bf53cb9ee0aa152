"""The panels of a cluster: by the name that keys go to, and by their place on the screen."""

from __future__ import annotations

from types import ModuleType

from tui.panels.cluster import header, interference, router, transfers, workers
from tui.panels.modules import Draw

NAMES = ("workers", "transfers", "interference", "router")
MODULES: dict[str, ModuleType] = {
    "workers": workers,
    "transfers": transfers,
    "interference": interference,
    "router": router,
}
TITLES: dict[str, str] = {
    "workers": "workers by pool",
    "transfers": "what is handed over",
    "interference": "what prefills cost decodes",
    "router": "the router",
}
DRAWS: dict[str, Draw] = {"header": header.draw, **{name: module.draw for name, module in MODULES.items()}}
