"""Messages of a chat: as clients send them, and as chat templates take them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.server.errors import ApiError, not_supported

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None


def chat_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: contents are strings (text parts are joined by newlines)."""
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
