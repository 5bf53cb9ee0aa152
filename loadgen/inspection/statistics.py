"""Everything that is told of one trace, collected in one pass and constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from loadgen.inspection.burstiness import Burstiness, BurstinessMeter
from loadgen.inspection.cache_size import CacheCurve, CachePoint
from loadgen.inspection.columns import ColumnReader, Columns
from loadgen.inspection.distribution import Distribution, distribution
from loadgen.inspection.hit_rate import EXACT_PIECES, HitRate, IdealHits
from loadgen.inspection.openings import Opening, Openings
from loadgen.inspection.rate import RateOverTime, Series
from loadgen.inspection.sampling import Distinct, name_keys
from loadgen.metrics.histogram import Histogram
from loadgen.traces.model import Header, Session

ENGINE_BLOCK_SIZE = 16
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
MOST_CONVERSATIONS = 200_000  # that are counted exactly


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of prompts, messages and answers; None: no request has one.

    `inputs` are whole prompts, with the history and without the chat template's marks. Those with text are estimated,
    as are messages and outputs that the trace has only the text of. `over` is how many requests have more tokens, input
    and output, than a context.
    """

    requests: int
    inputs: Distribution | None
    messages: Distribution | None
    outputs: Distribution | None
    estimated_inputs: int
    estimated_messages: int
    estimated_outputs: int
    unknown_outputs: int
    together: Distribution | None
    over: tuple[tuple[int, int], ...]  # (context, requests)


class Sessions(msgspec.Struct, frozen=True):
    """Who asks: `thinks` are the seconds between an answer's end and the next turn of the session."""

    sessions: int
    turns: Distribution | None
    thinks: Distribution | None
    regenerating: int
    conversations: int | None  # that sessions of one turn are parts of; None: the trace names none
    conversations_error: float  # standard error of that; 0: exact
    ways: dict[str, int]  # requests by what they ask with


class System(msgspec.Struct, frozen=True):
    """A system prompt; its tokens are estimated."""

    name: str
    sessions: int
    tokens: int


class Sharing(msgspec.Struct, frozen=True):
    """What prompts have in common. `pieces` are blocks of hash ids, or 64 bytes of text.

    `new_tokens` are those that a cache that keeps everything would hold, of prompts alone.
    """

    hits: tuple[HitRate, ...]
    pieces: int
    new_pieces: int
    new_pieces_error: float
    new_tokens: int
    block_size: int | None  # of the trace; None: it has none
    blocks: int  # that hash ids name
    systems: tuple[System, ...]
    openers: int  # prompts that do not go on from an earlier turn, of which openings are told
    openings: tuple[Opening, ...]
    caches: tuple[CachePoint, ...]  # of blocks that hash ids name; none where some prompts have text

    @property
    def repeated_blocks(self) -> float | None:
        """Of the blocks that hash ids name, the share that an earlier prompt had after the same beginning."""
        if not self.blocks or self.blocks != self.pieces:
            return None
        return 1 - self.new_pieces / self.blocks


class Statistics(msgspec.Struct, frozen=True):
    """What one pass over a trace, or over its first sessions, told."""

    sessions: Sessions
    lengths: Lengths
    arrivals: Burstiness | None  # of sessions; None: the trace has no times
    rate: Series | None  # of requests whose time the trace holds
    timed_requests: int
    sharing: Sharing


