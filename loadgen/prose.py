"""Readable chat messages of an exact number of tokens, written by a seeded generator without a tokenizer.

A text's tokens are its words, punctuation marks and line breaks: the vocabulary holds only words that are
one token of SmolLM2's tokenizer each (see `loadgen.words`).
"""

from __future__ import annotations

import random
import re

from loadgen import words
from loadgen.words import Subject

SHORTEST = 2
_LONGEST_CLOSING = max(words.CLOSINGS)
_PARAGRAPH = 90  # tokens after which a long message starts a new one
_BREAK = "\n\n"
_SLOT = re.compile(r"\{(\w+)\}")
_TOKEN = re.compile(r"[A-Za-z]+|[.,?!]|\n")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou]|honest)")


def count_tokens(text: str) -> int:
    """Tokens of a text written here."""
    return len(_TOKEN.findall(text))


def sentence(pattern: str, subject: Subject, rng: random.Random) -> str:
    """Fill a pattern's slots; no word is used twice."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        choices: tuple[str, ...] = words.SHARED.get(name) or getattr(subject, name)
        word = rng.choice([choice for choice in choices if choice not in used])
        used.add(word)
        return word

    return _ARTICLE.sub(r"\1n ", _SLOT.sub(fill, pattern))


def message(subject: Subject, tokens: int, rng: random.Random, follow_up: bool = False) -> str:
    """One user message of exactly `tokens` tokens: a question, details, a closing. `tokens` is at least 2."""
    if tokens < SHORTEST:
        raise ValueError(f"a message has at least {SHORTEST} tokens, not {tokens}")
    openings = words.FOLLOW_UPS if follow_up else subject.openings + words.OPENINGS
    text = ""
    left = tokens
    since_break = 0
    recent: list[str] = []
    while left > _LONGEST_CLOSING:
        patterns = subject.details + words.DETAILS if text else openings
        pattern = rng.choice([p for p in patterns if p not in recent])
        breaks = since_break > _PARAGRAPH and left > _PARAGRAPH
        glue = "" if not text else _BREAK if breaks else " "
        piece = glue + sentence(pattern, subject, rng)
        size = count_tokens(piece)
        if size > left - SHORTEST:
            openings = tuple(p for p in openings if p != pattern) or words.DETAILS
            continue
        text += piece
        left -= size
        since_break = 0 if breaks else since_break + size
        recent = [*recent[-14:], pattern]
    return text + (" " if text else "") + rng.choice(words.CLOSINGS[left])
