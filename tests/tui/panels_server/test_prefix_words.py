"""How prefixes read in the tree, on the map and in the inspector: texts, token ids, or why there is neither."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest

from servers.kv_events import Batch, BlockStored, Heard
from servers.kv_tree import KvTree
from tests.tui.panels_server import watched
from tui import scene
from tui.focus import Focus, ServerFocus
from tui.look import ASCII, Look
from tui.panels.line import text_of
from tui.panels.server import prefix_words
from tui.panels.server.prefix_words import BRIEF, WHOLE, readable
from tui.prefix_texts import NOT_WATCHED, PAUSED, PLAYED, SWITCHED_OFF

LOOK = Look()
PLACE = "tcp://127.0.0.1:5557 0 0"
SYSTEM, FIRST, SECOND = tuple(range(1, 9)), (50, 51, 60, 61), (50, 51, 70, 71)


@dataclass
class Said:
    """Texts of some token ids; `asked` is what was looked up."""

    texts: dict[tuple[int, ...], str] = field(default_factory=dict)
    unknown: str = "not read yet"
    asked: list[tuple[int, ...]] = field(default_factory=list)

    def of(self, tokens):
        self.asked.append(tuple(tokens))
        return self.texts.get(tuple(tokens), "")


def tree():
    """A system prompt of two blocks, and two questions that begin alike."""
    it = KvTree()
    events = (
        BlockStored((1, 2), None, SYSTEM, 4),
        BlockStored((3,), 2, FIRST, 4),
        BlockStored((4,), 2, SECOND, 4),
    )
    message = Heard(0, Batch(1.0, events))
    it.take(message)
    it.keep_openings(message)
    return it


def frame(texts, panel="sharing", run=None, inspecting=False):
    focus = Focus(panel=panel, inspecting=inspecting, server=ServerFocus(run=run and (PLACE, run)))
    server = watched.server("vllm", count=3, kv=(watched.heard(tree()),))
    return replace(watched.frame(server, focus), prefixes=texts)


def shown(name, it, width=110, height=30, look=LOOK):
    return [text_of(line) for line in scene.panel(name, it, width, height, look)]


def row(lines, words):
    return next(line for line in lines if words in line)


def test_a_row_is_its_text_or_else_its_token_ids():
    said = Said({SYSTEM: "You are\na  helper", (60, 61): " Why?"})
    lines = shown("sharing", frame(said))
    assert '▾ prefix 1 "You are a helper" ' in row(lines, "prefix 1")
    assert row(lines, "Why")[2:].startswith('├╴  "…Why?" ')
    assert "└╴  tokens … 70 71 " in row(lines, "tokens … ")


def test_runs_that_go_on_from_the_same_one_are_told_by_what_differs():
    said = Said()
    shown("sharing", frame(said))
    assert set(said.asked) == {SYSTEM, (60, 61), (70, 71)}
    said = Said()
    shown("inspect", frame(said, run=3, inspecting=True), 70, 20)
    assert set(said.asked) == {FIRST}  # in full


def test_texts_are_asked_for_where_they_are_seen_alone():
    for name, width, height in (("sharing", 23, 20), ("blocks", 80, 14), ("header", 80, 2), ("speed", 80, 12)):
        said = Said()
        shown(name, frame(said, run=3), width, height)
        assert said.asked == [], name
    said = Said()
    small = shown("sharing", frame(said), 110, 10)
    assert len(said.asked) == sum(re.search(r"tokens (… )?\d", line) is not None for line in small) < 3


@pytest.mark.parametrize("width", [38, 60, 160])
def test_the_map_tells_the_prefix_under_its_cursor_and_keeps_its_lines(width):
    said = Said({SYSTEM: "You are a helper of everybody"})
    plain, marked = (
        shown("blocks", frame(said, "blocks"), width, 14),
        shown("blocks", frame(said, "blocks", 2), width, 14),
    )
    under = marked.index(row(marked, "● 2 blocks"))
    assert sum(a != b for a, b in zip(plain[:under], marked[:under], strict=True)) == 1  # where the cursor is
    assert len(plain) == len(marked)
    assert '● 2 blocks + 2 "You are' in row(marked, "● 2 blocks")
    assert row(marked, "by prefix")
    assert not any('"You' in line for line in plain)
    hashed = shown("blocks", frame(NOT_WATCHED, "blocks", 2), width, 14)
    assert "tokens 1 2 3" in row(hashed, "● 2 blocks")


def test_the_inspector_tells_the_text_before_all_figures_but_the_size():
    lines = shown("inspect", frame(Said({FIRST: "Why do I ask?"}), run=3, inspecting=True), 60, 30)
    at = lines.index(row(lines, '"Why do I ask?"'))
    assert at < lines.index(row(lines, "top-level prefix"))
    assert row(lines, "tokens 50 51 60 61")
    unread = "\n".join(shown("inspect", frame(Said(unknown="no \x1bway"), run=3, inspecting=True), 60, 30))
    assert unread.count("tokens 50 51 60 61") == 1
    assert "no ?way" in unread


@pytest.mark.parametrize("why", [PAUSED, PLAYED, SWITCHED_OFF, NOT_WATCHED])
def test_without_token_ids_there_are_hashes_and_the_inspector_says_why(why):
    bare = KvTree()
    bare.take(Heard(0, Batch(1.0, (BlockStored((1, 2), None, (), 4),))))
    focus = Focus(inspecting=True, server=ServerFocus(run=(PLACE, 2)))
    server = watched.server("vllm", count=3, kv=(watched.heard(bare),))
    it = replace(watched.frame(server, focus), prefixes=why)
    assert why.unknown in "\n".join(shown("inspect", it, 90, 30))
    assert "prefix 1 #000000…" in "\n".join(shown("sharing", it))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain words", "plain words"),
        ("  two\r\n\tlines\u2028more ", "two lines more"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1bPq#0\x1b\\dcs", "dcs"),
        ("\x9b2Jclear", "clear"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("\x1b]0;never ended", "0;never ended"),
        ("bell\x07 back\x08", "bell? back?"),
        ("a\u202eb\u2066c\u200fd", "a?b?c?d"),
        ("a\u05d0b", "a?b"),
        ("\u0645\u0631\u062d\u0628\u0627 1", ""),  # from right to left
        ("why?", "why?"),
        ("????", "????"),
        ("\u4f60\u597d", ""),  # two cells wide
        ("\x00\x01\x02", ""),
        ("", ""),
        ("\ufffd", "\ufffd"),
    ],
)
def test_a_text_moves_no_cursor_and_turns_nothing_around(text, wanted):
    assert readable(text) == wanted


def test_what_is_not_readable_is_told_by_its_token_ids():
    assert prefix_words.label((1, 2), True, Said({(1, 2): "\u4f60\u597d"}), LOOK) == "tokens 1 2"
    assert prefix_words.label((1, 2), False, Said({(1, 2): "Hi"}), LOOK) == '"Hi…"'
    ascii_look = replace(LOOK, glyphs=ASCII)
    assert prefix_words.label((1, 2), False, Said(), ascii_look).isascii()


def test_a_row_asks_for_a_few_ids_and_the_inspector_for_more():
    long = KvTree()
    message = Heard(0, Batch(1.0, (BlockStored(tuple(range(1, 101)), None, tuple(range(400)), 4),)))
    long.take(message)
    long.keep_openings(message)
    said = Said()
    focus = Focus(panel="sharing", inspecting=True, server=ServerFocus(run=(PLACE, 100)))
    it = watched.frame(watched.server("vllm", count=3, kv=(watched.heard(long),)), focus)
    shown("sharing", replace(it, prefixes=said))
    assert said.asked == [tuple(range(BRIEF))]
    shown("inspect", replace(it, prefixes=said), 60, 30)
    assert set(said.asked[1:]) == {tuple(range(WHOLE))}
