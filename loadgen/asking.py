"""What is sent for each turn: the one place that decides path and body, and how many tokens they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from loadgen.settings import Settings
from loadgen.text.blocks import UNSHARED_BLOCK, Blocks, shared_names, unshared_names
from loadgen.text.vocabulary import Endpoint, Frame, Vocabulary
from loadgen.traces.model import Header, Session, TraceError, Turn, turn_inputs

if TYPE_CHECKING:
    from loadgen.server import ServerFacts

Json = dict[str, Any]

_DECIDED = {  # fields of a body, and who decides them
    "model": "--model names it",
    "stream": "--no-stream turns it off",
    "messages": "the trace has them",
    "prompt": "the trace has it",
}
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Payload:
    """One request: `path` from the server's root and a JSON `body`.

    `asked_input` is the tokens of the prompt by the trace, `asked_output` those of the answer; None: not fixed.
    """

    path: str
    body: bytes
    asked_input: int | None
    asked_output: int | None


def check_extra_body(extra: Mapping[str, object]) -> None:
    """Raises `ValueError` for a field that loadgen itself decides."""
    for name, why in _DECIDED.items():
        if name in extra:
            raise ValueError(f"{name}: not allowed in an extra body; {why}")


def length_endpoint(settings: Settings, facts: ServerFacts | None = None) -> Endpoint:
    """Where prompts go of which only the length is known: without a chat template, unless that is all there is."""
    chat = facts is not None and facts.completions is False
    return Endpoint(settings.endpoint or (Endpoint.CHAT if chat else Endpoint.COMPLETIONS))


def text_endpoint(settings: Settings) -> Endpoint:
    """Where messages go."""
    return Endpoint(settings.endpoint or Endpoint.CHAT)


class Asker:
    """Writes the requests of one run. The same turn asked twice is the same bytes.

    `vocabulary` is needed for turns that give only `input_tokens`.
    """

    def __init__(
        self, header: Header, facts: ServerFacts, settings: Settings, vocabulary: Vocabulary | None = None
    ) -> None:
        check_extra_body(settings.extra_body)
        self._header = header
        self._facts = facts
        self._settings = settings
        self._vocabulary = vocabulary
        self._blocks = None if vocabulary is None else Blocks(vocabulary, settings.seed)

    def payload(self, session: Session, index: int, turn: int, replies: Mapping[int, str]) -> Payload:
        """The request of a session's turn; `index` is the session's place in the trace, `replies` the answers so far.

        Raises `TraceError` for a turn that cannot be asked.
        """
        asked = session.turns[turn]
        try:
            if asked.request is not UNSET:
                return self._as_written(asked.request.path, asked.request.body)
            if asked.input_tokens is not UNSET:
                return self._of_length(asked, asked.input_tokens, index, turn)
            return self._of_text(session, turn, replies)
        except ValueError as error:
            raise TraceError(f"session {session.session}: turns[{turn}].{error}") from None

    def _stream(self) -> Json:
        if not self._settings.stream:
            return {}
        options = {"stream_options": {"include_usage": True}} if self._facts.takes_stream_options else {}
        return {"stream": True, **options}

    def _as_written(self, path: str, body: Json) -> Payload:
        endpoint_of(path)
        rest = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        sent = {**rest, "model": model_of(body, self._settings, self._facts), **self._stream()}
        return self._payload(path, sent, None, exact=body.get("ignore_eos") is True)

    def _sampling(self, turn: Turn, endpoint: Endpoint) -> Json:
        body: Json = {"temperature": self._header.temperature, "seed": turn.seed}
        output = _output_tokens(turn)
        if output is not None:
            body[self._facts.length_field if endpoint is Endpoint.CHAT else "max_tokens"] = output
            if self._settings.ignore_eos:
                body["ignore_eos"] = True
        return {name: value for name, value in body.items() if name not in self._facts.left_out} | self._stream()

    def _of_text(self, session: Session, turn: int, replies: Mapping[int, str]) -> Payload:
        chat = messages(session, self._header.systems, turn, replies)
        endpoint = text_endpoint(self._settings)
        asked: Json = {"messages": chat} if endpoint is Endpoint.CHAT else {"prompt": _as_prompt(chat)}
        body = {"model": self._facts.model, **asked, **self._sampling(session.turns[turn], endpoint)}
        return self._payload(endpoint.path, body, None, exact=True)

    def _of_length(self, turn: Turn, tokens: int, index: int, number: int) -> Payload:
        endpoint, frame = self._length_frame()
        assert self._blocks is not None, "there is no frame without a vocabulary"
        if turn.hash_ids is UNSET:
            names, block_size = unshared_names(index, number, tokens), UNSHARED_BLOCK
            text = self._blocks.prompt(tokens, names, block_size, frame)
        elif self._header.block_size is UNSET:
            raise ValueError("hash_ids: the header has no block_size")
        else:
            text = self._blocks.prompt(tokens, shared_names(turn.hash_ids), self._header.block_size, frame)
        asked: Json = {"prompt": text}
        if endpoint is Endpoint.CHAT:
            asked = {"messages": [{"role": "user", "content": text}]}
        body = {"model": self._facts.model, **asked, **self._sampling(turn, endpoint)}
        return self._payload(endpoint.path, body, tokens, exact=True)

    def _length_frame(self) -> tuple[Endpoint, Frame]:
        """Where prompts of a length alone are sent. Raises `ValueError` if their text cannot be made."""
        if self._vocabulary is None:
            raise ValueError("input_tokens: a text of that length needs the server's tokenizer: give --tokenizer")
        endpoint = length_endpoint(self._settings, self._facts)
        return endpoint, self._vocabulary.frame(endpoint)

    def _payload(self, path: str, body: Json, asked_input: int | None, *, exact: bool) -> Payload:
        """`exact`: the longest answer that is asked for is the asked one."""
        sent = {**body, **self._settings.extra_body}
        sent = {name: value for name, value in sent.items() if value is not None}
        longest = sent.get("max_tokens", sent.get("max_completion_tokens")) if exact else None
        choices = sent.get("n", 1)
        asked_output = longest * choices if isinstance(longest, int) and isinstance(choices, int) else None
        return Payload(path, _encode(sent), asked_input, asked_output)


def messages(
    session: Session, systems: Mapping[str, str], turn: int, replies: Mapping[int, str]
) -> list[dict[str, str]]:
    """The chat that a turn sends: system prompt, the turns of its branch with their answers, its message."""
    inputs = turn_inputs(session)
    asked = inputs[turn]
    if asked is None:
        raise ValueError("user: missing; a chat has a message")
    chat = [] if session.system is None else [_message("system", systems[session.system])]
    for earlier in asked.history:
        before = inputs[earlier]
        assert before is not None, "a branch has messages only"
        chat += [_message("user", before.user), _message("assistant", replies[earlier])]
    return [*chat, _message("user", asked.user)]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def model_of(body: Mapping[str, object], settings: Settings, facts: ServerFacts) -> str:
    """The model that a request as written is sent to: its own if the server lists it and the user names none."""
    own = body.get("model")
    return own if isinstance(own, str) and settings.model is None and own in facts.models else facts.model


def _as_prompt(chat: list[dict[str, str]]) -> str:
    """A chat as plain text: an answer goes on where its prompt ended, everything else begins a paragraph."""
    text = ""
    for message in chat:
        text += message["content"] if not text or message["role"] == "assistant" else f"\n\n{message['content']}"
    return text


def endpoint_of(path: str) -> Endpoint:
    """The endpoint of a request that is sent as written. Raises `ValueError` if its answers cannot be measured."""
    for endpoint in Endpoint:
        if path == endpoint.path:
            return endpoint
    allowed = ", ".join(endpoint.path for endpoint in Endpoint)
    raise ValueError(f"request.path: only {allowed} can be measured, got {path!r}")


def _output_tokens(turn: Turn) -> int | None:
    """The asked length of the answer; None: the server decides."""
    if turn.output_tokens is not UNSET:
        return turn.output_tokens
    if turn.reply is not UNSET:
        raise ValueError("output_tokens: missing, and its reply has not been counted: give --tokenizer")
    return None
