"""Windows, lanes and comparisons, with figures worked out by hand."""

from __future__ import annotations

import pytest

from engine.protocol import (
    Arrived,
    Control,
    Copy,
    Counters,
    Durations,
    EngineInfo,
    Joined,
    Left,
    PoolTotals,
    Preempted,
    Queue,
    Record,
    Row,
    SharingLedger,
    Snapshot,
    WasteLedger,
)
from tui import controls, log, steps
from tui.fold import EngineFold
from tui.history import History

INFO = EngineInfo("m", "float32", "cpu", 16, 8, 100, 64, "0", started=100.0)
STATIC = Control(batching="static")


def snapshot(seq=0, time=100.0, control=Control(), queue=Queue(), sharing=SharingLedger()):  # noqa: B008
    return Snapshot(seq, time, INFO, control, (), (), PoolTotals(free=8), WasteLedger(), sharing, queue, Counters())


def record(seq, time, rows=(), **changes):
    fields = {
        "control": Control(),
        "durations": Durations(0.01, 0.01, 0.05, 0.01, 0.02) if rows else Durations(0, 0, 0, 0, 0),
        "arrived": (),
        "joined": (),
        "preempted": (),
        "held": (),
        "left": (),
        "released": (),
        "tables": (),
        "blocks": (),
        "pool": PoolTotals(free=8),
        "waste": WasteLedger(),
        "sharing": SharingLedger(),
        "queue": Queue(),
    }
    return Record(seq=seq, time=time, rows=tuple(rows), **{**fields, **changes})


def prefill(request, tokens, sampled=0):
    return Row(request, "prefill", tokens, tokens, 0, sampled)


def decode(request):
    return Row(request, "decode", 1, 50, 0, 1)


class Run:
    """A history fed as the feed does it."""

    def __init__(self, start=None):
        start = start or snapshot()
        self.fold, self.history = EngineFold(start), History()
        self.history.begin(start)

    def take(self, *records):
        for item in records:
            self.history.observe(item, self.fold)
            self.fold.apply(item)
        return self


def join(request, cached=0, looked_up=0, resumed=False):
    return Joined(request, cached, looked_up, "paged", resumed)


def two_requests():
    """a: arrives 99.5, first token 101, then 102 and 104, ends. b: arrives 101.5, first token 104."""
    return Run().take(
        record(1, 101.0, [prefill("a", 20, 1)], arrived=(Arrived("a", 20, 3, 99.5),), joined=(join("a", 0, 20),)),
        record(2, 102.0, [decode("a")], arrived=(Arrived("b", 40, 9, 101.5),), queue=Queue(1, 0.5)),
        record(
            3,
            104.0,
            [decode("a"), prefill("b", 24, 1)],
            joined=(join("b", 16, 40),),
            left=(Left("a", "length"),),
            waste=WasteLedger(100, 60, 40, 32),
        ),
    )


def test_rates_and_latencies_of_a_window():
    window = two_requests().history.window(100.0, 104.0)
    assert window.observed == 4.0
    assert (window.steps, window.prefill_tokens, window.output_tokens) == (3, 44, 4)
    assert window.per_second(window.output_tokens) == 1.0
    assert window.ttft == (1.5, 2.5)
    assert window.tpot == (1.5,)  # (104 - 101) / (3 - 1)
    assert window.step_mean == pytest.approx(0.1)
    assert window.internal_share is None  # the third record is the first that holds anything
    assert window.queue_length == 0


def test_a_window_begins_after_its_start_and_ends_with_its_end():
    history = two_requests().history
    assert history.window(101.0, 102.0).output_tokens == 1
    assert history.window(101.0, 102.0).ttft == ()
    assert history.window(102.0, 103.9).steps == 0
    assert history.window(102.0, 103.9).queue_length == 1


