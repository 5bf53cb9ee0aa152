"""Tokenizers over HTTP and from a file, and what is said where there is none."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aiohttp import web
from made_tokenizers import llama3
from picky import TEMPLATE_AFTER, TEMPLATE_BEFORE, Picky, code

from loadgen.client import open_http
from loadgen.server import ServerFacts
from loadgen.text.tokenizer import AT_ONCE, LocalTokenizer, ServerTokenizer, TokenizerError, open_tokenizer

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("shape", "special", "chat"),
    [
        ("vllm", code("Hi"), code(TEMPLATE_BEFORE + "Hi" + TEMPLATE_AFTER)),
        ("plain", code("Hi"), None),
        ("llama.cpp", [1, *code("Hi")], None),
    ],
)
async def test_what_servers_answer(shape: str, special: list[int], chat: list[int] | None) -> None:
    async with Picky(tokenize=shape) as server, open_http() as http:
        tokenizer = ServerTokenizer(http, server.url, "m")
        assert await tokenizer.encode("Hi", special=False) == code("Hi")
        assert await tokenizer.encode("Hi", special=True) == special
        assert await tokenizer.encode_chat(CHAT) == chat
        assert await tokenizer.count(["one", "", "three"]) == [3, 0, 5]
        assert all(body["model"] == "m" for body in server.bodies("/tokenize"))


async def test_a_few_texts_are_asked_for_at_once() -> None:
    running = most = 0

    async def tokenize(_: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response({"tokens": [1, 2]})

    async with Picky(tokenize=None) as server, open_http() as http:
        app = web.Application()
        app.router.add_post("/tokenize", tokenize)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        assert await ServerTokenizer(http, url, "m").count(["x"] * 20) == [2] * 20
        await runner.cleanup()
        assert most == AT_ONCE
        with pytest.raises(TokenizerError, match=f"POST {server.url}/tokenize answered 404"):
            await ServerTokenizer(http, server.url, "m").count(["x"])
        with pytest.raises(TokenizerError, match=f"POST {url}/tokenize: .*"):
            await ServerTokenizer(http, url, "m").count(["x"])


async def test_counts_alone_are_not_enough() -> None:
    async with Picky(tokenize="counts only") as server, open_http() as http:
        with pytest.raises(TokenizerError, match=r"gave no token ids: .*tokens"):
            await ServerTokenizer(http, server.url, "m").encode("Hi", special=False)


@pytest.mark.parametrize("folder", [True, False])
async def test_a_file_or_its_folder(folder: bool, tmp_path: Path) -> None:
    made = llama3()
    made.enable_truncation(3)
    made.enable_padding(length=50)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = LocalTokenizer(tmp_path if folder else tmp_path / "tokenizer.json")
    made.no_truncation()
    made.no_padding()
    text = "the house and the garden"
    assert await tokenizer.encode(text, special=True) == made.encode(text).ids
    assert await tokenizer.encode(text, special=False) == made.encode(text, add_special_tokens=False).ids
    assert await tokenizer.count([text, "the"]) == [len(made.encode(text, add_special_tokens=False)), 1]
    assert await tokenizer.encode_chat(CHAT) is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing", None, "there is no such file or folder; give the tokenizer.json"),
        (".", None, "has no tokenizer.json; give the tokenizer.json"),
        ("tokenizer.model", b"\x0a\x0b", "cannot be read as a tokenizer.json: "),
        ("tokenizer.json", b'{"version": "1.0"}', "cannot be read as a tokenizer.json: "),
    ],
)
def test_a_file_that_is_none(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TokenizerError, match=f"--tokenizer {path}: {words}"):
        LocalTokenizer(path)


async def test_which_tokenizer_is_taken(tmp_path: Path) -> None:
    llama3().save(str(tmp_path / "tokenizer.json"))
    with_own, without = (ServerFacts(url="http://x", model="m", tokenizes=tokenizes) for tokenizes in (True, False))
    async with open_http() as http:
        assert isinstance(open_tokenizer(None, http, with_own), ServerTokenizer)
        assert isinstance(open_tokenizer(str(tmp_path), http, with_own), LocalTokenizer)
        with pytest.raises(TokenizerError, match=r"http://x has no /tokenize that gives token ids: .* --tokenizer"):
            open_tokenizer(None, http, without)


def test_the_library_waits_until_a_file_is_read() -> None:
    import subprocess

    code = "import loadgen.text.tokenizer, loadgen.asking, sys; print('tokenizers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
