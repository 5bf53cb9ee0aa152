"""Every figure on the screen is the engine's: read from the painted app, and held against the engine's own snapshots.

The load has switches, forks, aborts and preemptions. Each reader is also given the snapshot of another step, which it
must not accept: a panel that showed an older figure would not pass.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import pytest

from engine.protocol import Control, Record, Snapshot
from tui import controls, figures
from tui.panels import stays
from tui.panels.line import short_id

SIZES = [(80, 24), (120, 40), (160, 48), (200, 60), (64, 20)]
EVERY = 24  # records from a snapshot to the next
UNHELD = "·▒×▿"  # free, cached, too short, let go of just now
STATES = ("free", "reserved", "filling", "full", "shared", "cached")


@dataclass(frozen=True)
class Truth:
    """What the engine says of itself after a record, and that record, and the last one that had rows."""

    snapshot: Snapshot
    record: Record
    step: Record


@pytest.fixture(scope="module")
def load(simulated):
    """The engine's first snapshot, and the records up to each of its later ones, with what is true then."""
    first, *items = simulated.simulate(
        10 * EVERY,
        {
            0: Control(),
            70: Control(batching="static", allocation="reserved", max_num_seqs=24),
            130: Control(prefix_cache=False, max_num_batched_tokens=384, preempt="swap"),
            190: Control(scheduling_policy="shortest_prefill", preempt="recompute", chunked_prefill=False),
        },
        blocks=520,
        max_model_len=1600,
        rate=5.0,
        seed=11,
        aborts=0.1,
        host_blocks=160,
        follow=0.5,
        forked=0.25,
        snapshot_every=EVERY,
        check_invariants=False,
    )
    parts, records, step = [], [], None
    for item in items:
        if isinstance(item, Snapshot):
            parts.append((tuple(records), Truth(item, records[-1], step)))
            records = []
        else:
            records.append(item)
            step = item if item.rows else step
    assert any(record.preempted for part, _ in parts for record in part)
    return first, parts


@pytest.fixture
def shown(load, running):
    """What the app shows at each of the engine's snapshots, with the truth of that moment."""

    async def show(size, keys=()):
        first, parts = load
        out = []
        async with running(size, items=(first, *parts[0][0])) as screen:
            await screen.press(*keys)
            for at, (records, truth) in enumerate(parts):
                for record in records if at else ():
                    screen.app.session.feed._take(record)
                screen.app.draw_frame()
                await screen.settle()
                out.append((regions(screen), truth))
        return out

    return show


def regions(screen):
    """The lines of every panel as the terminal shows them."""
    painted = screen.painted()
    out = {}
    for place in screen.app._places:
        lines = painted[place.y : place.y + place.height]
        out[place.name.split("-")[0]] = [line[place.x : place.x + place.width] for line in lines]
    return out


def number(text):
    return int(text.replace(",", ""))


def after(label, lines):
    """The first figure after a label that begins a line, or None where there is no such line."""
    for line in lines:
        found = re.match(rf"[│ ]*{label} +([\d,]+)", line)
        if found:
            return number(found.group(1))
    return None


def share(part, whole):
    return figures.percent(part / whole if whole else None)


# Readers: each compares one panel with the truth, and returns how many figures it has read.


def read_header(lines, truth):
    first, second = lines
    snapshot, control = truth.snapshot, truth.snapshot.control
    read = 1
    assert number(re.search(r"step ([\d,]+)", first).group(1)) == snapshot.seq
    running = sum(state.status != "waiting" for state in snapshot.requests)
    oldest = figures.seconds(snapshot.queue.oldest_age)
    wanted = {
        r"up ([\d:]+)": figures.clock(snapshot.time - snapshot.engine.started),
        r"([\d,]+) blocks of 16": f"{snapshot.engine.num_blocks:,}",
        r"m (?:batching )?([A-Z]+)": control.batching.upper(),
        r"a (?:alloc )?([A-Z]+)": control.allocation.upper(),
        r"c cache (\w+)": "on" if control.prefix_cache else "off",
        r"batch (\d+/\d+)": f"{running}/{control.max_num_seqs}",
        r"queue ([\d,]+)": f"{snapshot.queue.length:,}",
        r"oldest ([\d.]+ m?s|[\d:]+)": oldest,
        r"s (?:policy )?(fcfs|priority|shortest prefill)": control.scheduling_policy.replace("_", " "),
        r"w preempt (\w+)": control.preempt,
        r"f fit (\w+)": control.reserved_fit,
        r"budget ([\d,]+)": f"{control.max_num_batched_tokens:,}",
        r"chunks (\w+)": "on" if control.chunked_prefill else "off",
    }
    for pattern, value in wanted.items():
        found = re.search(pattern, first + second)
        if found:
            assert found.group(1) == value, pattern
            read += 1
    assert read >= (6 if len(second) >= 80 else 4)
    return read


