"""Recording a cluster from the screen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tui.cluster.recording import ClusterRecorder
from tui.cluster.states import ClusterStates
from tui.operator import Tell
from tui.recording_switch import RecordingSwitch


class ClusterSwitch(RecordingSwitch[ClusterRecorder]):
    """Records the states of a cluster."""

    def __init__(self, states: ClusterStates, tell: Tell, secrets: Iterable[str] = (), played: bool = False) -> None:
        """`secrets` are left out of the file wherever they turn up. `played`: the states are a recording's."""
        super().__init__(tell, "states")
        self._states = states
        self._secrets = tuple(secrets)
        self._played = played

    def able(self) -> bool:
        """Whether there is anything to record; tells why not."""
        if self._played:
            self._tell("this is a recording already", True)
        elif self._states.state is None:
            self._tell("there is nothing to record yet", True)
        else:
            return True
        return False

    def _begin(self, path: Path) -> ClusterRecorder:
        recorder, state = ClusterRecorder(path, self._secrets), self._states.state
        assert state is not None, "only called when it is able"
        recorder.put(state)
        self._states.listener = recorder.put
        return recorder

    def _let_go(self) -> None:
        self._states.listener = None