def test_a_step_under_way_counts_in_part():
    run = two_requests().take(record(4, 110.0, [prefill("b", 8, 0)], durations=Durations(0, 0, 4.0, 0, 0)))
    assert run.history.window(104.0, 106.0).prefill_tokens == 0
    assert run.history.window(106.0, 107.0).prefill_tokens == 2
    part = run.history.window(105.0, 108.0)
    assert part.per_second(part.prefill_tokens) == pytest.approx(4 / 3)
    assert run.history.window(108.0, 110.0).prefill_tokens == 4


def test_nothing_measured_is_none_and_idle_is_zero():
    history = two_requests().history
    before = history.window(10.0, 20.0)
    assert before.observed == 0.0
    assert before.per_second(before.output_tokens) is None
    assert before.queue_length is None
    idle = history.window(105.0, 110.0)
    assert idle.per_second(idle.output_tokens) == 0.0
    assert idle.internal_share is None
    assert idle.step_mean is None
    assert History().window(0.0, 1.0).queue_length is None


def test_waste_is_weighted_by_time_and_holds_until_the_next_record():
    run = two_requests().take(
        record(4, 114.0, [decode("b")], waste=WasteLedger(20, 10, 10, 0)),
        record(5, 144.0, waste=WasteLedger()),
        record(6, 204.0),
    )
    # Ten seconds with 40 of 100 slots wasted, thirty with 10 of 20, sixty with nothing held.
    assert run.history.window(100.0, 204.0).internal_share == pytest.approx((400 + 300) / (1000 + 600))
    assert run.history.window(109.0, 129.0).internal_share == pytest.approx((200 + 150) / (500 + 300))
    assert run.history.window(150.0, 200.0).internal_share is None


def test_an_abort_has_no_tpot_and_a_stop_string_ends_at_its_last_token():
    run = two_requests().take(
        record(4, 105.0, [decode("b")]),
        record(5, 109.0, left=(Left("b", "stop"),)),
    )
    assert run.history.window(104.0, 110.0).tpot == (1.0,)
    other = two_requests().take(record(4, 105.0, [decode("b")], left=(Left("b", "abort"),)))
    assert other.history.window(104.0, 110.0).tpot == ()


def test_lost_records_are_not_time_that_was_observed():
    run = two_requests()
    run.fold = EngineFold(snapshot(seq=10, time=114.0))
    run.history.begin(snapshot(seq=10, time=114.0), missing=7)
    run.take(record(11, 116.0, [prefill("c", 8, 1)], arrived=(Arrived("c", 8, 9, 115.0),), joined=(join("c"),)))
    window = run.history.window(102.0, 116.0)
    assert window.observed == 4.0  # 102 to 104 and 114 to 116
    assert window.per_second(window.prefill_tokens) == (24 + 8) / 4
    assert run.history.window(106.0, 108.0).per_second(0) is None
    assert run.history.window(103.0, 108.0).queue_length is None
    assert run.history.steps[-1].missing == 7


def test_comparison_has_equal_windows_around_the_last_switch():
    run = Run(snapshot(control=STATIC))
    run.take(
        record(1, 104.0, [prefill("a", 8, 1)], control=STATIC, arrived=(Arrived("a", 8, 99, 100.0),),
               joined=(join("a"),), waste=WasteLedger(100, 10, 90, 0)),
        record(2, 110.0, [decode("a")], waste=WasteLedger(100, 95, 5, 0), durations=Durations(0, 0, 2.0, 0, 0)),
        record(3, 111.0, [decode("a")], waste=WasteLedger(100, 95, 5, 0)),
    )  # fmt: skip
    comparison = run.history.comparison(111.0)
    assert comparison is not None
    # The first step of the new mode took from 108 to 110: all of it is on the new side.
    assert (comparison.before.start, comparison.before.end) == (105.0, 108.0)
    assert (comparison.after.start, comparison.after.end) == (108.0, 111.0)
    assert (comparison.before.output_tokens, comparison.after.output_tokens) == (0, 2)
    assert comparison.before.internal_share == pytest.approx(0.9)
    assert comparison.after.internal_share == pytest.approx((2 * 90 + 1 * 5) / 300)
    longer = run.history.comparison(150.0)
    assert longer is not None
    # Before the switch only eight seconds were seen: the other side has as many, the latest.
    assert longer.before.observed == longer.after.observed == 8.0
    assert longer.before.internal_share == pytest.approx(90 / 100)
    assert Run().history.comparison(200.0) is None


