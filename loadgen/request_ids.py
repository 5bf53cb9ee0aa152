"""The X-Request-Id of each request, so that one that failed can be found in the server's logs."""

from __future__ import annotations

import secrets

HEADER = "X-Request-Id"


def new_run() -> str:
    """What the ids of one run begin with."""
    return secrets.token_hex(4)


def request_id(run: str, index: int, turn: int) -> str:
    """That of a turn's first sending: `index` is its session's place in the trace."""
    return f"{run}-{index}-{turn}"


def again(first: str, retries: int) -> str:
    """That of the same request when it is sent again."""
    return f"{first}-r{retries}" if first and retries else first
