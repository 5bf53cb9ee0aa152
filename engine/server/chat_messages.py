"""Messages of a chat: as clients send them, and as chat templates take them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.server.errors import ApiError, not_supported

Role = Literal["system", "developer", "user", "assistant", "tool"]
MAX_WORD = 64  # characters of what is one of a few words
MAX_PARTS = 1024  # of one message
MAX_PARTS_IN_ALL = 16_384
MAX_VARIABLES = 65_536  # bytes of `chat_template_kwargs` as JSON
MAX_DEPTH = 16  # of objects and arrays in them


class ContentPart(msgspec.Struct):
    type: Annotated[str, Meta(max_length=MAX_WORD)]
    text: str | None = None


class Message(msgspec.Struct):
    role: Role
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None


def chat_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: contents are strings (text parts are joined by newlines)."""
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    if parts > MAX_PARTS_IN_ALL:
        raise ApiError(f"messages: at most {MAX_PARTS_IN_ALL:,} content parts in all, got {parts:,}", param="messages")
    return [_chat_message(i, message) for i, message in enumerate(messages)]


def _chat_message(i: int, message: Message) -> dict[str, Any]:
    where = f"messages[{i}]"
    if message.tool_calls:
        raise not_supported(f"{where}.tool_calls", "tool calls are not supported by this server")
    content = message.content
    if isinstance(content, list):
        texts = []
        for j, part in enumerate(content):
            if part.type != "text":
                raise not_supported(f"{where}.content[{j}].type", f"only 'text' is supported, got {part.type!r}")
            if part.text is None:
                raise ApiError(
                    f"{where}.content[{j}].text: required when type is 'text'", param=f"{where}.content[{j}].text"
                )
            texts.append(part.text)
        content = "\n".join(texts)
    if content is None and message.role != "assistant":
        raise ApiError(f"{where}.content: must be a string or an array of text parts", param=f"{where}.content")
    chat = {"role": message.role, "content": content or ""}
    return chat if message.name is None else {**chat, "name": message.name}


def check_variables(variables: dict[str, Any] | None) -> None:
    """What a request may set in the model's chat template is small and flat: templates write it out as they like."""
    if variables is None:
        return
    name = "chat_template_kwargs"
    size = len(msgspec.json.encode(variables))
    if size > MAX_VARIABLES:
        raise ApiError(f"{name}: at most {MAX_VARIABLES:,} bytes of JSON, got {size:,}", param=name)
    values: list[Any] = [variables]
    for _ in range(MAX_DEPTH):
        values = [
            inner
            for value in values
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if any(isinstance(value, dict | list) for value in values):
        raise ApiError(f"{name}: objects and arrays may be {MAX_DEPTH} deep, and no deeper", param=name)
