"""There and back loses nothing that the target can hold; the rest is refused or named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from loadgen.traces import writing
from loadgen.traces.chat import trace_lines
from loadgen.traces.convert import Changes, convert
from loadgen.traces.formats import WRITERS, Format, open_trace
from loadgen.traces.model import FORMAT, VERSION, Asked, Header, Session, TraceError, Turn, TurnInput, turn_inputs
from loadgen.traces.writing import BlockWriter, Losses

CHAT500 = Path(__file__).resolve().parents[3] / "traces" / "chat500.jsonl"

NAMES = st.text("abcdefgh0123/ü", min_size=1, max_size=6)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
TOKENS = st.integers(1, 5000)
TICKS = st.integers(0, 10**8).map(lambda ticks: ticks / 10**7)  # 100 ns
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def arrivals(gaps: list[float]) -> list[float]:
    """From 0 on, exact to 100 ns."""
    times = [0.0]
    for gap in gaps[1:]:
        times.append(round(times[-1] + gap, 7))
    return times


@st.composite
def prompts(draw: st.DrawFn, block_size: int) -> Turn:
    tokens = draw(TOKENS)
    blocks = -(-tokens // block_size)
    first, step = draw(st.integers(0, 99)), draw(st.integers(0, 99))  # drawing each id takes a second
    ids = UNSET if draw(st.booleans()) else tuple((first + place * step) % 100 for place in range(blocks))
    return Turn(input_tokens=tokens, output_tokens=draw(TOKENS), hash_ids=ids)


CHAT_TURNS = st.builds(
    Turn,
    user=TEXTS,
    user_tokens=st.just(UNSET) | TOKENS,
    output_tokens=st.just(UNSET) | TOKENS,
    reply=st.just(UNSET) | TEXTS,
    seed=st.integers(0, 2**63 - 1),
)
# Of a recorded answer alone only our format and ShareGPT's tell the length.
TOLD_TURNS = CHAT_TURNS.filter(lambda turn: turn.reply is UNSET or turn.output_tokens is not UNSET)
OTHER_TURNS = prompts(block_size=512) | st.builds(
    Turn, request=st.builds(Asked, st.just("/v1/completions"), st.dictionaries(TEXTS, JSON, max_size=3))
)
LABELS = st.dictionaries(TEXTS, TEXTS | st.integers(0, 99) | st.floats(0, 99), max_size=2)


@st.composite
def traces(draw: st.DrawFn, turns: st.SearchStrategy[Turn], most_turns: int = 1, timed: bool = True) -> list[Session]:
    """Sessions with names used once; later turns have a think time or a time of their own."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    times = arrivals([draw(TICKS) for _ in names])
    sessions = []
    for name, time in zip(names, times, strict=True):
        made, latest = [draw(turns)], time
        for _ in range(draw(st.integers(0, most_turns - 1))):
            turn, wait = draw(turns), draw(TICKS)
            if timed and draw(st.booleans()):
                latest = round(latest + wait, 7)
                made.append(msgspec.structs.replace(turn, at=latest))
            else:
                made.append(msgspec.structs.replace(turn, think=wait))
        sessions.append(Session(session=name, arrival=time if timed else None, turns=tuple(made)))
    return sessions


@pytest.fixture(scope="module")
def there_and_back(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Session]]:
    """Writes sessions in our format, converts them to another, and reads that."""
    folder = tmp_path_factory.mktemp("convert")

    def go(sessions: Iterable[Session], to: Format, header: Header, **changes: Any) -> list[Session]:
        source, target = folder / "source.jsonl", folder / "target"
        source.write_bytes(b"".join(trace_lines(header, sessions)))
        trace = open_trace(source)
        convert(trace, target, to, Changes(**changes))
        needed = to in (Format.MOONCAKE, Format.BAILIAN) and header.block_size is not UNSET
        return list(open_trace(target, to, block_size=header.block_size or None if needed else None).sessions())

    return go


def header(block_size: int | None = None, **changes: Any) -> Header:
    return Header(FORMAT, VERSION, block_size=block_size or UNSET, **changes)


def lengths(sessions: Iterable[Session]) -> list[tuple[Any, ...]]:
    """What every format of lengths holds."""
    return [(one.arrival, one.turns[0].input_tokens, one.turns[0].output_tokens) for one in sessions]


@given(chats=traces(CHAT_TURNS, most_turns=3), others=traces(OTHER_TURNS, most_turns=3), labels=LABELS)
@settings(max_examples=40, deadline=None)
def test_our_format_holds_everything(
    there_and_back: Any, chats: list[Session], others: list[Session], labels: dict[str, Any]
) -> None:
    for sessions in (chats, others):
        sessions = [msgspec.structs.replace(one, conversation="c", turn=2, labels=labels) for one in sessions]
        assert there_and_back(sessions, Format.CHAT, header(512)) == sessions


