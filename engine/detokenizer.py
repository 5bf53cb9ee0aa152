"""Token ids to text as they come: split UTF-8 is held back, and the cost of a token does not grow.

Every token of the supported tokenizers stands for some bytes, whatever is around it. So the text is those
bytes through an incremental UTF-8 decoder, which keeps at most three bytes back and cannot stall: not on
invalid bytes, and not on a U+FFFD that the model means.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer as HubTokenizer

WORD_BOUNDARY = "\u2581"  # SentencePiece's visible space
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's decoder is of a kind whose tokens are not bytes of their own."""


class TokenBytes:
    """The bytes of every token id, and which ids are special.

    `strips_space`: the decoder drops one space at the very start of a text (SentencePiece's dummy prefix).

    Raises:
        UnsupportedTokenizerError: for decoders other than byte-level and SentencePiece's.
    """

    def __init__(self, tokenizer: HubTokenizer) -> None:
        decoder = json.loads(tokenizer.to_str())["decoder"]
        steps = _steps(decoder)
        kinds = [step["type"] for step in steps]
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self.special: frozenset[int] = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.strips_space = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)
        if kinds == ["ByteLevel"]:
            to_bytes = _byte_level
        elif set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds:
            to_bytes = _sentencepiece
        elif kinds == ["Metaspace"]:
            to_bytes = _sentencepiece
            self.strips_space = steps[0].get("prepend_scheme") != "never"
        else:
            raise UnsupportedTokenizerError(
                f"the tokenizer's decoder is {'+'.join(kinds) or 'none'}; supported are ByteLevel and SentencePiece"
            )
        size = max(vocabulary.values(), default=-1) + 1
        self._bytes: list[bytes] = [b""] * size  # an id that no token has stands for nothing
        for token, token_id in vocabulary.items():
            self._bytes[token_id] = to_bytes(token)

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""


class Detokenizer:
    """One text, from its tokens one at a time.

    `continues` says that text came before (a prompt), so that a first space is a real one.
    """

    def __init__(self, table: TokenBytes, *, skip_special: bool = True, continues: bool = True) -> None:
        self._table = table
        self._skip = table.special if skip_special else frozenset()
        self._strip = table.strips_space and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is certain now, often that token's, sometimes none."""
        if token_id in self._skip:
            return ""
        return self._first(self._decoder.decode(self._table[token_id]))

    def flush(self) -> str:
        """The rest at the end: an incomplete character becomes U+FFFD."""
        return self._first(self._decoder.decode(b"", True))

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def detokenize(table: TokenBytes, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
    """The text of all `token_ids`, from the start of a text."""
    detokenizer = Detokenizer(table, skip_special=skip_special, continues=False)
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return [step for part in decoder["decoders"] for step in _steps(part)] if "decoders" in decoder else [decoder]


def _printable_bytes() -> dict[str, int]:
    """GPT-2's map of bytes to printable characters, read backwards."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _printable_bytes()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an added token, kept as it is written
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(WORD_BOUNDARY, " ").encode()
