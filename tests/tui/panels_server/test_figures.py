"""Every figure on a server's panels is that of its looks: the text is read back and compared with the measures."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from servers.looks import Look, Looks
from servers.reading import read
from tests.servers.pages import KINDS, EngineFigures, page
from tests.tui.panels_server import watched
from tui import figures, scene
from tui.focus import Focus, LedgersFocus, ServerFocus
from tui.look import Look as ScreenLook
from tui.panels.line import text_of
from tui.panels.server import latency, plots, requests, words
from tui.panels.server.seen import Seen

LOOK = ScreenLook()


def text(name, frame, width=100, height=24, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel(name, frame, width, height, look))


def after(shown, label):
    """The figure after a label."""
    found = re.search(re.escape(label) + r"\s+([\d,.]+(?: %|/s)?|—)", shown)
    assert found, f"{label!r} is not in\n{shown}"
    return found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_throughput_and_latency_are_those_of_the_window(kind):
    view = watched.server(kind)
    measures = view.measure(60.0)
    shown = text("ledgers", watched.frame(view), 120, 40)
    for label, term in (("generation tokens", "generation_tokens"), ("prompt tokens", "prompt_tokens")):
        rate = measures.rate(term)
        wanted = "—" if rate is None else f"{rate:,.1f}/s" if rate < 99.95 else f"{rate:,.0f}/s"
        assert after(shown.split("requests ended")[0].rsplit(label, 1)[1], "") == wanted
    for term, name, short in latency.TERMS:
        row = next(line for line in shown.splitlines() if re.search(rf"[│ ]{short} ", line) and ("of" not in line))
        if measures.mean(term) is None:
            assert "—" in row
            assert "≤" not in row
            continue
        assert figures.seconds(measures.mean(term)) in row
        for percent in (50, 99):
            assert f"≤ {figures.seconds(measures.at_most(term, percent))}" in row
        assert f"{measures.count(term):,.0f} " in row
        assert name


PAGES = sorted((Path(__file__).parents[2] / "data" / "server_metrics").glob("*.txt"))


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_a_recorded_pages_gauges_are_on_the_screen(path):
    reading = read(path.read_text())
    made = Looks()
    made.add(Look(watched.BEGIN, reading))
    frame = watched.frame(watched.server(reading.kind, made=made))
    totals = reading.totals()
    batch, blocks = text("batch", frame), text("blocks", frame)
    for term in ("running", "waiting"):
        wanted = f"{totals[term]:,.0f}" if term in totals else "—"
        assert f"{wanted} {term}" in batch
    if "kv_usage" in totals:
        assert f"{figures.percent(totals['kv_usage'])} of KV memory used" in blocks
    elif "kv_usage" not in reading.gauges:
        assert "— KV memory" in blocks
    if "kv_capacity" in totals:
        assert f"of {totals['kv_capacity']:,.0f} tokens" in blocks
    if len(reading.engines) > 1:
        engine = reading.engines[-1]
        alone = text("batch", replace(frame, focus=Focus(server=ServerFocus(engine=engine))))
        assert f"{reading.gauges['running'].get(engine, 0):,.0f} running" in alone


def test_rates_are_of_the_chosen_window():
    made = Looks()
    engine = EngineFigures()
    for second in range(121):  # first 10 a second, and in the last minute 30
        if second:
            engine.serve(1, generated=10 if second <= 60 else 30)
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    view = watched.server("vllm", made=made)
    minute = text("ledgers", watched.frame(view), 100, 40)
    longer = text("ledgers", watched.frame(view, Focus(ledgers=LedgersFocus(window=300.0))), 100, 40)
    assert "30.0/s" in minute
    assert "20.0/s" in longer
    assert " over 60 s " in minute
    assert " over 02:00 " in longer  # as much as was seen


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tgi"])
def test_running_waiting_and_kv_memory_are_the_newest_looks(kind):
    view = watched.server(kind)
    gauges = view.measure(60.0).gauges
    batch = text("batch", watched.frame(view))
    assert f"{gauges['running']:,.0f} running" in batch
    assert f"{gauges['waiting']:,.0f} waiting" in batch
    blocks = text("blocks", watched.frame(view))
    if "kv_usage" in gauges:
        assert f"{figures.percent(gauges['kv_usage'])} of KV memory used" in blocks
        assert f"{gauges['kv_usage'] * gauges['kv_capacity']:,.0f} of {gauges['kv_capacity']:,.0f} tokens" in blocks


@pytest.mark.parametrize("kind", ["vllm", "vllm-v0", "sglang", "tensorrt-llm", "llama.cpp", "paged-engine"])
def test_hits_are_those_of_the_window(kind):
    view = watched.server(kind)
    measures = view.measure(60.0)
    shown = text("sharing", watched.frame(view))
    unit = "tokens" if "prefix_hit_tokens" in measures.growth else "blocks"
    said = "blocks or tokens" if kind == "vllm-v0" else unit
    assert after(shown, f"of {said} looked up, found") == figures.percent(measures.hit_rate) == "60 %"
    assert after(shown, f"found {said}") == f"{measures.growth[f'prefix_hit_{unit}']:,.0f}"
    assert after(shown, f"{said} looked up") == f"{measures.growth[f'prefix_queried_{unit}']:,.0f}"
    narrow = text("sharing", watched.frame(view), 23, 8)
    assert after(narrow, "hit rate") == "60 %"


def test_the_servers_own_hit_rate_is_called_so():
    shown = text("sharing", watched.frame(watched.server("sglang")))
    assert after(shown, "the server's own rate") == "60 %"
    assert "of its last prefill batch" in shown
    assert "the server's own" not in text("sharing", watched.frame(watched.server("vllm")))


def test_steps_and_tokens_in_one_are_exact():
    view = watched.server("vllm")
    measures = view.measure(60.0)
    shown = text("batch", watched.frame(view))
    assert f"{measures.count('step_tokens'):,.0f} steps" in shown
    assert f"{measures.mean('step_tokens'):.1f} tokens a step, mean" in shown
    assert "~" not in shown  # nothing is estimated


def test_what_was_computed_is_told_where_it_is_counted_as_it_happens():
    """Of a recorded page of SGLang's with live counters, raised by hand."""
    first = (PAGES[0].parent / "sglang_live.txt").read_text()
    before = read(first)
    raised = re.sub(
        r"^(sglang:realtime_tokens_total\{[^}]*\}) (\S+)$",
        lambda line: f"{line[1]} {float(line[2]) + (100 if 'decode' in line[1] else 300)}",
        first,
        flags=re.MULTILINE,
    )
    made = Looks()
    made.add(Look(watched.BEGIN, before))
    made.add(Look(watched.BEGIN + 10, read(raised)))
    view = watched.server("sglang", made=made)
    measures = view.measure(60.0)
    assert measures.growth["live_generation_tokens"] > 0
    shown = text("batch", watched.frame(view))
    prompts, answers = (measures.rate(term) for term in ("computed_prompt_tokens", "live_generation_tokens"))
    assert f"computed {prompts:,.1f}/s of prompts, {answers:,.1f}/s of answers" in shown
    assert "computed" not in text("batch", watched.frame(watched.server("tgi")))


