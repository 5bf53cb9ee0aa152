"""A cluster's server as an operator's command asks it. No event loop: a command asks one question after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult

import msgspec

from engine.cluster.protocol import ClusterState, decode_cluster

ANSWER_SECONDS = 30.0  # that a server may say nothing
LEAST_SECONDS = 1.0  # that it may in any case, however little time is left
MOST_ANSWER = 1 << 26  # bytes
MOST_TOLD = 300  # characters of a server's own words


class NotDone(Exception):
    """The cluster could not be asked, or said no; the message tells a person."""


class ClusterServer:
    """The cluster's server, asked over a connection for each question. It is where its address says: no proxy is asked,
    and no redirection followed, which would take the key along. After `timeout` seconds from now on no answer is waited
    for (0: as long as it takes)."""

    def __init__(self, url: SplitResult, admin_key: str | None, timeout: float = 0.0) -> None:
        self._url = url
        self._until = time.monotonic() + timeout if timeout else float("inf")
        self._headers = {"Content-Type": "application/json"}
        if admin_key is not None:
            self._headers["Authorization"] = f"Bearer {admin_key}"

    def change(self, wanted: Mapping[str, Any]) -> ClusterState:
        """The state with it. Raises NotDone."""
        return self._ask("PATCH", msgspec.json.encode(wanted))

    def state(self) -> ClusterState:
        """Raises NotDone."""
        return self._ask("GET")

    def _ask(self, method: str, body: bytes | None = None) -> ClusterState:
        url = self._url
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        patience = max(LEAST_SECONDS, min(ANSWER_SECONDS, self._until - time.monotonic()))
        link = kind(url.hostname or "", url.port, timeout=patience)
        try:
            link.request(method, f"{url.path}/engine/cluster", body, self._headers)
            answer = link.getresponse()
            told = answer.read(MOST_ANSWER)
        except (OSError, HTTPException) as error:
            raise NotDone(f"{url.geturl()} cannot be asked: {_words(error, patience)}") from None
        finally:
            link.close()
        if answer.status != HTTPStatus.OK:
            raise NotDone(f"{url.geturl()}: {_reason(told) or answer.reason} (HTTP {answer.status})")
        try:
            return decode_cluster(told)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotDone(f"{url.geturl()} answers, but not with a cluster's state ({error})") from None


def _reason(told: bytes) -> str:
    """What the server says, if it is one of ours."""
    try:
        message = msgspec.json.decode(told)["error"]["message"]
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return ""
    return " ".join(str(message).split())[:MOST_TOLD]


def _words(error: Exception, patience: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {patience:.2g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
