"""Keys that clients show: read from the command line, the environment or a file. Past this room only digests go on."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import logging
import os
import re
import select
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NewType

from engine.log import say

KeyDigest = NewType("KeyDigest", bytes)  # SHA-256 of a key
LEAST, MOST = 8, 512  # characters of a key
PIPE_SECONDS = 5.0  # that whoever writes to a pipe has to begin
MOST_FILE = 1 << 20  # bytes of a key file
_LEAST_HIDDEN = 4  # characters: what is shorter is a part of every message
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_COMMENT = re.compile(r"(^|\s)#.*")  # a key may have one too, but no space before it
_KEY_OPTION = re.compile(r"--a(?:p|pi|pi-.*|d|dm.*)?(?<!-file)")  # also shortened; those of files are given no key


def key(text: str) -> str:
    """A key as a header can carry it. Raises ArgumentTypeError, which does not tell the text."""
    if not LEAST <= len(text) <= MOST:
        raise argparse.ArgumentTypeError(f"a key must have {LEAST} to {MOST} characters, got {len(text)}")
    if not all("!" <= character <= "~" for character in text):
        raise argparse.ArgumentTypeError("a key must be of printable ASCII characters without spaces")
    return text


def digest(text: str) -> KeyDigest:
    return KeyDigest(hashlib.sha256(text.encode(errors="surrogateescape")).digest())


def read_keys(
    given: Sequence[str] | None, file: str | None, flag: str, source: str | None = None
) -> tuple[KeyDigest, ...]:
    """The keys of an option and of its file, which `source` named (None: the flag's `-file` option). Raises
    ArgumentTypeError that names the flag, or the source, and tells no key."""
    if given is not None and not given:  # an environment variable that somebody meant to fill
        raise argparse.ArgumentTypeError(f"{flag}: must be at least one key, got none (leave it out for no key)")
    place = f"{source or f'{flag}-file'} {file}"
    keys = [*(given or ()), *(_read_file(file, place) if file is not None else ())]
    return tuple(dict.fromkeys(map(digest, keys)))


def first_key(given: Sequence[str] | None, file: str | None, flag: str, source: str | None = None) -> str | None:
    """The key that a client shows: the first of an option's, or else of its file's, which `source` named (None: the
    flag's `-file` option). None: neither has one. Raises ArgumentTypeError as `read_keys` does."""
    if given:
        return given[0]
    return None if file is None else _read_file(file, f"{source or f'{flag}-file'} {file}")[0]


def _read_file(file: str, place: str) -> list[str]:
    """The keys in a file, one a line. Warns of a file that others may read or change."""
    try:
        # Not blocking: a pipe that nobody writes to would hold up the start.
        with open(
            Path(file).expanduser(), "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if stat.S_ISFIFO(mode) and not select.select([opened], [], [], PIPE_SECONDS)[0]:
                raise argparse.ArgumentTypeError(f"{place}: nobody has written to this pipe for {PIPE_SECONDS:g} s")
            os.set_blocking(opened.fileno(), True)
            data = opened.read(MOST_FILE + 1)
        if len(data) > MOST_FILE:
            raise argparse.ArgumentTypeError(f"{place}: holds more than {MOST_FILE:,} bytes")
        lines = data.decode().splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{place}: cannot read it: {error.strerror or error}") from None
    except (UnicodeDecodeError, RuntimeError) as error:  # the second: `~` of a user who does not exist
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise argparse.ArgumentTypeError(f"{place}: cannot read it: {reason}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if text := _COMMENT.sub("", line).strip():
            try:
                keys.append(key(text))
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"{place}, line {number}: {error}") from None
    if not keys:
        raise argparse.ArgumentTypeError(f"{place}: must hold at least one key, one a line")
    if stat.S_ISREG(mode) and mode & _OTHERS:
        say(f"{place}: other users of this machine may read or change it (chmod 600)", level=logging.WARNING)
    return keys


def is_one_of(shown: KeyDigest, digests: Sequence[KeyDigest]) -> bool:
    """Compares with all of them, in a time that does not tell which it was, or how much of one was right."""
    found = False
    for known in digests:
        found |= hmac.compare_digest(shown, known)
    return found


def name_of(shown: KeyDigest) -> str:
    """What a key is called in logs."""
    return f"key:{shown.hex()[:8]}"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that needs no key of ours: /proc and crash reports tell what it has."""
    return {name: text for name, text in environment.items() if not name.upper().endswith(("API_KEY", "ADMIN_KEY"))}


def hide_keys(message: str, words: Sequence[str]) -> str:
    """An error's text without what the command line `words` gives as keys: argparse tells words it has no use for."""
    secrets, hidden = [], False
    for word in words:
        option, _, value = word.partition("=")
        if option.startswith("--") and (value or re.fullmatch(r"--[a-z-]+", option)):
            hidden = _KEY_OPTION.fullmatch(option) is not None
            word = value
        if hidden and len(word) >= _LEAST_HIDDEN:
            secrets.append(word)
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, "...")
    return message
