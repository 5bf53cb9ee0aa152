"""Block arithmetic over the lengths of requests: what they hold, what stays empty, and what a block size costs."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from engine.kv_manager import blocks_for

BLOCK_SIZES = tuple(1 << power for power in range(10))  # 1 .. 512
TABLE_ENTRY = 4  # bytes of a block's number in a table, on the device (int32)


class Lengths(msgspec.Struct, frozen=True):
    """(prompt, output) tokens of requests. `typical`: one pair that stands for lengths around it, no more exact."""

    requests: tuple[tuple[int, int], ...]
    typical: bool


class Usage(msgspec.Struct, frozen=True):
    """Means over requests: `tokens` each, in `blocks` of `block_size`, of which `empty` slots stay empty."""

    block_size: int
    tokens: Fraction
    blocks: Fraction

    @property
    def empty(self) -> Fraction:
        return self.blocks * self.block_size - self.tokens

    @property
    def fragmentation(self) -> Fraction:
        """Empty slots as a share of the tokens."""
        return self.empty / self.tokens


def at_end(lengths: Lengths, block_size: int) -> Usage:
    """What requests hold at their longest, one as likely as another."""
    totals = [prompt + output for prompt, output in lengths.requests]
    blocks = sum(blocks_for(total, block_size) for total in totals)
    return Usage(block_size, Fraction(sum(totals), len(totals)), Fraction(blocks, len(totals)))


def own_blocks(lengths: Lengths, block_size: int, shared_tokens: int = 0) -> Fraction:
    """Blocks that a running request holds alone at its longest, each as likely as it has decode steps.

    So a long answer, which runs longer, counts for more. A prefix of `shared_tokens` is found in full blocks, but for
    the prompt's last token, which is always computed.
    """
    total = weights = 0
    weigh_steps = any(output for _, output in lengths.requests)
    for prompt, output in lengths.requests:
        weight = output if weigh_steps else 1
        found = min(shared_tokens, prompt - 1) // block_size
        total += weight * (blocks_for(prompt + output, block_size) - found)
        weights += weight
    return Fraction(total, weights)


def while_running(lengths: Lengths, block_size: int) -> Usage:
    """What requests hold at a decode step, each step of each request as likely as another.

    A long answer is seen running more often than a short one. Requests without an answer are seen at their end.
    A typical pair's last block is as likely to end at one slot as at another: (block_size - 1) / 2 are empty; but it
    has one block at least.
    """
    if not any(output for _, output in lengths.requests):
        return at_end(lengths, block_size)
    steps = sum(output for _, output in lengths.requests)
    tokens = sum(output * prompt + output * (output + 1) // 2 for prompt, output in lengths.requests)
    mean = Fraction(tokens, steps)
    if lengths.typical:
        return Usage(block_size, mean, max(Fraction(1), (mean + Fraction(block_size - 1, 2)) / block_size))
    blocks = sum(
        _blocks_up_to(prompt + output, block_size) - _blocks_up_to(prompt, block_size)
        for prompt, output in lengths.requests
    )
    return Usage(block_size, mean, Fraction(blocks, steps))


def _blocks_up_to(tokens: int, block_size: int) -> int:
    """The sum of `blocks_for(t)` over t = 1 .. tokens."""
    whole, rest = divmod(tokens, block_size)
    return block_size * whole * (whole + 1) // 2 + rest * (whole + 1)


class Sharing(msgspec.Struct, frozen=True):
    """`sessions` that begin with the same `tokens` and go on apart: the full blocks of these are held once.

    The `left_over` tokens are in each session's own next block, beside the first of its own.
    """

    sessions: int
    tokens: int
    block_size: int

    @property
    def shared_blocks(self) -> int:
        return self.tokens // self.block_size

    @property
    def left_over(self) -> int:
        return self.tokens % self.block_size

    @property
    def tokens_apart(self) -> int:
        """Slots filled by these tokens if nothing is shared."""
        return self.sessions * self.tokens

    @property
    def tokens_shared(self) -> int:
        """Slots filled by these tokens if full blocks are shared."""
        return self.shared_blocks * self.block_size + self.sessions * self.left_over


class BlockSizeCost(msgspec.Struct, frozen=True):
    """What one block size costs, as shares of the KV that a running request has.

    `fragmentation` is capacity lost in its last block. `table` is its table's bytes and, as memory traffic of a
    decode step, a `lookup_bytes` read for each block in each layer. A decode step is bound by memory, so a per cent of
    either costs about a per cent of throughput: they are added.
    """

    block_size: int
    entries: float  # blocks in a running request's table, mean
    lookups: float  # in a decode step of one request, over all layers
    empty_slots: float
    fragmentation: float
    table: float

    @property
    def together(self) -> float:
        return self.fragmentation + self.table


def block_size_costs(
    lengths: Lengths, kv_bytes_per_token: int, layers: int, lookup_bytes: int
) -> tuple[BlockSizeCost, ...]:
    """The costs of every size of `BLOCK_SIZES`."""
    costs = []
    for size in BLOCK_SIZES:
        usage = while_running(lengths, size)
        entry_bytes = TABLE_ENTRY + layers * lookup_bytes
        costs.append(
            BlockSizeCost(
                block_size=size,
                entries=float(usage.blocks),
                lookups=float(usage.blocks * layers),
                empty_slots=float(usage.empty),
                fragmentation=float(usage.fragmentation),
                table=float(usage.blocks * entry_bytes / (usage.tokens * kv_bytes_per_token)),
            )
        )
    return tuple(costs)
