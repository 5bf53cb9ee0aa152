"""What an answer shows is held against what is known of the server's kind."""

from __future__ import annotations

import pytest

from loadgen.findings import differences, findings, with_found
from loadgen.quirks import KINDS, UNKNOWN, CachedIn, IgnoreEos, UsageIn, quirks_by, quirks_of
from loadgen.response import Chunk, Response, take_chunk
from loadgen.server import ServerFacts
from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint

ASKED = Settings(file="t")


def answered(**told: object) -> Response:
    response = Response(done=True, opening=1)
    for name, value in told.items():
        setattr(response, name, value)
    return response


def test_an_answer_without_anything_shows_just_that() -> None:
    assert findings(Response(), Endpoint.CHAT, ASKED, 2) == {
        "usage": UsageIn.NOWHERE,
        "cached": CachedIn.NOWHERE,
        "done": False,
        "opens_with_role": False,
    }
    whole = findings(Response(streamed=False), Endpoint.COMPLETIONS, ASKED, 2)
    assert set(whole) == {"usage", "cached"}, "what cannot be seen in it is left out"


def test_an_answer_shorter_than_asked_shows_that_ignore_eos_has_no_effect() -> None:
    response = answered(timings={"predicted_n": 1, "prompt_n": 3, "cache_n": 0}, finish="stop")
    found = findings(response, Endpoint.CHAT, ASKED, 2)
    assert (found["ignore_eos"], found["cached"], found["finish_reason"]) == (
        IgnoreEos.IGNORED,
        CachedIn.TIMINGS,
        "stop",
    )
    assert "ignore_eos has no effect" in differences(quirks_of("llama.cpp"), found, Endpoint.CHAT)
    assert "ignore_eos has no effect" not in differences(quirks_of("tgi"), found, Endpoint.CHAT), "that is known"
    assert "ignore_eos" not in findings(response, Endpoint.CHAT, Settings(file="t", ignore_eos=False), 2)


@pytest.mark.parametrize("quirks", [*KINDS, UNKNOWN], ids=lambda quirks: quirks.kind)
def test_what_is_as_known_differs_in_nothing(quirks: object) -> None:
    known = next(one for one in (*KINDS, UNKNOWN) if one is quirks)
    found: dict[str, str | bool] = {
        "usage": known.usage or UsageIn.NOWHERE,
        "cached": known.cached or CachedIn.NOWHERE,
        "done": True if known.done is None else known.done,
        "opens_with_role": bool(known.opens_with_role),
    }
    assert differences(known, found, Endpoint.CHAT) == []
    found["usage"] = known.usage_of_completions or UsageIn.NOWHERE
    assert differences(known, found, Endpoint.COMPLETIONS) == []


def test_what_two_endpoints_show_is_told_once() -> None:
    facts = ServerFacts(url="u", model="m", kind="vllm")
    for endpoint in Endpoint:
        facts = with_found(facts, Response(), endpoint, ASKED, 2)
    assert facts.differs == (
        "tokens are told nowhere, not in a chunk of its own",
        "a stream ends without [DONE]",
        "a chat opens without a chunk of no text",
    )
    assert any("not quite what is known of vLLM" in note for note in facts.notes())


@pytest.mark.parametrize(
    ("host", "owner", "kind"),
    [
        ("127.0.0.1", "vllm", "vllm"),
        ("127.0.0.1", "paged-top", "paged-engine"),
        ("api.openai.com", "system", "openai"),
        ("me.openai.azure.com", None, "openai"),
        ("notopenai.com", "openai", "unknown"),  # a proxy's
        ("127.0.0.1", None, "unknown"),
    ],
)
def test_kinds_by_host_and_owner(host: str, owner: str | None, kind: str) -> None:
    assert quirks_by(host, owner).kind == kind


def test_timings_that_are_something_else_break_nothing() -> None:
    for timings in ([1], "fast", 3, {"prompt_n": -1, "cache_n": "x", "predicted_n": 1.5}):
        response = Response()
        take_chunk(Chunk(timings=timings), response)
        assert (response.input_tokens, response.cached_tokens, response.output_tokens) == (None, None, None)
    response = Response()
    take_chunk(Chunk(timings={"prompt_n": 3, "cache_n": 4, "predicted_n": 5}), response)
    assert (response.input_tokens, response.cached_tokens, response.output_tokens) == (7, 4, 5)