class Collector:
    """Takes a trace's sessions in order, in batches."""

    def __init__(
        self,
        header: Header,
        engine_block_sizes: Sequence[int] = (ENGINE_BLOCK_SIZE,),
        contexts: Sequence[int] = CONTEXTS,
        capacity: int = EXACT_PIECES,
    ) -> None:
        self._header = header
        self._block_size = None if header.block_size is UNSET else header.block_size
        own = () if self._block_size is None else (self._block_size,)
        self._reader = ColumnReader(header)
        self._turns, self._thinks = Histogram(), Histogram()
        self._inputs, self._messages, self._outputs, self._together = (Histogram() for _ in range(4))
        self._arrivals, self._rate = BurstinessMeter(), RateOverTime()
        self._hits = IdealHits((*engine_block_sizes, *own), capacity)
        self._openings = Openings()
        self._caches = CacheCurve()
        self._conversations = Distinct(MOST_CONVERSATIONS)
        self._contexts = np.array(sorted(set(contexts)), dtype=np.int64)
        self._over = np.zeros(len(self._contexts), dtype=np.int64)
        self._estimated: Counter[str] = Counter()
        self._ways: Counter[str] = Counter()
        self._systems: Counter[str] = Counter()
        self._regenerating = self._in_conversations = self._blocks = self._timed = 0

    @property
    def requests(self) -> int:
        """How many have been taken."""
        return self._together.count

    def take(self, sessions: Sequence[Session]) -> None:
        """The next sessions."""
        columns = self._reader.read(sessions)
        self._thinks.extend(columns.thinks)
        for histogram, whole_numbers in (
            (self._turns, columns.turns),
            (self._inputs, columns.inputs),
            (self._messages, columns.messages),
            (self._outputs, columns.outputs),
            (self._together, columns.together),
        ):
            histogram.extend(whole_numbers.astype(np.float64))
        self._over += np.count_nonzero(columns.together[:, None] > self._contexts, axis=0)
        self._arrivals.add(columns.arrivals)
        self._rate.add(columns.moments)
        self._timed += len(columns.moments)
        for prompts in (columns.blocks, columns.texts):
            self._hits.take(prompts)
            self._openings.add(prompts)
        self._caches.take(columns.blocks)
        self._blocks += len(columns.blocks.keys)
        self._count_names(columns)

    def _count_names(self, columns: Columns) -> None:
        self._estimated += columns.estimated
        self._ways += columns.ways
        self._systems += columns.systems
        self._regenerating += columns.regenerating
        if columns.conversations:
            self._in_conversations += len(columns.conversations)
            self._conversations.add(name_keys(columns.conversations))

    def statistics(self) -> Statistics:
        """Of what has been taken so far."""
        return Statistics(
            sessions=self._session_figures(),
            lengths=self._length_figures(),
            arrivals=self._arrivals.burstiness(),
            rate=self._rate.series(),
            timed_requests=self._timed,
            sharing=self._sharing_figures(),
        )

    def _session_figures(self) -> Sessions:
        count = self._conversations.count
        return Sessions(
            sessions=self._turns.count,
            turns=distribution(self._turns),
            thinks=distribution(self._thinks),
            regenerating=self._regenerating,
            conversations=count.total if self._in_conversations else None,
            conversations_error=count.standard_error,
            ways=dict(self._ways),
        )

    def _length_figures(self) -> Lengths:
        return Lengths(
            requests=self.requests,
            inputs=distribution(self._inputs),
            messages=distribution(self._messages),
            outputs=distribution(self._outputs),
            estimated_inputs=self.requests - self._ways["input_tokens"],
            estimated_messages=self._estimated["messages"],
            estimated_outputs=self._estimated["outputs"],
            unknown_outputs=self.requests - self._outputs.count,
            together=distribution(self._together),
            over=tuple(zip(self._contexts.tolist(), self._over.tolist(), strict=True)),
        )

    def _sharing_figures(self) -> Sharing:
        hits = self._hits
        return Sharing(
            hits=hits.rates(),
            pieces=hits.pieces,
            new_pieces=hits.new_pieces.total,
            new_pieces_error=hits.new_pieces.standard_error,
            new_tokens=hits.new_tokens.total,
            block_size=self._block_size,
            blocks=self._blocks,
            systems=tuple(
                System(name, self._systems[name], self._reader.system_tokens(name)) for name in self._header.systems
            ),
            openers=self._openings.prompts,
            openings=self._openings.openings(),
            caches=self._caches.points(hits.pieces - hits.new_pieces.total) if self._blocks == hits.pieces else (),
        )
