"""Everything on the screen at one moment. Panels are drawn from a `Frame` alone, so a frozen one is a paused screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from engine.protocol import (
    Control,
    Counters,
    EngineInfo,
    LiveLoad,
    PoolTotals,
    Queue,
    Record,
    RequestState,
    SharingLedger,
    WasteLedger,
)
from tui.block_columns import BlockColumns
from tui.focus import FIRST_FOCUS, Focus
from tui.history import Step, Windows
from tui.look import HUES
from tui.prefix_texts import NOT_WATCHED, PrefixTexts
from tui.texts import NO_TEXTS, Texts

if TYPE_CHECKING:
    from tui.advice import Suggestion
    from tui.cluster.view import ClusterView
    from tui.sources.view import FleetView, ServerView

Phase = Literal["starting", "connecting", "live", "reconnecting", "down", "locked", "foreign", "cluster", "ended"]

Kind = Literal["steps", "server", "fleet", "cluster"]  # of screen
Unit = Literal["step", "look", "state"]
UNITS: dict[Kind, Unit] = {"steps": "step", "server": "look", "fleet": "look", "cluster": "state"}  # of its past

VIEW_STEPS = 400  # columns of the batch timeline that a view carries
RATE_WINDOW = 5.0  # seconds over which "now" is averaged
COPIES_SHOWN = 0.5  # seconds for which copied blocks stay marked; those of the last step do until the next


@dataclass(frozen=True, slots=True)
class Link:
    """How the connection stands. `seconds` is how long it has; `lost` the records of the last gap, while fresh.

    `cluster`: several engines answer there, and none of them alone.
    `down`: the engine's server answers, and `detail` is why the engine itself cannot. `locked`: it wants another key.

    `silent` is the seconds without a record while requests run: a long step, or an engine that hangs. `found` is what
    the stream had that could not be believed, while fresh, and `news` that the engine was started again, or what went
    wrong in a step of it. `unready`: why its server takes no requests, though it shows its engine.
    """

    phase: Phase
    detail: str = ""
    seconds: float = 0.0
    lost: int = 0
    silent: float = 0.0
    found: str = ""
    news: str = ""
    unready: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """Record `seq` of those kept, `first` to `last`; `behind` are the seconds from it to the newest.

    `unit` is what is counted: steps, looks at a server's metrics, or states of a cluster.
    """

    first: int
    last: int
    seq: int
    behind: float
    unit: Unit = "step"


@dataclass(frozen=True, slots=True)
class Playing:
    """A recording: seconds from its start, and in all as far as known, and to the next record while it waits.

    `note` says why it ended.
    """

    position: float
    duration: float | None
    speed: float
    running: bool
    ended: bool
    waits: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What the screen says about itself. `past` is set while the view is frozen, `playing` over a recording.

    `recording` is what is being written to a file, in words. `back`: where escape leads when there is nothing else to
    leave; empty: nowhere. `no_steps`: why metrics are shown and not the steps of an engine that has them.
    `unchecked`: certificates are not checked, so that whoever is in between can tell all this.
    """

    link: Link
    target: str = ""
    past: Past | None = None
    playing: Playing | None = None
    recording: str = ""
    readonly: bool = False
    notice: str = ""
    notice_bad: bool = False
    replay: str = ""
    log: tuple[str, ...] = ()
    back: str = ""
    no_steps: str = ""
    unchecked: bool = False

    @property
    def fixed(self) -> str:
        """Why nothing can be sent from here; empty where it can."""
        if self.playing is not None:
            return "a recording: nothing can be changed"
        return "readonly: nothing is sent" if self.readonly else ""


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
    ordinals: dict[str, int]
    blocks: BlockColumns = field(repr=False)  # they change when the feed goes on
    record: Record | None  # the last one; None: only a snapshot was seen
    steps: tuple[Step, ...]
    lanes: dict[str, int]
    history: Windows = field(repr=False)  # the figures over time as they were known then

    def hue(self, request: str) -> int:
        """The number of a request's colour."""
        return self.ordinals.get(request, 0) % HUES


@dataclass(frozen=True, slots=True)
class Frame:
    """`view` is None until a first snapshot was read. `step` is the record of the step under the batch's cursor.

    `block_events`: what the kept records tell of the block that is inspected, as (step, words), the latest last.
    `loads`: what load generators told last of their runs against this engine. `server` is there instead of `view` where
    a server tells no steps; `fleet` instead of both where several are shown side by side.
    `prefixes`: how the prefixes that `server` tells of read. `cluster` is there instead of all three over a cluster
    (`of_cluster`), once it has told its state.
    """

    status: Status
    view: View | None
    focus: Focus = FIRST_FOCUS
    step: Record | None = None
    texts: Texts = NO_TEXTS
    advice: tuple[Suggestion, ...] = ()
    block_events: tuple[tuple[int, str], ...] = ()
    loads: tuple[LiveLoad, ...] = ()
    server: ServerView | None = None
    fleet: FleetView | None = None
    prefixes: PrefixTexts = NOT_WATCHED
    cluster: ClusterView | None = None
    of_cluster: bool = False

    @property
    def kind(self) -> Kind:
        if self.of_cluster:
            return "cluster"
        return "fleet" if self.fleet is not None else "server" if self.server is not None else "steps"

    @property
    def opens(self) -> tuple[tuple[str, str], ...]:
        """What can be shown alone of what is shown side by side: names, and where each is."""
        if self.cluster is not None:
            return tuple((worker.name, worker.path) for worker in self.cluster.state.workers)
        return tuple((server.name, server.url) for server in self.fleet.servers) if self.fleet is not None else ()

    @property
    def unread(self) -> str:
        """Why a text is not there."""
        return self.texts.unknown or ("not read while paused" if self.status.past else "not read yet")