def test_switches_in_quick_succession_are_one():
    run = Run(snapshot(control=STATIC)).take(
        record(1, 110.0, control=Control(batching="static", allocation="reserved")),
        record(2, 112.0, control=Control(allocation="reserved")),
    )
    comparison = run.history.comparison(116.0)
    assert comparison is not None
    assert comparison.first.before == STATIC
    assert comparison.last.after == Control(allocation="reserved")
    assert (comparison.before.end, comparison.after.end) == (110.0, 116.0)
    assert comparison.after.observed == comparison.before.observed == 4.0


def test_a_lane_is_kept_and_taken_over():
    run = two_requests()
    assert run.history.lanes == {"b": 1}
    assert run.history.steps[-1].cells[0].end == "left"
    run.take(
        record(4, 105.0, [decode("b"), prefill("c", 5, 1)], arrived=(Arrived("c", 5, 9, 104.5),), joined=(join("c"),))
    )
    assert run.history.lanes == {"b": 1, "c": 0}
    assert [step.cells.get(0) and step.cells[0].request for step in run.history.steps] == ["a", "a", "a", "c"]


def test_preempted_held_and_released_are_marked_where_they_were_last_seen():
    run = two_requests().take(record(4, 105.0, [], preempted=(Preempted("b", 24),)))
    assert run.history.steps[-1].cells[1].end == "preempted"
    assert run.history.lanes == {}
    held = two_requests().take(
        record(4, 105.0, [decode("b")], held=(Left("b", "stop"),)),
        record(5, 106.0, [Row("b", "held", 1, 50, 0, 0)]),
        record(6, 107.0, released=("b",)),
    )
    assert [step.cells[1].end for step in held.history.steps[-2:]] == ["finished", "left"]
    assert held.history.lanes == {}


def test_a_swapped_request_is_marked_and_counted_with_what_it_cost():
    swapped = Preempted("b", 0, "swap", 2, 0.4, 0.01)
    run = two_requests().take(record(4, 105.0, [], preempted=(swapped,)))
    assert run.history.steps[-1].cells[1].end == "swapped"
    run.take(
        record(5, 106.0, [prefill("b", 24)], joined=(join("b", resumed=True),),
               durations=Durations(0, 0, 0.5, 0, 0, 0.25)),
        record(6, 106.5, [], preempted=(Preempted("b", 24),)),
    )  # fmt: skip
    window = run.history.window(104.5, 106.5)
    assert [preempted.by for preempted in window.preempted] == ["swap", "recompute"]
    assert (window.transfer_seconds, window.step_seconds) == pytest.approx((0.25, 0.75))
    assert run.history.steps[-1].cells[0].end == "preempted"
    # The step began at 105.25: its copies are a part of it.
    assert run.history.window(105.0, 105.2).steps == 0
    run.take(record(7, 107.5, [], durations=Durations(0, 0, 0, 0, 0, 0.5)))  # nothing but blocks coming back
    after = run.history.window(106.5, 107.5)
    assert (after.transfer_seconds, after.steps, after.step_mean) == (0.5, 0, None)
    assert run.history.window(106.5, 107.25).transfer_seconds == pytest.approx(0.25)


