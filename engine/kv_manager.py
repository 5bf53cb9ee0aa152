"""Which blocks each request holds: prefixes looked up, blocks taken (paged or reserved), shared, copied on write,
moved to host memory and back, and given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from engine.block_hash import chain_hash, extend_hashes
from engine.block_pool import BlockPool, IllegalState
from engine.host_pool import HostPool
from engine.prefix_cache import PARTIAL_LOOKS, Contents, common_length
from engine.protocol import Allocation, Copy, ReservedFit, TableChange
from engine.request import Request


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` slots."""
    return -(-tokens // block_size)


class Prefix(NamedTuple):
    """What the cache has of a request's tokens: whole blocks, then `partial` tokens at the beginning of `source`."""

    blocks: tuple[int, ...] = ()
    decoded_blocks: int = 0  # of those, with generated tokens
    partial: int = 0
    source: int = -1
    partial_decoded: bool = False  # whether `source` has generated tokens
    evicted_tokens: int = 0  # in the blocks that follow, were cached once, and are not any more

    def tokens(self, block_size: int) -> int:
        return len(self.blocks) * block_size + self.partial

    def decoded_tokens(self, block_size: int) -> int:
        return self.decoded_blocks * block_size + (self.partial if self.partial_decoded else 0)

    def whole(self) -> Prefix:
        """Without the part of a block."""
        return self._replace(partial=0, source=-1, partial_decoded=False)


NOTHING = Prefix()


class Loss(NamedTuple):
    """What preempting a request takes: tokens to compute again, or blocks to move to host memory and back."""

    tokens: int
    blocks_out: int
    blocks_in: int


class Moves(NamedTuple):
    """What must be moved before the step computes; see StepPlan."""

    swap_out: tuple[tuple[int, int], ...]
    swap_in: tuple[tuple[int, int], ...]
    copies: tuple[Copy, ...]


class KVManager:
    """Block tables over one pool. `max_model_len` tokens are what one reservation holds.

    Moves are planned here and done by the step; until it is committed (`settle`) what they read stays as it is.
    Without `partial_hits` only whole blocks are found.
    """

    def __init__(
        self, pool: BlockPool, max_model_len: int, host: HostPool | None = None, *, partial_hits: bool = True
    ) -> None:
        self.pool = pool
        self.host = host or HostPool(0)
        self.block_size = pool.block_size
        self.reservation_blocks = blocks_for(max_model_len, pool.block_size)
        self.partial_hits = partial_hits
        self.copy_pays: Callable[[int], bool] = lambda tokens: True  # whether to copy a block for so many tokens
        self._changed_from: dict[str, tuple[Request, int]] = {}
        self._holders: dict[Request, None] = {}  # requests with a table
        self._tails: dict[bytes, list[Request]] | None = None  # see `_found_tails`
        self._copies: dict[int, Copy] = {}  # by target
        self._swap_out: dict[int, int] = {}  # device block: host block
        self._swap_in: list[tuple[int, int]] = []  # (host block, device block)
        self._brought_back: dict[int, int] = {}  # of these, the device block of each host block that can be shared
        self._host_released: list[int] = []
        self._returning: list[Request] = []  # from host memory: full blocks of theirs may be published

    # Looking up

    def cached_prefix(self, request: Request) -> Prefix:
        """The longest cached prefix, leaving at least one token to compute."""
        size, cache = self.block_size, self.pool.cache
        hashes = extend_hashes(request.block_hashes, request.tokens, size, request.root)
        hashes = hashes[: (request.num_tokens - 1) // size]
        blocks, decoded = [], 0
        for block_hash in hashes:
            block = cache.find(block_hash)
            if block is None:
                break
            blocks.append(block)
            decoded += cache.contents[block].decoded
        found = Prefix(tuple(blocks), decoded)
        if self.partial_hits and not request.num_swapped:
            found = self._with_part(request, found)
        gone = sum(size for _ in takewhile(cache.was_evicted, hashes[len(blocks) :]))
        return found._replace(evicted_tokens=max(0, gone - found.partial))

    def _with_part(self, request: Request, prefix: Prefix) -> Prefix:
        """Add the tokens that another's block shares with the block after the whole ones, and that block."""
        size, full = self.block_size, len(prefix.blocks)
        begin = full * size
        wanted = request.tokens[begin : min(begin + size, request.num_tokens - 1)]
        parent = request.block_hashes[full - 1] if full else request.root
        cache = self.pool.cache
        source, longest = cache.find_beginning(parent, wanted) or (-1, 0)
        decoded = longest > 0 and cache.contents[source].decoded
        for other in self._found_tails().get(parent, ())[-PARTIAL_LOOKS:]:
            if longest == len(wanted):
                break
            common = common_length(other.tokens[begin : other.num_computed], wanted)
            if common > longest and other.table[full] not in self._copies:  # that one gets its contents in this step
                source, longest = other.table[full], common
                decoded = other.num_computed > other.prompt_length
        if not longest or not self.copy_pays(longest):
            return prefix
        return prefix._replace(partial=longest, source=source, partial_decoded=decoded)

    def _found_tails(self) -> dict[bytes, list[Request]]:
        """Those that run by the hash of their last full block: what they have after it can be copied from them.
        Made when a step first asks; it would cost more to keep."""
        if self._tails is None:
            self._tails = {}
            for request in self._holders:
                full, used = divmod(request.num_computed, self.block_size)
                known = request.allocation == "paged" and len(request.block_hashes) >= full
                if used and known and request.scheduling.prefix_cache:
                    key = request.block_hashes[full - 1] if full else request.root
                    self._tails.setdefault(key, []).append(request)
        return self._tails

    # Taking blocks

    def blocks_taken(self, request: Request, prefix: Prefix, tokens: int) -> int:
        """Available blocks that admitting a request with `tokens` slots uses up, those found in the cache included."""
        pool = self.pool
        found = [block for block in prefix.blocks if pool.references[block] == 0]
        copied = prefix.partial and pool.references[prefix.source] == 0
        return blocks_for(tokens, self.block_size) - len(prefix.blocks) + len(found) + bool(copied)

    def owed(self, request: Request) -> int:
        """Blocks that the tokens a request has now will need and that its table lacks."""
        return max(0, blocks_for(request.num_tokens, self.block_size) - len(request.table))

    def admit_paged(self, requests: Sequence[Request], prefixes: Sequence[Prefix], publish: bool) -> list[int]:
        """Start requests together, each on its cached prefix and what it has in host memory; `grow` takes the rest
        when needed. With `publish`, what is brought back can be found once the step is done.

        Returns how many blocks each brings back from host memory.
        """
        # Blocks are taken on the way, and what one has found must not be evicted for another.
        kept = [block for prefix in prefixes for block in prefix.blocks]
        for block in kept:
            self.pool.acquire(block)
        sources = [prefix.source for prefix in prefixes if prefix.partial]
        for block in sources:
            self.pool.pin(block)
        brought_back = [self._start(*one, publish) for one in zip(requests, prefixes, strict=True)]
        for block in sources:
            self.pool.unpin(block)
        self.pool.release(kept)
        return brought_back

    def _start(self, request: Request, prefix: Prefix, publish: bool) -> int:
        self._begin(request, "paged")
        before = len(self._swap_in)
        for block in prefix.blocks:
            self.pool.acquire(block)
        request.table.extend(prefix.blocks)
        request.num_computed = request.cached = prefix.tokens(self.block_size)
        if request.num_swapped > request.num_computed:
            self._bring_back(request, first=len(prefix.blocks))
            if publish and request.scheduling.prefix_cache:
                self._returning.append(request)
        elif prefix.partial:
            self.pool.pin(prefix.source)
            (target,) = self.pool.allocate(1)
            self._copies[target] = Copy(request.id, prefix.source, target, prefix.partial)
            self.pool.fill(target, prefix.partial)
            request.table.append(target)
        self._give_up_host(request)
        return len(self._swap_in) - before

    def admit_reserved(self, request: Request, fit: ReservedFit = "first") -> int | None:
        """Start a request on one contiguous run of `max_model_len` slots; returns how many blocks it brings back from
        host memory, or None where no hole is long enough."""
        run = self.pool.allocate_run(self.reservation_blocks, fit)
        if run is None:
            return None
        before = len(self._swap_in)
        self._begin(request, "reserved")
        request.table.extend(run)
        request.num_computed = request.cached = 0
        if request.num_swapped:
            self._bring_back(request, first=0)
        self._give_up_host(request)
        return len(self._swap_in) - before

    def needed(self, requests: Sequence[Request], tokens: Sequence[int]) -> int:
        """Blocks to take so that each request has slots of its own for its first `tokens` tokens: those missing,
        and a copy of each block to be written that others hold too."""
        needed = 0
        holders: dict[int, int] = {}
        for request, count in zip(requests, tokens, strict=True):
            needed += max(0, blocks_for(count, self.block_size) - len(request.table))
            tail = self._shared_tail(request)
            if tail >= 0:
                block = request.table[tail]
                holders[block] = holders.get(block, self.pool.references[block]) - 1
                needed += holders[block] > 0  # the last one writes in place
        return needed

    def grow(self, request: Request, tokens: int) -> bool:
        """Have slots of its own for the first `tokens` tokens: takes all blocks that are missing, and copies a tail
        that others hold too; or does nothing and says False."""
        table, pool = request.table, self.pool
        missing = max(0, -(-tokens // self.block_size) - len(table))
        tail = self._shared_tail(request)
        if missing + (tail >= 0) > pool.num_available:
            return False
        if tail >= 0:
            self._copy_on_write(request, tail)
        if missing:
            self._changed(request, len(table))
            table.extend(pool.allocate(missing))
        return True

    def fork(self, parent: Request, child: Request) -> None:
        """Start `child` on all that `parent` has computed; what either writes next it copies first."""
        self._begin(child, "paged")
        child.table.extend(parent.table[: blocks_for(parent.num_computed, self.block_size)])
        for block in child.table:
            self.pool.acquire(block)
        child.num_computed = parent.num_computed
        child.block_hashes = list(parent.block_hashes[: parent.num_computed // self.block_size])

    def commit(self, request: Request, count: int, publish: bool) -> None:
        """`count` more tokens of a request have their KV; with `publish`, its full blocks can be found."""
        size, pool = self.block_size, self.pool
        before = request.num_computed
        after = before + count
        used = before % size
        if after > len(request.tokens):
            raise IllegalState(f"request {request.id} has more computed tokens than tokens")
        request.num_computed = after
        table = request.table
        if used + count < size:  # no block is filled up
            pool.fill(table[before // size], used + count)
            return
        for index in range(before // size, blocks_for(after, size)):
            pool.fill(table[index], min(size, after - index * size))
        if publish and request.allocation == "paged" and request.scheduling.prefix_cache:
            self._publish(request, before // size, after // size)

    def unreserve(self, request: Request, publish: bool) -> None:
        """Give back what a reservation has not filled; the request goes on paged, its full blocks findable."""
        if request.allocation != "reserved":
            raise IllegalState(f"request {request.id} has no reservation to give up")
        kept = blocks_for(request.num_computed, self.block_size)
        self.pool.release(reversed(request.table[kept:]))
        del request.table[kept:]
        request.allocation = "paged"
        self._changed(request, kept)
        if publish and request.scheduling.prefix_cache:
            self._publish(request, 0, request.num_computed // self.block_size)

    def free(self, request: Request) -> None:
        """Give every block back, tail first; what is published stays findable until it is evicted."""
        if self._copies and any(block in self._copies for block in request.table):
            raise IllegalState(f"request {request.id} gives up blocks that this step copies into")
        self._holders.pop(request, None)
        self._tails = None
        self.pool.release(reversed(request.table))
        request.table.clear()
        request.allocation = None
        request.num_computed = 0
        self._changed_from.pop(request.id, None)
        self.host.release(request.host_table)
        request.host_table, request.num_swapped = [], 0

    # Host memory

    def losses(self, requests: Sequence[Request]) -> list[Loss]:
        """What each of these would lose if all were preempted. Cached blocks that others hold too are not lost, for
        they will be found; a block that several of these share is moved once, with the first."""
        held = Counter(block for request in requests for block in request.table)
        moved = set(self._swap_out)
        losses = []
        for request in requests:
            blocks = self._computed_blocks(request)
            kept = 0
            while kept < len(blocks) and self._outlives(blocks[kept], held):
                kept += 1
            new = set(blocks) - moved
            moved |= new
            back = sum(1 for block in blocks[kept:] if block in new)
            losses.append(Loss(max(0, request.num_computed - kept * self.block_size), len(new), back))
        return losses

    def _outlives(self, block: int, held: Mapping[int, int]) -> bool:
        return block in self.pool.cache and self.pool.references[block] > held[block]

    def swap_out(self, request: Request) -> int:
        """Move what a request has computed to host memory and free its blocks; returns how many blocks were moved:
        those that another moved in this step are shared there too."""
        before = len(self._swap_out)
        for block in self._computed_blocks(request):
            host = self._swap_out.get(block)
            if host is None:
                host = self._swap_out[block] = self.host.allocate()
            else:
                self.host.share(host)
            request.host_table.append(host)
        swapped, table = request.num_computed, request.host_table
        request.host_table = []
        self.free(request)
        request.num_swapped, request.host_table = swapped, table
        return len(self._swap_out) - before

    def _computed_blocks(self, request: Request) -> list[int]:
        return request.table[: blocks_for(request.num_computed, self.block_size)]

    def _bring_back(self, request: Request, first: int) -> None:
        """Copy host blocks from index `first` on back to the device; who shared one before shares it again."""
        size = self.block_size
        for index in range(first, len(request.host_table)):
            host = request.host_table[index]
            if request.allocation == "reserved":
                target = request.table[index]
            elif host in self._brought_back:
                target = self._brought_back[host]
                self.pool.acquire(target)
                request.table.append(target)
                continue
            else:
                (target,) = self.pool.allocate(1)
                self._brought_back[host] = target
                request.table.append(target)
            self._swap_in.append((host, target))
            self.pool.fill(target, min(size, request.num_swapped - index * size))
        request.num_computed = request.num_swapped

    def _give_up_host(self, request: Request) -> None:
        """Its host blocks are free once this step, which may read them, is done."""
        self._host_released.extend(request.host_table)
        request.host_table = []
        request.num_swapped = 0

    # The step's end

    def take_moves(self) -> Moves:
        """What this step must move before it computes."""
        return Moves(tuple(self._swap_out.items()), tuple(self._swap_in), tuple(self._copies.values()))

    def settle(self, *, moved: bool = True) -> None:
        """The moves are done, or, if not `moved`, given up: what they read may change again.

        What was to be moved into is then worth nothing, and its holders must be freed.
        """
        self._tails = None
        for copy in self._copies.values():
            self.pool.unpin(copy.source)
        self._copies.clear()
        for request in self._returning if moved else ():
            self._publish(request, 0, request.num_computed // self.block_size)
        self._returning.clear()
        self._swap_out.clear()
        self._swap_in.clear()
        self._brought_back.clear()
        self.host.release(self._host_released)
        self._host_released.clear()

    def drain_tables(self) -> tuple[TableChange, ...]:
        """What changed in the tables of requests that still hold one, since the last call."""
        changes = tuple(
            TableChange(request.id, start, tuple(request.table[start:]))
            for request, start in self._changed_from.values()
        )
        self._changed_from.clear()
        return changes

    def clear_cache(self) -> int:
        """Forget every prefix; requests keep their blocks. Returns the blocks forgotten."""
        return self.pool.clear_cache()

    # Within

    def _begin(self, request: Request, allocation: Allocation) -> None:
        if request.table or request.allocation is not None:
            raise IllegalState(f"request {request.id} is admitted twice")
        request.allocation = allocation
        self._holders[request] = None
        self._changed(request, 0)

    def _changed(self, request: Request, start: int) -> None:
        before = self._changed_from.get(request.id)
        self._changed_from[request.id] = (request, start if before is None else min(start, before[1]))

    def _shared_tail(self, request: Request) -> int:
        """The index of the block it writes next, if that holds KV and others hold it too; else -1."""
        computed, size = request.num_computed, self.block_size
        if not computed % size:
            return -1
        return computed // size if self.pool.references[request.table[computed // size]] > 1 else -1

    def _copy_on_write(self, request: Request, index: int) -> None:
        pool, source = self.pool, request.table[index]
        used = request.num_computed % self.block_size
        pool.pin(source)
        (target,) = pool.allocate(1)
        pool.release([source])
        pool.fill(target, used)
        request.table[index] = target
        self._copies[target] = Copy(request.id, source, target, used)
        self._changed(request, index)

    def _publish(self, request: Request, first: int, last: int) -> None:
        """Make blocks `first` to `last` - 1 of its table, which are full, findable."""
        size, pool, hashes, table = self.block_size, self.pool, request.block_hashes, request.table
        if len(hashes) < first:
            extend_hashes(hashes, request.tokens[: first * size], size, request.root)
        for index in range(first, last):
            begin = index * size
            tokens = request.tokens[begin : begin + size]
            parent = hashes[index - 1] if index else request.root
            if index == len(hashes):
                hashes.append(chain_hash(parent, tokens))
            block = table[index]
            if block in pool.cache.contents:
                continue  # found there, or brought back by another that shares it
            decoded = begin + size > request.prompt_length
            if pool.kv_journal is not None and pool.cache.find(hashes[index]) is None:
                salt = None if request.scheduling.cache_salt is None else request.root.hex()
                pool.kv_journal.stored(hashes[index], parent if index else None, tokens, salt)
            pool.publish(block, Contents(hashes[index], parent, tokens if self.partial_hits else (), decoded))
