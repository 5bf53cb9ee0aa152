"""The inspector tells a step as its record has it: every figure, and who came and went and why."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Parts
from tui import figures
from tui.focus import BatchFocus
from tui.history import step_seconds
from tui.look import Look
from tui.panels import batch
from tui.panels.line import length, text_of

LOOK = Look()
PARTS = Parts(norm=0.002, qkv=0.004, rope=0.001, attention=0.006, output=0.004, gate_up=0.016, down=0.008, head=0.005)


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    """The end of the recording."""
    return frame(fold(recording))


def focused(frame, **batch_focus):
    return replace(frame, focus=frame.focus.but(panel="batch", batch=BatchFocus(**batch_focus)))


def told(frame, record, width=100):
    title, lines = batch.detail(
        replace(frame, step=record, focus=frame.focus.but(batch=BatchFocus(step=0))), width, LOOK
    )
    assert title == f"step {record.seq:,}"
    return "\n".join(text_of(line) for line in lines)


def entry(shown, name):
    return next(line[13:] for line in shown.splitlines() if line[1:].startswith(f"{name} "))


def test_a_step_is_told_with_every_figure_of_its_record(busy, recording):
    for record in recording[1:]:
        shown = told(busy, record)
        tokens = sum(row.tokens for row in record.rows)
        budget = record.control.max_num_batched_tokens
        share = figures.percent(tokens / budget)
        assert entry(shown, "budget") == f"{tokens:,} of {budget:,} tokens, {share}"
        assert entry(shown, "rows") == f"{len(record.rows)} of {record.control.max_num_seqs}"
        assert entry(shown, "modes") == f"{record.control.batching}, {record.control.allocation}"
        for kind in ("prefill", "decode", "fork", "held"):
            rows = [row for row in record.rows if row.kind == kind]
            sums = [len(rows), *(sum(getattr(r, f) for r in rows) for f in ("tokens", "sampled", "context", "cached"))]
            found = re.search(rf"^ {kind} +(\d.*)$", shown, re.M)
            assert (found[1].split() if found else None) == ([f"{value:,}" for value in sums] if rows else None)
        whole = step_seconds(record.durations)
        for name in ("schedule", "prepare", "forward", "sample", "publish"):
            spent = getattr(record.durations, name)
            if whole:
                found = re.search(rf"  {name} +([\d.,]+) ms +(\d+) %", shown)
                assert found.groups() == (f"{spent * 1000:,.1f}", f"{100 * spent / whole:.0f}")
        assert ("transfer" in shown) == bool(record.durations.transfer)
        counts = {state: sum(block.state == state for block in record.blocks) for state in ("full", "shared", "cached")}
        changed = shown[shown.index(" changed to") : shown.index(" pool now")]
        for state, count in counts.items():
            assert (f"{count:,} {state}" in changed) == bool(count)
        assert f"{record.pool.filling:,} filling" in shown[shown.index(" pool now") :]
        assert entry(shown, "queue").startswith(figures.plural(record.queue.length, "request"))
        for copy in record.copies[:64]:
            assert f"block {copy.source:,} → {copy.target:,}, {figures.plural(copy.tokens, 'token')}" in shown


def test_who_joined_left_and_was_preempted_is_told_with_why(busy, recording):
    seen = set()
    for record in recording[1:]:
        shown = " ".join(told(busy, record, 300).split())
        for joined in record.joined:
            name = joined.request.removeprefix("chatcmpl-")
            words = f"{joined.cached_tokens:,} of {joined.looked_up_tokens:,} tokens looked up were cached"
            if joined.parent:
                words = f"forked off {joined.parent.removeprefix('chatcmpl-')}, shares {joined.shared_tokens:,} tokens"
            assert f"{name} {'resumed, ' if joined.resumed else ''}{words}" in shown
            seen.add("fork" if joined.parent else "join")
        for lost in record.preempted:
            expected = f"{figures.seconds(lost.recompute_seconds)}, by swap {figures.seconds(lost.swap_seconds)}"
            assert f"by {lost.by}" in shown
            assert f"{lost.lost_tokens:,} tokens; expected by recompute {expected}" in shown
            seen.add(lost.by)
        for left in (*record.left, *record.held):
            assert f"{left.request.removeprefix('chatcmpl-')} {left.reason}" in shown
            seen.add("left")
        if record.released:
            assert f"{record.released[0].removeprefix('chatcmpl-')} its static batch has ended" in shown
    assert seen == {"fork", "join", "swap", "recompute", "left"}


def test_parts_are_told_where_they_were_measured(busy, recording):
    assert "gate_up" not in told(busy, recording[-1])
    measured = msgspec.structs.replace(recording[-1], parts=PARTS)
    assert re.search(r"gate_up +16\.0 ms +33 %", told(busy, measured))


def test_a_record_that_is_gone_says_so(busy):
    frame = focused(busy, step=3)
    title, lines = batch.detail(frame, 80, LOOK)
    assert (title, text_of(lines[0])) == ("step 3", " record 3 is not kept any more")
    assert batch.detail(focused(busy), 80, LOOK)[0] == f"step {busy.view.record.seq}"


def test_details_fit_narrow_overlays(busy, recording):
    for record in recording[150:]:
        for width in (30, 60):
            frame = replace(busy, step=record)
            title, lines = batch.detail(frame, width, LOOK)
            assert title
            assert all(length(line) <= 3 * width for line in lines)


def test_a_fault_and_whom_it_cost_the_answer_come_first_and_by_name(busy, recording):
    record = next(record for record in recording[1:] if record.left)
    lost = record.left[0].request
    failed = msgspec.structs.replace(record.left[0], reason="error")
    fault = "out of memory in the step: computed in 2 parts, and one request did not fit"
    faulty = msgspec.structs.replace(record, fault=fault, left=(failed, *record.left[1:]))
    shown = told(busy, faulty, width=60)
    assert shown.splitlines()[0].startswith(" fault ")
    assert fault in " ".join(line[13:] for line in shown.splitlines()[:3])
    assert entry(shown, "failed").endswith("its answer ended with an error")
    assert lost.endswith(entry(shown, "failed").split()[0])
    assert " fault " not in told(busy, record)