def engines_at(shares, told=True, kind="vllm"):
    """A server of several engines, each with its share of its own memory."""
    made = Looks()
    for second in range(3):
        engines = [
            EngineFigures(rank=str(rank), kv_usage=share, kv_blocks=1000 * 10**rank, running=rank + 1)
            for rank, share in enumerate(shares)
        ]
        shown = page(kind, engines)
        if not told:
            shown = "".join(f"{line}\n" for line in shown.splitlines() if "cache_config_info" not in line)
        made.add(Look(watched.BEGIN + second, read(shown)))
    return watched.server(kind, made=made)


def test_kv_memory_of_several_engines_is_weighted_by_what_they_have():
    view = engines_at((0.9, 0.1))
    shown = text("blocks", watched.frame(view))
    weighted = (0.9 * 1000 + 0.1 * 10_000) / 11_000
    assert f"{figures.percent(weighted)} of KV memory used" in shown
    assert re.search(r"engine 0 +90 % .* of 16,000 tokens", shown)
    assert re.search(r"engine 1 +10 % .* of 160,000 tokens", shown)


def test_shares_of_unknown_memory_have_no_mean():
    shown = text("blocks", watched.frame(engines_at((0.9, 0.1), told=False)))
    assert "10 % to 90 % used, by 2 engines" in shown
    assert "no mean" in shown
    assert not re.search(r"(50|100|18) %", shown.replace("100 % │", ""))


def test_figures_can_be_of_one_engine():
    view = engines_at((0.9, 0.1))
    frame = watched.frame(view, Focus(server=ServerFocus(engine=("m", "1"))))
    shown = text("blocks", frame)
    assert "10 % of KV memory used" in shown
    assert "engine 1" in shown.splitlines()[0]
    assert "2 running" in text("batch", frame)
    assert "3 running" in text("batch", watched.frame(view))
    assert "engine 1" in text("header", frame, 120, 2)
    gone = watched.frame(view, Focus(server=ServerFocus(engine=("m", "7"))))
    assert "3 running" in text("batch", gone)