def read_blocks(lines, truth):
    snapshot, pool = truth.snapshot, truth.snapshot.pool
    legend = [number(text) for text in re.findall(r"\d[\d,]*", lines[-1])]
    assert legend == [getattr(pool, name) for name in STATES]
    total, top = snapshot.engine.num_blocks, lines[0]
    wanted = {
        "held": share(total - pool.free - pool.cached, total),
        "cached": share(pool.cached, total),
        "free": share(pool.free, total),
        "too short": f"{snapshot.waste.external // snapshot.engine.block_size:,}",
        "swap": share(snapshot.host_blocks, snapshot.engine.num_host_blocks),
    }
    read = len(legend)
    for name, value in wanted.items():
        found = re.search(rf"{name} ([\d.,]+(?: %)?)", top)
        if found:
            assert found.group(1) == value, name
            read += 1
    cells = Counter("".join(line[1:-1] for line in lines[1:-1]).replace(" ", ""))
    wide, rest = divmod(cells.total(), total)
    if not rest:  # each block has cells of its own
        hidden = wide * (pool.free + pool.cached) - sum(cells[glyph] for glyph in UNHELD)
        assert 0 <= hidden <= cells["◇"] + cells["◈"]  # a copy's mark is over what the block is
        read += 1
    return read


def read_sharing(lines, truth):
    ledger, engine = truth.snapshot.sharing, truth.snapshot.engine
    wanted = {
        r"tables hold": ledger.logical_blocks,
        r"in memory": ledger.physical_blocks,
        r"tokens [\d.,]+ %": ledger.found_tokens,
        r"forked": ledger.forked_tokens,
        r"copied": truth.snapshot.counters.copied_blocks,
        r"evicted [\d.,]+ %": ledger.evicted_tokens,
        r"answers": ledger.decoded_tokens,
        r"block tables hold": ledger.logical_blocks,
        r"blocks in memory": ledger.physical_blocks,
        r"blocks of the pool": engine.num_blocks,
        r"saved now": ledger.saved_blocks,
        r"prompt tokens looked up since the start": ledger.looked_up_tokens,
        r"found, not computed again": ledger.found_tokens,
        r"in blocks of prompts": ledger.found_tokens - ledger.decoded_tokens,
        r"in blocks with answers": ledger.decoded_tokens,
        r"of both, copied out of a part of a block": ledger.copied_tokens,
        r"missed: cached once, evicted since": ledger.evicted_tokens,
        r"shared with a parent by forks": ledger.forked_tokens,
        r"found when resumed after preemption": ledger.resumed_found_tokens,
    }
    found = {name: after(name, lines) for name in wanted}
    read = {name: value for name, value in found.items() if value is not None}
    assert read == {name: wanted[name] for name in read}
    text = "\n".join(lines)
    for pattern, value in {
        r"saved ([\d.,]+ %|—) ": share(ledger.saved_blocks, ledger.logical_blocks),
        r"tokens ([\d.,]+ %|—) ": share(ledger.found_tokens, ledger.looked_up_tokens),
        r"found, not computed again +[\d,]+ +([\d.,]+ %|—)": share(ledger.found_tokens, ledger.looked_up_tokens),
        r"saved [\d.,]+ % +([\d.,]+ \w+) ": figures.size(ledger.saved_bytes),
        r"saved now +[\d,]+ blocks, ([\d.]+ \w+)": figures.size(ledger.saved_bytes),
        r"this step and in all +(\d+) ": f"{len(truth.step.copies):,}",
        r"this step and in all +\d+ +([\d,]+)": f"{truth.snapshot.counters.copied_blocks:,}",
        r"without sharing, of this pool +([\d.,]+ %)": share(ledger.logical_blocks, engine.num_blocks),
    }.items():
        match = re.search(pattern, text)
        if match:
            assert match.group(1) == value, pattern
    return len(read)


