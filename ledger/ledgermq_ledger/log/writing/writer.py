"""Run one term of ownership of a ledger: claim it, append to it, be fenced from it, release it
(docs/design.md, The ledger protocol).

Appends are pipelined: several segments may be in flight (the caller bounds how many), each linked
to the one before. A segment is acknowledged only when it and all below it, down to the claim, are
won. The first lost slot ends the term: every waiter gets NotOwner, the state is dropped, and
nothing is ever served from it again.

There are two folds of the same code. `issued` assigns offsets and judges sequences. Only `durable`
may be shown to a reader.

A put that the store certainly refused (because it is full, read-only or denies access) does not end
the term. Its slot stays empty, so each segment put after it links to a segment that does not exist.
Such a segment is void, whether it landed or not. Every waiter from that slot on fails: nothing was
stored.

Once all puts in flight are settled, `issued` is reset to `durable`, and the term continues: in the
slot that was refused first, and past slots that its own void segments fill. A put of unknown
outcome still ends the term, also after a refused one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq.runtime.process.log import get_log
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import Recovered, recover
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_ledger.log.writing.in_flight import Append, InFlight, Moved, fail, failed, succeed
from ledgermq_ledger.log.writing.judging import Judging, MayWrite
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.settle import PutLatency, PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.payers import Payer, paid_by

UNSHARED_PART = 8
"""Two folds take half the memory if they hold the same objects. Once one in so many of these is new, they share them
again: that takes some microseconds for each batch since.
"""

log = get_log(__name__)

OnDurable = Callable[[fmt.SegmentIndex, Sequence[Buffer], Sequence[PartitionId]], None]
"""Called with each segment once it is acknowledged, in order: its index, and its batches' bytes and partitions."""

OnRefused = Callable[[int, LedgerMQError], None]
"""Called when the store refused a put: the segments in flight from this slot on are not and will
not be stored.
"""


async def claim(ledger: LedgerRef, broker: str) -> Recovered:
    """Take the ledger over, and return its state at the begin of the term, for `LedgerWriter`.

    Raises NotOwner if another broker was faster (retry after a pause), DataDamaged, the store's
    errors.
    """
    # The second recovery reads no index again: a slot is filled again only after it is trimmed, and a
    # recovery that a trim overtakes begins again.
    ledger = replace(ledger, known=SegmentIndexes())
    store, bundle, sources = ledger.store, ledger.bundle, ledger.sources
    before = await recover(ledger)
    index = fmt.SegmentIndex(
        bundle=bundle,
        slot=before.next_slot,
        epoch=before.state.epoch + 1,
        kind=fmt.CLAIM,
        writer=sources.new_id(),
        put_id=sources.new_id(),
        previous=before.state.last_put_id,
        created_ms=sources.now_ms(),
        broker=broker,
    )
    outcome = await settle_put(store, keys.segment(bundle, index.slot), encode_segment(index, []), sources=sources)
    if outcome is not PutOutcome.WON:
        raise NotOwner(f"bundle {bundle}: the claim of slot {index.slot} was {outcome.name.lower()}")
    after = await recover(ledger)  # a claim counts only if recovery, run after it, says so
    if after.state.writer != index.writer or after.state.released:
        raise NotOwner(f"bundle {bundle}: the claim of slot {index.slot} did not open the current term")
    return after