def test_beyond_the_last_bound_a_quantile_is_more_than_it():
    made = Looks()
    engine = EngineFigures()
    for second in range(3):
        engine.serve(1 if second else 0, generated=2, ttft=77.0)
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    view = watched.server("vllm", made=made)
    assert math.isinf(view.measure(60.0).at_most("ttft", 50))
    row = next(line for line in text("ledgers", watched.frame(view), 100, 40).splitlines() if "TTFT" in line)
    assert "> 5.0 s" in row
    assert "≤" not in row
    assert "77 s" in row  # the mean is exact


def test_requests_ended_by_reason_and_their_lengths():
    view = watched.server("vllm")
    shown = text("requests", watched.frame(view, Focus(panel="requests")))
    assert after(shown, "ended") == "120"
    assert "mean prompt" in shown
    assert "100 tokens  over 120 requests" in shown
    assert "20 tokens  over 120 requests" in shown
    reasons = dict(requests.by_reason(Seen.of(watched.frame(view))))
    assert sum(reasons.values()) == 120
    assert all(after(shown, f"  {reason}") == f"{count:,.0f}" for reason, count in reasons.items())


def test_slots_of_llama_cpp_are_rows():
    view = watched.server("llama.cpp", slots=watched.SLOTS)
    for name in ("requests", "batch", "blocks"):
        shown = text(name, watched.frame(view))
        assert re.search(r"0 busy +1,200 +800 +300 +1,500 +4,096 ", shown), name
        assert re.search(r"1 idle +— +— +— +69 +4,096 ", shown)
        assert re.search(r"2 busy +— +— +— +— +4,096 ", shown)


def test_our_engine_by_its_metrics_has_what_its_step_stream_told(ours):
    view, first, steps = ours
    last, frame = steps[-1], watched.frame(view)
    blocks, pool = text("blocks", frame, 120, 24), last.pool
    for state in ("shared", "full", "filling", "reserved", "cached", "free"):
        assert f"{getattr(pool, state):,} {state}" in blocks
    used = (pool.shared + pool.full + pool.filling + pool.reserved) * first.engine.block_size
    assert f"{used:,} of {first.engine.num_blocks * first.engine.block_size:,} tokens" in blocks
    waste = text("waste", frame, 80, 8)
    for kind in ("held", "filled", "internal", "external"):
        assert after(waste, kind) == f"{getattr(last.waste, kind):,}"
    assert f"{figures.percent(last.waste.internal / last.waste.held)} of held" in waste
    sharing = text("sharing", frame, 100, 24)
    assert after(sharing, "blocks that tables hold") == f"{last.sharing.logical_blocks:,}"
    assert after(sharing, "blocks in memory") == f"{last.sharing.physical_blocks:,}"
    assert figures.size(last.sharing.saved_bytes) in sharing
    assert "waste is not known" not in waste


def test_a_bound_between_what_can_be_shown_is_rounded_up():
    made = Looks()
    for count in (1, 9):
        lines = [f'tgi_request_duration_bucket{{le="{bound}"}} {count}' for bound in ("38.44", "+Inf")]
        page_of = "\n".join(["# TYPE tgi_request_duration histogram", *lines, f"tgi_request_duration_sum {30 * count}"])
        made.add(Look(watched.BEGIN + count, read(f"{page_of}\ntgi_request_duration_count {count}\n")))
    row = next(
        line for line in text("ledgers", watched.frame(watched.server("tgi", made=made))).splitlines() if "E2E" in line
    )
    assert "≤ 39 s" in row
    assert "≤ 38 s" not in row


def test_nobody_waiting_is_no_mark_on_the_chart():
    """A point in the lowest row would read as some, and hide those that run."""
    made, engine = Looks(), EngineFigures(running=5)
    for second in range(60):
        engine.waiting = 3 if second >= 50 else 0
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    shown = text("batch", watched.frame(watched.server("vllm", made=made)), 90, 24)
    plot = [line for line in shown.splitlines() if re.match(r"│ +\d* │", line)]
    assert len(plot) > 6
    marks = [line.count(LOOK.glyphs.down) for line in plot]
    assert sum(marks) == 10
    assert marks[-1] == 0
    assert plot[-1].count("█") == 60


def test_what_happened_once_in_a_while_is_not_0_a_second():
    assert plots.a_second(1 / 60) == "0.02/s"
    assert plots.a_second(1 / 600) == "<0.01/s"
    assert plots.a_second(0.0) == "0/s"
    assert plots.a_second(0.096) == "0.1/s"
    assert plots.a_second(12.34) == "12.3/s"


