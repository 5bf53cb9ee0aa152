"""A model folder's tokenizer and chat template, without transformers: light, quick to load, no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HubTokenizer

from engine.chat_template import ChatTemplate, ChatTemplateError
from engine.detokenizer import TokenBytes, UnsupportedTokenizerError

CACHED_WORDS = 2000
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its batches are of one: threads of its own would only wait


class TokenizerError(Exception):
    """The folder's tokenizer cannot be used; the message says which file and why."""


class Tokenizer:
    """Text to ids and back, and chats to prompts, as transformers does it for the same folder.

    Raises:
        TokenizerError: a file is missing or corrupt, or the decoder is of an unsupported kind.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{folder} has no tokenizer.json")
        try:
            self._hub = HubTokenizer.from_file(str(path))
            self._config = _read_config(folder / "tokenizer_config.json")
            self._template_source = _read_template(folder, self._config)
            self.table = TokenBytes(self._hub)
        except UnsupportedTokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from error
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"cannot read the tokenizer in {folder}: {error}") from error
        self._bound_cache()
        self._hub.no_padding()
        self._hub.no_truncation()

    def _bound_cache(self) -> None:
        """The library remembers how it split the first 10,000 words of up to 256 characters, some 100 bytes a token:
        where words are whole texts, more than 100 MiB."""
        resize = getattr(self._hub.model, "_resize_cache", None)  # as it has it since 0.21; others remember nothing
        if resize is not None:
            resize(CACHED_WORDS)

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    @cached_property
    def longest_token(self) -> int:
        """The most bytes that a token stands for."""
        return max((len(self.table[token_id]) for token_id in range(self.vocab_size)), default=1)

    # Of the library's calls only those for batches let other threads run meanwhile.

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        (encoding,) = self._hub.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        (text,) = self._hub.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token_text(self, token_id: int) -> str:
        """One token on its own; bytes that are no whole character show as U+FFFD."""
        return self.table[token_id].decode(errors="replace")

    def encode_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt of a chat.

        Raises:
            ChatTemplateError: the model has no template, or it refused the messages (its words are passed on).
        """
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        return self.encode(text, add_special_tokens=add_special_tokens)

    def render_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        return self._template.render(
            {
                **self._special_tokens,
                **(variables or {}),
                "messages": list(messages),
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
            }
        )

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        tokens = {}
        for name, value in self._config.items():
            if name.endswith("_token"):
                content = value.get("content") if isinstance(value, dict) else value
                if isinstance(content, str):
                    tokens[name] = content
        return tokens

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._template_source is None:
            raise ChatTemplateError("the model has no chat template; use /v1/completions")
        return ChatTemplate(self._template_source)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{path.name} does not hold a JSON object")
    return config


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
