"""Engine figures against numbers worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from steps import record, row, snapshot

from engine.protocol import Arrived, Control, Counters, Durations, Preempted, SharingLedger, WasteLedger
from loadgen import engine_figures
from loadgen.engine_figures import EngineFigures, since


def test_time_weighted_waste_by_hand() -> None:
    """10 s of 25 % waste of 100 slots, 30 s of 50 % of 20, 60 s of nothing: 25 * 10 + 10 * 30 over 1000 + 600."""
    ledger = EngineFigures(snapshot(0, 100.0))
    ledger.add(record(1, 105.0, waste=WasteLedger(held=100, filled=75, internal=25, external=8)))
    ledger.add(record(2, 115.0, waste=WasteLedger(held=20, filled=10, internal=10)))
    ledger.add(record(3, 145.0))
    figures = ledger.figures(snapshot(3, 205.0))
    assert figures["mean_internal_waste_share"] == pytest.approx(550 / 1600)
    assert figures["peak_internal_waste_share"] == 0.5
    assert figures["mean_external_waste_share"] == pytest.approx(8 * 10 / (40 * 16 * 10))
    assert figures["peak_external_waste_share"] == pytest.approx(8 / 160)
    assert figures["mean_held_slots"] == pytest.approx(1600 / 40)
    assert (figures["busy_s"], figures["window_s"]) == (40.0, 100.0)


def test_the_window_begins_with_the_first_request_however_long_the_engine_was_idle() -> None:
    """The snapshot's time is that of the last record: an hour before the request that came at 3700."""
    ledger = EngineFigures(snapshot(9, 100.0))
    ledger.add(record(10, 3702.0, arrived=(Arrived("r", 8, 4, 3700.0),), waste=WasteLedger(held=16, filled=16)))
    ledger.add(record(11, 3705.0))
    assert ledger.began == 3700.0
    figures = ledger.figures(snapshot(11, 3705.0))
    assert (figures["window_s"], figures["busy_s"]) == (5.0, 3.0)
    assert [moment.time for moment in since(ledger.moments, ledger.began)] == [2.0, 5.0]


def test_what_holds_before_the_first_record_counts() -> None:
    busy = WasteLedger(held=100, filled=60, internal=40)
    ledger = EngineFigures(snapshot(7, 10.0, waste=busy))
    ledger.add(record(8, 20.0))
    figures = ledger.figures(snapshot(8, 30.0))
    assert figures["mean_internal_waste_share"] == 0.4
    assert figures["peak_internal_waste_share"] == 0.4


def test_sharing_by_hand() -> None:
    first = snapshot(0, 0.0, sharing=SharingLedger(looked_up_tokens=1000, found_tokens=900, resumed_found_tokens=5))
    ledger = EngineFigures(first)
    held = WasteLedger(held=16, filled=16)
    ledger.add(record(1, 1.0, waste=held, sharing=SharingLedger(10, 4, 6, 6000)))
    ledger.add(record(2, 4.0, waste=held, sharing=SharingLedger(12, 10, 2, 2000)))
    last = SharingLedger(looked_up_tokens=1400, found_tokens=1000, resumed_looked_up_tokens=50, resumed_found_tokens=35)
    figures = ledger.figures(snapshot(2, 5.0, sharing=last))
    assert (figures["peak_saved_blocks"], figures["peak_saved_bytes"]) == (6, 6000)
    assert figures["mean_saved_blocks"] == pytest.approx((6 * 3 + 2 * 1) / 4)
    assert figures["mean_saved_bytes"] == pytest.approx((6000 * 3 + 2000 * 1) / 4)
    assert figures["hit_rate"] == 0.25
    assert figures["tokens_not_recomputed"] == 130


def test_steps_and_totals() -> None:
    ledger = EngineFigures(snapshot(0, 0.0, counters=Counters(steps=10, prefill_tokens=100, preemptions=1)))
    rows = (row("prefill", 8), row("decode", 1), row("held", 1))
    ledger.add(record(1, 1.0, rows=rows, seconds=0.1))
    ledger.add(record(2, 2.0, rows=rows[1:2], seconds=0.3, preempted=(Preempted("r", 4),)))
    ledger.add(record(3, 3.0, seconds=9.0))  # no rows: no step
    counters = Counters(steps=12, prefill_tokens=108, decode_tokens=2, held_tokens=1, sampled_tokens=2, preemptions=2)
    figures = ledger.figures(snapshot(3, 3.0, counters=counters))
    assert figures["steps"] == 2
    assert figures["mean_step_ms"] == pytest.approx(200.0)
    assert figures["max_step_ms"] == pytest.approx(300.0)
    assert (figures["mean_batch_rows"], figures["peak_batch_rows"]) == (2.0, 3)
    totals = ("prefill_tokens", "decode_tokens", "held_tokens", "sampled_tokens", "preemptions")
    assert [figures[name] for name in totals] == [8, 2, 1, 2, 1]