def read_waste(lines, truth):
    snapshot = truth.snapshot
    ledger, counters, engine = snapshot.waste, snapshot.counters, snapshot.engine
    slots = engine.num_blocks * engine.block_size
    wanted = {
        "held": (ledger.held, share(ledger.held, slots)),
        "filled": (ledger.filled, share(ledger.filled, ledger.held)),
        "internal": (ledger.internal, share(ledger.internal, ledger.held)),
        "external": (ledger.external, share(ledger.external, slots)),
        "preempted": (counters.preemptions, None),
        "recomputed": (counters.recomputed_tokens, None),
        "swapped": (snapshot.host_blocks, None),
    }
    read = 0
    for name, (value, of) in wanted.items():
        found = after(name, lines)
        if found is not None:
            assert found == value, name
            read += 1
            line = next(line for line in lines if re.match(rf"[│ ]*{name} ", line))
            assert of is None or re.search(r"([\d.,]+ %|—)", line).group(1) == of, name
    assert read >= 2
    out = re.search(r"so far ([\d,]+) out", "\n".join(lines))
    assert out is None or number(out.group(1)) == counters.swapped_out_blocks
    return read


def read_batch(lines, truth):
    """The counts of the title, the context of every row, who waits and for how long, and where the step's time went."""
    snapshot, step = truth.snapshot, truth.step
    kinds = Counter(row.kind for row in step.rows)
    read = 0
    for count, kind in re.findall(r"(\d+) (decode|prefill|held|fork)", lines[0]):
        assert int(count) == kinds[kind], kind
        read += 1
    states = {short_id(state.request, 8): state for state in snapshot.requests}
    rows = [re.match(r"│ (\S+) +([\d,.]+(?: m?s)?) ", line) for line in lines]
    for name, figure in (row.groups() for row in rows if row and row.group(1) in states):
        state = states[name]
        if figure.endswith("s"):
            assert figure == figures.seconds(snapshot.time - state.arrived), name
        else:
            assert number(figure) == state.computed_tokens, name
        read += 1
    rest = re.search(r"and ([\d,]+) more requests? in the batch(?:, ([\d,]+) wait)?", "\n".join(lines))
    if rest:
        running = sum(state.status != "waiting" for state in snapshot.requests)
        listed = sum(1 for line in lines if (found := re.match(r"│ (\S+) ", line)) and found.group(1) in states)
        assert number(rest.group(1)) == running - listed
        assert rest.group(2) is None or number(rest.group(2)) == snapshot.queue.length
        read += 1
    for name, value in re.findall(r"(schedule|prepare|transfer|forward|sample|publish) ([\d.]+)", lines[-1]):
        assert value == f"{getattr(step.durations, name) * 1000:.1f}", name
        read += 1
    return read


def read_requests(lines, truth):
    """Every row, by the names over its columns."""
    snapshot = truth.snapshot
    states = {short_id(state.request, 36): state for state in snapshot.requests}
    heads = [
        (found.group(), found.start(), found.end()) for found in re.finditer(r"mean tok/s|of max|[\w.]+", lines[1])
    ]
    references = {block.block: block.references for block in snapshot.blocks}
    wanted = {
        "state": stays.doing,
        "prompt": lambda state: f"{state.prompt_tokens:,}",
        "cached": lambda state: "—" if state.status == "waiting" else f"{state.cached_tokens:,}",
        "gener.": lambda state: f"{state.num_tokens - state.prompt_tokens:,}",
        "of max": lambda state: f"{state.max_tokens:,}",
        "blocks": lambda state: f"{len(state.table):,}",
        "shared": lambda state: f"{sum(references[block] > 1 for block in state.table):,}",
        "TTFT": lambda state: "—" if state.first_token is None else figures.seconds(state.first_token - state.arrived),
        "preempted": lambda state: f"{state.preemptions:,}",
        "priority": lambda state: f"{state.priority:,}",
    }
    read = 0
    for line in lines[2:-1]:
        name = line[1:].split()[0] if line[1:].split() else ""
        if name not in states:
            continue
        for head, start, end in heads:
            if head in wanted:
                cell = line[start:].split()[0] if head == "state" else line[:end].rsplit("  ", 1)[-1].strip()
                assert cell == wanted[head](states[name]), (name, head)
                read += 1
    counts = Counter(stays.doing(state) for state in snapshot.requests)
    for count, doing in re.findall(r"(\d+) (prefill|decode|held|waiting|preempted|swapped)", lines[0]):
        assert int(count) == counts[doing], doing
    total = re.search(r"([\d,]+)(?: of |/)([\d,]+)", lines[0])
    assert number(total.group(2)) == len(snapshot.requests)
    return read


