"""What keys do: a check of each, pressed in a fresh app, and those checks that are the same on every screen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tui.themes import THEMES

Check = Callable[..., Awaitable[None]]  # of the screen and a key's name; of "r" also a folder to record in


class KeyCases(dict[str, Check]):
    """The check of each key, by its name."""

    def of(self, *names: str) -> Callable[[Check], Check]:
        """What follows is the check of these keys."""

        def keep(check: Check) -> Check:
            self.update(dict.fromkeys(names, check))
            return check

        return keep


EVERYWHERE = KeyCases()


@EVERYWHERE.of("q")
async def quits(screen: Any, key: str) -> None:
    await screen.pilot.press(key)
    await screen.pilot.pause()
    assert screen.app.return_value == 0


@EVERYWHERE.of("T")
async def cycles_themes(screen: Any, key: str) -> None:
    seen: list[Any] = []
    for name in (*list(THEMES)[1:], next(iter(THEMES))):
        await screen.press(key)
        assert f"theme: {name}" in screen.text("footer")
        strips = screen.strips()[:-1]
        assert strips not in seen  # every theme paints the whole screen again
        seen.append(strips)


@EVERYWHERE.of("left_parenthesis", "right_parenthesis")
async def draws_more_or_less_often(screen: Any, key: str) -> None:
    screen.app._frames = 10.0
    await screen.press(key)
    assert f"{5 if key == 'left_parenthesis' else 20} frames a second" in screen.text("footer")


@EVERYWHERE.of("left_square_bracket", "right_square_bracket")
async def has_no_speed(screen: Any, key: str) -> None:
    await screen.press(key)
    assert "only a recording has a speed" in screen.text("footer")


async def leaves_one_by_one(screen: Any, key: str, words: str, is_filtered: Callable[[], bool]) -> None:
    """Of rows that are filtered by some words: the help, the details, the filter, the pause, and then nothing more."""
    await screen.press("slash")
    await screen.answer(words)
    await screen.press("space", "i", "question_mark")
    for name in ("help", "inspect"):
        assert screen.widget(name).display
        await screen.press(key)
        assert not screen.widget(name).display
    assert is_filtered()
    await screen.press(key)
    assert not is_filtered()
    assert "paused" in screen.text("header")
    await screen.press(key)
    assert "paused" not in screen.text("header")
    await screen.press(key)
    assert screen.app.is_running
