"""A recording of a cluster: its states, a line each, as the cluster told them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.cluster.protocol import CLUSTER_VERSION, ClusterState, decode_cluster, encode_cluster
from tui.recorder import LineWriter
from tui.recording import Lines, RecordingError
from tui.sources.redaction import Redaction


@dataclass(frozen=True, slots=True)
class Told:
    """A state as it stands in the file; `time` is Unix time, the recording's clock."""

    data: bytes
    state: ClusterState

    @property
    def time(self) -> float:
        return self.state.time


class _Head(msgspec.Struct):
    """Of a line: what every version is believed to have."""

    type: str
    version: int = CLUSTER_VERSION


_decode_head = msgspec.json.Decoder(_Head).decode


def _decode(line: bytes) -> Told:
    return Told(line.strip(), decode_cluster(line))


class ClusterReading(Lines[Told]):
    """Its states in order. Opening and iterating raise RecordingError."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _decode)

    def _in_order(self) -> Iterator[Told]:
        for told in self._decoded():
            self._first = False
            yield told
        if self._first:
            raise self._empty()

    def _check(self, item: Told) -> None:
        self._check_version(item.state.version)

    def _check_version(self, found: int) -> None:
        if found != CLUSTER_VERSION:
            age = "a newer" if found > CLUSTER_VERSION else "an older"
            raise RecordingError(
                f"{self.path}: recorded by {age} version: {found}, this paged-top knows {CLUSTER_VERSION} of a cluster"
            )

    def _wrong(self, text: bytes, error: Exception) -> RecordingError:
        try:
            head = _decode_head(text)
        except msgspec.DecodeError:
            return super()._wrong(text, error)
        try:
            self._check_version(head.version)
        except RecordingError as other:
            return other
        return super()._wrong(text, error)


class ClusterRecorder(LineWriter[ClusterState]):
    """Writes states until `close`, from the one of now on. `secrets` are left out wherever they turn up."""

    def __init__(self, path: Path, secrets: tuple[str, ...] = ()) -> None:
        """Make the file; raises RecordingError where it exists already or cannot be made."""
        redaction = Redaction(secrets)  # used by the writer's thread alone
        super().__init__(path, lambda state: encode_cluster(_redacted(state, redaction)), lambda state: True)


def _redacted(state: ClusterState, redaction: Redaction) -> ClusterState:
    """Without folders and keys in the words of what died or failed."""
    workers, recent = state.workers, state.recent
    if any(worker.reason for worker in workers):
        workers = tuple(
            msgspec.structs.replace(worker, reason=redaction.words(worker.reason)) if worker.reason else worker
            for worker in workers
        )
    if any(done.error for done in recent):
        recent = tuple(
            msgspec.structs.replace(done, error=redaction.words(done.error)) if done.error else done for done in recent
        )
    return msgspec.structs.replace(state, workers=workers, recent=recent)
