"""Server-sent events, parsed as the bytes come in.

Works on bytes up to a whole event, so a character or a line end split across network reads cannot matter.
"""

from __future__ import annotations


class EventParser:
    """Collects the `data` of each event; comments and other fields are left out, as the standard says."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether an event has begun that has not ended."""
        return bool(self._rest or self._data)

    def feed(self, received: bytes) -> list[bytes]:
        """Take what one network read brought; return the data of every event it completes."""
        buffer = self._rest + received
        if not self._started and len(buffer) >= 3:
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
            self._started = True
        # A trailing \r may be half of \r\n: the next read tells.
        held_back = b"\r" if buffer.endswith(b"\r") else b""
        lines = buffer.removesuffix(held_back).splitlines(keepends=True)
        partial = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        self._rest = partial + held_back
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            content = line.rstrip(b"\r\n")
            if not content:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif content.startswith(b"data:"):
                self._data.append(content[5:].removeprefix(b" "))
            elif content.startswith(b"error:"):  # llama.cpp until 2025 told errors so
                self._data.append(b'{"error":' + content[6:].strip() + b"}")
            elif content == b"data":
                self._data.append(b"")
        return events
