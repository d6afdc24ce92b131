"""Bugs in the protocol of one ledger (docs/design.md, The ledger protocol and Checkpoints)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import ledgermq_ledger.log.chains.checkpoint
import ledgermq_ledger.log.chains.plans
import ledgermq_ledger.log.recovery
import ledgermq_ledger.log.writing.writer
import ledgermq_ledger.parquet.compacting.round
import tests.simulation.ledger_run
from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, state_of
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.log.writing.in_flight import Append, fail, succeed
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store import settle
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectMissing, ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.settle import PutOutcome
from tests.simulation.mutants import mutant
from tests.simulation.plan import plan_of

Patch = pytest.MonkeyPatch


@mutant("ledger")
def link_ignored(patch: Patch) -> None:
    """A segment counts whatever it links to."""

    def is_valid(self: LedgerState, index: fmt.SegmentIndex) -> bool:
        if index.kind == fmt.CLAIM:
            return index.epoch > self.epoch
        return (index.epoch, index.writer) == (self.epoch, self.writer)

    patch.setattr(LedgerState, "is_valid", is_valid)


def claims_that_sleep(seed: int) -> bool:
    return "claims" in plan_of(seed).ambush.shares


@mutant("ledger", likely=claims_that_sleep)
def no_second_recovery(patch: Patch) -> None:
    """A claim that was won is served from what was read before it."""
    recover = ledgermq_ledger.log.writing.writer.recover

    async def claim(ref: LedgerRef, broker: str) -> Recovered:
        store, bundle, sources = ref.store, ref.bundle, ref.sources
        before = await recover(ref)
        index = fmt.SegmentIndex(
            bundle=bundle,
            slot=before.next_slot,
            epoch=before.state.epoch + 1,
            kind=fmt.CLAIM,
            writer=sources.new_id(),
            put_id=sources.new_id(),
            previous=before.state.last_put_id,
            broker=broker,
        )
        put = ledgermq_ledger.log.writing.writer.encode_segment(index, [])
        if await settle.settle_put(store, keys.segment(bundle, index.slot), put, sources=sources) is not PutOutcome.WON:
            raise NotOwner("lost")
        before.state.apply(index)
        return before

    _patch_claim(patch, claim)


def _patch_claim(patch: Patch, claim: Any) -> None:
    patch.setattr("tests.simulation.ledger_broker.claim", claim)


def _delete_below_trim(patch: Patch, which: Any) -> None:
    async def tidy_segments(store: ObjectStore, bundle: int) -> int:
        trim = (await newest_checkpoint(store, bundle)).trim_slot
        for slot in [keys.number(info.key) async for info in store.list(keys.segments(bundle))]:
            if slot < trim:
                try:
                    index = (await read_index(store, bundle, slot)).index
                except ObjectMissing:
                    continue
                if which(index):
                    await store.delete([keys.segment(bundle, slot)])
        return 0

    patch.setattr(tests.simulation.ledger_run, "tidy_segments", tidy_segments)


@mutant("ledger")
def claims_deleted(patch: Patch) -> None:
    """Everything below the trim slot is deleted, claims too."""
    _delete_below_trim(patch, lambda index: True)


@mutant("ledger")
def voids_deleted(patch: Patch) -> None:
    """Everything below the trim slot but claims is deleted, void segments too."""
    _delete_below_trim(patch, lambda index: index.kind != fmt.CLAIM)


def _without_read_back(patch: Patch, outcome: PutOutcome) -> None:
    async def settle_put(
        store: ObjectStore, key: str, buffers: Sequence[Buffer], *, sources: Sources, **_: Any
    ) -> PutOutcome:
        for _attempt in range(12):
            try:
                await store.put_if_absent(key, buffers)
                return PutOutcome.WON
            except AlreadyExists:
                return outcome
            except StoreUncertain:
                await asyncio.sleep(0.1)
        return PutOutcome.UNKNOWN

    patch.setattr(ledgermq_ledger.log.writing.writer, "settle_put", settle_put)


@mutant("ledger")
def exists_taken_as_lost(patch: Patch) -> None:
    """412 is taken as lost without reading back whose object it is."""
    _without_read_back(patch, PutOutcome.LOST)


@mutant("ledger")
def exists_taken_as_won(patch: Patch) -> None:
    """412 after a time-out is taken for one's own first try."""
    _without_read_back(patch, PutOutcome.WON)


