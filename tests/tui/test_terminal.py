"""The look that suits a terminal, and themes in which every role tells itself."""

from __future__ import annotations

import pytest
from rich.color import Color
from rich.style import Style

from tui.look import ASCII, UNICODE
from tui.terminal import THEME_CHOICES, look
from tui.themes import COLOUR_BLIND, DARK, LIGHT, MONO, SIXTEEN, THEMES


@pytest.mark.parametrize(
    ("environment", "theme"),
    [
        ({"TERM": "xterm-256color"}, DARK),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, DARK),
        ({"TERM": "xterm"}, SIXTEEN),
        ({"TERM": "linux"}, SIXTEEN),
        ({"TERM": "screen"}, SIXTEEN),
        ({"TERM": "vt100"}, MONO),
        ({"TERM": "dumb"}, MONO),
        ({}, MONO),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, MONO),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, DARK),
        ({"TERM": "alacritty"}, DARK),
    ],
)
def test_the_theme_suits_the_terminal(environment, theme):
    assert look(environment, "auto", None, "utf-8").theme is theme


@pytest.mark.parametrize(
    ("term", "asked", "encoding", "glyphs"),
    [
        ("xterm", None, "utf-8", UNICODE),
        ("xterm", None, "UTF8", UNICODE),
        ("xterm", None, "ascii", ASCII),
        ("xterm", None, "", ASCII),
        ("linux", None, "utf-8", ASCII),
        ("linux", False, "utf-8", UNICODE),
        ("xterm", True, "utf-8", ASCII),
    ],
)
def test_glyphs_are_those_the_terminal_has(term, asked, encoding, glyphs):
    assert look({"TERM": term}, "dark", asked, encoding).glyphs == glyphs


def test_a_theme_that_was_asked_for_holds_but_for_no_color():
    assert look({"TERM": "dumb"}, "light", None, "utf-8").theme is LIGHT
    assert look({"TERM": "xterm", "NO_COLOR": "1"}, "light", None, "utf-8").theme is MONO
    assert set(THEME_CHOICES) == {"auto", *THEMES}


@pytest.mark.parametrize("theme", THEMES.values(), ids=lambda theme: theme.name)
def test_every_theme_styles_every_role(theme):
    assert theme.styles.keys() == DARK.styles.keys()
    for role in theme.styles:
        Style.parse(theme.style(role))
    with pytest.raises(KeyError):
        theme.style("no such role")


def test_monochrome_has_no_colour_and_sixteen_only_the_terminals_own():
    assert all(Style.parse(style).color is None for style in MONO.styles.values())
    for style in SIXTEEN.styles.values():
        colour = Style.parse(style).color
        assert colour is not None
        assert colour.number is not None
        assert colour.number < 16


def _luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    channels = [c / 255 for c in Color.parse(colour).get_truecolor()]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [DARK, LIGHT, COLOUR_BLIND], ids=lambda theme: theme.name)
@pytest.mark.parametrize("role", ["text", "value", "dim", "key", "good", "bad", "warn", "mode", "mode-old", "latency"])
def test_words_can_be_read(theme, role):
    """WCAG 2 asks for a contrast of 4.5 for text."""
    back, front = _luminance(theme.back), Style.parse(theme.style(role)).color
    high, low = max(back, _luminance(front.name)), min(back, _luminance(front.name))
    assert (high + 0.05) / (low + 0.05) >= 4.5
