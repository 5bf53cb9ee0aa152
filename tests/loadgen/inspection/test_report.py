"""Tables and notes as a person sees them, at different widths."""

from __future__ import annotations

import io

import msgspec
import pytest
from made_sessions import blocks, chat, inspection, says
from rich.console import Console

from loadgen.inspection.hit_rate import HitRate
from loadgen.inspection.inspecting import Inspection
from loadgen.inspection.report import names_of, print_report
from loadgen.inspection.tables import counted, number, sections, short
from loadgen.traces.model import Turn

BLOCKS = inspection([blocks(8, (1, 2), arrival=at / 2, name=str(at)) for at in range(50)], file="x/blocks.jsonl")
CHAT = inspection([chat(says("a"), says("b", think=3.0), system="main", arrival=None)], file="x/chat.jsonl")
LENGTHS = inspection([chat(Turn(input_tokens=5, output_tokens=1))], file="x/lengths.csv")


def printed(inspections: list[Inspection], width: int = 160, plots: bool = False) -> str:
    file = io.StringIO()
    print_report(inspections, Console(file=file, width=width), plots)
    return file.getvalue()


def rows(inspections: list[Inspection]) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for section in sections(inspections) for row in section.rows}


def test_every_row_has_a_cell_for_each_trace() -> None:
    for section in sections([BLOCKS, CHAT, LENGTHS]):
        assert all(len(row) == 4 for row in section.rows)
        assert len({row[0] for row in section.rows}) == len(section.rows)


def test_what_only_one_trace_has_is_a_dash_for_the_others() -> None:
    told = rows([BLOCKS, CHAT])
    assert told["sessions/s"] == ("2", "-")
    assert told["think time, p50/p90/p99 (s)"] == ("-", "3/3/3")
    assert told["ideal hit rate, blocks of 4"] == ("49.0%", "~ 45.6%")
    assert told["blocks of 4 that came before"] == ("98.0%", "-")


def test_lengths_alone_tell_no_hit_rate() -> None:
    assert rows([LENGTHS])["ideal hit rate, blocks of 16"] == ("not told",)


def test_an_estimate_says_so() -> None:
    hits = (HitRate(16, 300, 1000, 10.0),)
    sharing = msgspec.structs.replace(BLOCKS.statistics.sharing, hits=hits, new_pieces_error=1.0)
    sampled = msgspec.structs.replace(BLOCKS, statistics=msgspec.structs.replace(BLOCKS.statistics, sharing=sharing))
    assert rows([sampled])["ideal hit rate, blocks of 16"] == ("~ 30.0% ± 2.0%",)
    assert rows([sampled])["blocks of 4 that came before"] == ("~ 98.0%",)
    assert "estimated by a sample" in printed([sampled])


def test_how_far_texts_are_alike_is_an_estimate_too() -> None:
    same = inspection([chat(says("ab"), name=name) for name in "xy"])
    assert rows([same])["first ~ 32 tokens in common"] == ("2 (100.0%)",)
    assert rows([BLOCKS])["first 8 tokens in common"] == ("50 (100.0%)",)


def test_rates_of_tokens_are_those_of_sessions_and_estimates_as_their_lengths_are() -> None:
    chats = [chat(says("a", output=6), name=str(at), arrival=at / 2) for at in range(3)]
    told = rows([BLOCKS, inspection(chats)])
    assert told["sessions/s"] == ("2", "2")
    assert told["input tokens/s"] == ("16", "~ 32")
    assert told["output tokens/s"] == ("2", "12")


def test_a_recorded_answer_is_an_estimate_in_every_sum_it_is_in() -> None:
    told = inspection([chat(Turn(input_tokens=3000, reply="x" * 400))])
    assert rows([told])["over 2,048 tokens, in and out"] == ("~ 1 (100.0%)",)
    assert "input + output ~" in printed([told])


def test_contexts_end_where_nothing_is_longer() -> None:
    long = inspection([blocks(4 * 1024 + 1, range(1025))])
    assert [label for label in rows([long, BLOCKS]) if label.startswith("over")] == [
        "over 2,048 tokens, in and out",
        "over 4,096 tokens, in and out",
        "over 8,192 tokens, in and out",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("several", [[BLOCKS], [BLOCKS, CHAT], [BLOCKS, CHAT, LENGTHS]])
def test_no_line_is_wider_than_the_screen(width: int, several: list[Inspection]) -> None:
    text = printed(several, width, plots=True)
    assert max(map(len, text.splitlines())) <= width
    for one in several:
        assert names_of([one])[0] in text


def test_traces_are_side_by_side_where_they_fit() -> None:
    assert printed([BLOCKS, CHAT, LENGTHS], 160).count("Lengths in tokens") == 1
    assert printed([BLOCKS, CHAT, LENGTHS], 80).count("Lengths in tokens") == 2


def test_two_files_of_one_name_are_told_apart() -> None:
    other = msgspec.structs.replace(CHAT, file="y/chat.jsonl")
    assert names_of([CHAT, other]) == ["x/chat.jsonl", "y/chat.jsonl"]
    assert names_of([CHAT, BLOCKS]) == ["chat.jsonl", "blocks.jsonl"]


def test_notes_tell_what_is_missing() -> None:
    bad = ("line 3: turns: missing",)
    part = msgspec.structs.replace(
        CHAT, whole=False, bytes_read=500_000, bad_lines=7, first_bad_lines=bad, left_out={"x": 2}
    )
    text = printed([part])
    assert "only the first 1 sessions (0.5 of 2.0 MB)" in text
    assert "7 bad lines were skipped" in text
    assert "line 3: turns: missing" in text
    assert "has no times" in text
    assert rows([part])["left out: x"] == ("2",)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (3.0, "3"),
        (0.00012345, "0.000123"),
        (31.4159, "31.4"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_digits_that_tell_something(value: float | None, text: str) -> None:
    assert number(value) == text


def test_large_numbers_are_short() -> None:
    assert [short(value) for value in (999, 1000, 90_695_412, 2.5e9)] == ["999", "1 k", "90.7 M", "2.5 G"]
    assert [counted(0, 10), counted(5, 10)] == ["0", "5 (50.0%)"]


def test_a_system_prompt_that_no_session_has_is_told_too() -> None:
    assert rows([BLOCKS])["system prompt main, ~ 48 tokens"] == ("0",)
