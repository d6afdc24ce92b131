"""`BundleOwner`: one term of ownership of a bundle, from the claim to its end.

Invariants: no caller sees what the ledger's writer has not acknowledged. When the term has ended
(lost, released or closed), every waiter fails with a retriable NotOwner, and nothing is ever served
from this object again. All background tasks live in one TaskGroup. Must not know: gRPC, which
broker should own what, how clients find the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from ledgermq.errors import LedgerMQError, NotOwner, PartitionBusy, ResourceExhausted, Unavailable, UnknownPartition
from ledgermq_broker.bundle.committing.exclusive_writers import ExclusiveWriters
from ledgermq_broker.bundle.committing.group_commit import GroupCommit
from ledgermq_broker.bundle.committing.new_producers import LIMIT as NEW_PRODUCERS
from ledgermq_broker.bundle.committing.new_producers import NewProducers
from ledgermq_broker.bundle.deletion import Before, Deleted, delete_records
from ledgermq_broker.bundle.loads import Traffic
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading.former import FormerReaders
from ledgermq_broker.bundle.reading.internal_state import LatestRecords, read_internal_state
from ledgermq_broker.bundle.reading.owned_ledger import OwnedLedger, TermStatus
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.shared.write_gate import for_producer
from ledgermq_broker.bundle.upkeep.compaction_due import first_staged_slot
from ledgermq_broker.bundle.upkeep.upkeep import Upkeep
from ledgermq_broker.logs import get_logger, logs_debug
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import move_internal_log_starts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import has_its_files
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter, claim
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.parquet.hand_over import waits_for_files
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.backlog import Backlog, backlog_from
from ledgermq_ledger.view.find import Finder, read_row
from ledgermq_ledger.view.partition_index import NOTHING_LEFT_OUT, LeftOut, Masks
from ledgermq_ledger.view.reader import LedgerReader, PartitionRead

T = TypeVar("T")

_STAGED = {
    keys.STAGED_TOPIC: "batches of open transactions in them: commit or abort them",
    keys.DELAYED_TOPIC: "timed messages in them that are not delivered yet: retry later, and look into the log"
    " of this broker if that does not help",
}
"""What a staged topic holds, and what to do about it."""

log = get_logger(__name__)


class BundleOwner:
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
        self.bundle = writer.bundle
        self.epoch = writer.epoch
        self.ended = writer.ended
        self.traffic = Traffic()
        self._context = context
        self._writer = writer
        self._ledger = OwnedLedger(context, writer, recovered)
        self._reader = self._ledger.reader
        self._commit = GroupCommit(writer, context)
        loop = asyncio.get_running_loop()
        self._new_producers = NewProducers(context.cluster.producer_states_max, writer.knows_producer, loop.time)
        self._upkeep = Upkeep(context, writer, self._ledger.view)
        self._moving = Moving(context, writer, self._commit.has_own)
        self._former = FormerReaders(self.bundle, context)
        self._tasks = asyncio.create_task(self._run(), name=f"bundle {self.bundle} epoch {self.epoch}")

    @classmethod
    async def open(cls, bundle: int, context: BundleContext) -> BundleOwner:
        """Claim the ledger. Raises NotOwner (another broker was faster: pause), DataDamaged,
        FormatNotSupported, the store's errors.
        """
        return cls(context, await claim(context.ledger(bundle), context.broker_id))

    @property
    def lost(self) -> LedgerMQError | None:
        return self._writer.lost

    @property
    def claims(self) -> Sequence[fmt.ClaimNote]:
        """The newest valid claims of the ledger, oldest first."""
        return self._writer.durable.claims

    @property
    def is_being_released(self) -> bool:
        """Return whether a RELEASE is on the way; the bundle then admits nothing."""
        return self._commit.is_draining

    def parked(self) -> list[str]:
        """Return, for each parked partition, what stands in the way and what to do."""
        return [
            f"partition {self._name(part.topic_id)}/{part.partition} of bundle {self.bundle} is parked, because"
            f" {part.parked.object_key} cannot be read: its records no longer become Parquet; `ledgermq repair ROOT"
            " --dry-run` shows what is damaged, and how to go on"
            for part in self._ledger.view.parked
        ]

    def opened_slot(self) -> int:
        """Return a slot below which no batch gets one that is sent from now on, in this term or a later one."""
        self._check_term()
        return self._writer.durable.slot + 1

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

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bytes_max: int,
        *,
        direct: bool = False,
        masks: Masks = None,
    ) -> PartitionRead:
        """Return batches from `offset` on: `bytes_max` in total, but at least one batch. `masks`: those of the tags
        that are wanted; batches that have none of them may be left out.

        Raises OffsetOutOfRange, UnknownPartition, NotOwner, DataDamaged, Unavailable, the store's
        errors.
        """
        self._check_term()
        self._check_partition(topic, partition)
        key = PartitionId(topic.id, partition)
        self._writer.durable.moves.check_here(key)
        self._upkeep.on_read()
        read = await self._of_former(
            key, offset, lambda reader: reader.fetch(key, offset, bytes_max, topic, direct=direct, masks=masks)
        )
        if read is not None:
            read = replace(read, high_watermark=self._reader.end(key))
        else:
            read = await self._in_term(self._reader.fetch(key, offset, bytes_max, topic, direct=direct, masks=masks))
        if read.batches or read.located:
            self.traffic.fetched(key, sum(len(batch.data) for batch in read.batches))
        return read

    async def _of_former(
        self, key: PartitionId, offset: int, read: Callable[[LedgerReader], Coroutine[None, None, T]]
    ) -> T | None:
        """Return what is read in the ledger that a partition came from, if that has the offset; None if it is here.

        That ledger forgets the partition once the files are listed here, so this one is looked at after an error.
        """
        opened = self._opened_above(key, offset)
        if opened is None:
            self._former.forget(key)
            return None
        try:
            return await self._in_term(read(await self._in_term(self._former.reader(key, opened))))
        except LedgerMQError:
            await self._in_term(self._ledger.view.look())
            if self._opened_above(key, offset) is not None:
                raise
            return None

    def left_out(self, topic: Topic, partition: int, offset: int, read: PartitionRead) -> LeftOut:
        """Return how much an answer to a reader at `offset` left out because of its tags."""
        key, total = PartitionId(topic.id, partition), NOTHING_LEFT_OUT
        index = self._ledger.view.index.partitions.get(key)
        if index is None or self._opened_above(key, offset) is not None:
            return total
        sent = [(batch.base_offset, batch.end) for batch in read.batches]
        sent += [(located.batch.base_offset, located.batch.end) for located in read.located]
        for base_offset, end in sent:
            total = total.and_(index.size_between(offset, base_offset))
            offset = end
        return total if sent else index.size_between(offset, read.next_offset)

    async def append_us(self, batch: Batch, base_offset: int) -> int:
        """Return the timestamp in microseconds that this or an earlier term gave a stored batch; 0: it has its
        producer's, was cleaned, or cannot be read. A repeated batch may be too old for the index, or in the ledger that
        its partition came from: then it is read.
        """
        topic = self._context.catalog().topics_by_id.get(batch.topic_id)
        if topic is None or not topic.settings.append_time:
            return 0
        key = batch.key
        index = self._ledger.view.index.partitions.get(key)
        place = None if index is None else index.at(base_offset)
        if index is not None and place is not None:
            return index[place].timestamp_max_us
        try:
            run_blocking = self._context.run_blocking
            row = await self._of_former(
                key, base_offset, lambda reader: read_row(reader, run_blocking, key, base_offset, topic)
            )
            if row is None:
                stored = await self._in_term(self._ledger.finder.record(key, base_offset, topic))
                row = None if stored is None else stored.row
            return 0 if row is None else row.column("timestamp")[0].value or 0
        except LedgerMQError as error:  # the batch is stored: that has to be answered
            log.warning("no time of a repeated batch", bundle=self.bundle, offset=base_offset, error=str(error))
            return 0

    async def look_up(self, topic: Topic, partition: int, look: Callable[[Finder], Coroutine[None, None, T]]) -> T:
        """Return what `look` finds in the ledger. Raises UnknownPartition, NotOwner, what it raises, and Unavailable
        while some of the partition is in another ledger.
        """
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        self._check_whole(topic, partition, 0)
        return await self._in_term(look(self._ledger.finder))

    async def wait_for_data(self, positions: Mapping[PartitionId, int]) -> None:
        """Wait until a partition reaches beyond its offset, or the term has ended."""
        await self._ledger.waiters.wait(positions)

    async def internal_state(self, wanted: Sequence[tuple[Topic, Sequence[int]]]) -> dict[PartitionId, LatestRecords]:
        """Return the latest records of partitions of internal topics; the snapshot is read once for
        all of them.

        Raises NotOwner, Unavailable, the store's errors; damage is in the results.
        """
        self._check_term()
        return await self._in_term(read_internal_state(self._ledger, wanted))

    def durable_end(self, topic: Topic, partition: int) -> int:
        """Return an end that is durable, although a later owner may know a higher one. It costs no
        request, and proves nothing about records beyond it.
        """
        self._check_term()
        self._check_partition(topic, partition)
        return self._ledger.view.durable_end(PartitionId(topic.id, partition))

    def offset_behind(self, topic: Topic, partition: int, slots: int) -> int:
        """Return the offset of a partition below which its records lie more than `slots` slots behind
        the end of the ledger, as far as the fetch index knows. It costs no request.
        """
        self._check_term()
        self._check_partition(topic, partition)
        key = PartitionId(topic.id, partition)
        found = self._ledger.view.index.partitions.get(key)
        place = found.place_of_slot(self._writer.durable.slot - slots) if found is not None else 0
        if found is None or place == len(found):
            return self._ledger.view.durable_end(key)
        return found[place].base_offset

    async def list_offset(
        self, topic: Topic, partition: int, at: Literal["earliest", "latest", "durable"] | int
    ) -> int:
        """Return the offset of `at`. A time is in microseconds since the epoch, and gives the first
        offset of that time or later, or the high watermark if there is none.
        """
        if at == "durable":
            return self.durable_end(topic, partition)
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        key = PartitionId(topic.id, partition)
        self._writer.durable.moves.check_here(key)
        end = self._reader.end(key)
        if at == "earliest":
            return await self._log_start(topic, key)
        if at != "latest":
            offset = await self._of_former(key, 0, lambda reader: reader.offset_at(key, at, topic))
            if offset is not None:
                return offset
            opened = self._opened_above(key, 0)
            begin = 0 if opened is None else opened.start
            offset = await self._in_term(self._reader.offset_at(key, at, topic, begin=begin))
            if offset is not None:
                return offset
        await self._writer.check_fence()  # a zombie must not report an old end as the latest
        return end

    async def _log_start(self, topic: Topic, key: PartitionId) -> int:
        async def start(reader: LedgerReader) -> int:
            return reader.view.log_start(key, topic)

        found = await self._of_former(key, 0, start)
        if found is not None:
            await self._in_term(self._ledger.view.look())  # the other ledger may have forgotten it before the answer
        if found is not None and self._opened_above(key, 0) is not None:
            return found
        return self._ledger.view.log_start(key, topic)

    async def backlog(self, topic: Topic, partition: int, offset: int) -> Backlog:
        """Return what lies between an offset and the end of a partition. See `backlog_from`. Raises also
        Unavailable while some of that is in another ledger.
        """
        self._check_term()
        self._check_partition(topic, partition)
        self._upkeep.on_read()
        self._check_whole(topic, partition, offset)
        return await self._in_term(backlog_from(self._reader, PartitionId(topic.id, partition), offset))

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

    def check_admission(self) -> None:
        """Raise ResourceExhausted if batches have waited for the store for too long, or if staged batches keep
        too many slots from being trimmed.

        It is for what producers send. The batches and records that end transactions, or deliver and
        move timed messages, must pass: they are what lets slots be trimmed.
        """
        self._commit.check_wait()
        view, catalog = self._ledger.view, self._context.catalog()
        slots_max, end = self._context.limits.parked_slots_max, self._writer.durable.slot + 1
        if end - view.checkpoint.trim_slot <= slots_max:
            return
        for topic in filter(None, map(catalog.topics_by_name.get, _STAGED)):
            for partition in topic.partitions_in(self.bundle) if topic.staged else ():
                first = first_staged_slot(view, PartitionId(topic.id, partition), topic)
                if first is not None and end - first > slots_max:
                    raise ResourceExhausted(
                        f"bundle {self.bundle}: {end - first} segments cannot be trimmed, because"
                        f" {topic.name}/{partition} holds {_STAGED[topic.name]}",
                        retry_after_ms=30_000,
                    )

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
        self._ledger.close()

    async def _in_term(self, reading: Coroutine[None, None, T]) -> T:
        """Return what the call read, unless the term has ended meanwhile. Its end drops the state
        under the call, so errors of the call prove nothing either.
        """
        try:
            found = await reading
        except LedgerMQError:
            self._check_term()
            raise
        self._check_term()
        return found

    def _check_writable(self) -> None:
        self._check_term()
        self._context.write_gate.check(self.bundle)
        self._check_parked()

    def _check_term(self) -> None:
        lost = self.lost
        if lost is not None:
            raise NotOwner(
                f"bundle {self.bundle}: the term of epoch {self.epoch} is over: {lost.message}", owner=lost.owner
            ) from lost

    def _check_parked(self) -> None:
        """Raise ResourceExhausted if a parked partition has kept too many slots from being trimmed."""
        view = self._ledger.view
        untrimmed = self._writer.durable.slot + 1 - view.checkpoint.trim_slot
        if untrimmed <= self._context.limits.parked_slots_max:
            return
        for opened in self._writer.durable.moves.opens():
            if waits_for_files(self._writer.durable.moves, key_of(opened), view.counters.get(key_of(opened))):
                raise ResourceExhausted(
                    f"bundle {self.bundle}: {untrimmed} segments cannot be trimmed, because the files of"
                    f" {self._name(opened.topic_id)}/{opened.partition} are still in bundle {opened.source}"
                    f" (move {opened.move}). Compact it: `ledgermq compact ROOT`; `ledgermq fsck ROOT` names what"
                    " stops it",
                    retry_after_ms=30_000,
                )
        if not view.parked:
            return
        named = ", ".join(
            f"{self._name(part.topic_id)}/{part.partition} ({part.parked.object_key})" for part in view.parked[:3]
        )
        raise ResourceExhausted(
            f"bundle {self.bundle}: {untrimmed} segments cannot be trimmed, because {len(view.parked)} partitions are"
            f" parked: {named}; repair them",
            retry_after_ms=30_000,
        )

    def _name(self, topic_id: int) -> str:
        topic = self._context.catalog().topics_by_id.get(topic_id)
        return topic.name if topic is not None else f"topic {topic_id}"

    def _check_partition(self, topic: Topic, partition: int) -> None:
        if not 0 <= partition < topic.partitions:
            raise UnknownPartition(f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
        if topic.bundles[partition] != self.bundle:
            raise NotOwner(f"{topic.name}/{partition} is in bundle {topic.bundles[partition]}, not {self.bundle}")
        self._moving.check_arrived(topic.id, partition)

    def _opened_above(self, key: PartitionId, offset: int) -> fmt.PartitionOpen | None:
        """Return the open of a partition that came here with this offset in another ledger, until its files are
        listed here.
        """
        opened = self._writer.durable.moves.open_of(key)
        if opened is None or offset >= opened.start:
            return None
        counters = self._ledger.view.counters.get(key)
        return opened if counters is None or not has_its_files(opened, counters) else None

    def _check_whole(self, topic: Topic, partition: int, offset: int) -> None:
        """Raise Unavailable if records of a partition from this offset on are in another ledger."""
        opened = self._opened_above(PartitionId(topic.id, partition), offset)
        if opened is not None:
            raise Unavailable(
                f"{topic.name}/{partition}: the records below offset {opened.start} are in bundle {opened.source} until"
                f" move {opened.move} has ended",
                retry_after_ms=5000,
            )


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    await work()
