"""Makes docs/demo.svg, the README's moving picture, from docs/demo.jsonl.gz: `python -m docs.animate`.

Each frame is the app's own picture. Styles are shared, and so is every line that is the same in several frames.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.pictures import DEMO, FOLDER, screen, steps_of

MOVING = FOLDER / "demo.svg"
SIZE = (120, 37)
SECONDS = 2.0  # of a frame
_STYLE = re.compile(r"\.(\S+-r\d+) \{ (.*?) \}")
_ELEMENT = re.compile(r"<(?:rect|text) [^>]*?/?>(?:[^<]*</text>)?")
_MATRIX = re.compile(r'<g class="[^"]*-matrix">(.*?)</g>', re.S)
_BACKS = re.compile(r'<g transform="translate\(9, 41\)"[^>]*>(.*?)<g class=', re.S)
_CLIP = re.compile(r' clip-path="[^"]*"')


@dataclass(frozen=True, slots=True)
class Shot:
    """A frame: keys that were pressed before it, the seconds since the switch (before it: negative), and its title."""

    after: float
    title: str
    keys: tuple[str, ...] = ()


_BEFORE = "before: static batching, memory reserved for each request"
_AFTER = "after: continuous batching, paged memory"
SHOTS = (
    Shot(-6.0, _BEFORE),
    Shot(-3.0, _BEFORE),
    Shot(-0.2, _BEFORE),
    Shot(0.0, "pressed: m and a"),
    Shot(2.0, _AFTER),
    Shot(5.0, _AFTER),
    Shot(9.0, _AFTER),
    Shot(13.0, _AFTER),
    Shot(13.0, "1: every block; o: the path of one request's block table", ("1", *["down"] * 3, "o")),
    Shot(13.5, "2: who was in each step's batch", ("2",)),
    Shot(14.0, "3: which blocks are shared by whom", ("3",)),
    Shot(14.5, "4: before and after the switch", ("4",)),
    Shot(99.0, _AFTER, ("e", "1", "escape")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", type=Path, default=DEMO)
    parser.add_argument("--out", type=Path, default=MOVING)
    options = parser.parse_args()
    asyncio.run(animate(options.recording, options.out))


async def animate(recording: Path, out: Path) -> None:
    """Draw every shot, and put them into one file."""
    steps = steps_of(recording)
    pictures = []
    async with screen(SIZE, recording) as shown:
        for shot in SHOTS:
            await shown.at(steps.after_switch(shot.after))
            await shown.press(*shot.keys)
            pictures.append(await shown.picture(shot.title))
    out.write_text(joined(pictures, SECONDS), encoding="utf-8")
    print(f"{out}: {len(pictures)} frames, {out.stat().st_size:,} bytes")


def joined(pictures: Sequence[str], seconds: float) -> str:
    """SVGs of one size as one that shows each for some seconds, over and over; without motion, the last."""
    styles: dict[str, str] = {}  # rules to class names
    lines: dict[str, str] = {}  # markup of a line to its id
    frames = []
    for picture in pictures:
        names = {
            f'class="{name}"': styles.setdefault(rule, f"s{len(styles)}") for name, rule in _STYLE.findall(picture)
        }
        short = {name: f'class="{style}"' for name, style in names.items()}
        used = [f'<use href="#{lines.setdefault(line, f"l{len(lines)}")}"/>' for line in _lines(picture, short)]
        title = re.findall(r'-title"[^>]*>(.*?)</text>', picture)[0]
        frames.append(
            f'<text class="title" x="50%" y="27">{title}</text><g transform="translate(9,41)">{"".join(used)}</g>'
        )
    return _document(pictures[0], styles, lines, frames, seconds)


def _lines(picture: str, names: dict[str, str]) -> list[str]:
    """The markup of a picture's lines, backgrounds first, in short."""
    by_row: dict[float, list[str]] = {}
    for part in (_BACKS, _MATRIX):
        found = part.search(picture)
        for element in _ELEMENT.findall(found[1] if found else ""):
            if element.endswith("\n</text>") or re.search(r">(&#160;|\s)*</text>$", element):
                continue
            short = re.sub(r'class="[^"]*"', lambda name: names.get(name[0], ""), _CLIP.sub("", element))
            place = re.search(r' y="([\d.]+)"', element)
            row = float(place[1]) if place else 0.0
            by_row.setdefault(round((row - (1.5 if element.startswith("<rect") else 20)) / 24.4), []).append(short)
    return ["".join(by_row[row]) for row in sorted(by_row)]


def _document(first: str, styles: dict[str, str], lines: dict[str, str], frames: list[str], seconds: float) -> str:
    box = re.findall(r'viewBox="([^"]*)"', first)[0]
    window = re.findall(r'<rect fill="#[^>]*rx="8"/>', first)[0]
    total, share = seconds * len(frames), 100 / len(frames)
    rules = "".join(f".{name}{{{rule.replace(' ', '')}}}" for rule, name in styles.items())
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" class="screen">',
            f"<style>.screen{{font:20px 'Fira Code','DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}}"
            ".title{font:bold 18px arial,sans-serif;fill:#c5c8c6;text-anchor:middle}"
            f"@keyframes shown{{0%{{visibility:visible}}{share:.4f}%,100%{{visibility:hidden}}}}"
            f".frame{{visibility:hidden;animation:shown {total:g}s step-end infinite}}"
            "@media(prefers-reduced-motion:reduce){.frame{animation:none}.frame:last-of-type{visibility:visible}}"
            f"{rules}</style>",
            "<defs>",
            *(f'<g id="{name}">{markup}</g>' for markup, name in lines.items()),
            "</defs>",
            window,
            *(
                f'<g class="frame" style="animation-delay:{at * seconds:g}s">{frame}</g>'
                for at, frame in enumerate(frames)
            ),
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    main()
