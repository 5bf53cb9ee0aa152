"""What a source cannot tell is said, never made up; and what is not of now is not shown as if it were."""

from __future__ import annotations

import re

import pytest

from servers.dialects import BY_KIND
from servers.looks import Look, Looks
from servers.reading import read
from tests.servers.pages import KINDS, EngineFigures, page
from tests.tui.panels_server import watched
from tui import scene
from tui.focus import PANELS, Focus, ServerFocus
from tui.look import ASCII
from tui.look import Look as ScreenLook
from tui.panels.line import length, text_of
from tui.panels.server import modules, words
from tui.themes import THEMES
from tui.view import Link, Past, Status

LOOK = ScreenLook()
REPLICATED = ("vllm", "vllm-v0", "sglang", "paged-engine")  # whose page may be of several engines
SIZES = ((40, 12), (80, 24), (120, 40), (200, 50))


def text(name, frame, width=110, height=30, look=LOOK):
    return "\n".join(text_of(line) for line in scene.panel(name, frame, width, height, look))


def said(shown):
    """The words of a panel, with its lines joined."""
    return re.sub(r"\s+", " ", re.sub(r"[│|]", " ", shown))


def states(kind):
    """A kind of server in all that it can be in."""
    kv = (watched.heard(watched.forest()),)
    slots = watched.SLOTS if kind == "llama.cpp" else None
    return {
        "live": watched.server(kind, slots=slots),
        "several": watched.server(kind, engines=5 if kind in REPLICATED else 1, count=4),
        "events": watched.server(kind, kv=kv),
        "first": watched.server(kind, count=1),
        "none": watched.server(kind, made=Looks(), phase="finding"),
        "stale": watched.server(kind, phase="failing", later=12.0, detail="connection refused", restarts=(1_030.0,)),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("look", [LOOK, ScreenLook(ASCII, THEMES["mono"])], ids=["unicode", "ascii"])
def test_every_panel_is_as_wide_and_high_as_its_place(kind, look):
    for name, view in states(kind).items():
        for width, height in SIZES:
            for panel in PANELS:
                frame = watched.frame(view, Focus(panel=panel, inspecting=True, expanded=panel == "sharing"))
                for place in scene.arrange(width, height, frame):
                    if place.name not in modules.PANELS:
                        continue
                    lines = scene.panel(place.name, frame, place.width, place.height, look)
                    assert len(lines) == place.height, (name, place)
                    assert {length(line) for line in lines} == {place.width}, (name, place)
                    if look is not LOOK:
                        assert all(text_of(line).isascii() for line in lines)
                    for line in lines:
                        for _, role in line:
                            look.style(role)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "paged-engine"])
def test_each_panel_says_what_this_kind_of_server_cannot_tell(kind):
    frame = watched.frame(watched.server(kind))
    told = BY_KIND[frame.server.kind].missing
    blocks = said(text("blocks", frame))
    assert (
        f"no map of blocks: {'metrics tell how much is used' if 'KV memory used' in blocks else told['blocks']}"
        in blocks
    )
    batch = said(text("batch", frame))
    assert words.NO_BATCH in batch
    assert told["batch"] in batch
    assert words.NO_SLOTS in said(text("waste", frame))
    assert words.NO_REQUESTS in said(text("requests", frame))
    assert words.NO_CONTROL in said(text("control", frame))
    sharing = said(text("sharing", frame))
    assert (words.kv_flag(frame.server.kind) or told["prefixes"]) in sharing
    detail = "\n".join(text_of(line) for line in modules.MODULES["ledgers"].detail(frame, 100, LOOK)[1])
    reading = frame.server.looks.newest_reading.reading
    had = {*reading.counters, *reading.gauges, *reading.histograms}  # some versions tell what others do not
    lacking = ({"ttft", "itl", "tpot", "e2el", "queue", "preemptions", "requests", "kv_usage"} & told.keys()) - had
    ledgers = text("ledgers", frame, 140, 40)
    for term in lacking:
        assert told[term] in said(detail), term
        assert told[term][:14] in ledgers, term
    assert lacking or kind in ("vllm", "vllm-v0")


def test_our_engine_by_its_metrics_names_its_step_stream():
    why = "it needs an admin key"
    frame = watched.frame(watched.server("paged-engine"), status=Status(Link("live"), no_steps=why))
    for panel in ("blocks", "batch", "requests", "control"):
        assert f"{words.STEPS}: {why}" in said(text(panel, frame)), panel


