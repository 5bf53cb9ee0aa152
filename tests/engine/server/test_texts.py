"""What requests and blocks hold, over HTTP: pieces are the same wherever one begins to read, and make up the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.detokenizer import TokenBytes
from engine.loading.resolve import resolve_model
from engine.messages import TokensAfter
from engine.protocol import BlockText, LiveRequests, RequestText
from engine.server.pieces import LONG, is_enough, pieces, pieces_of
from tui.client import HttpEngine
from tui.texts import EVERY, TextReader

PROMPT = "\N{GRINNING FACE} one h\u00e9, \N{GREEK SMALL LETTER ALPHA}\N{SNOWMAN} two"
ASK = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True}


@cache
def table(kind: str) -> TokenBytes:
    if kind == "byte level":
        return TokenBytes(Tokenizer.from_file(str(resolve_model("tiny").folder / "tokenizer.json")))
    words = ["<unk>", "\u2581", "\u2581a", "b", *(f"<0x{byte:02X}>" for byte in range(0x7E, 0x100))]
    hub = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    hub.add_special_tokens([AddedToken("<s>", special=True)])
    hub.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TokenBytes(hub)


KINDS = st.sampled_from(["byte level", "sentencepiece"])


@settings(max_examples=400, deadline=None)
@given(KINDS, st.lists(st.integers(0, 262), max_size=40), st.integers(0, 40), st.integers(0, 20))
def test_a_piece_is_the_same_wherever_reading_begins(kind: str, tokens: list[int], first: int, before: int) -> None:
    whole = pieces(table(kind), TokensAfter(tuple(tokens), (), begins=True))
    begin = max(0, first - before)
    part = TokensAfter(tuple(tokens[first:]), tuple(tokens[begin:first]), begin == 0)
    if is_enough(table(kind), part):
        assert pieces(table(kind), part) == whole[first:]


@settings(max_examples=200, deadline=None)
@given(KINDS, st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_make_up_the_text(kind: str, text: str) -> None:
    bytes_of = {table(kind)[token]: token for token in range(len(table(kind)))}
    tokens = [bytes_of[bytes([byte])] for byte in text.encode() if bytes([byte]) in bytes_of]
    read = b"".join(table(kind)[token] for token in tokens).decode(errors="replace")
    told = "".join(pieces(table(kind), TokensAfter(tuple(tokens), (), begins=False)))
    assert read.startswith(told)
    assert read[len(told) :] in ("", "\N{REPLACEMENT CHARACTER}")


async def test_long_texts_are_worked_out_elsewhere() -> None:
    part = TokensAfter((5,) * (LONG + 1), (), begins=True)
    assert await pieces_of(table("byte level"), part) == pieces(table("byte level"), part)


async def request_text(http: httpx.AsyncClient, name: str, **params: object) -> RequestText:
    answer = (await http.get(f"/engine/requests/{name}", params=params)).raise_for_status()
    return msgspec.json.decode(answer.content, type=RequestText, strict=True)


async def block_text(http: httpx.AsyncClient, block: int) -> BlockText:
    answer = (await http.get(f"/engine/blocks/{block}")).raise_for_status()
    return msgspec.json.decode(answer.content, type=BlockText, strict=True)


@asynccontextmanager
async def asking(http: httpx.AsyncClient, **body: object) -> AsyncIterator[None]:
    """While a completion runs; afterwards it is gone."""
    task = asyncio.create_task(http.post("/v1/completions", json=body))
    yield
    task.cancel()
    await live(http, 0, count=0)


async def live(http: httpx.AsyncClient, tokens: int, count: int = 1) -> LiveRequests:
    """The live requests, once there are so many that run and have so many tokens."""
    while True:
        answer = (await http.get("/engine/requests")).raise_for_status()
        found = msgspec.json.decode(answer.content, type=LiveRequests)
        if found.running == count and all(one.num_tokens >= tokens for one in found.requests):
            return found
        await asyncio.sleep(0.01)


async def decoded(http: httpx.AsyncClient, tokens: tuple[int, ...]) -> str:
    return (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]


async def test_a_request_read_bit_by_bit_is_its_text(server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http, asking(http, **ASK):
        (one,) = (await live(http, 60)).requests
        tokens, texts = (), ()
        last = 0
        while len(tokens) < 400:
            told = await request_text(http, one.request, **{"from": len(tokens)})
            assert (told.request, told.first, told.prompt_tokens) == (one.request, len(tokens), one.prompt_tokens)
            assert told.seq >= last
            last = told.seq
            tokens, texts = tokens + told.tokens, texts + told.texts
        whole = await request_text(http, one.request)
        assert (whole.tokens[: len(tokens)], whole.texts[: len(tokens)]) == (tokens, texts)
        assert "".join(texts[: one.prompt_tokens]) == PROMPT
        text = await decoded(http, tokens)
        assert text.startswith("".join(texts))
        assert text[len("".join(texts)) :] in ("", "\N{REPLACEMENT CHARACTER}")  # one that is not complete
        beyond = await request_text(http, one.request, **{"from": 100_000})
        assert (beyond.tokens, beyond.texts) == ((), ())
        assert beyond.first > len(tokens)


async def test_the_blocks_of_a_request_hold_its_text(server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http, asking(http, **ASK, n=2):
        await live(http, 60, count=2)
        state = (await http.get("/engine/snapshot")).json()
        size, checked = state["engine"]["block_size"], 0
        for request in state["requests"]:
            blocks = [await block_text(http, block) for block in request["table"][:4]]
            whole = await request_text(http, request["request"])  # read after its blocks: the last one may be filling
            parent = None
            for index, found in enumerate(blocks):
                place = slice(index * size, index * size + len(found.tokens))
                assert (found.tokens, found.texts) == (whole.tokens[place], whole.texts[place])
                if found.hash is not None:
                    assert found.parent_hash == parent
                    checked += 1
                parent = found.hash
        assert checked >= 4


async def test_cached_blocks_keep_their_text_and_free_ones_have_none(server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        await http.post("/engine/cache/clear")
        text = "^kept in the cache for whoever asks again"
        await http.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
        state = (await http.get("/engine/snapshot")).json()
        cached = [await block_text(http, block["block"]) for block in state["blocks"] if block["state"] == "cached"]
        by_parent = {found.parent_hash: found for found in cached}
        following, told = by_parent.get(None), ""
        while following is not None:
            told += "".join(following.texts)
            following = by_parent.get(following.hash)
        assert told
        assert text.startswith(told)
        held = {block["block"] for block in state["blocks"]}
        free = next(block for block in range(state["engine"]["num_blocks"]) if block not in held)
        found = await block_text(http, free)
        assert (found.tokens, found.texts, found.hash, found.parent_hash) == ((), (), None, None)


async def test_paged_top_reads_a_request_while_it_grows_and_knows_its_end(server) -> None:
    engine, now = HttpEngine(server.url), 0.0
    reader = TextReader(lambda: engine, lambda: now)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        async with asking(http, **ASK):
            (one,) = (await live(http, 40)).requests
            while not reader.texts.requests or len(reader.texts.requests[one.request].tokens) < 200:
                now += EVERY
                await reader.read(one.request, 0)
            whole = await engine.request_text(one.request, 0)
            assert await engine.cancel(one.request) == (one.request,)
        now += EVERY
        await reader.read(one.request, 0)
    found = reader.texts.requests[one.request]
    assert reader.texts.unknown == f"request {one.request} has ended"
    assert found.tokens == whole.tokens[: len(found.tokens)]
    assert "".join(found.texts).startswith(PROMPT)
    assert 0 in reader.texts.blocks
    await engine.close()


async def test_beams_are_told_from_where_they_may_change(server) -> None:
    body = {"prompt": "abcdef", "max_tokens": 900, "ignore_eos": True, "use_beam_search": True, "beam_width": 3}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http, asking(http, **body):
        found = await live(http, 12, count=3)
        for one in found.requests:
            told = await request_text(http, one.request, **{"from": 11})
            assert told.first == told.prompt_tokens == 6
            assert len(told.tokens) >= 6


@pytest.mark.parametrize(
    ("path", "status", "param", "words"),
    [
        ("requests/nobody", 404, "id", "id: no live request 'nobody'"),
        ("requests/nobody?from=-1", 400, "from", "from: must be a token's place, 0 or more, got '-1'"),
        ("requests/nobody?from=x", 400, "from", "0 or more, got 'x'"),
        ("requests/nobody?from=", 400, "from", "0 or more, got ''"),
        ("requests/nobody?from=9999999999", 400, "from", "got '9999999999'"),
        ("blocks/x", 400, "block", "block: must be from 0 to {last}, got 'x'"),
        ("blocks/-1", 400, "block", "must be from 0 to {last}, got '-1'"),
        ("blocks/\u0661", 400, "block", "must be from 0 to {last}"),
        ("blocks/{blocks}", 404, "block", "must be from 0 to {last}, got '{blocks}'"),
    ],
)
def test_what_is_not_there_is_named(http: httpx.Client, server, path: str, status: int, param: str, words: str) -> None:
    blocks = server.snapshot()["engine"]["num_blocks"]
    answer = http.get("/engine/" + path.format(blocks=blocks))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == param
    assert words.format(last=blocks - 1, blocks=blocks) in error["message"]


def test_an_unknown_request_is_the_same_error_as_when_it_is_cancelled(http: httpx.Client) -> None:
    headers = {"X-Request-Id": "the-same"}  # an error names it
    asked, cancelled = (http.request(how, "/engine/requests/x%20y", headers=headers) for how in ("GET", "DELETE"))
    assert (asked.status_code, asked.json()) == (cancelled.status_code, cancelled.json())
    assert asked.json()["error"]["code"] == "request_not_found"
