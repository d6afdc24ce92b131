"""`BundleOwner`: one term of ownership of a bundle, from the claim to its end.

Invariants: no caller sees what the ledger's writer has not acknowledged. When the term has ended
(lost, released or closed), every waiter fails with a retriable NotOwner, and nothing is ever served
from this object again. All background tasks live in one TaskGroup. Must not know: gRPC, which
broker should own what, how clients find the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ledgermq.errors import LedgerMQError, NotOwner, PartitionBusy
from ledgermq_broker.bundle.committing.decision_hold import DecisionHold
from ledgermq_broker.bundle.committing.exclusive_writers import ExclusiveWriters
from ledgermq_broker.bundle.committing.group_commit import GroupCommit
from ledgermq_broker.bundle.committing.new_producers import LIMIT as NEW_PRODUCERS
from ledgermq_broker.bundle.committing.new_producers import NewProducers
from ledgermq_broker.bundle.deletion import Before, Deleted, delete_records
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading.owned_ledger import TermStatus
from ledgermq_broker.bundle.reads import Reads
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.shared.write_gate import for_producer
from ledgermq_broker.bundle.untrimmed import check_parked, check_staged, why_parked
from ledgermq_broker.logs import get_logger, logs_debug
from ledgermq_ledger.cuts.pins import pin_for_cut
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter, claim
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.topics.topic import Topic

T = TypeVar("T")


log = get_logger(__name__)


class BundleOwner(Reads):
    """Made by `open`. `ended` is set when the term is over for any reason; `lost` then holds the
    reason. `exclusive`: asked for each batch whether its producer may write.
    """

    def __init__(self, context: BundleContext, recovered: Recovered) -> None:
        newest_topic = max((key.topic_id for key in recovered.state.ends), default=-1)
        self.exclusive = ExclusiveWriters(recovered.bundle, context.catalog, newest_topic)
        writer = LedgerWriter(
            context.ledger(recovered.bundle),
            context.broker_id,
            recovered,
            self._on_durable,
            self._on_refused,
            self.exclusive.check,
        )
        self._commit = GroupCommit(writer, context)
        self.hold = DecisionHold(recovered.bundle)
        super().__init__(context, writer, recovered, Moving(context, writer, self._commit.has_own))
        loop = asyncio.get_running_loop()
        self._new_producers = NewProducers(context.cluster.producer_states_max, writer.knows_producer, loop.time)
        self._tasks = asyncio.create_task(self._run(), name=f"bundle {self.bundle} epoch {self.epoch}")

    @classmethod
    async def open(cls, bundle: int, context: BundleContext) -> BundleOwner:
        """Claim the ledger. Raises NotOwner (another broker was faster: pause), DataDamaged,
        FormatNotSupported, the store's errors.
        """
        return cls(context, await claim(context.ledger(bundle), context.broker_id))

    @property
    def claims(self) -> Sequence[fmt.ClaimNote]:
        """The newest valid claims of the ledger, oldest first."""
        return self._writer.durable.claims

    @property
    def is_being_released(self) -> bool:
        """Return whether a RELEASE is on the way; the bundle then admits nothing."""
        return self._commit.is_draining

    @property
    def put_s(self) -> float:
        """Return how long a put of what producers send takes now; 0 if it is not known."""
        return self._commit.put_s

    def opened_slot(self) -> int:
        """Return a slot below which no batch gets one that is sent from now on, in this term or a later one."""
        self._check_term()
        return self._writer.durable.slot + 1

    @property
    def durable_slot(self) -> int:
        """The last slot that is durable, as far as this term knows."""
        self._check_term()
        return self._writer.durable.slot

    def session_slot(self, topic_id: int, partition: int) -> int:
        """Return the opened slot that an idempotent producer has to carry in a partition: `opened_slot`, and
        the move that brought the partition here. Raises NotOwner, also if the partition has left, and
        Unavailable if it has not come yet.
        """
        self._moving.check_arrived(topic_id, partition)
        moves, key = self._writer.durable.moves, PartitionId(topic_id, partition)
        moves.check_here(key)
        return moves.opened_slot(key, self.opened_slot())

    def session_here(self, key: PartitionId, session: ProducerSession | None) -> ProducerSession | None:
        """Return the session of a producer of a partition as it counts in an internal partition of this bundle, which
        never moved: with the slot alone.
        """
        if session is None:
            return None
        return replace(session, opened_slot=self._writer.durable.moves.slot_here(key, session.opened_slot))

    def next_sequence(self, producer_id: bytes, key: PartitionId, principal: int = 0) -> int:
        """Return what is durable of a producer, for one that continues after its process died; 0 if the id is that of
        another principal (`principal`: a hash; 0: not known). The result is never too high. A fenced owner may return
        less than is stored, which later sequences reveal. Raises NotOwner; Unavailable if the partition has not come.
        """
        self._check_term()
        self._moving.check_arrived(*key)
        return self._writer.durable.producers.next_sequence(producer_id, *key, principal)

    def produce(
        self, batches: Sequence[Batch], *, durable: bool, together: bool = False, sender: str = ""
    ) -> list[asyncio.Future[int]]:
        """Admit all of `batches` or none; each future gets the base offset once its segment is
        durable, or an error. With `together`, all of them become durable, or none; such batches
        carry no sequence. `sender`: see `GroupCommit.admit`.

        With `durable` False the futures are done at once, with OFFSET_NOT_KNOWN; then also raises
        PartitionHeld. Raises NotOwner, ResourceExhausted, QuotaExceeded, InvalidRequest; if the store takes no records
        StoreFull, StoreUnusable, Unauthorized; Unavailable if a partition has not come yet, or with `durable`
        False if its holder is not known yet. After an error nothing was stored, and reads continue.
        """
        self._check_writable()
        for batch in batches:
            self._moving.check_arrived(batch.topic_id, batch.partition)
        if not durable:  # their producers learn nothing later
            for batch in batches:
                self.exclusive.check(batch.key, b"")
        self._new_producers.admit(batches)
        admitted = self._commit.admit(batches, durable=durable, together=together, sender=sender)
        self.traffic.produced(batches)
        return admitted

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of the tables of this ledger, by their names."""
        ids = self._writer.durable.ids.shares
        return {ids.limit: ids.of(principal), NEW_PRODUCERS: self._new_producers.spent(principal)}

    def check_arrived(self, batch: Batch) -> None:
        """Raise Unavailable if the batch's partition moves to this bundle, and is not open here yet."""
        self._moving.check_arrived(batch.topic_id, batch.partition)

    def check_in_charge(self, key: PartitionId) -> None:
        """Raise if nothing may be taken in now that keeps a partition in this bundle: NotOwner, Unavailable. Call it
        in the turn of the event loop that takes it in.
        """
        self._check_term()
        self._moving.check_in_charge(key)

    def has_left(self, key: PartitionId) -> bool:
        """Return whether a partition was here, and has moved to another bundle."""
        return self._writer.durable.moves.seal_of(key) is not None

    def leaves(self, key: PartitionId) -> bool:
        """Return whether a partition has left, or is about to: see `Moving.leaves`."""
        return self._moving.leaves(key)

    def is_here(self, key: PartitionId) -> bool:
        """Return whether what is known of a partition is known in this bundle; see `Moving.is_here`."""
        return self._moving.is_here(key)

    def check_here(self, key: PartitionId) -> None:
        """Raise NotOwner or Unavailable if what is known of a partition is not known in this bundle."""
        self._check_term()
        self._moving.check_here(key)

    def epoch_of(self, key: PartitionId) -> int:
        """Return the epoch of this term as clients get it for a partition: with the move that brought the partition, so
        that no other bundle gives the same.
        """
        return self._writer.durable.moves.opened_slot(key, self.epoch)

    def count_before(self, key: PartitionId) -> int:
        """Return a number that is higher than any change number that earlier bundles gave this partition."""
        return self._writer.durable.moves.opened_slot(key, 0)

    def prepare_move(self, topic: Topic, partition: int, *, dry_run: bool) -> None:
        """Prepare the move of a partition to another bundle; see `Moving.prepare`. Raises also NotOwner,
        UnknownPartition, and PartitionBusy if the partition is parked.
        """
        self._check_term()
        self._check_partition(topic, partition)
        key = PartitionId(topic.id, partition)
        if any((part.topic_id, part.partition) == key for part in self._ledger.view.parked):
            raise PartitionBusy(
                f"{topic.name}/{partition} is parked in bundle {self.bundle}: run `ledgermq repair` before it moves"
            )
        self._moving.prepare(key, dry_run=dry_run)

    def catalog_changed(self) -> None:
        """Look whether the catalog names moves from or to this bundle."""
        self._moving.catalog_changed()

    def check_room(self, size_bytes: int, batches: int = 1) -> None:
        """Raise what `produce` would raise now for `batches` of `size_bytes` in total. It reserves
        nothing, so a later `produce` may still be refused.
        """
        self._check_writable()
        self._commit.check_room(batches, size_bytes)

    async def delete_records(
        self, topic: Topic, befores: Mapping[int, Before], *, dry_run: bool
    ) -> dict[int, Deleted | LedgerMQError]:
        """Delete records; return by partition where its log begins now, or why nothing was deleted.

        Raises NotOwner, LegalHold, InvalidRequest, the store's errors.
        """
        self._check_term()
        self._upkeep.on_read()
        for partition in befores:
            self._check_partition(topic, partition)
            self._check_whole(topic, partition, 0)
        return await self._in_term(
            delete_records(self._context, self._writer, self._reader, topic, befores, dry_run=dry_run)
        )

    async def move_internal_log_starts(self, starts: Mapping[PartitionId, int]) -> None:
        """Let rounds drop what staged and hidden partitions hold below these offsets, each at most the
        partition's durable end. A start that is not above the log start changes nothing.

        It puts one checkpoint for all, so it is for once in a while. Raises NotOwner, UnknownPartition,
        Unavailable, the store's errors.
        """
        self._check_term()
        view, topics = self._ledger.view, self._context.catalog().topics_by_id
        later = {}
        for key, start in starts.items():
            topic = topics[key.topic_id]
            assert topic.staged or topic.hidden, topic.name
            self._check_partition(topic, key.partition)
            if start > view.log_start(key, topic):
                later[key] = start
        if later:
            ledger = self._context.ledger(self.bundle)
            await self._in_term(move_internal_log_starts(ledger, later, self._writer.durable))
            await self._in_term(view.look())

    async def pin(self, cut_id: int) -> int:
        """Pin a checkpoint for a cut, once; return its number, the base of the cut. It reads no segment.

        Raises NotOwner, ResourceExhausted at the bound of pins, Unavailable, the store's errors.
        """
        self._check_term()
        return await self._in_term(pin_for_cut(self._context.ledger(self.bundle), cut_id, self._writer.durable))

    def parked(self) -> list[str]:
        """Return, for each parked partition, what stands in the way and what to do."""
        return why_parked(self._ledger.view, self._context.catalog())

    def check_admission(self) -> None:
        """Raise ResourceExhausted if batches have waited for the store for too long, or if staged batches keep
        too many slots from being trimmed.

        It is for what producers send. The batches and records that end transactions, or deliver and
        move timed messages, must pass: they are what lets slots be trimmed.
        """
        self._commit.check_wait()
        view, slots_max, end = self._ledger.view, self._context.limits.parked_slots_max, self._writer.durable.slot + 1
        if end - view.checkpoint.trim_slot > slots_max:
            check_staged(view, self._context.catalog(), end, slots_max)

    async def check_fence(self) -> None:
        """Check whether another broker has claimed the bundle meanwhile.

        Raises NotOwner (then the term is over), the store's errors.
        """
        self._check_term()
        await self._writer.check_fence()

    async def release(self, successor: str) -> None:
        """Flush, hand over with a RELEASE segment, close. Raises NotOwner if the term was lost
        before; the bundle is closed all the same.

        Raises StoreFull, StoreUnusable, Unauthorized if the store refuses the RELEASE; the term
        then continues as before.
        """
        is_refused = False
        try:
            await self._upkeep.shorten_recovery()
            await self._commit.drain(
                NotOwner(f"bundle {self.bundle} is being handed over", owner=successor or None, retry_after_ms=100)
            )
            await self._writer.release(successor)
        except LedgerMQError as error:
            is_refused = self.lost is None
            if is_refused:
                self._commit.resume()
                self._context.write_gate.refused(error, self.bundle)
            raise
        finally:
            if not is_refused:
                await self.close()

    async def close(self) -> None:
        """End the term without writing to the ledger, as a crash would; a put in flight may still
        land. Idempotent; leaves no task behind.
        """
        self._writer.end(NotOwner(f"bundle {self.bundle} was closed"))
        self._end()
        self._tasks.cancel()
        await asyncio.gather(self._tasks, return_exceptions=True)
        await self._ledger.stop()
        await self._writer.close()

    def status(self) -> TermStatus:
        """Return the status for metrics; costs no request."""
        return self._ledger.status()

    def _on_durable(self, index: fmt.SegmentIndex, data: Sequence[Buffer], keys: Sequence[PartitionId]) -> None:
        self._context.metrics.stored(index)
        if logs_debug(__name__):
            held = [
                f"{entry.topic_id}/{entry.partition}:{entry.base_offset}+{entry.record_count}"
                for entry in index.batches
            ]
            log.debug("segment durable", bundle=self.bundle, epoch=self.epoch, slot=index.slot, batches=held)
        self._ledger.on_durable(index, data, keys)
        self._commit.on_durable(index)
        self._upkeep.on_durable(index)

    def _on_refused(self, slot: int, error: LedgerMQError) -> None:
        log.info("segment refused by the store", bundle=self.bundle, epoch=self.epoch, slot=slot, code=error.code)
        self._commit.on_refused(slot, for_producer(error))
        self._context.write_gate.refused(error, self.bundle)

    async def _run(self) -> None:
        """Run all background work of the term; if one part of it fails, the term is over."""
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(_forever(work)) for work in self._workers()]
                await self.ended.wait()
                for worker in workers:
                    worker.cancel()
        except Exception as error:
            log.exception("background work failed, the term is over", bundle=self.bundle, epoch=self.epoch)
            self._writer.end(NotOwner(f"bundle {self.bundle}: background work failed: {error!r}"))
        finally:
            self._end()

    def _workers(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._commit.run, self._moving.run, *self._upkeep.workers()]

    def _end(self) -> None:
        """Drop all state and answer all waiting callers. Idempotent."""
        error = self.lost or NotOwner(f"bundle {self.bundle} was closed")
        self._writer.end(error)
        self._commit.close(error)
        self.hold.close(error)
        self._ledger.close()

    def _check_writable(self) -> None:
        self._check_term()
        self._context.write_gate.check(self.bundle)
        if (refusal := self._writer.refusal) is not None:  # the gate may be open before all refused puts have ended
            raise for_producer(refusal)
        check_parked(self._ledger.view, self._context, self._writer.durable)


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    await work()
