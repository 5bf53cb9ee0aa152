"""The statistics of traces as the rows of tables: what each is called, and the cell of each trace. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.durations import clock
from loadgen.inspection.burstiness import Burstiness
from loadgen.inspection.distribution import PERCENTILES, Distribution
from loadgen.inspection.hit_rate import HitRate
from loadgen.inspection.inspecting import Inspection
from loadgen.inspection.statistics import Lengths, Sharing

NOTHING = "-"
LEAST_SHARE = 0.01  # of the prompts that an opening is told of
OF_THE_HITS = (0.5, 0.9, 0.99)

Row = tuple[str, ...]  # a label, and a cell for each trace
Cells = Callable[[Inspection], Sequence[tuple[str, str]]]  # labels, and the cells of one trace


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its title, its rows, and a line below on what words mean."""

    title: str
    rows: tuple[Row, ...]
    caption: str = ""


def number(value: float | None) -> str:
    """With as many digits as tell something."""
    if value is None:
        return NOTHING
    if value == int(value):
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:,.1f}" if size >= 10 else f"{value:.3g}"


def short(value: float) -> str:
    """A large number in three digits: 90.7 M."""
    for unit, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return number(value)


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else NOTHING


def counted(part: int, whole: int) -> str:
    """A count and its share."""
    return f"{part:,} ({share(part, whole)})" if part else "0"


def _about(text: str, estimated: bool) -> str:
    return f"~ {text}" if estimated else text


def _rows(parts: Sequence[Sequence[tuple[str, str]]]) -> Iterator[Row]:
    """The labels in the order of the trace that has most of them, each with the cell of every trace."""
    tables = [dict(part) for part in parts]
    labels = dict.fromkeys(label for table in sorted(tables, key=len, reverse=True) for label in table)
    for label in labels:
        yield label, *(table.get(label, NOTHING) for table in tables)


def _section(
    title: str,
    inspections: Sequence[Inspection],
    cells: Cells,
    caption: str = "",
) -> Section | None:
    parts = [cells(inspection) for inspection in inspections]
    return Section(title, tuple(_rows(parts)), caption) if any(parts) else None


def sections(inspections: Sequence[Inspection]) -> tuple[Section, ...]:
    """All tables but that of the lengths' distributions."""
    found = (
        _section("Trace", inspections, _trace_cells),
        _section("Arrivals of sessions", inspections, _arrival_cells, ARRIVALS),
        _section("Context", inspections, _context_cells(inspections)),
        _section("Prefixes", inspections, _sharing_cells, PREFIXES),
    )
    return tuple(section for section in found if section is not None)


ARRIVALS = (
    "Dispersion: variance / mean of the arrivals in windows; 1: as random as Poisson, more: bursts. "
    "Burstiness: that of --arrivals gamma with gaps that vary as much."
)
PREFIXES = (
    "Hit rate: tokens of full blocks that an earlier prompt had / tokens of all prompts, for a cache that forgets "
    "nothing; at least one token of each prompt is computed. Smaller caches forget what came least recently."
)


