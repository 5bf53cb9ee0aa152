"""Who is in the next step: decodes, then prefills that have begun, then those that may join, within the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from engine.admission import admit, cached_prefix, is_reserving, reads_cache
from engine.block_pool import IllegalState
from engine.kv_manager import blocks_for
from engine.plan import PlannedRow
from engine.protocol import Wait, WaitCause
from engine.request import Request

if TYPE_CHECKING:
    from engine.beam_search import BeamGroup
    from engine.scheduler import Scheduler

MAX_SKIPS = 16  # how many later requests may be admitted past one that does not fit
LOOK_AHEAD = 16  # how far into the queue a step looks for one that does


class StepPlanner:
    """The step that is being planned: a row per request, and what is left of the budget."""

    def __init__(self, scheduler: Scheduler, now: float) -> None:
        self.scheduler = scheduler
        self.kv = scheduler.kv
        self.control = scheduler.control
        self.now = now
        self.budget = self.control.max_num_batched_tokens
        self.rows: dict[Request, PlannedRow] = {}
        self.prefills: list[Request] = []  # of those
        self.joined = scheduler.hand_over.joined  # with this step: the record that tells of it can not take it back
        self.out_of_blocks = False  # a running request found none for its next tokens

    # Those that run

    def plan_running(self) -> None:
        """Decodes first, so that no prefill holds them up; then the prefills that have begun."""
        rows, references, size = self.rows, self.kv.pool.references, self.kv.block_size
        again, grow = bool(rows), self.kv.grow
        prefills: list[Request] = []
        for request in list(self.scheduler.running):
            computed = request.num_computed
            if len(request.tokens) - computed != 1 or computed < request.prompt_length:
                prefills.append(request)
            elif request.reason is not None or (again and request in rows):
                continue
            elif self.budget <= 0:
                return
            elif request.beams is not None:
                self._decode_beams(request.beams)
            # The common case first: there is room in a block of its own.
            elif (computed % size and references[request.table[computed // size]] == 1) or grow(request, computed + 1):
                rows[request] = PlannedRow(request, "decode", computed, 1, True)
                self.budget -= 1
            else:
                self.out_of_blocks = True
                self._make_room(request)
        for request in prefills:
            if self.budget <= 0:
                return
            # A request may have been preempted by one before it.
            begun = request.allocation is not None and request.reason is None
            if begun and request not in rows and not self._schedule(request):
                self.out_of_blocks = True
                self._make_room(request)

    def _schedule(self, request: Request) -> bool:
        """Plan a request's next tokens; False if there are no blocks for them."""
        count = self._count(request)
        if count and not self.kv.grow(request, request.num_computed + count):
            return False
        if count:
            self._take(request, count)
        return True

    def _decode_beams(self, group: BeamGroup) -> None:
        """All beams of a search go on in one step, or none; with the last of the budget they may pass it, or those
        before them could hold them up for good."""
        members = group.members
        if not group.together or members[0] in self.rows:
            return
        tokens = [member.num_tokens for member in members]
        while self.kv.needed(members, tokens) > self.kv.pool.num_available:
            self.out_of_blocks = True
            victim = next(self._victims(members), None)
            if victim in self.joined:
                return
            self.scheduler.preempt(victim or members[0])
            if victim is None:
                return
        for member in members:
            if not self.kv.grow(member, member.num_tokens):
                raise IllegalState(f"beam {member.id} was counted and does not fit")
            self._take(member, 1)

    def _make_room(self, request: Request) -> None:
        """Preempt the last of those that are not in this step until `request` fits, or itself. Where that is one that
        has just joined, it waits for the next step."""
        while not self._schedule(request):
            victim = next(self._victims([request]), None)
            if (victim or request) in self.joined:
                return
            if victim is None and request.kind == "prefill" and self.rows:
                return  # those in this step will end and make room
            self.scheduler.preempt(victim or request)
            if victim is None:
                return

    def _victims(self, requests: Sequence[Request]) -> Iterator[Request]:
        """Those after `requests` in the order of running whose blocks this step does not use."""
        for other in reversed(self.scheduler.running):
            if other in requests or (other.beams is not None and other.beams is requests[0].beams):
                return
            if other.reason is None and other.table and self.rows.keys().isdisjoint(self.scheduler.members(other)):
                yield other

    # Those that wait

    def admit_continuously(self) -> None:
        """Let waiting requests join while tokens, rows and memory last; those that do not fit may be passed."""
        scheduler = self.scheduler
        if not scheduler.waiting:
            self._note_unforked()
            return
        rows, will_run = scheduler.rows_taken(), bool(scheduler.running or scheduler.hand_over.receiving)
        held, share = self._shares()
        # Whoever waits for its share holds up all behind it of its client, and nobody else.
        full = {client for client in held if self._passes(scheduler.waiting.first_of(client), held, share)}
        candidates = self._candidates(LOOK_AHEAD + self.control.max_num_seqs, full)
        if not candidates:
            self.note_wait("share")
            return
        # Whose KV another engine has need no tokens of this step's.
        connector = scheduler.hand_over.connector
        receives = connector is not None and any(request.incoming is not None for request in candidates)
        full_of = self._full_of(candidates[0], rows)
        if full_of == "rows" or (full_of is not None and not receives):
            return
        # One block to spare for each that runs or is to be forked, or one would be preempted within a few steps.
        owed = scheduler.blocks_owed()
        if will_run and self.kv.pool.num_available <= rows + owed and self.control.allocation == "paged":
            self.note_blocks()  # whoever joined would take what those that run still need
            return
        blocked: list[Request] = []
        no_hole = no_tokens = False
        computing = self._prefixes_being_computed()
        for place, request in enumerate(candidates):
            if request not in scheduler.waiting:
                continue  # it joined with another beam of its search
            client = request.scheduling.client
            if client in full:
                continue
            full_of = "tokens" if no_tokens and request.incoming is None else self._full_of(request, rows)
            if full_of == "tokens" and receives:
                no_tokens = True
                continue
            if full_of is not None:
                return
            if self._passes(request, held, share):
                full.add(client)
                self._note(Wait(request.id, "share"))
                continue
            if no_hole and is_reserving(scheduler, request):
                continue  # all reservations are of one size
            if len(blocked) >= LOOK_AHEAD or (blocked and blocked[0].skipped >= MAX_SKIPS):
                return
            if request.incoming is not None:
                family = (request, *request.children)
                wait = scheduler.hand_over.receive(request, rows + owed, self.now)
                if wait is not None:
                    self._note(wait)
                    blocked.append(request)
                elif request.status == "receiving":
                    for other in blocked:
                        other.skipped += 1
                    rows += request.num_rows
                    held[client] += request.num_rows
                    owed += self.kv.owed(request)
                else:  # nothing is to be had
                    candidates[place + 1 : place + 1] = [one for one in family if one in scheduler.waiting]
                continue
            # In a few steps such a prefix is a hit: waiting costs less than computing it again.
            if request.awaited in computing:
                self._note(Wait(request.id, "prefix"))
                continue
            prefix = cached_prefix(scheduler, request)
            request.awaited = self._next_hash(request, len(prefix.blocks))
            if request.awaited in computing:
                self._note(Wait(request.id, "prefix"))
                continue
            found = max(prefix.tokens(self.kv.block_size), request.num_swapped)
            if not self._prompt_fits_budget(request.num_tokens - found):
                self._note(Wait(request.id, "tokens"))
                if not receives:
                    return
                no_tokens = True
                continue
            children = request.children
            wait = admit(scheduler, request, prefix, rows + owed)
            candidates[place + 1 : place + 1] = [child for child in children if child.parent is None]
            if wait is not None:
                self._note(wait)
                no_hole = no_hole or wait.cause == "hole"
                blocked.append(request)
                continue
            for other in blocked:
                other.skipped += 1
            for member in scheduler.members(request):
                self._begin(member)
                rows += member.num_rows
                held[client] += member.num_rows
                computing |= self._hashes_ahead(member)
                owed += self.kv.owed(member)
        if full:
            self.note_wait("share")
        self._note_unforked()

    def form_batch(self) -> None:
        """Static: the first requests in turn that fit together, their prompts' blocks taken at once."""
        scheduler = self.scheduler
        while scheduler.waiting:
            request = self._candidates(1)[0]
            if self._full_of(request, scheduler.rows_taken()):
                return
            wait = admit(scheduler, request, cached_prefix(scheduler, request), scheduler.rows_taken())
            if wait is not None:
                self._note(wait)
                return
            for member in scheduler.members(request):
                if not self.kv.grow(member, member.num_tokens):
                    raise IllegalState(f"request {member.id} was admitted and does not fit")
        self._note_unforked()

    def _begin(self, request: Request) -> None:
        if request.beams is not None and request.beams.together and len(request.beams.members) > 1:
            self._decode_beams(request.beams)
        elif not self._schedule(request):
            raise IllegalState(f"request {request.id} was admitted and does not fit")

    def _candidates(self, count: int, barred: Container[str] = ()) -> list[Request]:
        control = self.control
        bound = self.now - control.max_wait if control.scheduling_policy == "shortest_prefill" else None
        return self.scheduler.waiting.first(count, bound, barred)

    def _shares(self) -> tuple[Counter[str], int]:
        """The rows that each client holds, and how many it may: under `fair` a share, else all."""
        rows = self.control.max_num_seqs
        if self.control.scheduling_policy != "fair":
            return Counter(), rows
        return self.scheduler.rows_by_client(), self.scheduler.row_shares.most(rows, self.now)

    def _full_of(self, request: Request, rows: int) -> WaitCause | None:
        """What leaves the batch, or the step, no room for a request and all that belong to it; one too large for any
        batch runs alone. What is received needs no tokens now, but each row does in all steps to come: were there more
        rows than tokens, no prompt would ever be computed beside them."""
        cause: WaitCause | None = None
        if rows and rows + self._rows_wanted(request) > self.control.max_num_seqs:
            cause = "rows"
        elif self.budget <= 0 if request.incoming is None else rows >= self.control.max_num_batched_tokens:
            cause = "tokens"
        if cause is not None:
            self._note(Wait(request.id, cause))
        return cause

    def _passes(self, request: Request | None, held: Counter[str], share: int) -> bool:
        """Whether its client would hold more than its share with it; one too large for any share comes alone."""
        if request is None:
            return False
        rows = held[request.scheduling.client]
        return rows > 0 and rows + self._rows_wanted(request) > share

    def _rows_wanted(self, request: Request) -> int:
        """By a request and all that belong to it."""
        return sum(member.num_rows for member in self.scheduler.members(request))

    # Why the next one waits

    def note_wait(self, cause: WaitCause) -> None:
        if self.scheduler.waiting:
            self._note(Wait(self._candidates(1)[0].id, cause))
        else:
            self._note_unforked()

    def note_blocks(self) -> None:
        """Those that run need all blocks themselves."""
        scheduler = self.scheduler
        if scheduler.waiting:
            request = self._candidates(1)[0]
            spare = scheduler.rows_taken() + scheduler.blocks_owed()
            needed = blocks_for(request.num_tokens, self.kv.block_size) + spare
            self._note(Wait(request.id, "blocks", needed, self.kv.pool.num_available))
        else:
            self._note_unforked()

    def _note_unforked(self) -> None:
        for request in self.scheduler.unforked:
            self._note(Wait(request.id, "parent"))
            return

    def _note(self, wait: Wait) -> None:
        if self.scheduler.wait is None:
            self.scheduler.wait = wait

    # Tokens

    def top_up(self) -> None:
        """Give what the budget has left to the prefills that were cut short for others' sake."""
        if not self.control.chunked_prefill or self.control.max_prefill_chunk:
            return
        for request in self.prefills:
            count, remaining = self.rows[request].count, self._remaining(request)
            if self.budget > 0 and count < remaining:
                more = self._chunk(request, count, min(remaining - count, self.budget))
                if more and self.kv.grow(request, request.num_computed + count + more):
                    self._take(request, more)

    def finished_rows(self) -> tuple[PlannedRow, ...]:
        """The step's rows; held ones are padding beside those that work, and cost no budget."""
        held = self.scheduler.held if self.rows else ()
        return (*self.rows.values(), *(PlannedRow(r, "held", r.num_computed - 1, 1, False) for r in held))

    def _take(self, request: Request, count: int) -> None:
        """Plan `count` more tokens of a request."""
        start, before = request.num_computed, self.rows.get(request)
        if before is None and request.kind == "prefill":
            self.prefills.append(request)
        total = count + (before.count if before is not None else 0)
        samples = start + total == request.num_tokens
        siblings = tuple(request.children) if samples and request.beams is None else ()
        self.rows[request] = PlannedRow(request, request.kind, start, total, samples, siblings)
        self.budget -= count

    def _remaining(self, request: Request) -> int:
        """Tokens to compute now. Beams keep their last one for when all have caught up."""
        beams = request.beams
        return request.num_uncomputed - (1 if beams is not None and len(beams.members) > 1 else 0)

    def _count(self, request: Request) -> int:
        remaining = self._remaining(request)
        if not self.control.chunked_prefill:
            return remaining if self._prompt_fits_budget(remaining) else 0
        count = min(remaining, self.budget)
        if request.kind == "prefill":
            # No prefill takes more than half of a step that others could use; `top_up` returns the rest.
            cap = self.control.max_prefill_chunk or max(1, self.control.max_num_batched_tokens // 2)
            count = self._chunk(request, 0, min(count, cap))
        return count

    def _chunk(self, request: Request, planned: int, count: int) -> int:
        """Cut a chunk that is not a prompt's last at a block's end, so that no block waits half filled."""
        end = request.num_computed + planned + count
        if end < request.num_tokens:
            return count - end % self.kv.block_size if count > end % self.kv.block_size else count
        return count

    def _prompt_fits_budget(self, tokens: int) -> bool:
        """Unchunked prompts run whole; one that passes the budget runs as its step's only prefill."""
        return self.control.chunked_prefill or tokens <= self.budget or not self.prefills

    # Prefixes in flight

    def _prefixes_being_computed(self) -> set[bytes]:
        hashes: set[bytes] = set()
        if self.control.prefix_cache and self.control.allocation == "paged":
            for request in self.scheduler.running:
                if request.kind == "prefill":
                    hashes |= self._hashes_ahead(request)
        return hashes

    def _hashes_ahead(self, request: Request) -> set[bytes]:
        if request.allocation != "paged" or not self.control.prefix_cache or not request.scheduling.prefix_cache:
            return set()
        return set(request.block_hashes[request.num_computed // self.kv.block_size :])

    def _next_hash(self, request: Request, blocks: int) -> bytes | None:
        """The hash of the first full block that a hit could have had and did not."""
        if not reads_cache(self.scheduler, request):
            return None
        most = (request.num_tokens - 1) // self.kv.block_size
        return request.block_hashes[blocks] if blocks < min(most, len(request.block_hashes)) else None
