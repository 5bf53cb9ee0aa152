"""The rows of a tree whose closed nodes hide what is below them: which are shown, and where keys and the wheel lead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Rows:
    """The nodes that closed ones do not hide, and which of them are on the screen: `top` to `top + count`."""

    nodes: npt.NDArray[np.int64]
    selected: int | None  # a place in `nodes`
    top: int
    count: int

    @classmethod
    def of(cls, nodes: npt.NDArray[np.int64], index: int | None, top: int, follow: bool, count: int) -> Rows:
        """What `count` rows show of `nodes`, in order: from `top` on, or, where they `follow`, moved so far that node
        `index` is among them."""
        selected = None
        if index is not None:
            at = int(np.searchsorted(nodes, index))
            selected = at if at < len(nodes) and nodes[at] == index else None
        top = min(top, max(0, len(nodes) - count))
        if follow and selected is not None:
            top = max(min(top, selected), selected - count + 1)
        return cls(nodes, selected, max(0, top), count)

    @property
    def here(self) -> int:
        """The row that keys are about: the selected one, or else the first that is seen."""
        return self.top if self.selected is None else self.selected

    def moved(self, key: str) -> int | None:
        """The row that a key leads to, which may be beyond the ends; None: it leads nowhere."""
        at = self.selected
        return {
            "up": self.top if at is None else at - 1,
            "down": self.top if at is None else at + 1,
            "pageup": (at or 0) - self.count,
            "pagedown": (at or 0) + self.count,
            "home": 0,
            "end": len(self.nodes) - 1,
        }.get(key)

    def node(self, at: int) -> int:
        """The node in row `at`, or the nearest there is."""
        return int(self.nodes[max(0, min(at, len(self.nodes) - 1))])

    def scrolled(self, by: int) -> int:
        """The first row after the wheel."""
        return max(0, min(self.top + by, len(self.nodes) - self.count))
