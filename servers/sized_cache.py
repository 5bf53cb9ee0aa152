"""What was made of texts that come again at every look, kept up to so many bytes: strangers' texts have any length."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Generic, TypeVar

from servers.terms import Labels

MOST_BYTES = 16 << 20  # of each cache, about
ENTRY_BYTES = 200  # of an entry, and of a label besides its two texts, about

Key = TypeVar("Key")
Made = TypeVar("Made")


class SizedCache(dict[Key, Made], Generic[Key, Made]):
    """Asked by `cache[key]`. `size` is about how many bytes a key and what was made of it take.

    A full one begins anew, which costs less than to remember what was asked last: what comes again is soon there.
    """

    def __init__(self, make: Callable[[Key], Made], size: Callable[[Key, Made], int]) -> None:
        super().__init__()
        self._make = make
        self._size = size
        self.bytes = 0

    def __missing__(self, key: Key) -> Made:
        """Raises what making it raises; that is not kept."""
        made = self._make(key)
        size = ENTRY_BYTES + self._size(key, made)
        if self.bytes + size > MOST_BYTES:
            self.clear()
            self.bytes = 0
        if size <= MOST_BYTES:
            self[key] = made
            self.bytes += size
        return made


def bytes_of(labels: Labels) -> int:
    """About, with each text counted as if nobody else had it."""
    return sum(ENTRY_BYTES + getsizeof(name) + getsizeof(value) for name, value in labels)
