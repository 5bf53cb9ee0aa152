"""A trial request before anything is measured: whether the server answers as the run will ask.

One request of two tokens for each endpoint that is needed, one more for each field that an answer complains of, and one
or two for a frame of prompts of given lengths. All are over, and counted, before the run is.
"""

from __future__ import annotations

import aiohttp
import msgspec

from loadgen.asking import Asker, Payload, length_endpoint
from loadgen.client import Response, complete
from loadgen.findings import with_found
from loadgen.needs import Needs
from loadgen.outcome import Outcome
from loadgen.server import ServerError, ServerFacts, wrong_key
from loadgen.settings import Settings
from loadgen.text.vocabulary import OPENING, Endpoint, Frame, Vocabulary
from loadgen.traces.model import FORMAT, VERSION, Header, Session, Turn

TIMEOUT = 300.0  # seconds: a server may load its model with the first request
RETRIES = 3
OUTPUT_TOKENS = 2
EXTRA_TOKENS = (24, 40)  # of two prompts beyond their frame
EXTRA_TOKENS_OF_A_FILE = (400, 440)  # a tokenizer from a file may be another model's
_CAN_BE_LEFT_OUT = ("temperature", "seed")  # some models sample in one way alone
_PLACE = 2**27 - 1  # of the trial's session: no session of a trace has its text


async def probe(
    http: aiohttp.ClientSession,
    facts: ServerFacts,
    settings: Settings,
    needs: Needs,
    vocabulary: Vocabulary | None = None,
) -> tuple[ServerFacts, Vocabulary | None]:
    """Send each endpoint that is needed a tiny request as those of the run; returns what is known then.

    `vocabulary` is for a run that makes texts of given lengths: its frame comes back as the server's own count of
    tokens has it, and where there is no endpoint for completions, the chat's.

    Raises `ServerError` that names what to change.
    """
    if not needs.sampled:
        settings = msgspec.structs.replace(settings, ignore_eos=False)
    wanted = sorted(needs.endpoints)
    for endpoint in wanted:
        facts = await _find(http, facts, settings, endpoint)
        if facts.has(endpoint):
            continue
        if vocabulary is None or settings.endpoint is not None or endpoint is Endpoint.CHAT:
            other = Endpoint.CHAT if endpoint is Endpoint.COMPLETIONS else Endpoint.COMPLETIONS
            hint = f"; --endpoint {other} asks the other one" if needs.sampled else ""
            raise ServerError(f"the server has no {facts.url}{endpoint.path}{hint}")
        if Endpoint.CHAT not in wanted:
            wanted.append(Endpoint.CHAT)
    if vocabulary is not None:
        vocabulary = await _framed(http, facts, settings, vocabulary)
    return facts, vocabulary


async def _find(http: aiohttp.ClientSession, facts: ServerFacts, settings: Settings, endpoint: Endpoint) -> ServerFacts:
    """Facts with what one endpoint does and how it is asked. Raises `ServerError` if it refuses."""
    while True:
        response = await _send(http, facts, settings, _hello(facts, settings, endpoint))
        if response.outcome is Outcome.COMPLETED:
            told = response.output_tokens is not None
            facts = facts.with_endpoint(endpoint, True, usage=told and facts.usage is not False)
            return with_found(facts, response, endpoint, settings, OUTPUT_TOKENS)
        if response.status in (404, 405, 501) and "model" not in response.detail.lower():
            return facts.with_endpoint(endpoint, False, usage=facts.usage)
        other = _asked_otherwise(facts, settings, endpoint, response.detail)
        if other is None:
            raise await _refusal(http, facts, settings, endpoint, response)
        facts = other


def _asked_otherwise(facts: ServerFacts, settings: Settings, endpoint: Endpoint, detail: str) -> ServerFacts | None:
    """How a server is asked that takes a field by another name, or not at all; None if that is not its complaint."""
    if "stream_options" in detail and settings.stream and facts.takes_stream_options:
        return msgspec.structs.replace(facts, takes_stream_options=False)
    if "max_completion_tokens" in detail and endpoint is Endpoint.CHAT and facts.length_field == "max_tokens":
        return msgspec.structs.replace(facts, length_field="max_completion_tokens")
    for field in _CAN_BE_LEFT_OUT:
        if field in detail and field not in facts.left_out and field not in settings.extra_body:
            return msgspec.structs.replace(facts, left_out={**facts.left_out, field: detail})
    return None


