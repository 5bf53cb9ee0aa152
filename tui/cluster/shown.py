"""A cluster on the screen, with its operator's hand, its line of time and its recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tui.attached import Said
from tui.cluster.client import Cluster
from tui.cluster.operator import ClusterOperator
from tui.cluster.player import ClusterPlayer
from tui.cluster.recorder_switch import ClusterSwitch
from tui.cluster.scrub import ClusterScrub
from tui.cluster.states import ClusterStates
from tui.focus import Focus
from tui.operator import Tell
from tui.view import Frame, Kind, Link, Status

LIVE = Link("live")


class OfCluster:
    """All workers, their pools side by side."""

    kind: Kind = "cluster"
    moving: tuple[str, ...] = ("transfers",)

    def __init__(
        self,
        states: ClusterStates,
        cluster: Cluster | None,
        link: Callable[[], Link],
        readonly: bool,
        tell: Tell,
        target: str,
        player: ClusterPlayer | None = None,
        secrets: Iterable[str] = (),
        unchecked: bool = False,
        silent: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`cluster` None: `player` has the states. `link` says how the connection stands, `target` with whom, and
        `silent` for how many seconds nothing has changed."""
        self.states = states
        self.operator = ClusterOperator(cluster, states, readonly, tell)
        self.scrub = ClusterScrub(states, tell, player)
        self.recorder = ClusterSwitch(states, tell, secrets, player is not None)
        self._link, self._target, self._player = link, target, player
        self._unchecked, self._silent = unchecked, silent

    @property
    def heard(self) -> int:
        return self.states.heard

    @property
    def standing(self) -> object:
        return self._link().phase, self.scrub.seq, self.operator.control

    def frame(self, focus: Focus, said: Said) -> Frame:
        status = Status(
            link=self._link(),
            target=self._target,
            past=self.scrub.past,
            playing=self._player.status if self._player is not None else None,
            recording=self.recorder.words,
            readonly=self.operator.readonly,
            notice=said.notice,
            notice_bad=said.bad,
            back=said.back,
            unchecked=self._unchecked,
        )
        view = self.scrub.view or self.states.newest(self.operator.control, self._silent())
        return Frame(status, None, focus, cluster=view, of_cluster=True)

    async def read(self, focus: Focus) -> None:
        """A cluster tells all it has without being asked."""
