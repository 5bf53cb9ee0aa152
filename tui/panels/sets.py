"""Which panels a frame has: those of a step stream, of one server that tells no steps, of a fleet, or of a cluster.

What few screens show is loaded when the first of them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any

from tui.focus import PANELS, Focus
from tui.panels.modules import MODULES, TITLES, Draw
from tui.view import Frame, Kind


@dataclass(frozen=True, slots=True)
class PanelSet:
    """`names` in the order of their number keys. `draws`: of places that are drawn otherwise than in a step stream."""

    kind: Kind
    names: tuple[str, ...]
    modules: Mapping[Any, ModuleType]
    titles: Mapping[Any, str]
    draws: Mapping[str, Draw] = field(default_factory=dict)

    def settled(self, focus: Focus) -> Focus:
        """With one of these panels in front."""
        return focus if focus.panel in self.names else focus.but(panel=self.names[0], expanded=False)


STEPS = PanelSet("steps", PANELS, MODULES, TITLES)


def of(frame: Frame) -> PanelSet:
    return of_kind(frame.kind)


def of_kind(kind: Kind) -> PanelSet:
    match kind:
        case "fleet":
            return _fleet()
        case "server":
            return _server()
        case "cluster":
            return _cluster()
    return STEPS


def settled(frame: Frame) -> Frame:
    focus = of(frame).settled(frame.focus)
    return frame if focus is frame.focus else replace(frame, focus=focus)


@cache
def _fleet() -> PanelSet:
    from tui.panels import fleet, fleet_header

    draws = {"fleet": fleet.draw, "header": fleet_header.draw}
    return PanelSet("fleet", ("fleet",), {"fleet": fleet}, {"fleet": "the fleet"}, draws)


@cache
def _server() -> PanelSet:
    from tui.panels.server import modules

    return PanelSet("server", PANELS, modules.MODULES, modules.TITLES, modules.PANELS)


@cache
def _cluster() -> PanelSet:
    from tui.panels.cluster import modules

    return PanelSet("cluster", modules.NAMES, modules.MODULES, modules.TITLES, modules.DRAWS)
