"""Colours by role, one table for each theme. A theme names some tones; the roles of the screen are made of those."""

from __future__ import annotations

from dataclasses import dataclass

HUES = 10  # colours that tell neighbouring requests apart; a repeat is no error, ids say who is who


@dataclass(frozen=True, slots=True)
class Tones:
    """Colours in Rich's notation; `back` None leaves the terminal's own background."""

    back: str | None
    text: str
    strong: str
    dim: str
    faint: str
    key: str
    good: str
    bad: str
    warn: str
    mode: str
    old: str  # static, reserved: what was before
    cached: str
    shared: str
    reserved: str
    latency: str
    hues: tuple[str, ...]
    heat: tuple[str, ...]  # from hot to cold


@dataclass(frozen=True, slots=True)
class Theme:
    """A style for every role; `colours` off is weight alone."""

    name: str
    back: str | None
    styles: dict[str, str]
    ansi: bool = False  # the terminal's own 16 colours

    def style(self, role: str) -> str:
        """The Rich style definition of a role. Raises KeyError for a role that does not exist."""
        return self.styles[role]


def _styles(tones: Tones) -> dict[str, str]:
    t = tones
    return {
        "text": t.text,
        "dim": t.dim,
        "faint": t.faint,
        "border": t.faint,
        "title": f"bold {t.strong}",
        "value": f"bold {t.strong}",
        "key": f"bold {t.key}",
        "good": t.good,
        "warn": t.warn,
        "bad": f"bold {t.bad}",
        "mode": f"bold {t.mode}",
        "mode-old": f"bold {t.old}",
        "free": t.faint,
        "hole": t.bad,
        "cached": t.cached,
        "shared": f"bold {t.shared}",
        "copied": f"bold {t.strong}",
        "changed": f"bold {t.strong}",
        "reserved": t.reserved,
        "prefill": t.strong,
        "held": t.reserved,
        "waiting": t.dim,
        "end": f"bold {t.strong}",
        "waste": t.old,
        "speed": t.good,
        "prefill-speed": t.mode,
        "latency": t.latency,
        "queue": t.warn,
        "axis": t.dim,
        "switch": f"bold {t.shared}",
        "front": f"bold reverse {t.mode}",
        "cursor": f"bold reverse {t.strong}",
        "lit": f"bold {t.key}",
        "unlit": t.faint,
        "selected": f"bold {t.mode}",
        **{f"hue{index}": colour for index, colour in enumerate(t.hues)},
        **{f"heat{index}": colour for index, colour in enumerate(t.heat)},
    }


_DARK = Tones(
    back="#0d1117", text="#c9d1d9", strong="#e6edf3", dim="#7d8590", faint="#3d4550", key="#f0b429", good="#3fb950",
    bad="#ff7b72", warn="#f0b429", mode="#79c0ff", old="#ff9e64", cached="#56708f", shared="#f5c542",
    reserved="#a0604f", latency="#d2a8ff",
    hues=("#61afef", "#98c379", "#c678dd", "#56b6c2", "#d19a66",
          "#7f9cf5", "#4fb38a", "#d98ac2", "#8fb8de", "#b5bd68"),
    heat=("#f5c542", "#e8905a", "#c678dd", "#61afef", "#56708f"),
)  # fmt: skip

_LIGHT = Tones(
    back="#fbfbf8", text="#24292f", strong="#000000", dim="#626a73", faint="#c3c8ce", key="#8a5a00", good="#1a7f37",
    bad="#b3261e", warn="#8a5a00", mode="#0550ae", old="#b34700", cached="#9aabc0", shared="#946200",
    reserved="#b98377", latency="#7b3fc4",
    hues=("#1f6feb", "#3a7d2c", "#9333b8", "#0e7c86", "#9c5a14",
          "#4a5fd0", "#1d7a55", "#a8397f", "#33709f", "#6b7016"),
    heat=("#946200", "#b34700", "#9333b8", "#1f6feb", "#9aabc0"),
)  # fmt: skip

# The eight colours of Okabe and Ito (2008), and shades of them: told apart with every common colour blindness.
_COLOUR_BLIND = Tones(
    back="#101010", text="#d0d0d0", strong="#ffffff", dim="#8a8a8a", faint="#4a4a4a", key="#f0e442", good="#56b4e9",
    bad="#ff8c42", warn="#f0e442", mode="#56b4e9", old="#e69f00", cached="#5a6b78", shared="#f0e442",
    reserved="#a86a1e", latency="#cc79a7",
    hues=("#56b4e9", "#e69f00", "#cc79a7", "#00b48a", "#b3b3b3",
          "#2f8fd0", "#c98a1a", "#e5a5c8", "#5fd0b5", "#8fc7ea"),
    heat=("#f0e442", "#e69f00", "#cc79a7", "#56b4e9", "#5a6b78"),
)  # fmt: skip

_SIXTEEN = Tones(
    back=None, text="white", strong="bright_white", dim="bright_black", faint="bright_black", key="bright_yellow",
    good="bright_green", bad="bright_red", warn="yellow", mode="bright_cyan", old="bright_red", cached="cyan",
    shared="bright_yellow", reserved="red", latency="bright_magenta",
    hues=("bright_blue", "green", "magenta", "cyan", "yellow",
          "bright_green", "bright_magenta", "blue", "bright_cyan", "white"),
    heat=("bright_yellow", "bright_red", "magenta", "blue", "bright_black"),
)  # fmt: skip


def _plain(styles: dict[str, str]) -> dict[str, str]:
    """Weight alone, for NO_COLOR and for terminals without colours."""
    quiet = ("dim", "faint", "border", "free", "unlit", "waiting", "axis")
    return {
        role: "reverse" if "reverse" in style else "bold" if "bold" in style else "dim" if role in quiet else ""
        for role, style in styles.items()
    }


DARK = Theme("dark", _DARK.back, _styles(_DARK))
LIGHT = Theme("light", _LIGHT.back, _styles(_LIGHT))
COLOUR_BLIND = Theme("colour-blind", _COLOUR_BLIND.back, _styles(_COLOUR_BLIND))
SIXTEEN = Theme("16", None, _styles(_SIXTEEN), ansi=True)
MONO = Theme("mono", None, _plain(DARK.styles), ansi=True)

THEMES = {theme.name: theme for theme in (DARK, LIGHT, COLOUR_BLIND, SIXTEEN, MONO)}
