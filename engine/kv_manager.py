"""Which blocks each request holds: it looks prefixes up, takes blocks (paged or reserved) and gives them back."""

from __future__ import annotations

from engine.block_hash import extend_hashes
from engine.block_pool import BlockPool, IllegalState
from engine.protocol import Allocation, TableChange
from engine.request import Request


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` slots."""
    return -(-tokens // block_size)


class KVManager:
    """Block tables over one pool. `max_model_len` tokens are what one reservation holds."""

    def __init__(self, pool: BlockPool, max_model_len: int) -> None:
        self.pool = pool
        self.block_size = pool.block_size
        self.reservation_blocks = blocks_for(max_model_len, pool.block_size)
        self._changed_from: dict[str, tuple[Request, int]] = {}

    def cached_prefix(self, request: Request) -> list[int]:
        """The blocks of the longest cached prefix, leaving at least one token to compute."""
        hashes = extend_hashes(request.block_hashes, request.tokens, self.block_size)
        blocks = []
        for block_hash in hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.pool.lookup(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def can_admit(self, prefix: list[int], tokens: int, spare: int) -> bool:
        """Whether `tokens` slots fit beside what is held, the cached `prefix` reused and `spare` blocks left."""
        reused = sum(1 for block in prefix if self.pool.references[block] == 0)
        needed = blocks_for(tokens, self.block_size) - len(prefix)
        return needed + spare <= self.pool.num_available - reused

    def owed(self, request: Request) -> int:
        """Blocks that the tokens a request has now will need and that its table lacks."""
        return max(0, blocks_for(request.num_tokens, self.block_size) - len(request.table))

    def admit_paged(self, request: Request, prefix: list[int]) -> None:
        """Start a request on its cached prefix; `grow` takes the rest when it is needed."""
        self._begin(request, "paged")
        for block in prefix:
            self.pool.acquire(block)
        request.table.extend(prefix)
        request.num_computed = request.cached = len(prefix) * self.block_size

    def admit_reserved(self, request: Request) -> bool:
        """Start a request on one contiguous run of `max_model_len` slots (first fit), if a hole is long enough."""
        run = self.pool.allocate_run(self.reservation_blocks)
        if run is None:
            return False
        self._begin(request, "reserved")
        request.table.extend(run)
        request.num_computed = request.cached = 0
        return True

    def grow(self, request: Request, tokens: int) -> bool:
        """Have slots for the first `tokens` tokens; takes all blocks that are missing, or none and says False."""
        missing = blocks_for(tokens, self.block_size) - len(request.table)
        if missing <= 0:
            return True
        if missing > self.pool.num_available:
            return False
        self._changed_from.setdefault(request.id, (request, len(request.table)))
        request.table.extend(self.pool.allocate(missing))
        return True

    def commit(self, request: Request, count: int, publish: bool) -> None:
        """`count` more tokens of a request have their KV; with `publish`, its full blocks can be found."""
        size, first = self.block_size, request.num_computed // self.block_size
        request.num_computed += count
        if request.num_computed > request.num_tokens:
            raise IllegalState(f"request {request.id} has more computed tokens than tokens")
        last = (request.num_computed - 1) // size
        for index in range(first, last + 1):
            block = request.table[index]
            filled = min(size, request.num_computed - index * size)
            self.pool.fill(block, filled)
            if publish and filled == size and request.allocation == "paged":
                hashes = extend_hashes(request.block_hashes, request.tokens, size)
                self.pool.publish(block, hashes[index])

    def unreserve(self, request: Request, publish: bool) -> None:
        """Give back what a reservation has not filled; the request goes on paged, its full blocks findable."""
        if request.allocation != "reserved":
            raise IllegalState(f"request {request.id} has no reservation to give up")
        kept = blocks_for(request.num_computed, self.block_size)
        self.pool.release(reversed(request.table[kept:]))
        del request.table[kept:]
        request.allocation = "paged"
        start = self._changed_from.get(request.id, (request, kept))[1]
        self._changed_from[request.id] = (request, min(start, kept))
        if publish:
            hashes = extend_hashes(request.block_hashes, request.tokens, self.block_size)
            for block, block_hash in zip(
                request.table[: request.num_computed // self.block_size], hashes, strict=False
            ):
                self.pool.publish(block, block_hash)

    def free(self, request: Request) -> None:
        """Give every block back, tail first; what is published stays findable until it is evicted."""
        self.pool.release(reversed(request.table))
        request.table.clear()
        request.allocation = None
        request.num_computed = request.cached = 0
        self._changed_from.pop(request.id, None)

    def drain_tables(self) -> tuple[TableChange, ...]:
        """What changed in the tables of requests that still hold one, since the last call."""
        changes = tuple(
            TableChange(request.id, start, tuple(request.table[start:]))
            for request, start in self._changed_from.values()
        )
        self._changed_from.clear()
        return changes

    def _begin(self, request: Request, allocation: Allocation) -> None:
        if request.table or request.allocation is not None:
            raise IllegalState(f"request {request.id} is admitted twice")
        request.allocation = allocation
        self._changed_from[request.id] = (request, 0)
