"""Everything on the screen at one moment. Panels are drawn from a `Frame` alone, so a frozen one is a paused screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.protocol import (
    Control,
    Counters,
    EngineInfo,
    PoolTotals,
    Queue,
    RequestState,
    SharingLedger,
    WasteLedger,
)
from tui.cells import Cells
from tui.history import History, Step

Phase = Literal["starting", "connecting", "live", "reconnecting", "foreign", "ended"]

VIEW_STEPS = 400  # columns of the batch timeline that a view carries
RATE_WINDOW = 5.0  # seconds over which "now" is averaged
COPIES_SHOWN = 0.5  # seconds for which copied blocks stay marked; those of the last step do until the next


@dataclass(frozen=True, slots=True)
class Link:
    """How the connection stands. `seconds` is how long it has; `lost` the records of the last gap, while fresh.

    `silent` is the seconds without a record while requests run: a long step, or an engine that hangs.
    """

    phase: Phase
    detail: str = ""
    seconds: float = 0.0
    lost: int = 0
    silent: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """What the screen says about itself. `since_pause` is the records that came while the view is frozen."""

    link: Link
    target: str = ""
    paused: bool = False
    since_pause: int = 0
    readonly: bool = False
    notice: str = ""
    notice_bad: bool = False
    replay: str = ""
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """The engine's state after record `seq`; `now` is the moment on the engine's clock up to which all is known."""

    now: float
    uptime: float
    seq: int
    engine: EngineInfo
    control: Control
    pool: PoolTotals
    waste: WasteLedger
    sharing: SharingLedger
    queue: Queue
    counters: Counters
    host_blocks: int  # of the swap space, in use
    requests: dict[str, RequestState]
    cells: Cells
    steps: tuple[Step, ...]
    lanes: dict[str, int]
    hues: dict[str, int]
    history: History = field(repr=False)  # asked only about times up to `now`


@dataclass(frozen=True, slots=True)
class Frame:
    """`view` is None until a first snapshot was read."""

    status: Status
    view: View | None
