"""Servers on the screen, a fleet or one alone, with their line of time and their recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tui.attached import Said
from tui.focus import Focus
from tui.operator import Tell
from tui.prefix_texts import NOT_WATCHED, PAUSED, PLAYED, SWITCHED_OFF, PrefixTexts
from tui.recording_switch import RecordingSwitch
from tui.sources.past import SourcesScrub
from tui.sources.player import SourcePlayer
from tui.sources.source import Source
from tui.view import Frame, Kind, Link, Status


class Servers:
    """`selected`: the one that is shown alone, by its name; None: all of them, side by side."""

    moving: tuple[str, ...] = ()

    def __init__(
        self,
        sources: Sequence[Source],
        readonly: bool,
        tell: Tell,
        clock: Callable[[], float],
        recorder: RecordingSwitch[Any],
        target: str = "",
        player: SourcePlayer | None = None,
        no_steps: Callable[[], str] = lambda: "",
        unchecked: bool = False,
        texts: Mapping[str, PrefixTexts] | None = None,
    ) -> None:
        """`clock` is the sources'; `target` tells all of them in words, `no_steps` why steps are not shown instead,
        and `unchecked` whether certificates are not looked at. `texts`: by a server's name, of those that have KV
        events; None: they are kept off the screen."""
        self._texts = texts
        self._no_steps, self._unchecked = no_steps, unchecked
        self.sources = tuple(sources)
        self.selected: str | None = self.sources[0].name if len(self.sources) == 1 else None
        self.recorder = recorder
        self.player = player
        self.scrub = SourcesScrub(self.sources, tell, clock, player, lambda: self.source)
        self._readonly = readonly
        self._target = target

    @property
    def source(self) -> Source | None:
        """The one that is shown alone."""
        return next((source for source in self.sources if source.name == self.selected), None)

    @property
    def kind(self) -> Kind:
        return "fleet" if self.source is None else "server"

    @property
    def heard(self) -> int:
        shown = self.source
        return sum(source.items for source in self.sources) if shown is None else shown.items

    @property
    def standing(self) -> object:
        return self.selected, self.scrub.seq

    def frame(self, focus: Focus, said: Said) -> Frame:
        source = self.source
        status = Status(
            link=Link("live"),
            target=self._target if source is None else source.name,
            past=self.scrub.past,
            playing=self.player.status if self.player is not None else None,
            recording=self.recorder.words,
            readonly=self._readonly,
            notice=said.notice,
            notice_bad=said.bad,
            back=said.back,
            no_steps=self._no_steps(),
            unchecked=self._unchecked,
        )
        if source is None:
            return Frame(status, None, focus, fleet=self.scrub.fleet)
        return Frame(status, None, focus, server=self.scrub.server(source), prefixes=self._prefixes(source))

    def _prefixes(self, source: Source) -> PrefixTexts:
        """Texts are of now, and of what is heard live."""
        if self.player is not None:
            return PLAYED
        if self._texts is None:
            return SWITCHED_OFF
        return PAUSED if self.scrub.seq is not None else self._texts.get(source.name, NOT_WATCHED)

    async def read(self, focus: Focus) -> None:
        """Servers tell all they have without being asked."""