@pytest.mark.parametrize(
    ("format", "block_size"), [(Format.MOONCAKE, 512), (Format.MOONCAKE, 16), (Format.BAILIAN, 16)]
)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_formats_of_blocks(there_and_back: Any, format: Format, block_size: int, data: st.DataObject) -> None:
    sessions = data.draw(traces(prompts(block_size=block_size)))
    back = there_and_back(sessions, format, header(block_size))
    assert lengths(back) == lengths(sessions)
    fresh: list[int] = []
    for before, after in zip(sessions, back, strict=True):
        if before.turns[0].hash_ids is UNSET:
            fresh += after.turns[0].hash_ids
        else:
            assert after.turns[0].hash_ids == before.turns[0].hash_ids
    assert len(fresh) == len(set(fresh))  # nothing of them is shared
    assert all(one >= BlockWriter.FRESH for one in fresh)


@pytest.mark.parametrize("format", [Format.BURSTGPT, Format.AZURE])
@given(sessions=traces(prompts(block_size=512).map(lambda turn: msgspec.structs.replace(turn, hash_ids=UNSET))))
@settings(max_examples=40, deadline=None)
def test_formats_of_lengths(there_and_back: Any, format: Format, sessions: list[Session]) -> None:
    assert lengths(there_and_back(sessions, format, header())) == lengths(sessions)


@given(sessions=traces(TOLD_TURNS, most_turns=3))
@settings(max_examples=40, deadline=None)
def test_aiperf_holds_chats_with_times(there_and_back: Any, sessions: list[Session]) -> None:
    def held(session: Session) -> Session:
        """What AIPerf has a place for; its times are in milliseconds, to four places."""
        keep = ("user", "at", "think", "output_tokens")
        turns = tuple(Turn(**{name: getattr(turn, name) for name in keep}) for turn in session.turns)
        return msgspec.structs.replace(session, turns=turns)

    assert there_and_back(sessions, Format.AIPERF, header()) == [held(one) for one in sessions]


@given(sessions=traces(CHAT_TURNS, most_turns=3, timed=False))
@settings(max_examples=40, deadline=None)
def test_sharegpt_holds_texts(there_and_back: Any, sessions: list[Session]) -> None:
    back = there_and_back(sessions, Format.SHAREGPT, header(), lossy=True)
    assert [one.session for one in back] == [one.session for one in sessions]
    for before, after in zip(sessions, back, strict=True):
        assert [(t.user, t.reply) for t in after.turns] == [(t.user, t.reply) for t in before.turns]


@given(sessions=traces(TOLD_TURNS, timed=False))
@settings(max_examples=40, deadline=None)
def test_vllm_holds_single_prompts(there_and_back: Any, sessions: list[Session]) -> None:
    back = there_and_back(sessions, Format.VLLM, header())
    before = [(one.turns[0].user, one.turns[0].output_tokens) for one in sessions]
    assert [(one.turns[0].user, one.turns[0].output_tokens) for one in back] == before


