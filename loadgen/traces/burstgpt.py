"""BurstGPT's comma-separated values: times in seconds, lengths, and in its later version which session a request is of.

The format is that of the public repository HPMLL/BurstGPT. A record with 0 response tokens is a request that failed:
it was no load of the length it says, so it is left out, and counted.
"""

from __future__ import annotations

from msgspec import UNSET

from loadgen.traces.model import Session
from loadgen.traces.reading import Format, Reader, ReadOptions, Recent, TimeUnit
from loadgen.traces.rows import Columns, line_of, number, whole
from loadgen.traces.writing import Request, RequestWriter, lengths

TIME, INPUT, OUTPUT, TOTAL = "Timestamp", "Request tokens", "Response tokens", "Total tokens"
SESSION, ELAPSED, MODEL, LOG = "Session ID", "Elapsed time", "Model", "Log Type"
FAILED = "requests that failed (0 response tokens)"


class BurstGPTReader(Reader):
    """Each row is a session of one turn, named by its line; one session id's rows are a conversation."""

    format = Format.BURSTGPT
    time_field = TIME
    head = "the names of the columns"
    time_unit = TimeUnit.SECONDS

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._turns: Recent[str, int] = Recent()

    def begin(self, record: bytes) -> None:
        self._columns = Columns(record, (TIME, INPUT, OUTPUT), (SESSION, ELAPSED, MODEL, TOTAL, LOG))

    def read(self, line: int, record: bytes) -> Session | None:
        self.line = line
        row = self._columns.row(record)
        arrival = self.seconds(number(row, TIME))
        output = whole(row, OUTPUT, least=0)
        if output == 0:
            self.left_out[FAILED] += 1
            return None
        tokens = whole(row, INPUT)
        if TOTAL in row and whole(row, TOTAL, most=20_000_000) != tokens + output:
            raise ValueError(f"{TOTAL}: must be {tokens + output}, {INPUT} and {OUTPUT} together, got {row[TOTAL]}")
        labels: dict[str, str | int | float] = {name: row[name] for name in (MODEL, LOG) if name in row}
        if row.get(ELAPSED):
            labels[ELAPSED] = number(row, ELAPSED)
        conversation = row.get(SESSION)
        place = 0
        if conversation:
            place = self._turns[conversation] = self._turns.get(conversation, 0) + 1
        return Session(
            session=str(line),
            arrival=arrival,
            turns=(self.prompt(tokens, output, UNSET),),
            conversation=conversation or UNSET,
            turn=place or UNSET,
            labels=labels,
        )


class BurstGPTWriter(RequestWriter):
    """A row for each turn, in the columns of the later version. A session of several turns is a conversation."""

    format = Format.BURSTGPT
    holds = frozenset({"arrival", "at", "parent", "regenerates", "user_tokens", "output_tokens"}) | {
        "conversation",
        "turn",
        "labels",
    }

    def begin(self) -> bytes:
        return line_of(TIME, SESSION, ELAPSED, MODEL, INPUT, OUTPUT, TOTAL, LOG)

    def line(self, request: Request) -> bytes:
        session = request.session
        input_tokens, output_tokens = lengths(request, self.format)
        conversation = "" if session.conversation is UNSET else session.conversation
        if not conversation and len(session.turns) > 1:
            conversation = session.session
        if not {ELAPSED, MODEL, LOG}.issuperset(session.labels):
            self.losses.lose("labels")
        elapsed, model, log = (session.labels.get(name, "") for name in (ELAPSED, MODEL, LOG))
        time, total = round(request.time, 7), input_tokens + output_tokens
        return line_of(time, conversation, elapsed, model, input_tokens, output_tokens, total, log)
