"""Where the keyboard and the mouse are: the panel in front, and in each panel what is selected, sorted and zoomed.

Pure data: a panel's `press` and `point` make a new one, and `draw` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

PanelName = Literal["blocks", "batch", "sharing", "ledgers", "requests", "control"]
PANELS: tuple[PanelName, ...] = ("blocks", "batch", "sharing", "ledgers", "requests", "control")

ColourBy = Literal["owner", "references", "age", "kind"]


@dataclass(frozen=True, slots=True)
class MapFocus:
    """`block`: under the cursor. `zoom`: how many times 2 the map is nearer than the whole pool; `top`: first block."""

    block: int | None = None
    zoom: int = 0
    top: int = 0
    colour_by: ColourBy = "owner"


@dataclass(frozen=True, slots=True)
class BatchFocus:
    """`step`: the sequence number of the step under the cursor, None: the newest. `zoom`: a column is 2**zoom steps.

    `hovered`: that step is only under the mouse, and no longer when the mouse goes. `top`: the first row shown;
    `follow`: rows move so that the selected one is among them.
    """

    step: int | None = None
    hovered: bool = False
    top: int = 0
    zoom: int = 0
    follow: bool = True


@dataclass(frozen=True, slots=True)
class SharingFocus:
    """`node`: the last block of the selected run of the prefix tree; `closed` runs hide what goes on from them.

    `top`: the first row shown; `follow`: rows move with the selected one.
    """

    node: int | None = None
    top: int = 0
    closed: frozenset[int] = frozenset()
    follow: bool = True


@dataclass(frozen=True, slots=True)
class LedgersFocus:
    """`window`: the seconds that plots and quantiles are over; `chart`: the one that is shown large."""

    window: float = 60.0
    chart: int = 0


@dataclass(frozen=True, slots=True)
class TableFocus:
    """`sort` is the name of a column. `top`: the first row shown; `follow`: rows move with the selected one."""

    sort: str
    descending: bool = False
    filter: str = ""
    top: int = 0
    follow: bool = True


@dataclass(frozen=True, slots=True)
class RequestsFocus(TableFocus):
    """The request that is selected is so in all panels: see `Focus`."""

    sort: str = "arrived"


@dataclass(frozen=True, slots=True)
class ControlFocus:
    """`row`: the line under the cursor, over controls, suggestions and the replay."""

    row: int = 0


@dataclass(frozen=True, slots=True)
class FleetFocus(TableFocus):
    """`row`: the name of the server under the cursor, None: the first."""

    sort: str = "as named"
    row: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterFocus(TableFocus):
    """`pool` is that of the cursor, None: the first; `worker` the one under it, None: the first. Pools scroll together.

    `transfers`: the first line shown of what is moved between workers.
    """

    sort: str = "name"
    pool: str | None = None
    worker: str | None = None
    transfers: int = 0


@dataclass(frozen=True, slots=True)
class ServerFocus:
    """Of a server that tells no steps: `run` is the selected run of its prefix trees, by endpoint and last block.

    `closed` runs hide what goes on from them; `engine` is the one of several that figures are of, None: all.
    `slot` is the selected one of llama.cpp's.
    """

    run: tuple[str, int | bytes] | None = None
    top: int = 0
    closed: frozenset[tuple[str, int | bytes]] = frozenset()
    follow: bool = True
    engine: tuple[str, str] | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Focus:
    """`expanded`: the panel in front has the whole screen. `inspecting`: its selection is told in an overlay.

    `panel` is one of `PANELS`, or of another kind of screen. `request` is selected in all panels at once: its blocks
    are lit in the map, its lane in the batch.
    `inspect_top` and `help_top` are the first lines shown of these overlays.
    """

    panel: str = "blocks"
    expanded: bool = False
    inspecting: bool = False
    inspect_top: int = 0
    helping: bool = False
    help_top: int = 0
    request: str | None = None
    map: MapFocus = MapFocus()
    batch: BatchFocus = BatchFocus()
    sharing: SharingFocus = SharingFocus()
    ledgers: LedgersFocus = LedgersFocus()
    requests: RequestsFocus = RequestsFocus()
    control: ControlFocus = ControlFocus()
    fleet: FleetFocus = FleetFocus()
    server: ServerFocus = ServerFocus()
    cluster: ClusterFocus = ClusterFocus()

    def but(self, **changes: Any) -> Focus:
        return replace(self, **changes)


FIRST_FOCUS = Focus()


def back(focus: Focus, kind: str = "steps") -> Focus | None:
    """One step out: the overlay, the large panel, then what is selected. None: nothing is left to leave."""
    if focus.helping:
        return focus.but(helping=False, help_top=0)
    if focus.inspecting:
        return focus.but(inspecting=False, inspect_top=0)
    if focus.expanded:
        return focus.but(expanded=False)
    if kind == "fleet":
        cleared = focus.but(fleet=FleetFocus(sort=focus.fleet.sort, descending=focus.fleet.descending))
        return cleared if cleared != focus else None
    if kind == "cluster":
        cleared = focus.but(cluster=ClusterFocus(sort=focus.cluster.sort, descending=focus.cluster.descending))
        return cleared if cleared != focus else None
    if focus.panel in ("requests", "control"):
        return focus.but(panel="blocks")
    if kind == "server":
        cleared = focus.but(server=ServerFocus())
        return cleared if cleared != focus else None
    cleared = Focus(panel=focus.panel, ledgers=focus.ledgers, map=replace(focus.map, block=None))
    return cleared if cleared != focus else None
