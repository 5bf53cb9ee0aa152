"""What a trace needs is known from its turns."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.needs import Needs
from loadgen.server import ServerFacts
from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint, Frame, Vocabulary
from loadgen.traces.model import Asked, Session, TraceError, Turn

FACTS = ServerFacts(url="u", model="m", models=("m", "other"))


def needs(*turns: Turn, **settings: Any) -> Needs:
    found = Needs(Settings(file="t", **settings))
    found.add(Session(session="s", arrival=None, turns=turns))
    return found


def written(path: str = "/v1/completions", **body: Any) -> Turn:
    return Turn(request=Asked(path, body))


@pytest.mark.parametrize(
    ("turn", "settings", "endpoints"),
    [
        (Turn(user="a"), {}, {Endpoint.CHAT}),
        (Turn(user="a"), {"endpoint": "completions"}, {Endpoint.COMPLETIONS}),
        (Turn(input_tokens=3), {}, {Endpoint.COMPLETIONS}),
        (Turn(input_tokens=3), {"endpoint": "chat"}, {Endpoint.CHAT}),
        (written("/v1/chat/completions"), {"endpoint": "completions"}, {Endpoint.CHAT}),
    ],
)
def test_endpoints(turn: Turn, settings: dict[str, Any], endpoints: set[Endpoint]) -> None:
    assert needs(turn, **settings).endpoints == endpoints


def test_a_tokenizer_is_needed_to_make_texts_and_to_count_answers() -> None:
    text, length, answer = Turn(user="a", output_tokens=2), Turn(input_tokens=3), Turn(user="a", reply="b")
    assert (needs(text).tokenizer, needs(text).vocabulary, needs(text).sampled) == (False, False, True)
    assert (needs(length).tokenizer, needs(length).vocabulary, needs(length).sampled) == (True, True, True)
    assert (needs(answer).tokenizer, needs(answer).vocabulary) == (True, False)
    counted = Turn(user="a", reply="b", output_tokens=1)
    assert not needs(counted).tokenizer
    assert (needs(written()).tokenizer, needs(written()).sampled) == (False, False)
    assert needs(text, length, answer, written()).endpoints == set(Endpoint)


def test_a_path_that_cannot_be_measured() -> None:
    with pytest.raises(TraceError, match=r"session s: turns\[1\]\.request\.path: only .*, got '/v1/embeddings'"):
        needs(Turn(user="a"), written("/v1/embeddings"))


def test_notes_on_requests_as_written() -> None:
    assert len(needs(written(), written(model="m"), written(model="other")).notes(FACTS, None)) == 1
    _, models = needs(written(model="gpt-9"), written(model="gpt-8")).notes(FACTS, None)
    assert models == "The trace's requests name gpt-8, gpt-9; m was asked instead."
    _, models = needs(written(model="other"), model="m").notes(FACTS, None)
    assert models.startswith("The trace's requests name other")


def test_notes_on_prompts_of_a_length() -> None:
    frames = {Endpoint.COMPLETIONS: Frame(before=1), Endpoint.CHAT: Frame(before=5, after=3)}
    vocabulary = Vocabulary(("a", "b"), frames)
    assert needs(Turn(user="a")).notes(FACTS, vocabulary) == []
    assert needs(Turn(input_tokens=2)).notes(FACTS, vocabulary) == []
    (short,) = needs(Turn(input_tokens=9), Turn(input_tokens=1)).notes(FACTS, vocabulary)
    assert short.startswith("Prompts of fewer than 2 tokens were asked with 2")
    shared = Turn(input_tokens=9, hash_ids=(1,))
    (chat,) = needs(shared, endpoint="chat").notes(FACTS, vocabulary)
    assert "8 tokens of each are the template's, and prompts of equal blocks are equal but for these" in chat
    (chat,) = needs(Turn(input_tokens=9), endpoint="chat").notes(FACTS, vocabulary)
    assert chat.endswith("the template's.")
    assert needs(Turn(input_tokens=1), endpoint="chat").notes(FACTS, Vocabulary(("a", "b"), {})) == []