async def _refusal(
    http: aiohttp.ClientSession, facts: ServerFacts, settings: Settings, endpoint: Endpoint, response: Response
) -> ServerError:
    """Why the server does not answer as asked, and which flag changes that."""
    detail = response.detail
    what = f"POST {facts.url}{endpoint.path}: {detail}"
    if response.status in (401, 403):
        return wrong_key(http, what)
    if response.status == 404:
        listed = f"; it lists {', '.join(facts.models)}" if facts.models else ""
        return ServerError(f"{what}{listed}; --model names another model")
    if response.outcome is not Outcome.HTTP_ERROR:
        return ServerError(what)
    for name in settings.extra_body:
        if name in detail:
            return ServerError(f"{what}; {name} is from --extra-body")
    if settings.ignore_eos:
        without = msgspec.structs.replace(settings, ignore_eos=False)
        if "ignore_eos" in detail or await _answers(http, facts, without, endpoint):
            return ServerError(
                f"{what}; it does not take ignore_eos, with which answers keep their recorded lengths: "
                "--no-ignore-eos leaves it out"
            )
    if settings.stream:
        without = msgspec.structs.replace(settings, stream=False)
        if await _answers(http, facts, without, endpoint):
            return ServerError(f"{what}; it answers without a stream: --no-stream asks for none")
    if endpoint is Endpoint.CHAT and "template" in detail:
        return ServerError(f"{what}; --endpoint completions asks without a template")
    return ServerError(what)


async def _answers(http: aiohttp.ClientSession, facts: ServerFacts, settings: Settings, endpoint: Endpoint) -> bool:
    response = await _send(http, facts, settings, _hello(facts, settings, endpoint))
    return response.outcome is Outcome.COMPLETED


async def _framed(
    http: aiohttp.ClientSession, facts: ServerFacts, settings: Settings, vocabulary: Vocabulary
) -> Vocabulary:
    """The vocabulary with a frame for prompts of given lengths that has the tokens which the server itself counts.

    A frame that no tokenizer told is measured: what the server counts beyond the pieces. Raises `ServerError`.
    """
    endpoint = length_endpoint(settings, facts)
    frame = vocabulary.frames.get(endpoint)
    known, told = frame is not None, 0
    frame = frame or Frame(opening=OPENING, before=1)
    for extra in EXTRA_TOKENS if settings.tokenizer is None else EXTRA_TOKENS_OF_A_FILE:
        tokens = frame.tokens + extra
        if facts.max_model_len is not None:
            tokens = max(frame.least, min(tokens, facts.max_model_len - OUTPUT_TOKENS))
        vocabulary = msgspec.structs.replace(vocabulary, frames={**vocabulary.frames, endpoint: frame})
        turn = Turn(input_tokens=tokens, output_tokens=OUTPUT_TOKENS)
        response = await _send(http, facts, settings, _payload(facts, settings, turn, vocabulary))
        if response.outcome is not Outcome.COMPLETED:
            raise ServerError(f"POST {facts.url}{endpoint.path}: a prompt of {tokens} tokens: {response.detail}")
        counted = response.input_tokens
        if counted is None and not known:
            raise ServerError(
                f"nothing tells how many tokens the server's chat template has: neither POST {facts.url}/tokenize "
                "nor the usage of an answer; --endpoint completions asks without a template"
            )
        if counted is None or counted == tokens:
            return vocabulary
        told = counted
        frame = msgspec.structs.replace(frame, before=max(0, frame.before + counted - tokens))
    whose = "the server's /tokenize" if settings.tokenizer is None else f"--tokenizer {settings.tokenizer}"
    raise ServerError(
        f"by {whose} a prompt has {tokens} tokens, by the usage of the server's answer {told}: it is not the tokenizer "
        f"of {facts.model}; --tokenizer names a tokenizer.json"
    )


def _hello(facts: ServerFacts, settings: Settings, endpoint: Endpoint) -> Payload:
    turn = Turn(user="Hello", output_tokens=OUTPUT_TOKENS)
    return _payload(facts, msgspec.structs.replace(settings, endpoint=endpoint), turn)


def _payload(facts: ServerFacts, settings: Settings, turn: Turn, vocabulary: Vocabulary | None = None) -> Payload:
    asker = Asker(Header(FORMAT, VERSION), facts, settings, vocabulary)
    return asker.payload(Session(session="trial", arrival=None, turns=(turn,)), _PLACE, 0, {})


async def _send(http: aiohttp.ClientSession, facts: ServerFacts, settings: Settings, payload: Payload) -> Response:
    response = Response()
    await complete(
        http,
        facts.url,
        payload,
        response,
        timeout=min(settings.timeout, TIMEOUT),
        on_chunk=lambda: None,
        retries=RETRIES,
        stream=settings.stream,
    )
    return response