def _trace_cells(inspection: Inspection) -> list[tuple[str, str]]:
    sessions, lengths = inspection.statistics.sessions, inspection.statistics.lengths
    read = f"{inspection.size / 1e6:,.1f} MB"
    if not inspection.whole:
        read = f"{inspection.bytes_read / 1e6:,.1f} of {read}"
    cells = [
        ("format", inspection.format),
        ("read", read),
        ("sessions", number(sessions.sessions)),
        ("requests", number(lengths.requests)),
    ]
    if sessions.conversations is not None:
        error = f" ± {number(round(sessions.conversations_error))}" if sessions.conversations_error else ""
        cells.append(("conversations", number(sessions.conversations) + error))
    if sessions.turns and sessions.turns.max > 1:
        cells.append(("turns of a session, mean (most)", f"{sessions.turns.mean:.2f} ({sessions.turns.max:,.0f})"))
    if sessions.regenerating:
        cells.append(("sessions with a second answer", counted(sessions.regenerating, sessions.sessions)))
    if sessions.thinks and sessions.thinks.max:
        cells.append(("think time, p50/p90/p99 (s)", _percentiles(sessions.thinks)))
    for way, title in (("user", "messages"), ("request", "requests written out"), ("input_tokens", "lengths only")):
        if 0 < sessions.ways.get(way, 0) < lengths.requests:
            cells.append((f"  {title}", counted(sessions.ways[way], lengths.requests)))
    cells += [
        ("input tokens", _total(lengths.inputs, lengths.estimated_inputs)),
        ("output tokens", _total(lengths.outputs, lengths.estimated_outputs)),
    ]
    if lengths.unknown_outputs:
        cells.append(("requests without an output length", counted(lengths.unknown_outputs, lengths.requests)))
    if inspection.bad_lines:
        cells.append(("bad lines, skipped", number(inspection.bad_lines)))
    cells += [(f"left out: {what}", number(count)) for what, count in inspection.left_out.items()]
    return cells


def _total(values: Distribution | None, estimated: int) -> str:
    return _about(short(values.total), estimated > 0) if values else NOTHING


def _percentiles(values: Distribution, names: Sequence[str] = ("p50", "p90", "p99")) -> str:
    return "/".join(number(values.percentiles[name]) for name in names)


def _arrival_cells(inspection: Inspection) -> list[tuple[str, str]]:
    arrivals = inspection.statistics.arrivals
    if arrivals is None:
        return []
    lengths, sessions = inspection.statistics.lengths, inspection.statistics.sessions.sessions
    cells = [
        ("from the first to the last", clock(arrivals.seconds)),
        ("sessions/s", number(arrivals.rate)),
    ]
    if lengths.requests != sessions:
        timed = inspection.statistics.timed_requests
        cells.append(("requests whose time is known", counted(timed, lengths.requests)))
    if arrivals.rate is not None:  # as sessions/s, of which the last one's time has no end either
        for title, values, estimated in (
            ("input", lengths.inputs, lengths.estimated_inputs),
            ("output", lengths.outputs, lengths.estimated_outputs),
        ):
            told = NOTHING if values is None else number(values.total / arrivals.arrivals * arrivals.rate)
            cells.append((f"{title} tokens/s", _about(told, estimated > 0)))
    cells.append(("at the moment of the one before", counted(arrivals.at_once, arrivals.arrivals)))
    if arrivals.gaps:
        cells += _gap_cells(arrivals.gaps, arrivals)
    for window in arrivals.windows:
        label = f"dispersion, {window.seconds:g} s (most arrivals)"
        cells.append((label, f"{number(window.dispersion)} ({window.most:,})"))
    return cells


def _gap_cells(gaps: Distribution, arrivals: Burstiness) -> list[tuple[str, str]]:
    return [
        ("gap, p50/p90/p99 (s)", _percentiles(gaps)),
        ("gaps' variation (std / mean)", number(gaps.variation)),
        ("burstiness", number(arrivals.gamma)),
    ]


def _context_cells(inspections: Sequence[Inspection]) -> Cells:
    """Up to the first context that no request of any trace is longer than."""
    longest = max(
        together.max for inspection in inspections if (together := inspection.statistics.lengths.together) is not None
    )

    def cells(inspection: Inspection) -> list[tuple[str, str]]:
        lengths = inspection.statistics.lengths
        estimated = lengths.estimated_inputs + lengths.estimated_outputs > 0
        contexts = [context for context, _ in lengths.over]
        shown = next((number for number, context in enumerate(contexts, 1) if longest <= context), len(contexts))
        return [
            (f"over {context:,} tokens, in and out", _about(counted(over, lengths.requests), estimated))
            for context, over in lengths.over[:shown]
        ]

    return cells


