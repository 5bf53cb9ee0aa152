"""What the turns of a trace need of the server and of loadgen, gathered while the trace is read once before a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET

from loadgen.asking import endpoint_of, length_endpoint, model_of, text_endpoint
from loadgen.server import ServerFacts
from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint, Vocabulary
from loadgen.traces.model import Session, TraceError, Turn

_MOST_MODELS = 100


@dataclass(slots=True)
class Needs:
    """`endpoints` are those that turns are sent to if the server has them."""

    settings: Settings
    endpoints: set[Endpoint] = field(default_factory=set)
    texts: bool = False  # some turns are messages
    requests: bool = False  # some are sent as written
    models: set[str] = field(default_factory=set)  # that those name
    shortest: int | None = None  # tokens of the shortest prompt of which only the length is known
    shared: bool = False  # some of these share blocks
    replies: bool = False  # some answers are told as text, whose tokens have to be counted

    @property
    def vocabulary(self) -> bool:
        """Whether texts of given lengths have to be made."""
        return self.shortest is not None

    @property
    def tokenizer(self) -> bool:
        """Whether texts have to be counted."""
        return self.vocabulary or self.replies

    @property
    def sampled(self) -> bool:
        """Whether loadgen decides how some turns are answered."""
        return self.texts or self.vocabulary

    def add(self, session: Session) -> None:
        """Take a session in. Raises `TraceError` for a turn that cannot be asked."""
        for number, turn in enumerate(session.turns):
            try:
                self._add(turn)
            except ValueError as error:
                raise TraceError(f"session {session.session}: turns[{number}].{error}") from None

    def _add(self, turn: Turn) -> None:
        if turn.request is not UNSET:
            self.endpoints.add(endpoint_of(turn.request.path))
            self.requests = True
            model = turn.request.body.get("model")
            if isinstance(model, str) and len(self.models) < _MOST_MODELS:
                self.models.add(model)
            return
        self.replies = self.replies or (turn.output_tokens is UNSET and turn.reply is not UNSET)
        if turn.input_tokens is UNSET:
            self.texts = True
            self.endpoints.add(text_endpoint(self.settings))
        else:
            self.shortest = min(turn.input_tokens, self.shortest or turn.input_tokens)
            self.shared = self.shared or turn.hash_ids is not UNSET
            self.endpoints.add(length_endpoint(self.settings))

    def notes(self, facts: ServerFacts, vocabulary: Vocabulary | None) -> list[str]:
        """What a reader of the figures must know of what was asked."""
        notes = []
        if self.requests:
            notes.append(
                "The trace's requests were sent as written, but for stream and usage, which this run asks for."
            )
        others = sorted(name for name in self.models if model_of({"model": name}, self.settings, facts) != name)
        if others:
            notes.append(f"The trace's requests name {', '.join(others)}; {facts.model} was asked instead.")
        endpoint = length_endpoint(self.settings, facts)
        frame = vocabulary.frames.get(endpoint) if vocabulary is not None else None
        if self.shortest is None or frame is None:
            return notes
        if endpoint is Endpoint.CHAT:
            shared = ", and prompts of equal blocks are equal but for these" if self.shared else ""
            notes.append(f"Prompts were asked as chats: {frame.tokens} tokens of each are the template's{shared}.")
        if self.shortest < (least := frame.least):
            notes.append(f"Prompts of fewer than {least} tokens were asked with {least}: the server adds its own.")
        return notes
