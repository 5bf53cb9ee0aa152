"""What a format's writer is: it makes lines of sessions, and refuses or names what the format cannot hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar

from msgspec import UNSET

from loadgen.traces.model import Header, Session, Turn, TurnInput, turn_inputs
from loadgen.traces.reading import Format

# What a field is in words. Without one of LOAD the trace is another load: it is lost only if that was asked for.
LOAD = {
    "arrival": "arrival times",
    "system": "system prompts",
    "think": "think times after an answer",
    "at": "times of later turns",
    "parent": "branches of a chat",
    "regenerates": "answers asked for again",
    "user": "texts, and what of them prompts share",
    "hash_ids": "which prompts share which blocks",
    "output_tokens": "lengths of answers",
    "history": "what was said before a message",
}
DETAIL = {
    "session": "names of sessions",
    "conversation": "names of conversations",
    "turn": "numbers of turns in a conversation",
    "labels": "labels",
    "reply": "texts of answers",
    "user_tokens": "token counts of texts",
    "seed": "seeds",
    "temperature": "temperatures",
    "recipe": "where the trace is from",
}
_SESSION_FIELDS = ("session", "arrival", "system", "conversation", "turn", "labels")
_TURN_FIELDS = (
    "think",
    "at",
    "parent",
    "user",
    "user_tokens",
    "regenerates",
    "hash_ids",
    "reply",
    "output_tokens",
    "seed",
)


_PLAIN = Turn()  # a turn that says nothing


def follows(turn: Turn, index: int) -> bool:
    """Whether a turn with a message goes on from the turn before, as one does that names no parent."""
    return turn.parent is UNSET or turn.parent == (index - 1 if index else None)


class Losses:
    """What a conversion loses, in words and how often. The load is lost only where that is allowed."""

    def __init__(self, format: Format, allowed: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()  # what else is to be known of the file
        self._format = format
        self._allowed = allowed

    def lose(self, *fields: str, where: str = "") -> None:
        """Raises `ValueError` that names the fields if the load would be another."""
        load = list(dict.fromkeys(field for field in fields if field in LOAD))
        if load and not self._allowed:
            what = "; ".join(LOAD[field] for field in load)
            raise ValueError(f"{where}{', '.join(load)}: {self._format} cannot hold {what} (--lossy leaves that out)")
        self.counts.update(LOAD.get(field) or DETAIL[field] for field in fields)


class Writer(ABC):
    """One file. `holds` are the fields of the model that its format has a place for."""

    format: ClassVar[Format]
    holds: ClassVar[frozenset[str]]
    answers_tell_lengths: ClassVar[bool] = False  # a recorded answer is as many tokens to ask for, there too

    def __init__(self, header: Header, losses: Losses) -> None:
        self.header = header
        self.losses = losses
        for field in ("temperature", "recipe"):
            if getattr(header, field) and field not in self.holds:
                losses.lose(field)

    def begin(self) -> bytes:
        """What comes before all sessions."""
        return b""

    def session(self, session: Session) -> Iterator[bytes]:
        """What can be written now that this session is known. Raises `ValueError` that names the field."""
        self._check(session)
        yield from self.write(session)

    @abstractmethod
    def write(self, session: Session) -> Iterator[bytes]:
        """As `session`, which has named what is lost."""

    def finish(self) -> Iterator[bytes]:
        """What comes after all sessions. Raises `ValueError` that names the field."""
        yield from ()

    def _check(self, session: Session) -> None:
        lost = [field for field in _SESSION_FIELDS if getattr(session, field) not in (UNSET, None, {})]
        for index, turn in enumerate(session.turns):
            said = [field for field in _TURN_FIELDS if getattr(turn, field) != getattr(_PLAIN, field)]
            lost += [field for field in said if field != "parent" or not follows(turn, index)]
        lost = [field for field in lost if field not in self.holds]
        if not self.answers_tell_lengths:
            lost += [
                "output_tokens" for turn in session.turns if turn.reply is not UNSET and turn.output_tokens is UNSET
            ]
        self.losses.lose(*lost)


@dataclass(frozen=True, slots=True)
class Request:
    """One turn that is written by itself, at its `time` in seconds of the trace, 0 where the format holds none.

    `inputs` are what the session's turns ask, of which a long chat is followed once.
    """

    time: float
    session: Session
    index: int
    inputs: tuple[TurnInput | None, ...]

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.index]

    @property
    def where(self) -> str:
        return f"turns[{self.index}]."


class RequestWriter(Writer):
    """A format with a line for each request, in the order of their times.

    A session's later turns wait until no other request can come before them. Where a turn has no time of its own, it
    is that of the turn before and the think time.
    """

    needs_time: ClassVar[bool] = True

    def __init__(self, header: Header, losses: Losses) -> None:
        super().__init__(header, losses)
        self._waiting: list[tuple[float, int, Request]] = []
        self._count = count()

    @abstractmethod
    def line(self, request: Request) -> bytes:
        """A request's line with its end. Raises `ValueError` that names the field."""

    def write(self, session: Session) -> Iterator[bytes]:
        inputs = turn_inputs(session)
        if not self.needs_time:
            yield from (self.line(Request(0.0, session, index, inputs)) for index in range(len(session.turns)))
            return
        if session.arrival is None:
            raise ValueError(f"arrival: the trace has no times, which {self.format} needs")
        time = session.arrival
        for index, turn in enumerate(session.turns):
            time = time + turn.think if turn.at is UNSET else turn.at
            heappush(self._waiting, (time, next(self._count), Request(time, session, index, inputs)))
        while self._waiting and self._waiting[0][0] <= session.arrival:
            yield self.line(heappop(self._waiting)[2])

    def finish(self) -> Iterator[bytes]:
        while self._waiting:
            yield self.line(heappop(self._waiting)[2])


