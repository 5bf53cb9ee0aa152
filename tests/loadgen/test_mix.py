"""A mix has what it was asked for: how many come when, and of what lengths."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from loadgen.cli import main
from loadgen.mix import Kind, Lengths, Mix, MixError, mixed
from loadgen.traces.formats import open_trace
from loadgen.traces.model import Session

CHATS = Kind(5.0, Lengths(64, 192), Lengths(32, 96))
LONG = Kind(0.5, Lengths(3000, 3000), Lengths(8, 8))


def of(sessions: list[Session], name: str) -> list[Session]:
    return [session for session in sessions if session.session.startswith(name)]


def moments(sessions: list[Session]) -> list[float]:
    return [session.arrival for session in sessions if session.arrival is not None]


def test_rates_and_lengths() -> None:
    header, sessions = mixed(Mix(CHATS, LONG, 200.0))
    chats, long = of(sessions, "chat"), of(sessions, "long")
    assert len(chats) == pytest.approx(1000, rel=0.1)
    assert len(long) == pytest.approx(100, rel=0.3)
    assert {turn.input_tokens for session in long for turn in session.turns} == {3000}
    prompts = {turn.input_tokens for session in chats for turn in session.turns}
    assert (min(prompts), max(prompts)) == (64, 192)  # type: ignore[type-var]
    assert moments(sessions) == sorted(moments(sessions))
    assert max(moments(sessions)) < 200
    assert header.recipe["split_prompt_tokens"] == 192


def test_the_same_seed_is_the_same_trace_and_chats_do_not_depend_on_long_prompts() -> None:
    one = mixed(Mix(CHATS, LONG, 20.0, seed=3))
    assert one == mixed(Mix(CHATS, LONG, 20.0, seed=3))
    assert one != mixed(Mix(CHATS, LONG, 20.0, seed=4))
    other = mixed(Mix(CHATS, Kind(2.0, Lengths(500, 900), Lengths(1, 1)), 20.0, seed=3))
    assert of(one[1], "chat") == of(other[1], "chat")


def test_long_prompts_at_even_intervals() -> None:
    _, sessions = mixed(Mix(CHATS, LONG, 21.0, even=True))
    found = moments(of(sessions, "long"))
    assert found[0] == 1.0
    assert {round(after - before, 3) for before, after in pairwise(found)} == {2.0}
    assert len(found) == 10


def test_users_write_one_turn_after_the_other() -> None:
    users = Kind(1.0, Lengths(16, 32), Lengths(8, 8), users=4, turns=3)
    _, sessions = mixed(Mix(users, LONG, 20.0, even=True))
    chats = of(sessions, "chat")
    assert [session.arrival for session in chats] == [0.0, 0.25, 0.5, 0.75]
    assert {len(session.turns) for session in chats} == {3}
    assert {turn.think for session in chats for turn in session.turns} == {0.0}


def test_what_cannot_be_mixed() -> None:
    with pytest.raises(MixError, match=r"--chat-prompt 64\.\.3000: must be shorter than --long-prompt 3000"):
        Mix(Kind(1.0, Lengths(64, 3000), Lengths(1, 1)), LONG, 10.0)
    with pytest.raises(MixError, match=r"--long-rate 0\.001: none comes within --seconds 5"):
        mixed(Mix(CHATS, Kind(0.001, Lengths(3000, 3000), Lengths(1, 1)), 5.0, even=True))
    with pytest.raises(MixError, match=r"expected tokens from 1 to 1,000,000, as in 64\.\.192, got 9\.\.8"):
        Lengths(9, 8)


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mix.jsonl"
    options = ["--seconds", "30", "--chat-rate", "2", "--long-prompt", "700", "--even", "--seed", "1"]
    assert main(["mix", "--out", str(out), *options]) == 0
    trace = open_trace(out)
    sessions = list(trace.sessions())
    told = capsys.readouterr().out
    assert told == f"{out}: {len(of(sessions, 'chat'))} chats, 3 long prompts\n"
    assert {turn.input_tokens for session in of(sessions, "long") for turn in session.turns} == {700}
    assert main(["mix", "--out", str(tmp_path / "no" / "mix.jsonl")]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "0", "9..3", "3..x"])
def test_lengths_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mix", "--chat-prompt", text])
    assert "--chat-prompt: expected tokens" in capsys.readouterr().err
