"""A model folder's tokenizer and chat template, without transformers: light, quick to load, no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from tokenizers import Tokenizer as HubTokenizer

from engine.detokenizer import TokenBytes, UnsupportedTokenizerError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its batches are of one: threads of its own would only wait


class TokenizerError(Exception):
    """The folder's tokenizer cannot be used; the message says which file and why."""


class ChatTemplateError(ValueError):
    """The chat template is missing or refused these messages."""


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
        self._hub.no_padding()
        self._hub.no_truncation()

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
        try:
            return self._template.render(
                **{
                    **self._special_tokens,
                    **(variables or {}),
                    "messages": list(messages),
                    "add_generation_prompt": add_generation_prompt,
                    "tools": None,
                    "documents": None,
                }
            )
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program: it can fail in any way
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error

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
    def _template(self) -> jinja2.Template:
        if self._template_source is None:
            raise ChatTemplateError("the model has no chat template; use /v1/completions")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self._template_source)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not have."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


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