@given(bodies=st.lists(st.dictionaries(TEXTS, JSON, max_size=3), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_openai_batch_holds_requests(there_and_back: Any, bodies: list[dict[str, Any]]) -> None:
    turns = [Turn(request=Asked("/v1/chat/completions", body)) for body in bodies]
    sessions = [Session(session=str(number), arrival=None, turns=(turn,)) for number, turn in enumerate(turns)]
    assert there_and_back(sessions, Format.OPENAI_BATCH, header()) == sessions


@pytest.mark.parametrize("format", [Format.MOONCAKE, Format.BAILIAN, Format.BURSTGPT])
def test_a_conversation_keeps_its_requests_in_order(there_and_back: Any, format: Format) -> None:
    """Later turns wait for those of sessions that come between."""
    turn = Turn(input_tokens=5, output_tokens=1)
    sessions = [
        Session(session="a", arrival=0.0, turns=(turn, msgspec.structs.replace(turn, at=2.0))),
        Session(session="b", arrival=1.0, turns=(turn, msgspec.structs.replace(turn, at=4.0))),
        Session(session="c", arrival=3.0, turns=(turn,)),
    ]
    back = there_and_back(sessions, format, header())
    assert [one.arrival for one in back] == [0, 1, 2, 3, 4]
    if format is not Format.MOONCAKE:
        assert [back[0].conversation, back[1].conversation] == [back[2].conversation, back[4].conversation]
        assert [one.turn for one in back][:3] == [1, 1, 2]


# What a format cannot hold


@pytest.mark.parametrize(
    ("to", "says"),
    [
        (Format.MOONCAKE, "system, user: mooncake cannot hold system prompts; texts, and what of them prompts share"),
        (Format.AZURE, "system, user: azure cannot hold"),
        (Format.SHAREGPT, "arrival, output_tokens: sharegpt cannot hold arrival times; lengths of answers"),
        (Format.VLLM, "arrival, system: vllm cannot hold"),
        (Format.OPENAI_BATCH, "arrival: openai-batch cannot hold arrival times"),
        (Format.AIPERF, "system: aiperf cannot hold system prompts"),
    ],
)
def test_another_load_is_refused(tmp_path: Path, to: Format, says: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(TraceError) as caught:
        convert(open_trace(CHAT500), target, to, Changes())
    assert f"{CHAT500}: session s0001: {says}" in str(caught.value)
    assert "(--lossy leaves that out)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []  # not even a part of it


def test_lossy_names_what_is_left_out(tmp_path: Path) -> None:
    target = tmp_path / "target"
    converted = convert(open_trace(CHAT500), target, Format.MOONCAKE, Changes(lossy=True))
    assert (converted.sessions, converted.turns) == (500, 1127)
    assert converted.lost == {
        "temperatures": 1,
        "where the trace is from": 1,
        "names of sessions": 500,
        "system prompts": 500,
        "texts, and what of them prompts share": 1060,
        "seeds": 1127,
        "think times after an answer": 627,
    }
    back = list(open_trace(target).sessions())
    assert len(back) == 1127
    first = next(open_trace(CHAT500).sessions()).turns[0]
    assert (back[0].turns[0].input_tokens, back[0].turns[0].output_tokens) == (first.user_tokens, first.output_tokens)


def test_a_history_counts_in_a_prompts_length(there_and_back: Any) -> None:
    chat = (
        Turn(user="a", user_tokens=10, output_tokens=3),
        Turn(user="b", user_tokens=20, output_tokens=5, think=1),
        Turn(regenerates=1, output_tokens=7, think=1),
        Turn(user="c", user_tokens=40, output_tokens=9, think=1),
        Turn(user="d", user_tokens=80, output_tokens=1, think=1, parent=None),
    )
    back = there_and_back([Session(session="a", arrival=0.0, turns=chat)], Format.AZURE, header(), lossy=True)
    assert [one.turns[0].input_tokens for one in back] == [10, 10 + 3 + 20, 10 + 3 + 20, 10 + 3 + 20 + 7 + 40, 80]
    assert [one.arrival for one in back] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("turns", "to", "says"),
    [
        ([Turn(user="x", output_tokens=2)], Format.MOONCAKE, "turns[0].user_tokens: not known, which mooncake needs"),
        ([Turn(user="x", user_tokens=2)], Format.AZURE, "turns[0].output_tokens: not known, which azure needs"),
        ([Turn(request=Asked("/v1/x", {}))], Format.AZURE, "turns[0].request: its lengths are not known, which azure"),
        ([Turn(input_tokens=2)], Format.VLLM, "turns[0].user: the text is not known, which vllm needs"),
        ([Turn(input_tokens=2)], Format.SHAREGPT, "turns[0].user: the text is not known, which sharegpt needs"),
        ([Turn(input_tokens=2)], Format.AIPERF, "turns[0].user: the text is not known, which aiperf needs"),
        ([Turn(input_tokens=2)], Format.OPENAI_BATCH, "turns[0].user: the text is not known, which openai-batch needs"),
        ([Turn(user="x"), Turn(user="y")], Format.OPENAI_BATCH, "turns[0].reply: not known, and the history of turn 1"),
    ],
)
def test_what_is_not_known_is_refused_even_if_lossy(
    there_and_back: Any, turns: list[Turn], to: Format, says: str
) -> None:
    with pytest.raises(TraceError) as caught:
        there_and_back([Session(session="a", arrival=0.0, turns=tuple(turns))], to, header(), lossy=True)
    assert "session a: " in str(caught.value)
    assert says in str(caught.value)


def test_times_that_are_not_known(there_and_back: Any) -> None:
    sessions = [Session(session="a", arrival=None, turns=(Turn(input_tokens=2, output_tokens=2),))]
    with pytest.raises(TraceError, match="session a: arrival: the trace has no times, which azure needs"):
        there_and_back(sessions, Format.AZURE, header(), lossy=True)


def test_histories_and_branches(there_and_back: Any, tmp_path: Path) -> None:
    chat = (Turn(user="x", reply="y", output_tokens=1), Turn(user="z"), Turn(user="w", parent=0))
    sessions = [Session(session="a", arrival=None, turns=chat)]
    with pytest.raises(TraceError, match=r"turns\[1\].history: vllm cannot hold what was said before a message"):
        there_and_back(sessions, Format.VLLM, header())
    assert len(there_and_back(sessions, Format.VLLM, header(), lossy=True)) == 3
    with pytest.raises(TraceError, match=r"turns\[2\].parent: aiperf cannot hold branches of a chat"):
        there_and_back(sessions, Format.AIPERF, header())
    alone = [Session(session="a", arrival=None, turns=(Turn(user="x"), Turn(user="z", parent=None)))]
    assert there_and_back(alone, Format.AIPERF, header()) == alone  # as single turns in a row


@pytest.mark.parametrize("to", [Format.SHAREGPT, Format.AIPERF])
@pytest.mark.parametrize("field", ["regenerates", "parent"])
def test_what_goes_back_to_the_first_turn_is_not_lost_in_silence(there_and_back: Any, to: Format, field: str) -> None:
    later = Turn(regenerates=0) if field == "regenerates" else Turn(user="z", parent=0)
    sessions = [Session(session="a", arrival=None, turns=(Turn(user="x"), Turn(user="y"), later))]
    with pytest.raises(TraceError, match=f"{field}: {to} cannot hold"):
        there_and_back(sessions, to, header())
    after_the_first = [Session(session="a", arrival=None, turns=(Turn(user="x"), Turn(user="y", parent=0)))]
    there_and_back(after_the_first, to, header())  # as it would be without the parent


@pytest.mark.parametrize("to", [Format.VLLM, Format.OPENAI_BATCH, Format.AIPERF])
def test_a_length_that_only_the_answer_tells_is_part_of_the_load(there_and_back: Any, to: Format) -> None:
    sessions = [Session(session="a", arrival=None, turns=(Turn(user="x", reply="a long answer"),))]
    with pytest.raises(TraceError, match=f"output_tokens: {to} cannot hold lengths of answers"):
        there_and_back(sessions, to, header())
    assert len(there_and_back(sessions, to, header(), lossy=True)) == 1
    there_and_back(sessions, Format.SHAREGPT, header())


def test_openai_batch_writes_chats_as_requests(there_and_back: Any) -> None:
    chat = (Turn(user="x", reply="y", output_tokens=5), Turn(user="z", seed=7))
    sessions = [Session(session="a", arrival=None, system="main", turns=chat)]
    back = there_and_back(sessions, Format.OPENAI_BATCH, header(systems={"main": "Be kind."}, temperature=0.5))
    assert [one.session for one in back] == ["a/0", "a/1"]
    bodies = [turn.request.body for one in back for turn in one.turns if turn.request is not UNSET]
    assert [message["content"] for message in bodies[1]["messages"]] == ["Be kind.", "x", "y", "z"]
    assert [message["role"] for message in bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert (bodies[0]["max_tokens"], bodies[1]["seed"], bodies[0]["temperature"]) == (5, 7, 0.5)


@pytest.mark.parametrize("to", [Format.AZURE, Format.VLLM, Format.OPENAI_BATCH])
def test_the_turns_of_a_session_are_followed_once(monkeypatch: pytest.MonkeyPatch, to: Format) -> None:
    """Once for each turn would take hours for a row of 100,000."""
    followed = []

    def follow(session: Session) -> tuple[TurnInput | None, ...]:
        followed.append(session)
        return turn_inputs(session)

    monkeypatch.setattr(writing, "turn_inputs", follow)
    turns = tuple(Turn(user="x", user_tokens=1, output_tokens=1, parent=None) for _ in range(50))
    writer = WRITERS[to](header(), Losses(to, allowed=True))
    written = [*writer.session(Session(session="a", arrival=0.0, turns=turns)), *writer.finish()]
    assert (len(written), len(followed)) == (50, 1)


def test_ids_that_would_meet_fresh_ones(there_and_back: Any) -> None:
    far = Turn(input_tokens=5, output_tokens=1, hash_ids=(BlockWriter.FRESH,))
    alone = [Session(session="a", arrival=0.0, turns=(far,))]
    assert there_and_back(alone, Format.MOONCAKE, header(512))[0].turns == (far,)
    both = [*alone, Session(session="b", arrival=0.0, turns=(Turn(input_tokens=5, output_tokens=1),))]
    with pytest.raises(TraceError, match="session b: hash_ids: must be below"):
        there_and_back(both, Format.MOONCAKE, header(512))
