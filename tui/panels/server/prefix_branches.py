"""Which colour a run of prefix blocks has: that of the branch it is in, and the trunk that nearly all share its own.

Where all prompts begin with one system prompt, colours by top-level prefix would tell nothing: there the branches are
what goes on from that beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from servers.kv_events import BlockHash
from servers.kv_tree import Run
from tui.look import HUES

TRUNK = -1
TRUNK_ROLE = "value"  # of no hue: that of a run that is lit would be near any
MOST = 3 / 4  # of what one endpoint, rank and group have: a run with more below it is the trunk, not a branch
SIGNS = 6  # hexadecimal digits of a hash, by which a run is called


def branches(runs: Sequence[Run], places: Sequence[str]) -> list[int]:
    """Of each run the run that its branch begins with, or TRUNK. Runs are depth first; `places` is who told of each.

    A trunk begins a prompt, and goes on as long as more than MOST of all blocks of its place are in and below it.
    """
    blocks: Counter[str] = Counter()
    for run, place in zip(runs, places, strict=True):
        blocks[place] += run.blocks
    out: list[int] = []
    above: list[int] = []
    for index, run in enumerate(runs):
        del above[run.depth :]
        parent = out[above[-1]] if above else TRUNK
        heavy = run.children > 0 and run.total > MOST * blocks[places[index]]
        out.append(parent if parent != TRUNK else TRUNK if heavy else index)
        above.append(index)
    return out


def roles(runs: Sequence[Run], branch: Sequence[int]) -> tuple[str, ...]:
    """Of each run the role of its colour: by the hash that its branch begins with, so that it keeps its colour while
    others come and go; but never that of the branch before it."""
    out: list[str] = []
    before = hue = -1
    for index, (run, first) in enumerate(zip(runs, branch, strict=True)):
        if first == index:
            wanted = _number(run.first) % HUES
            hue = (wanted + 1) % HUES if wanted == before else wanted
            before = hue
        out.append(TRUNK_ROLE if first == TRUNK else f"hue{hue}")
    return tuple(out)


def name(block: BlockHash, more: str, signs: int = SIGNS) -> str:
    """A run by the beginning of its first block's hash."""
    return f"#{digits(block)[:signs]}{more}"


def digits(block: BlockHash) -> str:
    """A hash as hexadecimal digits, 16 at most."""
    return (block.hex() if isinstance(block, bytes) else f"{block & (1 << 64) - 1:016x}")[:16]


def _number(block: BlockHash) -> int:
    return int.from_bytes(block[:8], "big") if isinstance(block, bytes) else block & (1 << 64) - 1
