"""How many may read one stream at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.server.errors import ApiError


class Readers:
    """Of `what`, up to `most` at a time (--max-step-readers)."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """While it reads. Raises ApiError (429) where there are as many already."""
        if self._count >= self._most:
            what = f"{self._most} readers of {self._what} are all that are taken at a time (--max-step-readers)"
            raise ApiError(what, status=429, code="too_many_readers", headers={"Retry-After": "5"})
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
