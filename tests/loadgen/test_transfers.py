"""Transfers are counted at both of their ends, and those that failed apart."""

from __future__ import annotations

import pytest
from steps import record

from engine.protocol import HAS_ENDED, Transferred
from loadgen.transfers import Transfers, merged_transfers


def told(*transferred: Transferred) -> Transfers:
    whole = Transfers()
    whole.add(record(1, 0.0, transferred=transferred))
    return whole


SENT = Transferred("a", "l1", "sent", 10, 10_000, 0.050)
RECEIVED = Transferred("a", "l1", "received", 8, 8_000, 0.004)


def test_each_side_by_itself() -> None:
    figures = told(SENT, RECEIVED, RECEIVED).figures()
    assert (figures["sent_requests"], figures["sent_blocks"], figures["sent_bytes"]) == (1, 10, 10_000)
    assert (figures["received_requests"], figures["received_blocks"], figures["received_bytes"]) == (2, 16, 16_000)
    assert figures["p50_sent_ms"] == pytest.approx(50.0)
    assert figures["p99_received_ms"] == pytest.approx(4.0)
    assert (figures["received_failed"], figures["sent_expired"]) == (0, 0)


def test_what_failed_moved_nothing() -> None:
    expired = Transferred("b", "l2", "sent", 5, 5_000, 30.0, error="nobody asked for it in time")
    failed = Transferred("c", "l3", "received", 5, 5_000, 1.0, error="the lease has expired")
    unwanted = Transferred("d", "l4", "received", 5, 5_000, 1.0, error=HAS_ENDED)  # nothing is computed again for it
    figures = merged_transfers([told(expired), told(failed, RECEIVED, unwanted)]).figures()
    assert (figures["sent_requests"], figures["sent_expired"], figures["p50_sent_ms"]) == (0, 1, None)
    assert (figures["received_requests"], figures["received_failed"], figures["received_bytes"]) == (1, 1, 8_000)
    assert figures["max_received_ms"] == pytest.approx(4.0)