def test_a_fork_computes_nothing_and_its_first_token_counts():
    run = Run().take(
        record(1, 101.0, [prefill("a", 20, 1), Row("b", "fork", 0, 20, 0, 1)],
               arrived=(Arrived("a", 20, 9, 100.0), Arrived("b", 20, 9, 100.0, parent="a")),
               joined=(join("a"), Joined("b", 0, 0, "paged", False, parent="a", shared_tokens=20))),
        record(2, 103.0, [decode("a"), decode("b")], copies=(Copy("b", 1, 2, 4),), left=(Left("b", "length"),)),
    )  # fmt: skip
    window = run.history.window(100.0, 103.0)
    assert (window.prefill_tokens, window.output_tokens, window.ttft) == (20, 4, (1.0, 1.0))
    assert window.tpot == (2.0,)
    first, second = run.history.steps
    assert (first.tokens, [cell.kind for cell in first.cells.values()]) == (20, ["prefill", "fork"])
    assert (first.copies, second.copies) == ((), (Copy("b", 1, 2, 4),))
    assert run.history.lanes == {"a": 0}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (Control(), Control(scheduling_policy="shortest_prefill"), [("fcfs", "shortest prefill")]),
        (Control(), Control(prefix_cache=False), [("cache on", "off")]),
        (Control(), Control(preempt="swap"), [("preempt auto", "swap")]),
        (STATIC, Control(allocation="reserved"), [("static", "continuous"), ("paged", "reserved")]),
        (Control(), Control(reserved_fit="best"), []),  # nothing of it shows while all is paged
        (Control(allocation="reserved"), Control(allocation="reserved", reserved_fit="best"), [("fit first", "best")]),
    ],
)
def test_what_a_key_changes_is_a_switch(before, after, words):
    run = Run(snapshot(control=before)).take(record(1, 110.0, control=after))
    assert [controls.changes(switch.before, switch.after) for switch in run.history.switches] == (
        [words] if words else []
    )


def test_columns_are_cut_at_whole_multiples_and_keep_their_answer():
    history = two_requests().history
    first = history.columns(104.9, 1.0, 4)
    assert [(window.start, window.end) for window in first] == [(100, 101), (101, 102), (102, 103), (103, 104)]
    assert history.columns(104.1, 1.0, 4) == first
    assert [window.output_tokens for window in first] == [1, 1, 0, 2]


def test_a_step_that_ends_after_a_column_was_asked_for_is_in_it():
    run = two_requests()
    assert [window.prefill_tokens for window in run.history.columns(108.9, 1.0, 3)] == [0, 0, 0]
    run.take(record(4, 110.0, [prefill("b", 8)], durations=Durations(0, 0, 4.0, 0, 0)))
    columns = run.history.columns(110.0, 1.0, 5)
    assert [window.prefill_tokens for window in columns] == pytest.approx([0, 2, 2, 2, 2])


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(log, "MAX_POINTS", 1_000)
    monkeypatch.setattr(log, "MAX_EVENTS", 500)
    monkeypatch.setattr(steps, "MAX_CELLS", 64 * 400)
    run = Run().take(record(1, 100.1, [prefill("a", 8, 1)], arrived=(Arrived("a", 8, 99, 100.0),), joined=(join("a"),)))
    history, state = run.history, run.fold
    for seq in range(2, 6_000):
        history.observe(record(seq, 100.0 + seq * 0.1, [decode("a")], preempted=(Preempted("b", 1),)), state)
        assert len(history.steps) <= 440
        assert len(history._log) <= 1_100
        assert len(history._log.preempted.times) <= 550
    assert history.start > 600.0
    # What is too old is not half there: every second that is told of has all its events.
    window = history.window(0.0, 700.0)
    assert len(window.preempted) == window.steps


def test_the_whole_time_of_a_request_and_how_it_ended():
    run = two_requests().take(
        record(4, 105.0, [decode("b")], arrived=(Arrived("c", 7, 9, 104.5),)),
        record(5, 109.0, left=(Left("b", "stop"), Left("c", "abort"))),
    )
    window = run.history.window(100.0, 110.0)
    assert window.e2e == (4.5, 7.5)  # a: 99.5 to 104; b: 101.5 to 109
    assert window.ended == (("length", 23, 3), ("stop", 42, 2), ("abort", 7, 0))
    assert window.reasons == {"length": 1, "stop": 1, "abort": 1}
    assert run.history.window(104.0, 110.0).e2e == (7.5,)