def test_flags_that_make_servers_tell_are_named():
    vllm, sglang = (said(text("sharing", watched.frame(watched.server(kind)))) for kind in ("vllm", "sglang"))
    assert '--kv-events-config \'{"enable_kv_cache_events": true' in vllm
    for said_of in (vllm, sglang):
        assert '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"' in said_of
        assert "(or kv=tcp://HOST:5557,tcp://HOST:5558 in its line of a fleet file)" in said_of
    assert "--kv-events-config" in sglang
    assert "paged-top with --kv-events" in vllm
    llama = said(text("requests", watched.frame(watched.server("llama.cpp"))))
    assert "--slots" in llama


def test_where_counters_are_raised_at_a_requests_end_the_small_panel_says_so_too():
    for kind in ("tgi", "llama.cpp", "sglang"):
        frame = watched.frame(watched.server(kind))
        assert "tok at end" in text("speed", frame, 30, 9).splitlines()[0], kind
        assert "tokens at a request's end" in text("speed", frame, 80, 20).splitlines()[0], kind
    assert "at end" not in text("speed", watched.frame(watched.server("vllm")), 30, 9)


def test_what_was_not_counted_is_not_nobodys_steps():
    """A window without a step: not a rate of nothing, and why."""
    made, engine = Looks(), EngineFigures()
    for second in range(5):
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    frame = watched.frame(watched.server("vllm", made=made))
    assert f"— steps: {words.NONE_CAME}" in text("batch", frame)
    assert re.search(r"│ — steps +│", text("batch", frame, 27, 9))


def test_tokens_reckoned_from_a_share_are_marked():
    assert re.search(r"· ~[\d,]+ of [\d,]+ tokens", text("blocks", watched.frame(watched.server("vllm"))))
    assert re.search(r"· [\d,]+ of [\d,]+ tokens", text("blocks", watched.frame(watched.server("sglang"))))  # it tells


def test_shares_of_waste_are_there_in_small_panels(ours):
    shown = text("waste", watched.frame(ours[0]), 23, 4)
    assert re.search(r"internal +[\d,]+ +[\d.]+ %", shown)
    assert re.search(r"external +[\d,]+ +[\d.]+ %", shown)


def test_counters_that_are_raised_at_a_requests_end_are_said_to_be():
    at_end = "generation tokens: counted when a request ends"
    tgi = said(text("ledgers", watched.frame(watched.server("tgi")), 100, 40))
    assert "prompt tokens and generation tokens: counted when a request ends" in tgi
    assert at_end in said(text("ledgers", watched.frame(watched.server("llama.cpp")), 100, 40))
    assert "counted when a request ends" not in text("ledgers", watched.frame(watched.server("vllm")), 100, 40)


def test_what_does_not_answer_now_is_as_of_then():
    stale = watched.server("vllm", phase="failing", later=12.0, detail="connection refused")
    frame = watched.frame(stale)
    for panel in ("blocks", "batch", "sharing", "ledgers", "waste", "speed", "requests", "control"):
        assert "as of 12 s ago" in text(panel, frame).splitlines()[0], panel
        assert re.search(r"12 s (ago|old)", text(panel, frame, 30, 8).splitlines()[0]), panel
    header = text("header", frame, 100, 2)
    assert "no answer, last read 12 s ago" in header
    assert "connection refused" in header
    lines = scene.panel("batch", frame, 80, 12, LOOK)
    roles = {role for line in lines for piece, role in line if piece.strip() in ("4", "0")}
    assert roles == {"dim"}  # gauges of then
    live = text("batch", watched.frame(watched.server("vllm")))
    assert "as of" not in live
    assert "old" not in live.splitlines()[0]


def test_a_slow_server_is_of_now_and_told():
    frame = watched.frame(watched.server("vllm", phase="slow", later=3.0))
    assert "slow, last read 3.0 s ago" in text("header", frame, 100, 2)
    assert "as of" not in text("batch", frame)


def test_one_look_has_gauges_and_no_rates():
    frame = watched.frame(watched.server("vllm", count=1))
    assert "0 running" in text("batch", frame)
    for panel in ("batch", "ledgers", "sharing", "speed"):
        assert words.ONE_LOOK in text(panel, frame), panel
    assert words.ONE_LOOK in text("header", frame, 100, 2)
    ledgers = text("ledgers", frame, 100, 40)
    assert re.search(r"generation tokens +—", ledgers)
    assert "0/s" not in ledgers


def test_before_any_look_nothing_is_a_figure():
    for phase, detail, wanted in (
        ("finding", "", "asking which server this is"),
        ("failing", "connection refused", "nothing was read: connection refused"),
        ("locked", "401", "it wants a key: 401"),
        ("foreign", "", "not a server that is known here"),
    ):
        frame = watched.frame(watched.server("vllm", made=Looks(), phase=phase, detail=detail))
        for panel in ("blocks", "batch", "ledgers"):
            shown = text(panel, frame, 120, 40)
            assert wanted in shown, (phase, panel)
        assert "no map" not in text("blocks", frame, 120, 40)  # which server it is, is not known