def test_forks_copies_and_preemptions_by_kind() -> None:
    before = Counters(preemptions=7, forks=2, copied_blocks=5, swapped_out_blocks=3, recomputed_tokens=100)
    ledger = EngineFigures(snapshot(0, 0.0, counters=before, host_blocks=4))
    swap, recompute = Preempted("a", 0, "swap", 6), Preempted("b", 40)
    spent = Durations(0.001, 0.002, 0.1, 0.003, 0.004, transfer=0.05)
    ledger.add(record(1, 1.0, rows=(row("fork", 0),), preempted=(swap, recompute), host_blocks=9, durations=spent))
    ledger.add(record(2, 2.0, rows=(row("decode", 1),), preempted=(swap,), host_blocks=1, seconds=0.1))
    counters = Counters(
        preemptions=10,
        swap_preemptions=2,
        forks=3,
        copied_blocks=7,
        swapped_out_blocks=15,
        swapped_in_blocks=14,
        recomputed_tokens=140,
    )
    figures = ledger.figures(snapshot(2, 2.0, counters=counters))
    names = ("preemptions", "preemptions_recompute", "preemptions_swap", "recomputed_tokens", "forks", "copied_blocks")
    assert [figures[name] for name in names] == [3, 1, 2, 40, 1, 2]
    assert (figures["swapped_out_blocks"], figures["swapped_in_blocks"], figures["peak_host_blocks"]) == (12, 14, 9)
    assert figures["transfer_s"] == 0.05
    assert figures["max_step_ms"] == pytest.approx(160.0)


def test_found_tokens_by_cause() -> None:
    first = SharingLedger(looked_up_tokens=1000, found_tokens=900, decoded_tokens=300, evicted_tokens=7)
    last = SharingLedger(looked_up_tokens=1400, found_tokens=1200, decoded_tokens=380, copied_tokens=25,
                         evicted_tokens=9, forked_tokens=600)  # fmt: skip
    figures = EngineFigures(snapshot(0, 0.0, sharing=first)).figures(snapshot(2, 5.0, sharing=last))
    names = ("found_tokens", "found_prompt_tokens", "found_decoded_tokens", "found_copied_tokens", "evicted_tokens")
    assert [figures[name] for name in names] == [300, 220, 80, 25, 2]
    assert figures["forked_tokens"] == 600


def test_lost_records_are_counted_and_seen_ones_taken_once() -> None:
    ledger = EngineFigures(snapshot(4, 0.0))
    ledger.add(record(4, 0.0, rows=(row("decode", 1),)))  # told already by the snapshot
    ledger.add(record(5, 1.0))
    ledger.add(record(9, 2.0))
    ledger.add(record(9, 2.0))
    assert (ledger.lost_records, ledger.next_seq) == (3, 10)
    assert len(ledger.moments) == 2
    assert ledger.figures(snapshot(11, 3.0))["records_lost"] == 5


def test_modes_seen() -> None:
    ledger = EngineFigures(snapshot(0, 0.0))
    ledger.add(record(1, 1.0))
    ledger.add(record(2, 2.0, control=Control(batching="static", allocation="reserved")))
    ledger.add(record(3, 3.0))
    assert ledger.figures(snapshot(3, 3.0))["modes"] == ["continuous+paged", "static+reserved"]


def test_an_idle_window_has_no_shares() -> None:
    figures = EngineFigures(snapshot(3, 1.0)).figures(snapshot(3, 2.0))
    assert (figures["steps"], figures["hit_rate"], figures["mean_internal_waste_share"]) == (0, None, None)
    assert figures["peak_internal_waste_share"] is None  # nothing was held: not a waste of 0
    assert figures["modes"] == ["continuous+paged"]


@pytest.mark.parametrize("changes", [{"seq": 2}, {"started": 2.0}])
def test_a_restart_is_refused(changes: dict[str, Any]) -> None:
    ledger = EngineFigures(snapshot(5, 1.0))
    last = snapshot(changes.get("seq", 9), 2.0)
    if "started" in changes:
        last = msgspec.structs.replace(last, engine=msgspec.structs.replace(last.engine, started_unix=2.0))
    with pytest.raises(ValueError, match="restarted"):
        ledger.figures(last)


def test_moments_on_another_clock() -> None:
    ledger = EngineFigures(snapshot(0, 100.0))
    ledger.add(record(1, 107.0, rows=(row("decode", 1),)))
    (moment,) = since(ledger.moments, 100.0)
    assert (moment.time, moment.rows) == (7.0, 1)


def test_a_long_run_needs_no_memory_and_loses_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_figures, "MOST_MOMENTS", 16)
    ledger = EngineFigures(snapshot(0, 0.0))
    for seq in range(1, 1001):
        peak = WasteLedger(held=100, filled=10, internal=90) if seq == 500 else WasteLedger(held=100, filled=100)
        ledger.add(record(seq, float(seq), seconds=seq / 1000, rows=(row("decode", 1),), waste=peak))
    times = [moment.time for moment in ledger.moments]
    assert len(times) <= 16
    assert {after - before for before, after in pairwise(times)} == {64.0}
    figures = ledger.figures(snapshot(1000, 1000.0))
    assert figures["peak_internal_waste_share"] == 0.9
    assert figures["mean_step_ms"] == pytest.approx(500.5)
    assert figures["max_step_ms"] == pytest.approx(1000.0)