def _sharing_cells(inspection: Inspection) -> list[tuple[str, str]]:
    sharing, lengths = inspection.statistics.sharing, inspection.statistics.lengths
    estimated = lengths.estimated_inputs > 0
    if not sharing.pieces:
        return [(_hit_label(hit), "not told") for hit in sharing.hits]
    cells = []
    for hit in sharing.hits:
        rate = f"{hit.rate:.1%}"
        if hit.standard_error:
            rate += f" ± {2 * hit.rate_error:.1%}"
        cells.append((_hit_label(hit), _about(rate, estimated or hit.standard_error > 0)))
    sampled = sharing.new_pieces_error > 0
    if sharing.repeated_blocks is not None:
        repeated = _about(f"{sharing.repeated_blocks:.1%}", sampled)
        cells.append((f"blocks of {sharing.block_size:,} that came before", repeated))
    cells.append(("different tokens in all prompts", _about(short(sharing.new_tokens), estimated or sampled)))
    cells += _cache_cells(sharing)
    for system in sharing.systems:
        sessions = counted(system.sessions, inspection.statistics.sessions.sessions)
        cells.append((f"system prompt {system.name}, ~ {system.tokens:,} tokens", sessions))
    cells += _opening_cells(sharing, estimated)
    return cells


def _hit_label(hit: HitRate) -> str:
    return f"ideal hit rate, blocks of {hit.block_size:,}"


def _cache_cells(sharing: Sharing) -> list[tuple[str, str]]:
    """The least powers of two of blocks with which a cache finds a good part of what there is to find."""
    if not sharing.caches or sharing.block_size is None:
        return []
    ideal = sharing.caches[-1].found
    cells = []
    for part in OF_THE_HITS:
        enough = next(point for point in sharing.caches if point.found >= part * ideal)
        cells.append((f"  cache for {part:.0%} of it (tokens)", f"~ {short(enough.blocks * sharing.block_size)}"))
    return cells


def _opening_cells(sharing: Sharing, estimated: bool) -> list[tuple[str, str]]:
    """The longest beginning that so many prompts share, for each number of them."""
    longest = {opening.prompts: opening.tokens for opening in sharing.openings}
    return [
        (f"first {_about(f'{tokens:,}', estimated)} tokens in common", counted(prompts, sharing.openers))
        for prompts, tokens in longest.items()
        if prompts >= LEAST_SHARE * sharing.openers
    ]


def length_columns(wide: bool) -> tuple[str, ...]:
    """The statistics of a distribution that fit."""
    names = tuple(f"p{percent}" for percent in PERCENTILES)
    return ("mean", "std", "min", *names, "max") if wide else ("mean", "p10", "p50", "p90", "p99", "max")


def length_rows(inspections: Sequence[Inspection], columns: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Distributions of lengths; those of several traces are below the name of what they have in common."""
    rows: list[Row] = []
    for kind in ("input", "message", "output", "input + output"):
        found = [_lengths_of(inspection.statistics.lengths, kind) for inspection in inspections]
        if len(inspections) > 1 and any(values for values, _ in found):
            rows.append((kind, *[""] * len(columns)))
        for (values, estimated), name in zip(found, names, strict=True):
            if values is not None:
                label = kind if len(inspections) == 1 else f"  {name}"
                cells = [number(round(values.statistic(column), 1)) for column in columns]
                rows.append((f"{label} ~" if estimated else label, *cells))
    return rows


def _lengths_of(lengths: Lengths, kind: str) -> tuple[Distribution | None, bool]:
    """The distribution of a kind of length, and whether it is estimated by the texts' lengths."""
    if kind == "input":
        return lengths.inputs, lengths.estimated_inputs > 0
    if kind == "message":
        return lengths.messages, lengths.estimated_messages > 0
    if kind == "output":
        return lengths.outputs, lengths.estimated_outputs > 0
    return lengths.together if lengths.outputs else None, lengths.estimated_inputs + lengths.estimated_outputs > 0
