"""What requests and blocks hold, in tokens, for whoever asks: looked up between two steps, so that no step pays for it.

The prefix cache has the tokens of every block that it finds; those of other blocks are at their place in the tokens of
a request that holds them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.block_hash import ROOT
from engine.messages import BlockTokens, RequestTokens, TokensAfter
from engine.protocol import LiveRequest, LiveRequests
from engine.waiting_queue import arrival_key

if TYPE_CHECKING:
    from engine.request import Request
    from engine.scheduler import Scheduler

HASH_DIGITS = 12  # of a hash that is told: enough to tell blocks apart
NOTHING = TokensAfter((), (), begins=True)


def in_order(scheduler: Scheduler) -> list[Request]:
    """All that live, in the order of their arrival, those that hold blocks before those that wait."""
    return [
        request
        for requests in (_holders(scheduler), (*scheduler.waiting, *scheduler.unforked))
        for request in sorted(requests, key=arrival_key)
    ]


def live_requests(scheduler: Scheduler, seq: int) -> LiveRequests:
    """What there is to say in short after record `seq`."""
    ordered = in_order(scheduler)
    numbers = Counter(request.status for request in ordered)
    return LiveRequests(
        seq,
        numbers["waiting"],
        numbers["running"],
        numbers["held"],
        tuple(
            LiveRequest(
                request.id,
                request.status,
                request.prompt_length,
                request.num_tokens,
                request.num_computed,
                len(request.table),
            )
            for request in ordered
        ),
        numbers["sending"],
        numbers["receiving"],
    )


def request_tokens(scheduler: Scheduler, request_id: str, first: int, before: int) -> RequestTokens | None:
    """A live request's tokens from place `first` on; None if no such request lives."""
    request = scheduler.requests.get(request_id)
    if request is None:
        return None
    # A beam's tokens may be others after each step: what was told once does not hold.
    first = min(first, request.num_tokens if request.beams is None else request.prompt_length)
    return RequestTokens(request.prompt_length, first, _part(request, first, request.num_tokens, before))


def block_tokens(scheduler: Scheduler, block: int, before: int) -> BlockTokens:
    """The tokens in a block's filled slots. Raises IndexError for a block that the pool does not have."""
    pool, cache = scheduler.kv.pool, scheduler.kv.pool.cache
    references, filled = pool.references[block], pool.filled[block]
    contents = cache.contents.get(block)
    if contents is None:
        part = _held(scheduler, block, filled, before) if references else NOTHING
        return BlockTokens(None, None, part)
    begins = contents.parent == ROOT
    parent = None if begins else cache.find(contents.parent)
    if contents.tokens and (begins or parent is not None):
        known = () if parent is None else cache.contents[parent].tokens
        # What lies before a parent is not looked up: as if something did.
        part = TokensAfter(tuple(contents.tokens), tuple(known[max(0, len(known) - before) :]), begins)
    elif references:
        part = _held(scheduler, block, filled, before)
    else:
        part = TokensAfter(tuple(contents.tokens), (), begins=False)
    return BlockTokens(contents.hash.hex()[:HASH_DIGITS], None if begins else contents.parent.hex()[:HASH_DIGITS], part)


def _held(scheduler: Scheduler, block: int, filled: int, before: int) -> TokensAfter:
    """From whoever holds it."""
    size = scheduler.kv.block_size
    for request in scheduler.running:  # what is not in the cache is nearly always the block that one writes
        if request.table and request.table[-1] == block:
            first = (len(request.table) - 1) * size
            return _part(request, first, first + filled, before)
    for request in _holders(scheduler):
        if block in request.table:
            first = request.table.index(block) * size
            return _part(request, first, first + filled, before)
    return NOTHING


def _holders(scheduler: Scheduler) -> list[Request]:
    hand_over = scheduler.hand_over
    return [*scheduler.running, *hand_over.receiving, *hand_over.sending.values()]


def _part(request: Request, first: int, end: int, before: int) -> TokensAfter:
    begin = max(0, first - before)
    tokens = request.tokens
    return TokensAfter(tuple(tokens[first:end]), tuple(tokens[begin:first]), begin == 0)