def read_control(lines, truth):
    control = truth.snapshot.control
    for one in controls.CONTROLS:
        line = next(line for line in lines if re.match(rf"│.{{3}}{one.name} ", line))
        text = controls.reads(one.field, getattr(control, one.field))
        assert re.match(rf"│.{{3}}{one.name} +{text} ", line), line
    return len(controls.CONTROLS)


def read_speed(lines, truth):
    """How long the last step took, where there is a line for it."""
    spent = truth.step.durations
    total = spent.schedule + spent.prepare + spent.transfer + spent.forward + spent.sample + spent.publish
    found = re.search(r"│ step ([\d.]+ m?s).*, forward ([\d.]+ %)", "\n".join(lines))
    assert found is None or found.groups() == (figures.seconds(total), share(spent.forward, total))
    return 0 if found is None else 2


READERS = {
    "header": read_header,
    "blocks": read_blocks,
    "sharing": read_sharing,
    "waste": read_waste,
    "batch": read_batch,
    "speed": read_speed,
}


@pytest.mark.parametrize("size", SIZES)
async def test_the_dashboard_tells_what_the_engine_says(shown, size):
    pictures = await shown(size)
    for name, read in READERS.items():
        if name not in pictures[0][0]:
            continue
        seldom = name == "speed" or (name == "batch" and size[0] < 160)  # names and bars, and few figures
        assert sum(read(lines[name], truth) for lines, truth in pictures) > 0 or seldom
        assert refusals(read, name, pictures) >= len(pictures) - 2 or seldom


def refusals(read, name, pictures):
    """How many pictures of a panel are refused as those of the snapshot before."""
    refused = 0
    for at, (lines, _) in enumerate(pictures):
        try:
            read(lines[name], pictures[at - 1][1])
        except AssertionError:
            refused += 1
    return refused


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("keys", "name", "read"), [("5", "requests", read_requests), ("6", "control", read_control)])
async def test_tables_tell_what_the_engine_says(shown, size, keys, name, read):
    pictures = await shown(size, keys)
    for lines, truth in pictures:
        assert read(lines[name], truth) >= 3
    assert refusals(read, name, pictures) >= (len(pictures) - 2 if name == "requests" else 3)


@pytest.mark.parametrize("keys", ["22", "33"])
async def test_large_panels_tell_what_the_engine_says(shown, keys):
    name = "batch" if keys == "22" else "sharing"
    for lines, truth in await shown((160, 48), keys):
        text = "\n".join(lines[name])
        if name == "batch":
            rows = re.search(r"([\d,]+) of ([\d,]+) rows full, ([\d,]+) prefill", text)
            kinds = Counter(row.kind for row in truth.step.rows)
            limit = truth.snapshot.control.max_num_seqs
            assert [number(one) for one in rows.groups()] == [kinds.total(), limit, kinds["prefill"]]
        else:
            ledger = truth.snapshot.sharing
            found = re.search(r"found ([\d,]+) of ([\d,]+) prompt tokens", text)
            assert [number(one) for one in found.groups()] == [ledger.found_tokens, ledger.looked_up_tokens]
            evicted = re.search(r"forked ([\d,]+) +evicted ([\d,]+)", text)
            assert [number(one) for one in evicted.groups()] == [ledger.forked_tokens, ledger.evicted_tokens]


async def test_a_frozen_screen_tells_what_the_engine_said_then(load, running):
    first, parts = load
    async with running((160, 48), items=(first, *(record for records, _ in parts for record in records))) as screen:
        for _, truth in reversed(parts):
            await screen.press("g")
            screen.app.screen.focused.value = str(truth.snapshot.seq)
            await screen.press("enter")
            lines = regions(screen)
            assert all(read(lines[name], truth) > 0 for name, read in READERS.items() if name != "speed")