def test_the_small_panels_have_the_slowest_hundredth_and_the_steps():
    view = watched.server("vllm")
    measures = view.measure(60.0)
    speed = text("speed", watched.frame(view), 30, 9)
    assert re.search(r"latency +mean +p99", speed)
    for term, name in (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E")):
        mean, most = figures.seconds(measures.mean(term)), figures.at_most(measures.at_most(term, 99))
        assert re.search(rf"{name} +{mean} +≤ {most} ", speed)
    batch = text("batch", watched.frame(view), 27, 9)
    assert f"{measures.mean('step_tokens'):.1f} tokens a step" in batch


def test_every_engine_has_its_line_where_there_is_room():
    shown = text("blocks", watched.frame(watched.server("vllm", engines=3)), 80, 12)
    assert [number for number in range(3) if f"engine {number} " in shown] == [0, 1, 2]
    many = text("blocks", watched.frame(watched.server("vllm", engines=40, count=3)), 80, 12)
    assert "engines more: v shows each" in many


def test_hits_that_are_counted_when_a_request_ends_are_said_to_be():
    assert "counted when a request ends" in text("sharing", watched.frame(watched.server("sglang")))
    for kind in ("vllm", "tensorrt-llm"):
        assert "counted when" not in text("sharing", watched.frame(watched.server(kind)))


def test_no_figure_gives_way_to_its_name_in_the_smallest_panel():
    made, engine = Looks(), EngineFigures()
    for second in range(3):
        engine.serve(second and 9_999, prompt=1_000, cached=900)
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    view = watched.server("vllm", made=made)
    growth = view.measure(60.0).growth
    shown = text("sharing", watched.frame(view), 23, 8)
    for term in ("prefix_hit_tokens", "prefix_queried_tokens"):
        assert f"{growth[term]:,.0f}" in shown
    assert growth["prefix_hit_tokens"] > 10_000_000


def test_a_mean_that_is_next_to_nothing_is_not_nothing():
    made, engine = Looks(), EngineFigures()
    for second in range(3):
        engine.serve(1 if second else 0, generated=2, ttft=0.00001)
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    frame = watched.frame(watched.server("vllm", made=made))
    assert re.search(r"TTFT to first token +<0\.1 ms ", text("ledgers", frame))
    assert re.search(r"TTFT +<0\.1 ms ", text("speed", frame, 30, 9))


def test_blocks_of_several_engines_are_of_each_with_commas():
    alike = looks_of([EngineFigures(rank=str(rank), kv_blocks=4_500) for rank in range(3)])
    assert "4,500 blocks of 16 each" in text("blocks", watched.frame(watched.server("vllm", made=alike)))
    alone = looks_of([EngineFigures(kv_blocks=4_500)])
    assert "4,500 blocks of 16 " in text("blocks", watched.frame(watched.server("vllm", made=alone)))
    differing = looks_of([EngineFigures(rank=str(rank), kv_blocks=4_500 + rank) for rank in range(2)])
    assert "4,500 or 4,501 blocks of 16 each" in text("blocks", watched.frame(watched.server("vllm", made=differing)))


def looks_of(engines):
    made = Looks()
    for second in range(2):
        made.add(Look(watched.BEGIN + second, read(page("vllm", engines))))
    return made


@pytest.mark.parametrize("kv", [False, True])
def test_all_engines_have_their_bar_on_a_small_screen(kv):
    views = (watched.heard(watched.forest()),) if kv else ()
    frame = watched.frame(watched.server("vllm", engines=8, kv=views))
    lines = [text_of(line) for line in scene.draw(frame, 80, 24, ScreenLook())]
    shown = "\n".join(lines)
    for rank in range(8):
        assert re.search(rf"engine {rank} +\d+ % [━─]+", shown), rank
    assert "engines more" not in shown
    few = [text_of(line) for line in scene.draw(watched.frame(watched.server("vllm", engines=3)), 80, 24, ScreenLook())]
    assert sum(len(re.findall(r"engine \d ", line)) > 1 for line in few) == 0


def test_restarts_of_what_was_never_read_are_not_known():
    never = watched.frame(watched.server("vllm", made=Looks(), phase="failing", detail="connection refused"))
    assert re.search(r"restarts seen +— +nothing was read", text("control", never))
    assert re.search(r"restarts seen +0", text("control", watched.frame(watched.server("vllm"))))


def test_the_mark_that_lines_are_left_out_does_not_stand_at_a_figure():
    """It would read as a number that is cut."""
    for line, kept in (
        ([(" found tok    43,616 ", "value")], " found tok  43,616 …"),
        ([(" found tok ", "dim"), ("   ", "text"), ("43,616", "value")], " found tok  43,616 …"),
        ([(" few ", "value")], f"{' few ':19}…"),
    ):
        (shown,) = words.fitted([line, line], 1, 20, "…")
        assert text_of(shown) == kept
    (shown,) = words.fitted([[(" words that go on and on", "text")]] * 2, 1, 20, "…")
    assert text_of(shown).rstrip().endswith("…")
