"""The inspector tells a request in full, and shows its text as it streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import RequestText
from tui import figures
from tui.look import ASCII, Look
from tui.panels import requests, stays
from tui.panels.line import length, text_of
from tui.panels.request_columns import BY_NAME
from tui.panels.request_detail import TEXT_LINES, ranges
from tui.texts import Texts
from tui.themes import MONO

LOOK = Look()
NO_TEXTS = Texts()


@pytest.fixture(scope="module")
def frames(recording, fold, frame):
    return [frame(fold(recording[:end])) for end in (30, 129, 132, 160, 179)]


@pytest.fixture(scope="module")
def busy(frames):
    return frames[-1]


def focused(frame, request):
    return replace(frame, focus=frame.focus.but(panel="requests", request=request))


def told(frame, request, width=100, texts=NO_TEXTS, look=LOOK):
    title, lines = requests.detail(replace(focused(frame, request), texts=texts), width, look)
    return title, lines


def whole(lines):
    return "\n".join(text_of(line) for line in lines)


def test_a_request_is_told_in_full(frames):
    for frame in frames:
        view = frame.view
        for name, state in view.requests.items():

            def figure(column, view=view, state=state):
                column = BY_NAME[column]
                return column.text(column.values(view, [state])[0])

            title, lines = told(frame, name, 60)
            shown = {text_of(line)[1:13].strip(): text_of(line)[13:] for line in lines}
            assert title == f"request {name.removeprefix('chatcmpl-')}"
            assert shown["id"] == name
            assert shown["state"] == stays.doing(state) + (f", {state.reason}" if state.reason else "")
            assert shown["waited"].startswith(figure("waited"))
            assert shown["generated"] == f"{figure('generated')} of at most {figure('max')}"
            assert shown["blocks"] == f"{figure('blocks')}, {figure('shared')} shared"
            assert (shown["TTFT"], shown["mean tok/s"]) == (figure("TTFT"), figure("tok/s"))
            assert shown["cached"].startswith(figure("cached"))
            assert shown["arrived"] == figure("arrived")
            assert shown["has KV"] == f"{state.computed_tokens:,} of {state.num_tokens:,} tokens"
            assert shown["preempted"] == figures.plural(state.preemptions, "time")
            assert ("swapped out" in shown) == bool(state.swapped_tokens)
            assert shown.get("forked off") == (state.parent and state.parent.removeprefix("chatcmpl-"))
            if name in view.lanes:
                assert shown["batch row"] == f"{view.lanes[name] + 1}"


def test_who_is_next_says_why_it_waits(busy):
    head = busy.view.queue.head
    assert f"needs {head.needed_blocks} blocks" in whole(told(busy, head.request)[1])


@given(st.lists(st.integers(0, 40), max_size=60))
def test_ranges_are_the_table(table):
    found = []
    for part in ranges(table, "-").split(", ") if table else []:
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == table


def test_ranges_read_as_a_person_writes_them():
    assert ranges((*range(12, 19), 40, *range(44, 48)), "–") == "12–18, 40, 44–47"


def streamed(prompt, answer):
    pieces = [f"{word} " for word in (*prompt, *answer)]
    return RequestText(7, "r", len(prompt), 0, tuple(range(len(pieces))), tuple(pieces))


def test_the_text_streams_with_the_prompt_dim(busy):
    name = next(iter(busy.view.requests))
    read = streamed(["what", "is\n", "a", "block?"], ["sixteen", "slots\nof KV"])
    _, lines = told(busy, name, 40, Texts({name: read}))
    at = next(index for index, line in enumerate(lines) if text_of(line).startswith(" text"))
    assert lines[at + 1 : at + 5] == [
        [(" ", "text"), ("what is", "dim")],
        [(" ", "text"), (" a block? ", "dim"), ("sixteen slots", "value")],
        [(" ", "text"), ("of KV ", "value")],
        [],
    ]


@pytest.mark.parametrize("width", [30, 60, 120])
def test_of_a_long_text_the_newest_lines_are_shown(busy, width):
    name = next(iter(busy.view.requests))
    words = [f"word{index}" for index in range(2000)]
    _, lines = told(busy, name, width, Texts({name: streamed(["p"] * 500, words)}))
    at = next(index for index, line in enumerate(lines) if text_of(line).startswith(" text"))
    assert text_of(lines[at]).startswith(f" text, the newest {TEXT_LINES} lines")
    shown = " ".join(text_of(line)[1:] for line in lines[at + 1 : at + 1 + TEXT_LINES])
    assert lines[at + 1 + TEXT_LINES] == []
    everything = "p " * 500 + "".join(f"{word} " for word in words)
    assert everything.endswith(shown)
    assert set(shown.split()) < set(words)
    assert len(shown) > (width - len(words[0])) * (TEXT_LINES - 2)


def test_lines_of_a_text_stay_where_they_are_while_it_grows(busy):
    name = next(iter(busy.view.requests))
    words = [f"word{index * 7919 % 1000}" for index in range(300)]

    def shown(count):
        lines = told(busy, name, 40, Texts({name: streamed(["p"] * 5, words[:count])}))[1]
        at = next(index for index, line in enumerate(lines) if text_of(line).startswith(" text"))
        return [text_of(line).rstrip() for line in lines[at + 1 : at + 1 + TEXT_LINES]]

    for count in range(200, 299):
        now, then = shown(count), shown(count + 1)
        assert then[:-1] in (now[:-1], now[1:])


def test_a_long_word_is_broken_and_line_ends_are_kept(busy):
    name = next(iter(busy.view.requests))
    _, lines = told(busy, name, 22, Texts({name: streamed(["x" * 50, "\n\n", "end"], [])}))
    at = next(index for index, line in enumerate(lines) if text_of(line).startswith(" text"))
    assert [text_of(line).strip() for line in lines[at + 1 : at + 6]] == ["x" * 20, "x" * 20, "x" * 10, "", "end"]


def test_text_from_outside_keeps_the_columns(busy):
    name = next(iter(busy.view.requests))
    _, lines = told(busy, name, 40, Texts({name: streamed(["\x1b[31m", "模型\t|"], ["\r\n"])}))
    assert all(length(line) <= 42 for line in lines[:-3])
    assert not {"\x1b", "\r", "\t", "模"} & set(whole(lines))


def test_a_text_that_is_not_known_says_why(busy):
    name = next(iter(busy.view.requests))
    assert "text: not read yet" in whole(told(busy, name)[1])
    assert "text: a recording holds no text" in whole(
        told(busy, name, texts=Texts(unknown="a recording holds no text"))[1]
    )
    late = Texts({name: streamed(["a"], ["b"])}, unknown="HTTP 503")
    assert "no news of it: HTTP 503" in whole(told(busy, name, texts=late)[1])


def test_a_request_that_has_ended_says_so(busy):
    assert "it has ended" in whole(told(busy, "chatcmpl-0001")[1])
    kept = whole(told(busy, "chatcmpl-0001", texts=Texts({"chatcmpl-0001": streamed(["a"], ["bc"])}))[1])
    assert "a bc" in kept
    assert "no request is selected" in whole(told(busy, None)[1])


def test_the_detail_is_ascii_where_that_is_asked_for(busy):
    for name in list(busy.view.requests)[:40]:
        lines = told(busy, name, 100, look=Look(ASCII, MONO))[1]
        assert whole(lines).replace(figures.NOT_MEASURED, "-").isascii()
