"""Sessions for tests, and strategies that make many of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec import UNSET

from loadgen.inspection.inspecting import Inspection
from loadgen.inspection.statistics import Collector
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

BLOCK_SIZE = 4
PIECE = 64  # bytes of text that are told apart together
PIECE_TOKENS = 16
HEADER = Header(FORMAT, VERSION, systems={"main": "s" * (3 * PIECE)}, block_size=BLOCK_SIZE)


def blocks(tokens: int, ids: Sequence[int], name: str = "a", arrival: float | None = 0.0, output: int = 1) -> Session:
    """One request whose prompt is told by hash ids."""
    turn = Turn(input_tokens=tokens, hash_ids=tuple(ids), output_tokens=output)
    return Session(session=name, arrival=arrival, turns=(turn,))


def chat(
    *turns: Turn, name: str = "a", system: str | None = None, arrival: float | None = 0.0, part_of: str | None = None
) -> Session:
    return Session(
        session=name,
        arrival=arrival,
        system=system,
        turns=turns,
        conversation=UNSET if part_of is None else part_of,
    )


def says(letters: str, output: int = 5, parent: int | None | None = -1, think: float = 0.0) -> Turn:
    """A message of one piece of text for each letter; `parent` -1 is the turn before."""
    text = "".join(letter * PIECE for letter in letters)
    where = UNSET if parent == -1 else parent
    return Turn(user=text, user_tokens=PIECE_TOKENS * len(letters), output_tokens=output, parent=where, think=think)


def inspection(sessions: Sequence[Session], header: Header = HEADER, file: str = "a.jsonl") -> Inspection:
    """What an inspection of these would tell."""
    collector = Collector(header)
    collector.take(sessions)
    return Inspection(file, "mooncake", 2_000_000, 2_000_000, True, 0, (), {}, collector.statistics())


@st.composite
def block_sessions(draw: st.DrawFn) -> list[Session]:
    """Prompts that go on from few beginnings; some end within a block that another one has whole."""
    sessions = []
    for number in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        last = draw(st.integers(1, BLOCK_SIZE))
        sessions.append(blocks((len(ids) - 1) * BLOCK_SIZE + last, ids, name=str(number)))
    return sessions


@st.composite
def chat_sessions(draw: st.DrawFn) -> list[Session]:
    """Chats with branches and second answers, from few letters."""
    sessions = []
    for number in range(draw(st.integers(1, 5))):
        turns: list[Turn] = []
        for index in range(draw(st.integers(1, 5))):
            output = draw(st.integers(1, 40))
            if index and draw(st.integers(0, 3)) == 0:
                turns.append(Turn(regenerates=draw(st.integers(0, index - 1)), output_tokens=output))
                continue
            letters = draw(st.text("ab", min_size=1, max_size=3))
            parent = draw(st.sampled_from([-1, None, *range(index)]))
            turns.append(says(letters, output, parent))
        system = draw(st.sampled_from([None, "main"]))
        sessions.append(chat(*turns, name=str(number), system=system))
    return sessions
