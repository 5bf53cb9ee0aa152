"""What a recording leaves out of what was heard, for it may be sent to strangers: keys, texts, people's folders.

A name that is replaced is replaced by the same one everywhere, so that what belongs together still does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from servers.reading import lines_known
from tui.sources.items import Failed, Item, KvLink, KvMessage, KvState, Scrape, Slots, SourceHead

LEFT_OUT = "…"
LEAST_SECRET = 4  # characters; a shorter one would be found everywhere
LONGEST_REASON = 300  # characters
_HASHES = frozenset({"block_hashes", "parent_block_hash", "hash", "removed"})  # fields that hold names of blocks
_HASH = re.compile(r"-?[0-9]{1,80}|x[0-9a-f]{0,256}")
_TOKENS = frozenset({"token_ids", "opening", "extra_keys", "prompt", "text"})  # fields that hold what somebody wrote
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r'\\([\\"n])')  # before others a backslash is one
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+")
_ROOTED = re.compile(r"(file:)?(/|~|\.{1,2}[/\\]|[A-Za-z]:[\\/]|\\\\)")
_IN_TEXT = re.compile(
    r"(?<![\w/.~-])(?:~[\w.-]*/|/(?:[^\s/'\"<>:,;()]+/){2}|[A-Za-z]:\\"
    r"|/(?:home|Users|root|mnt|data|srv|opt|tmp|var|etc|media|run|private|Volumes)/)[^\s'\"<>:,;()]*"
)
_CREDENTIAL = re.compile(r"(?i)\b(bearer|basic)\s+\S+|\bsk-[\w-]{6,}")

T = TypeVar("T")


class Redaction:
    """Of one recording. `secrets` are keys and the like that are known: wherever they turn up, they are left out."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= LEAST_SECRET}, key=len, reverse=True)
        self._secret = re.compile("|".join(map(re.escape, known))) if known else None
        self._names: dict[str, str] = {}  # what stands for a path
        self._taken: dict[str, str] = {}  # and which path has taken it

    def of(self, item: Item) -> Item:
        """The item as it may be written down."""
        match item:
            case SourceHead():
                return msgspec.structs.replace(
                    item, name=self.words(item.name), url=self._url(item.url), version=self.words(item.version)
                )
            case Scrape():
                return msgspec.structs.replace(item, text=self._page(item.text))
            case Failed():
                return msgspec.structs.replace(item, reason=self.words(item.reason))
            case KvLink():
                endpoint, detail = self._endpoint(item.endpoint), self.words(item.detail)
                return msgspec.structs.replace(item, endpoint=endpoint, detail=detail)
            case KvMessage():
                return msgspec.structs.replace(
                    item, endpoint=self._endpoint(item.endpoint), payload=self._values(item.payload)
                )
            case KvState():
                return msgspec.structs.replace(
                    item, endpoint=self._endpoint(item.endpoint), state=self._values(item.state)
                )
            case Slots():
                return item

    def _page(self, text: str) -> str:
        """The lines that are read, without paths and keys in their labels."""
        return _LABEL.sub(self._label, lines_known(text))

    def _label(self, found: re.Match[str]) -> str:
        value = _ESCAPED.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], found[2])
        shown = self._name(value)
        if shown == value:
            return found[0]
        escaped = shown.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return f'{found[1]}="{escaped}"'

    def _name(self, value: str) -> str:
        """Of a model or an adapter: a hub's id stays, of a path the last part, which no other path may have."""
        value = self._without_secrets(value)
        if not (_ROOTED.match(value) or value.count("/") > 1 or "\\" in value):
            return value
        known = self._names.get(value)
        if known is None:
            last = re.split(r"[/\\]", value.rstrip("/\\"))[-1] or LEFT_OUT
            known, number = last, 2
            while self._taken.setdefault(known, value) != value:
                known, number = f"{last} ({number})", number + 1
            self._names[value] = known
        return known

    def _url(self, url: str) -> str:
        """Without user, query and fragment."""
        try:
            parts = urlsplit(url)
            port = "" if parts.port is None else f":{parts.port}"
        except ValueError:
            return LEFT_OUT
        if not parts.hostname:
            return self._name(url)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return self._without_secrets(f"{parts.scheme}://{host}{port}{parts.path}")

    def _endpoint(self, endpoint: str) -> str:
        scheme, _, place = endpoint.partition("://")
        return f"ipc://{self._name(place)}" if scheme == "ipc" else self._url(endpoint)

    def words(self, text: str) -> str:
        """Of a person's or a program's words: URLs and paths in them, and what looks like a key."""
        text = _URL.sub(lambda found: self._endpoint(found[0]), text)
        text = _IN_TEXT.sub(lambda found: self._name(found[0]), text)
        return self._without_secrets(_CREDENTIAL.sub(LEFT_OUT, text))[:LONGEST_REASON]

    def _values(self, value: T) -> T:
        """Builtins without the fields that hold what somebody wrote.

        Names of blocks stay as they are: a short secret is found in some of them by chance, and a tree of others is
        none.
        """
        if isinstance(value, dict):
            return {
                name: one if name in _HASHES and _are_hashes(one) else self._values(one)
                for name, one in value.items()
                if name not in _TOKENS
            }  # type: ignore[return-value]
        if isinstance(value, list | tuple):
            return [self._values(one) for one in value]  # type: ignore[return-value]
        return self._name(value) if isinstance(value, str) else value  # type: ignore[return-value]

    def _without_secrets(self, text: str) -> str:
        return self._secret.sub(LEFT_OUT, text) if self._secret else text


def _are_hashes(value: object) -> bool:
    """Whether they are written as `servers.kv_events` writes hashes."""
    hashes = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, int | None) or (isinstance(one, str) and _HASH.fullmatch(one)) for one in hashes)