def number(value: float, places: int) -> float:
    """Rounded, and whole where it can be, as people write it."""
    rounded = round(value, places)
    return int(rounded) if rounded.is_integer() else rounded


def lengths(request: Request, format: Format) -> tuple[int, int]:
    """Tokens of a request's prompt and of its answer; of a text the messages and answers of its history and its own.

    Raises `ValueError` that names the field where they are not known.
    """
    turn, turns = request.turn, request.session.turns
    if turn.request is not UNSET:
        raise ValueError(f"{request.where}request: its lengths are not known, which {format} needs")
    if turn.output_tokens is UNSET:
        raise ValueError(f"{request.where}output_tokens: not known, which {format} needs")
    if turn.input_tokens is not UNSET:
        return turn.input_tokens, turn.output_tokens
    asked = request.inputs[request.index]
    history = asked.history if asked else ()
    tokens = 0
    for index in (*history, _message(turns, request.index)):
        user_tokens = turns[_message(turns, index)].user_tokens
        if user_tokens is UNSET:
            raise ValueError(f"{request.where}user_tokens: not known, which {format} needs")
        tokens += user_tokens
    for index in history:
        answer = turns[index].output_tokens
        if answer is UNSET:
            raise ValueError(f"turns[{index}].output_tokens: not known, which {format} needs")
        tokens += answer
    return tokens, turn.output_tokens


def _message(turns: tuple[Turn, ...], index: int) -> int:
    """The turn whose message this one asks."""
    while (again := turns[index].regenerates) is not UNSET:
        index = again
    return index


class BlockWriter(RequestWriter):
    """A format whose prompts are ids of blocks. What shares nothing gets fresh ones: other tools need some."""

    default_block_size: ClassVar[int]
    FRESH = 1 << 40  # from here on; far from those of any trace, and exact in a reader that knows floats only

    def __init__(self, header: Header, losses: Losses) -> None:
        super().__init__(header, losses)
        self._fresh = count(self.FRESH)
        self._given = self._met = False
        self._block_size = self.default_block_size if header.block_size is UNSET else header.block_size
        if self._block_size != self.default_block_size:
            losses.remarks[f"the file does not say its block size: read it with --block-size {self._block_size}"] += 1

    def hash_ids(self, turn: Turn, input_tokens: int) -> tuple[int, ...]:
        """The ids of a turn's blocks. Raises `ValueError` where ids of the trace's own may meet the fresh ones."""
        ids = turn.hash_ids
        if ids is UNSET:
            self._given = True
            ids = tuple(next(self._fresh) for _ in range(-(-input_tokens // self._block_size)))
        else:
            self._met |= max(ids, default=0) >= self.FRESH
        if self._given and self._met:
            raise ValueError(f"hash_ids: must be below {self.FRESH} beside requests without")
        return ids