def _refuses_often(seed: int) -> bool:
    """Return whether the store refuses so often that nothing shows who has won a slot."""
    faults = plan_of(seed).faults
    return faults.before + faults.throttle > 0.1


@mutant("ledger", likely=_refuses_often)
def unknown_taken_as_won(patch: Patch) -> None:
    """A put whose outcome cannot be told is acknowledged."""
    real = settle.settle_put

    async def settle_put(*args: Any, **more: Any) -> PutOutcome:
        outcome = await real(*args, **more)
        return PutOutcome.WON if outcome is PutOutcome.UNKNOWN else outcome

    patch.setattr(settle, "ATTEMPTS_MAX", 2)
    patch.setattr(ledgermq_ledger.log.writing.writer, "settle_put", settle_put)


@mutant("ledger")
def acknowledged_before_a_lower_slot(patch: Patch) -> None:
    """Waiters hear of their own slot, whatever becomes of those below."""
    real = LedgerWriter._take_outcome

    def take_outcome(self: LedgerWriter, flight: Any, outcome: PutOutcome) -> None:
        if outcome is PutOutcome.WON:
            for append, base_offset in flight.answers:
                succeed(append, base_offset)
        real(self, flight, outcome)

    patch.setattr(LedgerWriter, "_take_outcome", take_outcome)


@mutant("ledger")
def waiters_of_a_failed_flush_acknowledged(patch: Patch) -> None:
    """When a term ends, what is in flight is answered as if it were stored."""
    real = LedgerWriter.end

    def end(self: LedgerWriter, error: LedgerMQError) -> None:
        for flight in self._in_flight:
            for append, base_offset in flight.answers:
                succeed(append, base_offset)
        real(self, error)

    patch.setattr(LedgerWriter, "end", end)


@mutant("ledger")
def joined_retry_acknowledged_at_once(patch: Patch) -> None:
    """A retry of a batch that is still in flight is answered as stored."""
    real = LedgerWriter._is_new

    def is_new(self: LedgerWriter, append: Append, building: Any) -> bool:
        session = append.batch.producer
        if session is not None:
            try:
                stored = self._issued.producers.judge(
                    session, append.batch.topic_id, append.batch.partition, append.batch.record_count
                )
            except LedgerMQError:
                stored = None
            if stored is not None:
                succeed(append, stored.base_offset)
                return False
        return real(self, append, building)

    patch.setattr(LedgerWriter, "_is_new", is_new)


@mutant("ledger")
def fence_check_on_the_wrong_slot(patch: Patch) -> None:
    """It looks above all own puts only: a claim that stands where an own put is still on its way is
    not seen.
    """

    async def look(self: LedgerWriter) -> None:
        try:
            found = (await read_index(self._store, self.bundle, self.issued_slot + 1)).index
        except ObjectMissing:
            return
        if found.kind == fmt.CLAIM and found.writer != self.durable.writer:
            self.end(NotOwner("claimed"))

    patch.setattr(LedgerWriter, "_look_for_claim", look)


@mutant("ledger")
def no_fence_check(patch: Patch) -> None:
    """The latest offset is answered from memory."""

    async def look(self: LedgerWriter) -> None:
        return None

    patch.setattr(LedgerWriter, "_look_for_claim", look)


@mutant("ledger")
def end_told_before_it_is_durable(patch: Patch) -> None:
    """The latest offset is what was given out, not what was won."""

    async def latest(self: Any, topic_id: int, partition: int) -> int:
        writer = self._owned()
        end = int(writer._issued.end(topic_id, partition))
        await writer.check_fence()
        return end

    patch.setattr("tests.simulation.ledger_broker.LedgerBroker.latest", latest)