def test_memory_budget_time_and_hits_of_a_window():
    spent = Durations(0.1, 0.2, 0.5, 0.1, 0.1, 0.3)
    run = Run(snapshot(sharing=SharingLedger(looked_up_tokens=1000, found_tokens=900))).take(
        record(1, 102.0, [prefill("a", 20, 1)], arrived=(Arrived("a", 20, 9, 99.5),), joined=(join("a"),),
               waste=WasteLedger(64, 24, 40, 32), durations=spent, queue=Queue(2, 1.0),
               sharing=SharingLedger(looked_up_tokens=1020, found_tokens=905)),
        record(2, 106.0, [decode("a")], waste=WasteLedger(128, 100, 28, 0), durations=spent,
               sharing=SharingLedger(looked_up_tokens=1020, found_tokens=905)),
        record(3, 108.0, durations=Durations(0, 0, 0, 0, 0, 0.25),
               sharing=SharingLedger(looked_up_tokens=1020, found_tokens=905)),
    )  # fmt: skip
    window = run.history.window(100.0, 108.0)
    # 64 of the pool's 128 slots for four seconds, then all of them for two; 32 in short holes for four.
    assert (window.held_slot_seconds, window.internal_slot_seconds, window.external_slot_seconds) == (512, 216, 128)
    assert window.occupancy == pytest.approx(512 / (8 * 128))
    assert window.external_share == pytest.approx(128 / (8 * 128))
    assert (window.looked_up_tokens, window.found_tokens, window.hit_share) == (20, 5, 0.25)
    assert (window.budget_used, window.budget_tokens) == (21, 2 * Control().max_num_batched_tokens)
    assert window.waiting_steps == 1
    assert (window.durations.forward, window.durations.transfer) == pytest.approx((1.0, 0.6))
    assert (window.step_seconds, window.transfer_seconds) == pytest.approx((2.6, 0.85))
    nothing = run.history.window(10.0, 20.0)
    assert (nothing.occupancy, nothing.external_share, nothing.hit_share, nothing.budget_share) == (None,) * 4


def test_what_was_found_while_records_were_lost_counts_for_nothing():
    run = two_requests()
    later = snapshot(seq=10, time=114.0, sharing=SharingLedger(looked_up_tokens=5000, found_tokens=4000))
    run.fold = EngineFold(later)
    run.history.begin(later, missing=7)
    run.take(record(11, 116.0, sharing=SharingLedger(looked_up_tokens=5010, found_tokens=4004)))
    window = run.history.window(100.0, 116.0)
    assert (window.looked_up_tokens, window.found_tokens) == (10, 4)


def test_a_mark_that_came_later_is_not_in_the_past():
    run = two_requests().take(
        record(4, 105.0, preempted=(Preempted("b", 24),)),
        record(5, 106.0, [prefill("c", 5)], arrived=(Arrived("c", 5, 9, 104.5),), joined=(join("c"),)),
    )
    assert run.history.steps_until(5, 9)[-2].cells[1].end == "preempted"
    assert run.history.steps_until(4, 9)[-1].cells[1].end == "preempted"
    assert run.history.steps_until(3, 9)[-1].cells[1].end == ""
    assert [step.seq for step in run.history.steps_until(5, 2)] == [3, 5]
    assert run.history.steps_until(0, 9) == ()


def test_a_request_has_one_cell_for_all_its_steps():
    run = two_requests().take(record(4, 105.0, [decode("b")]), record(5, 106.0, [decode("b")]))
    first, second = (step.cells[1] for step in run.history.steps[-2:])
    assert first is second


def test_a_name_that_is_taken_again_is_another_request():
    run = Run().take(
        record(1, 101.0, [prefill("a", 8, 1)], arrived=(Arrived("a", 8, 9, 100.5),), joined=(join("a"),)),
        record(2, 102.0, [decode("a")], held=(Left("a", "stop"),)),
        record(3, 103.0, [prefill("a", 8, 1)], released=("a",), arrived=(Arrived("a", 8, 9, 102.5),),
               joined=(join("a"),)),
    )  # fmt: skip
    assert run.history.window(100.0, 104.0).ttft == (0.5, 0.5)
    assert [step.cells[0].hue for step in run.history.steps] == [0, 0, 1]
    assert run.fold.ordinals == {"a": 1}
