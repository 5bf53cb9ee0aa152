"""Every figure on the screen is the fold's: the panels' text is read back and compared."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Control
from tui import figures, scene
from tui.look import ASCII, Look
from tui.panels.line import cut, text_of
from tui.themes import MONO
from tui.view import Frame, Link, Status

LOOK = Look()


def text(name, frame, width, height, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel(name, frame, width, height, look))


def value(shown, label):
    """The first figure after a label."""
    found = re.search(re.escape(label) + r"\s+([\d,.]+|—)", shown)
    assert found, f"{label!r} is not in\n{shown}"
    return found[1]


@pytest.fixture(scope="module")
def frames(simulated, fold, frame):
    controls = {0: simulated.STATIC_RESERVED, 100: Control(), 160: Control(prefix_cache=False)}
    items = list(simulated.simulate(220, controls, blocks=900, max_model_len=3000, rate=6, aborts=0.05))
    return [frame(fold(items[:end])) for end in (1, 40, 90, 101, 150, 221)]


def test_sharing_and_waste_are_the_ledgers(frames):
    for frame in frames:
        view = frame.view
        shown = text("sharing", frame, 80, 16)
        assert value(shown, "block tables hold") == f"{view.sharing.logical_blocks:,}"
        assert value(shown, "blocks in memory") == f"{view.sharing.physical_blocks:,}"
        assert value(shown, "saved now") == f"{view.sharing.saved_blocks:,}"
        assert value(shown, "prompt tokens looked up since the start") == f"{view.sharing.looked_up_tokens:,}"
        assert value(shown, "found, not computed again") == f"{view.sharing.found_tokens:,}"
        assert figures.size(view.sharing.saved_bytes) in shown
        share = figures.ratio(view.sharing.found_tokens, view.sharing.looked_up_tokens)
        assert figures.percent(share) in next(line for line in shown.splitlines() if "found, not" in line)
        for width, height in ((80, 6), (23, 4)):
            waste = text("waste", frame, width, height)
            assert value(waste, "internal") == f"{view.waste.internal:,}"
            assert value(waste, "external") == f"{view.waste.external:,}"
            assert figures.percent(figures.ratio(view.waste.internal, view.waste.held)) in waste
        small = text("sharing-open", frame, 23, 5)
        assert value(small, "tables hold") == f"{view.sharing.logical_blocks:,}"
        assert value(small, "in memory") == f"{view.sharing.physical_blocks:,}"


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    """The end of the recording: preempted both ways, swapped out in part, copied in the last step, a queue."""
    return frame(fold(recording))


def test_sharing_is_told_by_cause(busy, recording):
    ledger, copied = busy.view.sharing, busy.view.counters.copied_blocks
    shown = text("sharing", busy, 80, 20)
    assert value(shown, "in blocks of prompts") == f"{ledger.found_tokens - ledger.decoded_tokens:,}"
    assert value(shown, "in blocks with answers") == f"{ledger.decoded_tokens:,}"
    assert value(shown, "of both, copied out of a part of a block") == f"{ledger.copied_tokens:,}"
    assert value(shown, "missed: cached once, evicted since") == f"{ledger.evicted_tokens:,}"
    assert value(shown, "shared with a parent by forks") == f"{ledger.forked_tokens:,}"
    assert re.search(rf"this step and in all +{len(recording[-1].copies)}   {copied}\b", shown)
    assert min(ledger.copied_tokens, ledger.forked_tokens, len(recording[-1].copies)) > 0
    assert value(text("sharing-open", busy, 23, 5), "forked") == f"{ledger.forked_tokens:,}"
    assert value(text("sharing", busy, 23, 12), "copied") == f"{copied:,}"


def test_answers_found_and_blocks_evicted_are_told(simulated, fold, frame):
    shown_frame = frame(fold(simulated.simulate(400, blocks=220, rate=1.5, follow=0.6)))
    ledger, shown = shown_frame.view.sharing, text("sharing", shown_frame, 80, 20)
    assert value(shown, "in blocks with answers") == f"{ledger.decoded_tokens:,}" != "0"
    assert value(shown, "missed: cached once, evicted since") == f"{ledger.evicted_tokens:,}" != "0"
    assert figures.percent(ledger.evicted_tokens / ledger.looked_up_tokens) in shown


def test_preemption_is_told_with_what_it_cost(busy, recording):
    view, records = busy.view, recording[1:]
    counters, preempted = view.counters, [one for record in records for one in record.preempted]
    swaps = sum(one.by == "swap" for one in preempted)
    assert 0 < swaps < len(preempted) == counters.preemptions
    shown = text("waste", busy, 90, 10)
    kinds = f"{swaps} by swap, {len(preempted) - swaps} by recompute"
    seen = figures.seconds(records[-1].time - recording[0].time)
    assert re.search(rf"preempted +{len(preempted)}  last {seen}: {kinds}", shown)
    assert f"transfer {figures.seconds(sum(record.durations.transfer for record in records))}" in shown
    again = figures.percent(counters.recomputed_tokens / (counters.prefill_tokens + counters.decode_tokens))
    assert re.search(rf"recomputed +{counters.recomputed_tokens:,}  tokens, {again} of all computed", shown)
    moved = f"so far {counters.swapped_out_blocks} out, {counters.swapped_in_blocks} back"
    assert re.search(rf"swapped +{view.host_blocks}  of 256 host blocks, {moved}", shown)
    last = preempted[-1]
    costs = f"{figures.seconds(last.recompute_seconds)} expected, swap {figures.seconds(last.swap_seconds)}"
    assert f"{last.request[-4:]}  by {last.by}: {last.lost_tokens:,} tokens, {costs}" in shown
    small = text("waste", busy, 23, 9)
    for name, figure in (
        ("preempted", counters.preemptions),
        ("recomputed", counters.recomputed_tokens),
        ("swapped", view.host_blocks),
    ):
        assert value(small, name) == f"{figure:,}" != "0"
    assert f"swap {figures.percent(view.host_blocks / 256)}" in text("blocks", busy, 80, 14)


def test_without_swap_space_there_is_nothing_of_it(frames):
    assert "swap" not in text("blocks", frames[-1], 80, 14)
    assert "host blocks" not in text("waste", frames[-1], 80, 10)


def test_a_step_that_moves_blocks_says_how_long(busy, recording):
    spent = recording[-1].durations
    assert f"transfer {figures.seconds(spent.transfer)}" in text("speed", busy, 30, 9)
    split = text("batch", busy, 80, 12).splitlines()[-1]
    assert f"transfer {spent.transfer * 1000:.1f} forward 48.6 " in split


def test_the_header_tells_of_fewer_bits(frames):
    from dataclasses import replace

    view = frames[0].view
    engine = msgspec.structs.replace(view.engine, dtype="bfloat16", quantize="q4")
    shown = text("header", replace(frames[0], view=replace(view, engine=engine)), 160, 2)
    assert "smollm2-135m · q4 in bfloat16 · cpu" in shown


def test_the_header_has_the_engine_and_its_control(frames):
    for frame in frames:
        shown, view = text("header", frame, 160, 2), frame.view
        assert "smollm2-135m · float32 · cpu · 900 blocks of 16" in shown
        assert f"step {view.seq:,}" in shown
        assert f"batching {view.control.batching.upper()}" in shown
        assert f"alloc {view.control.allocation.upper()}" in shown
        assert f"cache {'on' if view.control.prefix_cache else 'off'}" in shown
        assert value(shown, "queue") == f"{view.queue.length:,}"
        assert "policy fcfs" in shown
        assert "preempt auto" in shown
        assert ("fit first" in shown) == (view.control.allocation == "reserved")
        in_batch = sum(state.status != "waiting" for state in view.requests.values())
        assert f"batch {in_batch}/{view.control.max_num_seqs}" in shown


def test_speed_is_the_history(frames):
    view = frames[-1].view
    shown = text("speed", frames[-1], 80, 23)
    window = view.history.window(view.now - 5.0, view.now)
    rows = shown.splitlines()

    def below(name):
        return rows[next(i for i, row in enumerate(rows) if row[2:].startswith(name)) + 1]

    assert f" {figures.count(window.per_second(window.output_tokens))} tok/s" in below("output")
    assert f" {figures.count(window.per_second(window.prefill_tokens))} tok/s" in below("prefill")
    assert f" {figures.percent(window.internal_share)}" in below("internal waste")
    assert f"{view.queue.length:,}" in below("queue")


def test_before_and_after_are_the_two_windows(frames):
    view = frames[4].view
    comparison = view.history.comparison(view.now)
    shown = text("speed", frames[4], 80, 23)
    assert "static → continuous, reserved → paged" in shown
    before, after = comparison.before, comparison.after
    assert before.observed == pytest.approx(after.observed)
    assert f"{figures.count(before.per_second(before.output_tokens))} → " in shown
    assert f"→ {figures.count(after.per_second(after.output_tokens))} tok/s" in shown
    assert f"→ {figures.percent(after.internal_share)}" in shown
    small = text("speed", frames[4], 30, 9)
    assert f"→ {figures.count(after.per_second(after.output_tokens))}" in small


def test_what_was_not_measured_is_a_dash(frames):
    start = frames[0]
    speed = text("speed", start, 30, 9)
    for label in ("waste", "out", "TTFT", "TPOT"):
        assert value(speed, label) == "—"
    assert "—/step" in text("header", start, 160, 2)
    assert "—" in text("sharing", start, 80, 16)


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        (Link("live"), "● live"),
        (Link("connecting", "nothing answers there", 3.0), "connecting, 3.0 s"),
        (Link("reconnecting", "cut", 12.0), "reconnecting since 12 s"),
        (Link("down", "it was killed", 3.1), "engine down for 3.1 s: it was killed"),
        (Link("locked", "needs an admin key: --admin-key", 3.1), "needs an admin key: --admin-key"),
        (Link("foreign", "HTTP 404"), "not an engine"),
        (Link("live", lost=1200), "gap of 1,200 records"),
        (Link("live", silent=12.0), "● no record for 12 s"),
        (Link("live", silent=2.0), "● live"),
        (Link("live", unready="the server is shutting down"), "● the server is shutting down"),
        (Link("ended", "exit code 2"), "the engine ended"),
    ],
)
def test_the_link_is_told(frames, link, shown):
    frame = Frame(Status(link, "http://x"), frames[-1].view)
    for width in (80, 160):
        assert shown in text("header", frame, width, 2)
    blank = Frame(Status(link, "http://x"), None)
    assert shown in text("header", blank, 80, 2)
    if link.detail:
        assert link.detail in text("blocks", blank, 80, 10)


@pytest.mark.parametrize("phase", ["down", "locked"])
@pytest.mark.parametrize("width", [24, 60, 80, 120])
def test_a_long_reason_is_told_as_far_as_there_is_room(frames, phase, width):
    told = Link(phase, "the engine is starting again: the engine process was killed by SIGKILL", 3.1, lost=1200)
    for view in (frames[-1].view, None):
        first = text("header", Frame(Status(told, "http://x"), view), width, 2).splitlines()[0]
        told_first = ("the engine is starting" if phase == "locked" else "engine down for 3.1 s")[: width - 6]
        assert told_first.rpartition(" ")[0] in first  # whole words


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("phase", ["down", "locked"])
def test_a_reason_that_is_cut_says_so_at_a_word(frames, phase, width):
    why = "the engine is starting again: the engine process was killed by SIGKILL, which somebody else sent to it"
    link = Link(phase, why, 3.1, lost=1200)
    for view in (frames[-1].view, None):
        first, second = text("header", Frame(Status(link, "http://x"), view), width, 2).splitlines()
        for line in [first] if view else [first, second]:
            shown = line.partition("…")[0]
            assert "…" in line, line
            words = shown[shown.rindex("the engine is") :] if "the engine is" in shown else ""
            assert why.startswith(words)
            assert not words or not why[len(words)].isalnum(), words


def test_news_that_are_cut_say_so_at_a_word(frames):
    news = "engine restarted (1); away 4.0 s; lost 3 requests at step 1,234: the engine process was killed by SIGKILL"
    for width in (60, 80, 90):
        line = text("footer", Frame(Status(Link("live", news=news), "http://x"), frames[-1].view), width, 1).rstrip()
        assert line.endswith("…")
        shown = line.strip().removesuffix("…")
        assert news.startswith(shown)
        assert not news[len(shown)].isalnum()
    assert news in text("footer", Frame(Status(Link("live", news=news), "http://x"), frames[-1].view), 160, 1)


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two…"),
        ("one two three", 8, "one two…"),
        ("one two three", 7, "one…"),
        ("abcdefghijkl m", 10, "abcdefghi…"),
        ("a bcdefghijkl", 10, "a bcdefgh…"),
        ("one, two", 6, "one…"),
        ("one", 1, "…"),
        ("one", 0, ""),
    ],
)
def test_a_line_is_cut_at_a_word_where_one_is_near(line, width, shown):
    assert text_of(cut([(line, "text")], width, "…")) == shown


def test_what_stands_against_a_connection_is_told_whatever_is_in_front():
    frame = Frame(Status(Link("connecting", "it refuses", 8.0), "http://127.0.0.1:9"), None)
    assert text("header", frame, 80, 2).splitlines()[1].split("  ")[:2] == [" http://127.0.0.1:9", "it refuses"]


def test_controls_have_their_keys_in_the_header(frames):
    told = text("header", frames[0], 200, 2).splitlines()[1]
    control = frames[0].view.control
    assert f"b budget {control.max_num_batched_tokens:,}" in told
    assert "k chunks" in told
    quiet = replace(frames[0], status=replace(frames[0].status, readonly=True))
    assert "k chunks" not in text("header", quiet, 200, 2)


def test_loading_lines_of_an_own_engine_are_shown():
    status = Status(Link("starting", "", 2.0), log=tuple(f"line {i}" for i in range(30)))
    shown = text("blocks", Frame(status, None), 60, 12)
    assert "starting an engine: 2.0 s" in shown
    assert "line 29" in shown
    assert "line 3 " not in shown


def test_readonly_and_notices_are_on_the_last_line():
    link = Link("live")
    assert "readonly" in text("footer", Frame(Status(link, readonly=True), None), 80, 1)
    said = Frame(Status(link, notice="batching is static from step 7", replay="replay: running 00:10"), None)
    assert "batching is static from step 7" in text("footer", said, 80, 1)
    assert "replay: running 00:10" in text("footer", said, 80, 1)


def test_ascii_is_ascii(frames):
    for frame in frames:
        for width, height in ((80, 24), (160, 48), (40, 12)):
            drawn = "\n".join(text_of(line) for line in scene.draw(frame, width, height, Look(ASCII)))
            assert not set(drawn) - {chr(code) for code in range(32, 127)} - {"\n"}
    assert text("help", frames[0], 100, 24, Look(ASCII)).isascii()


def test_no_colour_leaves_no_colour():
    look = Look(theme=MONO)
    roles = ["text", "dim", "hue3", "shared", "hole", "waste", "key", "bad", "free"]
    assert {look.style(role) for role in roles} <= {"", "bold", "dim"}
    assert look.background is None


def test_ids_from_outside_keep_the_columns(fold, frame, simulated):
    snapshot, *records = simulated.simulate(3)
    odd = msgspec.structs.replace(snapshot.engine, model="模型\x1b[31m")
    drawn = scene.draw(frame(fold([msgspec.structs.replace(snapshot, engine=odd), *records])), 80, 24, LOOK)
    assert all("\x1b" not in text_of(line) for line in drawn)
    assert {len(text_of(line)) for line in drawn} == {80}
    assert "??" in text_of(drawn[0])