def test_an_empty_window_is_not_zero_nor_nan():
    made, engine = Looks(), EngineFigures()
    for second in range(10):
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    frame = watched.frame(watched.server("vllm", made=made))
    ledgers = text("ledgers", frame, 100, 40)
    assert "nan" not in ledgers
    row = next(line for line in ledgers.splitlines() if "TTFT" in line)
    assert words.NONE_CAME in row
    assert re.search(r"of tokens looked up, found +—", text("sharing", frame))
    assert re.search(r"generation tokens +0/s", ledgers)  # told, and none came


def test_a_restart_is_marked_and_not_a_negative_rate():
    made, engine = Looks(), EngineFigures()
    for second in range(40):
        if second == 25:
            engine.restart()
        engine.serve(1)
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    view = watched.server("vllm", made=made, restarts=(watched.BEGIN + 25,))
    frame = watched.frame(view)
    ledgers = text("ledgers", frame, 100, 40)
    assert LOOK.glyphs.switch in ledgers
    assert "20.0/s" in ledgers
    assert "-" not in re.sub(r"-\d+ s", "", ledgers)
    assert " over 14 s " in ledgers  # since then
    assert "started again 14 s ago" in text("header", frame, 100, 2)
    assert re.search(r"restarts seen +1", text("control", frame))


def test_a_paused_screen_says_of_when_it_is():
    status = Status(Link("live"), past=Past(1, 60, 40, 20.0))
    frame = watched.frame(watched.server("vllm"), status=status)
    assert "paused, 20 s ago" in text("header", frame, 100, 2)


def test_names_from_outside_keep_columns():
    made = Looks()
    engine = EngineFigures(model="evil\x1b[31m宽" * 9)
    for second in range(2):
        made.add(Look(watched.BEGIN + second, read(page("vllm", [engine]))))
    frame = watched.frame(watched.server("vllm", made=made, detail="\x1b[2J"))
    for panel in ("header", "control"):
        for line in scene.panel(panel, frame, 80, 20 if panel == "control" else 2, LOOK):
            assert "\x1b" not in text_of(line)
            assert length(line) == 80


def test_what_is_told_of_all_engines_together_is_said_to_be():
    """Of one engine, that its page does not tell it would not be true."""
    view = watched.server("sglang", engines=2, count=4)
    alone = watched.frame(view, Focus(server=ServerFocus(engine=("m", "1"))))
    assert words.NOT_BY_ENGINE in text("ledgers", alone, 120, 40)
    assert words.NOT_BY_ENGINE not in text("ledgers", watched.frame(view), 120, 40)
    assert "it tells the times between tokens" in text("ledgers", alone, 160, 40)  # which it does of none


def test_small_panels_claim_no_more_than_large_ones():
    small = text("sharing", watched.frame(watched.server("vllm-v0")), 23, 8)
    assert "blk" not in small  # blocks or tokens
    assert "tok" not in small
    assert "found blk" in text("sharing", watched.frame(watched.server("tensorrt-llm")), 23, 8)
    made = Looks()
    made.add(Look(watched.BEGIN, read('nv_trt_llm_request_metrics{request_type="waiting"} 3\n')))
    assert "at end" not in text("speed", watched.frame(watched.server("triton", made=made)), 30, 9)


def test_steps_of_several_engines_are_said_to_be_of_all():
    several = watched.server("vllm", engines=3, count=4)
    assert re.search(r"[\d,]+ steps of all engines ", text("batch", watched.frame(several)))
    one = watched.frame(several, Focus(server=ServerFocus(engine=("m", "1"))))
    assert "of all engines" not in text("batch", one)
    assert "of all engines" not in text("batch", watched.frame(watched.server("vllm")))


@pytest.mark.parametrize(("told", "why"), [("7", "it tells 700 %"), ("-1", "it tells -100 %")])
def test_a_share_that_cannot_be_is_not_shown_and_the_reason_says_what_was_told(told, why):
    made = Looks()
    for second in range(2):
        made.add(Look(watched.BEGIN + second, read(f'vllm:kv_cache_usage_perc{{engine="0"}} {told}\n')))
    assert f"— KV memory: {why}, which no memory has" in said(
        text("blocks", watched.frame(watched.server("vllm", made=made)))
    )
    two = Looks()
    other = 'vllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    two.add(Look(watched.BEGIN, read(f'vllm:kv_cache_usage_perc{{engine="0"}} {told}\n{other}')))
    assert f"used, by 1 engine · {why}" in said(text("blocks", watched.frame(watched.server("vllm", made=two))))