@mutant("ledger")
def offsets_from_the_checkpoint_only(patch: Patch) -> None:
    """A new owner goes on from the offsets of the checkpoint: those of the tail are used again."""
    real = ledgermq_ledger.log.writing.writer.recover

    async def recover(ref: LedgerRef) -> Recovered:
        recovered = await real(ref)
        recovered.state.ends = dict(state_of(recovered.checkpoint, ref.cluster.producer_states_max).ends)
        return recovered

    patch.setattr(ledgermq_ledger.log.writing.writer, "recover", recover)


@mutant("ledger")
def served_again_after_it_was_lost(patch: Patch) -> None:
    """After a lost slot the owner goes on with the next one, in the same term."""
    real = LedgerWriter._take_outcome

    def take_outcome(self: LedgerWriter, flight: Any, outcome: PutOutcome) -> None:
        if outcome is PutOutcome.WON:
            real(self, flight, outcome)
            return
        for append, _ in flight.answers:
            fail(append, NotOwner("lost"))
        self._in_flight.remove(flight)
        self.durable.slot = max(self.durable.slot, flight.index.slot)
        self.durable.last_put_id = flight.index.put_id
        self.put_ended.set()

    patch.setattr(LedgerWriter, "_take_outcome", take_outcome)


@mutant("ledger")
def writer_id_for_each_process(patch: Patch) -> None:
    """Every claim of a broker carries the same writer id, and the same epoch may be claimed twice."""
    real = fmt.SegmentIndex

    def index(**fields: Any) -> Any:
        if fields.get("kind") == fmt.CLAIM:
            fields["writer"] = str(fields["broker"]).encode().ljust(16)
            fields["epoch"] = max(1, fields["epoch"] - 1) if fields["slot"] > 1 else 1
        return real(**fields)

    class Format:
        def __getattr__(self, name: str) -> Any:
            return index if name == "SegmentIndex" else getattr(fmt, name)

    def is_valid(self: LedgerState, found: fmt.SegmentIndex) -> bool:
        if found.previous != self.last_put_id:
            return False
        if found.kind == fmt.CLAIM:
            return found.epoch >= self.epoch
        return (found.epoch, found.writer) == (self.epoch, self.writer)

    patch.setattr(ledgermq_ledger.log.writing.writer, "fmt", Format())
    patch.setattr(LedgerState, "is_valid", is_valid)


@mutant("ledger")
def segments_put_without_a_condition(patch: Patch) -> None:
    """A broker that believes to be the owner overwrites the segment in the slot."""

    async def settle_put(store: ObjectStore, key: str, buffers: Sequence[Buffer], **_: Any) -> PutOutcome:
        try:
            await store.put(key, b"".join(buffers))
        except StoreUncertain:
            return PutOutcome.UNKNOWN
        return PutOutcome.WON

    patch.setattr(ledgermq_ledger.log.writing.writer, "settle_put", settle_put)


@mutant("ledger")
def waiters_of_a_lost_term_forgotten(patch: Patch) -> None:
    """When a term ends, callers whose batches were in flight get no outcome."""
    real = LedgerWriter.end

    def end(self: LedgerWriter, error: LedgerMQError) -> None:
        self._in_flight.clear()
        real(self, error)

    patch.setattr(LedgerWriter, "end", end)


@mutant("ledger")
def fold_believed_without_a_second_look(patch: Patch) -> None:
    """Recovery does not look whether what it read has been trimmed meanwhile; nor does the
    caller that uses it.
    """
    real = ledgermq_ledger.log.recovery.newest_checkpoint

    async def newest(store: ObjectStore, bundle: int, known: fmt.Checkpoint | None = None) -> fmt.Checkpoint:
        return known if known is not None else await real(store, bundle)

    patch.setattr(ledgermq_ledger.log.recovery, "newest_checkpoint", newest)


LOADED = True
