"""The readers of traces: nine formats of loadgen's, and those of `paged-engine plan` and `simulate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.trace_lengths import read_trace
from loadgen.traces.formats import open_trace
from loadgen.traces.model import check_session
from loadgen.traces.reading import Format
from tests.fuzz.target import ROOT, SHARED, Wrong, jsons


def _head(path: Path, lines: int) -> bytes:
    with path.open("rb") as file:
        return b"".join(file.readline() for _ in range(lines))


def _lines(*values: Any) -> bytes:
    return b"".join(line + b"\n" for line in jsons(*values))


def trace_seeds(format: Format) -> list[bytes]:
    turn = {"user": "hi", "output_tokens": 3}
    match format:
        case Format.CHAT:
            full = {
                "session": "s", "arrival": 1.5, "conversation": "c", "turn": 1, "labels": {"a": 1, "b": "x"},
                "turns": [
                    {**turn, "reply": "ho", "seed": 5},
                    {"think": 1.5, "regenerates": 0, "output_tokens": 2},
                    {"at": 9.0, "user": "x", "user_tokens": 1, "parent": None},
                    {"at": 10.5, "input_tokens": 33, "hash_ids": [1, 2, 3], "output_tokens": 1},
                    {"at": 11.0, "request": {"path": "/v1/completions", "body": {"prompt": "x"}}},
                ],
            }  # fmt: skip
            header = {"format": "paged-top-chat", "version": 2, "systems": {"m": "be"}, "block_size": 16}
            chats = _head(ROOT / "traces/chat500.jsonl", 3)
            return [_lines(header, full, {**full, "session": "t", "arrival": 2, "turns": [turn]}), chats]
        case Format.MOONCAKE:
            line = {"timestamp": 500, "input_length": 513, "output_length": 3, "hash_ids": [46, 47]}
            return [
                _lines(line, {**line, "timestamp": 900.5}),
                _head(ROOT / "tests/data/traces/mooncake_excerpt.jsonl", 3),
            ]
        case Format.BAILIAN:
            line = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17, "output_length": 2}
            line |= {"type": "text", "turn": 1, "hash_ids": [5, 6]}
            return [_lines(line, {**line, "chat_id": 2, "parent_chat_id": 1, "turn": 2})]
        case Format.BURSTGPT:
            return [
                b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
                b"45.5,GPT-4,1087,0,1087,Conversation log\n118,GPT-4,3,5,8,Conversation log\n",
                b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                b'1,9,2.5,ChatGPT,1,2,3,"API, log"\n2,9,,GPT-4,1,2,3,x\n',
            ]
        case Format.AZURE:
            head = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
            real = [_head(SHARED / "AzureLLMInferenceTrace_conv.csv", 4)] if SHARED.is_dir() else []
            return [
                head + b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n",
                head + b"2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2,5\n",
                *real,
            ]
        case Format.SHAREGPT:
            chat = {"id": "a_0", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
            return [
                json.dumps([chat, {**chat, "id": 7}], indent=1).encode(),
                json.dumps([chat, chat]).encode(),
                _lines(chat, chat),
            ]
        case Format.VLLM:
            return [_lines({"prompt": "hi", "output_tokens": 5}, {"prompt": "ho"})]
        case Format.OPENAI_BATCH:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
            line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
            return [_lines(line, {**line, "custom_id": "r-2"})]
        case Format.AIPERF:
            single = {"type": "single_turn", "session_id": "a", "text": "hi", "timestamp": 5, "output_length": 3}
            chat = {
                "type": "multi_turn",
                "session_id": "c",
                "turns": [{"text": "x", "timestamp": 9}, {"text": "y", "delay": 5}],
            }
            return [_lines(single, {**single, "timestamp": 8, "role": "user"}, chat)]
    raise AssertionError(format)


def read_trace_as(format: Format) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        path = folder / "trace"
        path.write_bytes(data)
        told = len(data) % 2 == 0  # by name, or by its content
        skip_bad = len(data) % 3 == 0
        trace = open_trace(path, format if told else None, skip_bad=skip_bad)
        for session in trace.sessions():
            try:
                check_session(session, trace.header)
            except ValueError as error:
                raise Wrong(f"a session that breaks the model's rules: {error}") from error

    return read


def read_lengths(data: bytes, folder: Path) -> None:
    path = folder / "trace"
    path.write_bytes(data)
    for request in read_trace(path):
        if request.prompt_tokens != sum(tokens for _, tokens in request.segments):
            raise Wrong(f"the segments are not the prompt: {request}")


def lengths_seeds() -> list[bytes]:
    return [
        _head(ROOT / "traces/chat500.jsonl", 3),
        *trace_seeds(Format.MOONCAKE),
        *trace_seeds(Format.AZURE),
    ]
