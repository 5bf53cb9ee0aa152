"""Sessions as columns: what statistics are made of, taken from many sessions in one pass.

A prompt with text is as long as its texts are, with the history and without what a chat template puts around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from loadgen.inspection.prompts import (
    TEXT_PIECE,
    Integers,
    Prompts,
    TextPrompt,
    estimated_tokens,
    prompts_of_blocks,
    prompts_of_texts,
)
from loadgen.traces.model import Header, Session, Turn

Floats = NDArray[np.float64]
BATCH_SESSIONS = 1024
BATCH_PIECES = 1 << 16
_WORD = 2**64 - 1
_LAST_TOKEN = b"\0", 1  # of an answer: it was sampled and no more, until the first prompt that goes on from it


@dataclass(frozen=True)
class Columns:
    """A batch of sessions. Times are in seconds; `moments` are those of requests whose time the trace holds."""

    turns: Integers  # of each session
    arrivals: Floats  # of the sessions that have one
    moments: Floats  # in no order
    thinks: Floats  # before turns that wait for an answer
    messages: Integers  # tokens of messages
    outputs: Integers  # of the requests that have one
    together: Integers  # input and output, or input alone where the output is not known
    blocks: Prompts  # those whose text is not known
    texts: Prompts
    estimated: Counter[str]  # of "messages" and "outputs", how many are estimated by their text's length
    ways: Counter[str]  # of asking
    systems: Counter[str]  # sessions by the name of their system prompt
    conversations: tuple[str, ...]  # of the sessions that are a part of one
    regenerating: int  # sessions with a turn that is another answer

    @property
    def inputs(self) -> Integers:
        """Tokens of each prompt; in the order of the trace where all are of one kind."""
        return np.concatenate((self.blocks.tokens, self.texts.tokens))


@dataclass(slots=True)
class _Lists:
    """What a pass over sessions appends to."""

    turns: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    thinks: list[float] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    hash_ids: list[tuple[int, ...]] = field(default_factory=list)
    texts: list[TextPrompt] = field(default_factory=list)
    estimated: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    conversations: list[str] = field(default_factory=list)
    regenerating: int = 0


class ColumnReader:
    """Reads sessions in the order of the trace, by its header."""

    def __init__(self, header: Header) -> None:
        self._block_size = 1 if header.block_size is UNSET else header.block_size
        self._systems = {name: _with_estimate(text) for name, text in header.systems.items()}
        self._sessions = 0

    def system_tokens(self, name: str) -> int:
        """About how many tokens a system prompt has."""
        return self._systems[name][1]

    def read(self, sessions: Iterable[Session]) -> Columns:
        """The next sessions."""
        lists = _Lists()
        for session in sessions:
            self._take(session, lists)
        return Columns(
            turns=np.array(lists.turns, dtype=np.int64),
            arrivals=np.array(lists.arrivals, dtype=np.float64),
            moments=np.array(lists.moments, dtype=np.float64),
            thinks=np.array(lists.thinks, dtype=np.float64),
            messages=np.array(lists.messages, dtype=np.int64),
            outputs=np.array(lists.outputs, dtype=np.int64),
            together=np.array(lists.together, dtype=np.int64),
            blocks=prompts_of_blocks(lists.inputs, lists.hash_ids, self._block_size),
            texts=prompts_of_texts(lists.texts),
            estimated=lists.estimated,
            ways=lists.ways,
            systems=lists.systems,
            conversations=tuple(lists.conversations),
            regenerating=lists.regenerating,
        )

    def _take(self, session: Session, lists: _Lists) -> None:
        turns = session.turns
        lists.turns.append(len(turns))
        if session.arrival is not None:
            lists.arrivals.append(session.arrival)
        if session.system is not None:
            lists.systems[session.system] += 1
        if session.conversation is not UNSET:
            lists.conversations.append(session.conversation)
        history: list[int] = []  # tokens of each turn's prompt and of its answer
        regenerates = False
        for index, turn in enumerate(turns):
            if turn.at is not UNSET:
                lists.moments.append(turn.at)
            elif index:
                lists.thinks.append(turn.think)
            elif session.arrival is not None:
                lists.moments.append(session.arrival)
            if turn.input_tokens is not UNSET:
                tokens = turn.input_tokens
                lists.ways["input_tokens"] += 1
                lists.inputs.append(tokens)
                lists.hash_ids.append(() if turn.hash_ids is UNSET else turn.hash_ids)
            else:
                prompt = self._text_prompt(session, index, history, lists)
                tokens = prompt.tokens
                lists.texts.append(prompt)
                regenerates |= turn.regenerates is not UNSET
            answer = _answer_tokens(turn, lists)
            lists.together.append(tokens + answer)
            history += (tokens, answer)
        lists.regenerating += regenerates
        self._sessions += 1

    def _text_prompt(self, session: Session, index: int, history: list[int], lists: _Lists) -> TextPrompt:
        turn = session.turns[index]
        if turn.request is not UNSET:
            lists.ways["request"] += 1
            return TextPrompt(0, 0, tuple(_body_texts(turn.request.body)))
        if turn.regenerates is not UNSET:
            lists.ways["regenerates"] += 1
            return TextPrompt(0, history[2 * turn.regenerates], ())
        lists.ways["user"] += 1
        text = turn.user.encode() if turn.user is not UNSET else b""
        if turn.user_tokens is UNSET:
            lists.estimated["messages"] += 1
            tokens = estimated_tokens(text)
        else:
            tokens = turn.user_tokens
        lists.messages.append(tokens)
        parent = (index - 1 if index else None) if turn.parent is UNSET else turn.parent
        if parent is None:
            system = () if session.system is None else (self._systems[session.system],)
            return TextPrompt(0, 0, (*system, (text, tokens)))
        before, answer = history[2 * parent : 2 * parent + 2]
        base = hash((self._sessions, parent)) & _WORD
        if not answer:
            return TextPrompt(base, before, ((text, tokens),))
        return TextPrompt(base, before + answer - 1, (_LAST_TOKEN, (text, tokens)))


def _answer_tokens(turn: Turn, lists: _Lists) -> int:
    if turn.output_tokens is not UNSET:
        tokens = turn.output_tokens
    elif turn.reply is not UNSET and turn.reply:
        lists.estimated["outputs"] += 1
        tokens = estimated_tokens(turn.reply.encode())
    else:
        return 0
    lists.outputs.append(tokens)
    return tokens


def _with_estimate(text: str) -> tuple[bytes, int]:
    encoded = text.encode()
    return encoded, estimated_tokens(encoded)


def _body_texts(body: Mapping[str, object]) -> Iterator[tuple[bytes, int]]:
    """What an OpenAI request asks, text by text."""
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else message
            if content:
                yield _any_text(content)
        return
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        yield msgspec.json.encode(prompt), len(prompt)
    elif prompt:
        yield _any_text(prompt)


def _any_text(content: object) -> tuple[bytes, int]:
    text = content.encode() if isinstance(content, str) else msgspec.json.encode(content)
    return text, estimated_tokens(text)


def _pieces(session: Session) -> int:
    """About how many pieces the prompts of a session have."""
    pieces = 0
    for turn in session.turns:
        if turn.hash_ids is not UNSET:
            pieces += len(turn.hash_ids)
        elif turn.user is not UNSET:
            pieces += len(turn.user) // TEXT_PIECE + 1
    return pieces


def batches(sessions: Iterable[Session]) -> Iterator[list[Session]]:
    """Sessions in lists that are long enough for arrays to pay, and short enough for little memory."""
    batch: list[Session] = []
    pieces = 0
    for session in sessions:
        batch.append(session)
        pieces += _pieces(session)
        if len(batch) >= BATCH_SESSIONS or pieces >= BATCH_PIECES:
            yield batch
            batch, pieces = [], 0
    if batch:
        yield batch