class LedgerWriter(Judging):
    """The term that `claim` has opened. `recovered`: what it returned."""

    def __init__(
        self,
        ledger: LedgerRef,
        broker: str,
        recovered: Recovered,
        on_durable: OnDurable = lambda index, data, keys: None,
        on_refused: OnRefused = lambda slot, error: None,
        may_write: MayWrite = lambda key, producer_id, principal: None,
    ) -> None:
        super().__init__(ledger, recovered, may_write)
        self._unshared = 0
        """Batches since the folds shared what they hold."""
        self._sources = ledger.sources
        self._broker = broker
        self._on_durable = on_durable
        self._on_refused = on_refused
        self._release_refusals: list[LedgerMQError] | None = None
        """The refusals of a RELEASE in flight; `release` raises them."""
        self._refusal: LedgerMQError | None = None
        """The refusal of a put, while the puts in flight after it are being settled."""
        self._latency = PutLatency()

    @property
    def puts_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def refusal(self) -> LedgerMQError | None:
        """Return why nothing can be written now: puts in flight after a refused put are being
        settled.
        """
        return self._refusal

    def knows_producer(self, producer_id: bytes, key: PartitionId) -> bool:
        """Return whether a producer is remembered in a partition, also by what is in flight."""
        return self._issued.producers.knows(producer_id, *key)

    def write(self, appends: Sequence[Append]) -> bool:
        """Put one segment with these batches now; each `done` is answered later. Return False if
        nothing had to be put.

        Batches of one partition keep their order. Refused sequences fail after a fence check;
        repeated ones join the segment that holds them.
        """
        over = self._over()
        if over is not None:
            for append in appends:
                fail(append, over)
            return False
        flight = InFlight(self._next_index(fmt.DATA))
        for append in appends:
            self._check_own(append)
        for append in sorted(appends, key=lambda a: a.batch.key):
            if self._is_new(append, flight):
                self._add(append, flight)
        if flight.index.batches:
            self._put(flight)
        return bool(flight.index.batches)

    def _over(self) -> LedgerMQError | None:
        """Return why nothing can be put now."""
        released = NotOwner(f"bundle {self.bundle} is being released") if self._issued.released else None
        return self.lost or self._refusal or released

    def seal(self, key: PartitionId, move: int, target: int, after: int = 0) -> asyncio.Future[int] | None:
        """End a partition in this ledger, because of the move with this id to bundle `target`. Return the
        future of its end, as a batch's; None if the ledger knows this move or a later one already, or
        if `after`, the move before it (0: none), has not brought the partition here yet.

        From this call on `write` refuses the partition's batches with a NotOwner that names the bundle.
        """
        if (over := self._over()) is not None:
            return failed(over)
        seal = self._issued.seal_now(key, move, target, after)
        if seal is None:
            return None
        # the fold of what is in flight does not know the times that its segments got while they were built
        seal.append_us = max(self.durable.append_us, *(flight.index.append_us for flight in self._in_flight), 0)
        return self._put_move(seal.end, seals=[seal])

    def open_partition(self, opened: fmt.PartitionOpen) -> asyncio.Future[int] | None:
        """Begin a partition in this ledger with what its seal in another one recorded (`open_after`).
        Return the future of its start; None if the ledger knows this move or a later one already, or
        as far as this owner knows has the partition still.
        """
        if (over := self._over()) is not None:
            return failed(over)
        return self._put_move(opened.start, opens=[opened]) if self._issued.may_open(opened) else None

    def _put_move(
        self, offset: int, seals: Sequence[fmt.PartitionSeal] = (), opens: Sequence[fmt.PartitionOpen] = ()
    ) -> asyncio.Future[int]:
        waiter = Moved(asyncio.get_running_loop().create_future())
        flight = InFlight(self._next_index(fmt.DATA), answers=[(waiter, offset)])
        flight.index.seals.extend(seals)
        flight.index.opens.extend(opens)
        self._issued.open_segment(flight.index)
        self._put(flight)
        return waiter.done

    def _add(self, append: Append, flight: InFlight) -> None:
        batch, index = append.batch, flight.index
        if not index.batches:
            self._issued.open_segment(index)
        last = index.batches[-1] if index.batches else None
        position = last.position + last.length if last else first_batch_position()
        entry = batch.entry(self._issued.end(*batch.key), position)
        self._issued.append(entry, batch.key)
        index.batches.append(entry)
        if batch.append_us:
            index.append_us = max(index.append_us, batch.append_us)
        if batch.ids:
            index.append_us = max(index.append_us, batch.ids_us)
        flight.data.append(batch.data)
        flight.keys.append(batch.key)
        payer = Payer(batch.topic_id, append.principal)
        flight.shares[payer] = flight.shares.get(payer, 0) + len(batch.data)
        flight.answers.append((append, entry.base_offset))

    async def release(self, successor: str = "") -> None:
        """Wait for the puts in flight, then end the term by a RELEASE segment.

        Raises NotOwner if the term was lost before, and the store's error if it refuses that
        segment: then the term continues.
        """
        await self.drain()
        flight = InFlight(self._next_index(fmt.RELEASE))
        flight.index.successor = successor
        self._issued.open_segment(flight.index)
        self._put(flight)
        refusals = self._release_refusals = []
        try:
            await self.drain()
        finally:
            self._release_refusals = None
        if refusals:
            raise refusals[0]
        self.end(NotOwner(f"bundle {self.bundle} was released", owner=successor or None))

    def _next_index(self, kind: fmt.SegmentKind) -> fmt.SegmentIndex:
        self._pass_voids(self._issued)
        return fmt.SegmentIndex(
            bundle=self.bundle,
            slot=self._issued.slot + 1,
            epoch=self._issued.epoch,
            kind=kind,
            writer=self._issued.writer,
            put_id=self._sources.new_id(),
            previous=self._issued.last_put_id,
            created_ms=self._sources.now_ms(),
            broker=self._broker,
        )

    def _put(self, flight: InFlight) -> None:
        self._in_flight.append(flight)
        self._start(self._settle(flight), f"put bundle {self.bundle} slot {flight.index.slot}")

    async def _settle(self, flight: InFlight) -> None:
        try:
            outcome = await self._put_and_look(flight)
            if self.lost is None:
                self._take_outcome(flight, outcome)
        except LedgerMQError as error:  # nothing was put
            if self.lost is None:
                self._take_refusal(flight, error)
        except Exception as error:  # a bug, here or in the backend: every waiter has to get an answer
            log.exception("bundle %d: slot %d", self.bundle, flight.index.slot)
            self.end(NotOwner(f"bundle {self.bundle}: slot {flight.index.slot} failed: {error!r}"))

    async def _put_and_look(self, flight: InFlight) -> PutOutcome:
        begun = asyncio.get_running_loop().time()
        with paid_by(flight.shares):
            outcome = await settle_put(
                self._store,
                keys.segment(self.bundle, flight.index.slot),
                encode_segment(flight.index, flight.data),
                sources=self._sources,
                hedge_after_s=self._latency.hedge_after_s(),
                is_data=flight.index.kind == fmt.DATA and self.bundle != keys.METADATA_BUNDLE,
            )
        self._latency.add(asyncio.get_running_loop().time() - begun)
        return outcome

    def _take_outcome(self, flight: InFlight, outcome: PutOutcome) -> None:
        if outcome is not PutOutcome.WON:
            slot = flight.index.slot
            self.end(NotOwner(f"bundle {self.bundle}: slot {slot} was {outcome.name.lower()}, so its term has ended"))
            return
        flight.settled = flight.won = True
        if flight.void:
            self._own_voids.add(flight.index.slot)
        while self._in_flight and self._in_flight[0].won and not self._in_flight[0].void:
            self._acknowledge(self._in_flight[0])
            self._in_flight.popleft()
        if not self._in_flight:
            self._share()
        self._go_on_if_settled()

    def _take_refusal(self, flight: InFlight, error: LedgerMQError) -> None:
        """Handle a refusal: nothing was put in this slot, so neither it nor a segment that links to
        it will ever count.

        Segments below it are not affected.
        """
        flight.settled = True
        refused = [later for later in self._in_flight if later.index.slot >= flight.index.slot and not later.void]
        self._refusal = self._refusal or error
        for later in refused:
            later.void = True
            if later.won:
                self._own_voids.add(later.index.slot)
            for append, _ in later.answers:
                fail(append, error)
            later.answers.clear()
        for append in self._refused.values():  # judged by a fold that is no longer in force
            fail(append, error)
        if refused and self._release_refusals is not None:
            self._release_refusals.append(error)
        elif refused:
            self._on_refused(flight.index.slot, error)
        self._go_on_if_settled()

    def _go_on_if_settled(self) -> None:
        """Reset `issued` to `durable` once only void segments of known outcome are left in flight."""
        if self._refusal is not None and all(flight.void and flight.settled for flight in self._in_flight):
            self._in_flight.clear()
            self._issued, self._unshared = self.durable.copy(), 0
            self._refusal = None
        self.put_ended.set()

    def _share(self) -> None:
        """Let the folds share what is equal, as all is while nothing is in flight."""
        state = self.durable
        if UNSHARED_PART * self._unshared > len(state.ends) + len(state.producers):
            self._issued.share(state)
            self._unshared = 0

    def _pass_voids(self, state: LedgerState) -> None:
        """Advance past own void segments, as every reader does by the same rule."""
        while state.slot + 1 in self._own_voids:
            state.slot += 1

    def _acknowledge(self, flight: InFlight) -> None:
        self._pass_voids(self.durable)
        self._own_voids = {slot for slot in self._own_voids if slot > self.durable.slot}
        if not self.durable.apply(flight.index, flight.keys):
            raise AssertionError(f"bundle {self.bundle}: slot {flight.index.slot} was put but is void")
        self._unshared += len(flight.index.batches)
        self._on_durable(flight.index, flight.data, flight.keys)
        for append, answer in flight.answers:
            if isinstance(answer, LedgerMQError):
                fail(append, answer)
            else:
                succeed(append, answer)
