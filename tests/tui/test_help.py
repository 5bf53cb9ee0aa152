"""The help says all it has to say at every width, in whole words."""

from __future__ import annotations

import pytest

from tui import controls
from tui.focus import PANELS, Focus
from tui.keys import GLOBAL
from tui.look import ASCII, Look
from tui.panels import block_map, help
from tui.panels.line import length, text_of
from tui.panels.modules import MODULES
from tui.view import Frame, Link, Status


@pytest.mark.parametrize("width", [38, 58, 90, 136])
@pytest.mark.parametrize("panel", PANELS)
def test_nothing_is_cut_off_at_any_width(panel, width):
    frame = Frame(Status(Link("connecting")), None, Focus(panel=panel))
    lines = help.lines(frame, width, Look())
    assert all(length(line) <= width for line in lines)
    said = " ".join(text_of(line) for line in lines).split()
    meant = [key.does for key in MODULES[panel].KEYS] + [means for _, _, means in block_map.legend(Look())]
    meant += [key.does for key in GLOBAL if "steps" in key.on and not key.replays and key.action[:6] != "switch"]
    meant += [controls.word(choice).split()[0] for keyed in controls.KEYED for choice in keyed.choices]
    for words in meant:
        for word in words.split():
            assert any(word in one for one in said), f"{word!r} of {words!r}"


@pytest.mark.parametrize("panel", PANELS)
def test_keys_can_be_read_in_ascii_and_stay_in_their_column(panel):
    for key in MODULES[panel].KEYS:
        assert key.keys.isascii()
        assert len(key.keys) <= 10
    frame = Frame(Status(Link("connecting")), None, Focus(panel=panel))
    assert all(text_of(line).isascii() for line in help.lines(frame, 38, Look(ASCII)))
