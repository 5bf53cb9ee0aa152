"""The README's pictures and its recording: whole, shown by the app as it is now, and asking no other host."""

from __future__ import annotations

import asyncio
import re
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import animate, pictures, screenshots
from tui.player import Player
from tui.session import Session

PICTURES = sorted(pictures.FOLDER.glob("*.svg"))
MOST_BYTES = 1_500_000


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_asks_nobody(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert "<script" not in text
    links = re.findall(r"""(?:url\(|href=|src=|@import)\s*["']?([^"')\s>]*)""", text)
    assert all(link.startswith("#") for link in links), links
    hosts = {host for host in re.findall(r"\w+://[^\s\"'<)]+", text) if "//127.0.0.1:" not in host}  # that is shown
    assert hosts <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}  # a namespace, and a comment
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


def test_every_line_of_the_moving_picture_is_there_once_and_used():
    text = animate.MOVING.read_text(encoding="utf-8")
    made = re.findall(r'<g id="(\w+)"', text)
    assert len(made) == len(set(made))
    assert set(re.findall(r'href="#(\w+)"', text)) == set(made)
    assert text.count('<g class="frame"') == len(animate.SHOTS)


async def test_the_recording_plays_to_its_end_without_a_note():
    player = Player(pictures.DEMO, inf)
    session = Session(player=player)
    running = asyncio.create_task(session.run())
    async with asyncio.timeout(60):
        while not player.ended:
            await asyncio.sleep(0.01)
    running.cancel()
    await session.close()
    assert player.complete, player.note
    assert pictures.DEMO.stat().st_size < 1_000_000


async def test_the_app_draws_both_sides_of_the_switch():
    steps = pictures.steps_of(pictures.DEMO)
    async with pictures.screen((120, 37)) as shown:
        await shown.at(steps.switch - 1)
        before = plain(await shown.picture())
        await shown.at(steps.switch)
        after = plain(await shown.picture())
    assert ("STATIC" in before, "RESERVED" in before) == (True, True)
    assert ("CONTINUOUS" in after, "PAGED" in after) == (True, True)


async def test_joined_pictures_say_what_each_said():
    steps = pictures.steps_of(pictures.DEMO)
    async with pictures.screen((80, 24)) as shown:
        made = []
        for step in (steps.switch, steps.switch + 1):
            await shown.at(step)
            made.append(await shown.picture(f"at {step}"))
    root = ElementTree.fromstring(animate.joined(made, 1.0))
    lines = {line.get("id"): "".join(line.itertext()) for line in root.iter() if line.get("id")}
    frames = [frame for frame in root.iter() if frame.get("class") == "frame"]
    for frame, picture, step in zip(frames, made, (steps.switch, steps.switch + 1), strict=True):
        uses = [lines[use.get("href")[1:]] for use in frame.iter() if use.get("href")]
        assert "".join("".join(uses).split()) == "".join(plain(picture).split())
        assert frame[0].text == f"at\xa0{step}"


def test_each_still_is_in_the_folder_and_has_its_size():
    for still in screenshots.STILLS:
        text = (pictures.FOLDER / still.name).read_text(encoding="utf-8")
        assert still.name.endswith(f"{still.size[0]}x{still.size[1]}.svg")
        assert f'-line-{still.size[1] - 2}"' in text


def test_there_are_pictures():
    assert {Path(animate.MOVING), *(pictures.FOLDER / still.name for still in screenshots.STILLS)} <= set(PICTURES)


def plain(picture):
    """A picture's words, without its title."""
    return "".join(
        text
        for element in ElementTree.fromstring(picture).iter()
        if element.tag.endswith("}text") and not element.get("class", "").endswith("-title")
        for text in element.itertext()
    )


async def test_a_cluster_is_drawn_from_its_recording():
    shown = plain(await pictures.cluster_picture(pictures.CLUSTER, (160, 48), ())).replace("\xa0", " ")
    assert "cluster of 2 workers" in shown
    assert "came to these workers" in shown
    assert pictures.CLUSTER.stat().st_size < 100_000
