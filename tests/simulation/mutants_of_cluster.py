"""Bugs in brokers, SDK, Parquet compaction and retention (DESIGN sections 9 and 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ledger.parquet.delete
import ledger.parquet.gc
import ledger.parquet.removal
import ledger.parquet.round
from ledger import keys, topic_removal
from ledger.checkpoint import newest_checkpoint
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.object_store.contract import ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.parquet.pages import PageReader
from ledger.recovery import advance_checkpoint
from ledger.segment import Batch
from ledger.writer import LedgerWriter
from ledgermq.client.producing.partition_queue import PartitionQueue
from stateless_broker import produce_path
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.bundle.reads import BundleReads, PartitionFetch
from stateless_broker.bundle.upkeep import Upkeep
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster")
def plan_not_frozen(patch: Patch) -> None:
    """Who loses the put of a plan runs its own all the same."""
    real = ledger.parquet.round.put_plan

    async def put_plan(store: ObjectStore, plan: fmt.CompactionPlan, sources: Any) -> bool:
        await real(store, plan, sources)
        await store.open_fence(ledger.parquet.plan_chain.fence_of(plan))
        return True

    async def read_plan(store: ObjectStore, bundle: int, number: int) -> None:
        return None

    patch.setattr(ledger.parquet.round, "put_plan", put_plan)
    patch.setattr(ledger.parquet.round, "read_plan", read_plan)


@mutant("cluster")
def shown_before_it_is_durable(patch: Patch) -> None:
    """Readers are given what was handed to the store, not what is stored."""
    real_put = LedgerWriter._put

    def put(self: LedgerWriter, flight: Any) -> None:
        self.on_durable(flight.index, flight.data)
        real_put(self, flight)

    def acknowledge(self: LedgerWriter, flight: Any) -> None:
        assert self.durable.apply(flight.index)
        for append, base_offset in flight.answers:
            if not append.done.done():
                append.done.set_result(base_offset)

    patch.setattr(LedgerWriter, "_put", put)
    patch.setattr(LedgerWriter, "_acknowledge", acknowledge)
    patch.setattr(BundleReads, "high_watermark", lambda self, key: self._writer._issued.end(*key))


@mutant("cluster")
def trim_moved_outside_a_commit(patch: Patch) -> None:
    """The owner's own checkpoints trim what they cover."""

    def move(draft: fmt.Checkpoint) -> bool:
        draft.trim_slot = max(draft.trim_slot, draft.state.slot + 1)
        return True

    async def checkpoint(self: Upkeep) -> None:
        context = self._context
        states_max = context.cluster.producer_states_max
        await advance_checkpoint(context.store, self.bundle, context.sources, states_max, move, self._writer.durable)
        await self._reads.look()

    patch.setattr(Upkeep, "_checkpoint", checkpoint)


@mutant("cluster")
def late_task_put_lands(patch: Patch) -> None:
    """The store does not refuse what comes after the fence was closed."""
    patch.setattr(MemoryStore, "_create_fenced", lambda self, fence, key, buffers: self._create(key, buffers))


@mutant("cluster")
def parquet_deleted_in_any_order(patch: Patch) -> None:
    """Expired files are deleted newest first."""

    async def delete_expired(store: ObjectStore, bundle: int, cluster: Any, sources: Any) -> int:
        checkpoint = await newest_checkpoint(store, bundle)
        for part in checkpoint.partitions:
            files = await PageReader(store, bundle).files_from(part, part.parquet_start)
            for file in reversed([file for file in files if file.last_offset < part.log_start]):
                await store.delete([file.key])
        return 0

    patch.setattr(ledger.parquet.delete, "delete_expired_parquet", delete_expired)


@mutant("cluster")
def retention_deletes_one_file_too_many(patch: Patch) -> None:
    """The file that holds the log start is deleted too."""

    async def delete_expired(store: ObjectStore, bundle: int, cluster: Any, sources: Any) -> int:
        checkpoint = await newest_checkpoint(store, bundle)
        for part in checkpoint.partitions:
            for file in await PageReader(store, bundle).files_from(part, part.parquet_start):
                if part.log_start and file.first_offset <= part.log_start:
                    await store.delete([file.key])
        return 0

    patch.setattr(ledger.parquet.delete, "delete_expired_parquet", delete_expired)


@mutant("cluster")
def name_freed_without_a_barrier(patch: Patch) -> None:
    """A deleted topic's files are looked for before plans that may still write some are finished."""
    patch.setattr(topic_removal, "is_past_barrier", lambda checkpoint, topic_id: True)
    patch.setattr(ledger.parquet.removal, "is_past_barrier", lambda checkpoint, topic_id: True)


@mutant("cluster")
def name_freed_with_files_left(patch: Patch) -> None:
    """A deleted topic's name is free though its Parquet files are still there."""

    async def delete_files(self: Any) -> None:
        return None

    patch.setattr(ledger.parquet.removal._Removal, "_delete_files", delete_files)


@mutant("cluster")
def garbage_collection_reads_before_it_lists(patch: Patch) -> None:
    """What is live is found out first, then everything is listed and the rest deleted."""
    real_judge, real_take = ledger.parquet.gc._judge, ledger.parquet.gc._Listed.take

    async def find_garbage(store: ObjectStore, cluster: Any) -> Any:
        before = await real_take(store, range(cluster.bundles))
        known = await _live(store, cluster)
        listed = await real_take(store, range(cluster.bundles))
        garbage = await real_judge(store, cluster, before)
        for key in listed.parquet:
            if key not in known:
                garbage.records.append(key)
        return garbage

    patch.setattr(ledger.parquet.gc, "find_garbage", find_garbage)


async def _live(store: ObjectStore, cluster: Any) -> set[str]:
    live: set[str] = set()
    for bundle in range(cluster.bundles):
        for part in (await newest_checkpoint(store, bundle)).partitions:
            if part.newest_page:
                live.update(file.key for file in await PageReader(store, bundle).files_from(part, 0))
    return live


@mutant("cluster")
def sessions_ignored(patch: Patch) -> None:
    """The broker stores every batch, whatever producer and sequence it carries."""
    patch.setattr(produce_path, "_session", lambda header, durable: None)


@mutant("cluster")
def blind_retry_in_a_new_session(patch: Patch) -> None:
    """The SDK repeats what is in doubt under a new producer id."""
    real = PartitionQueue.failed

    def failed(self: PartitionQueue, batch: Any, error: Any, now_s: float) -> Any:
        found = real(self, batch, error, now_s)
        for held in self.batches():
            held.in_doubt = False
        return found

    patch.setattr(PartitionQueue, "failed", failed)


@mutant("cluster")
def new_session_after_every_failure(patch: Patch) -> None:
    """The SDK forgets its numbering with every broken line."""
    real = PartitionQueue.failed

    def failed(self: PartitionQueue, batch: Any, error: Any, now_s: float) -> Any:
        self._session_over = True
        batch.in_doubt = False
        found = real(self, batch, error, now_s)
        batch.in_doubt = False
        return found

    patch.setattr(PartitionQueue, "failed", failed)


@mutant("cluster")
def consumer_repeats_the_start_of_a_batch(patch: Patch) -> None:
    """A batch that is fetched again from its middle is handed out from its beginning."""
    from ledgermq.client.consuming.decoded_run import DecodedRun
    from ledgermq.client.consuming.reader import Reader

    real = Reader._current

    def current(self: Reader[Any], *, wait_for_error: bool = False) -> Any:
        heads = self._prefetch.head()
        position = heads.reading.position if heads is not None else 0
        run: DecodedRun[Any] | None = real(self, wait_for_error=wait_for_error)
        if run is not None and heads is not None and run._taken == 0 and position > heads.base_offset:
            run._offset = heads.base_offset
        return run

    patch.setattr(Reader, "_current", current)


@mutant("cluster")
def trimmed_fetch_goes_on_behind_it(patch: Patch) -> None:
    """A fetch whose segment has been trimmed meanwhile is answered with the next batches that are still there."""
    real = BundleReads._read

    async def read(self: BundleReads, topic: Any, partition: int, offset: int, bytes_max: int) -> Any:
        known = self.index.partitions.get((topic.id, partition))
        if known is not None and len(known) and offset < known.begin:
            offset = known.begin
        return await real(self, topic, partition, offset, bytes_max)

    async def fetch(self: BundleReads, topic: Any, partition: int, offset: int, bytes_max: int) -> PartitionFetch:
        high = self.high_watermark((topic.id, partition))
        if offset >= high:
            return PartitionFetch(high, 0, [])
        return PartitionFetch(high, 0, await self._read(topic, partition, offset, bytes_max))

    patch.setattr(BundleReads, "_read", read)
    patch.setattr(BundleReads, "fetch", fetch)


@mutant("cluster")
def latest_offset_from_memory(patch: Patch) -> None:
    """No fence check before the latest offset is told."""

    async def check_fence(self: LedgerWriter) -> None:
        return None

    patch.setattr(LedgerWriter, "check_fence", check_fence)


@mutant("cluster")
def lost_term_goes_on_answering(patch: Patch) -> None:
    """An owner that knows that it has lost its term answers fetches and offsets from what it remembers."""
    patch.setattr(BundleOwner, "_check_term", lambda self: None)
    patch.setattr(BundleReads, "close", lambda self: self.waiters.close())

    async def check_fence(self: LedgerWriter) -> None:
        return None

    patch.setattr(LedgerWriter, "check_fence", check_fence)


@mutant("cluster")
def offsets_given_out_per_batch(patch: Patch) -> None:
    """A batch counts as one offset, however many records it has."""
    real = Batch.entry

    def entry(self: Batch, base_offset: int, position: int) -> fmt.BatchEntry:
        found = real(self, base_offset, position)
        found.record_count = 1
        return found

    patch.setattr(Batch, "entry", entry)


@mutant("cluster")
def snapshot_keeps_the_oldest(patch: Patch) -> None:
    """Cleaning an internal topic keeps the first record of each key, not the last."""
    from ledger.snapshot import InternalRecord

    def clean(records: Any) -> list[InternalRecord]:
        first: dict[bytes, InternalRecord] = {}
        for record in records:
            first.setdefault(record.key, record)
        return sorted((r for r in first.values() if r.value is not None), key=lambda r: r.offset)

    patch.setattr("ledger.parquet.snapshot_build.clean", clean)


@mutant("cluster")
def file_without_its_last_record(patch: Patch) -> None:
    """A plan's file ends one record early; the next begins behind the gap."""
    real = ledger.parquet.plan._file

    def file(backlog: Any, plan: int) -> fmt.PlannedFile:
        found = real(backlog, plan)
        if found.key and found.last_offset > found.first_offset:
            parsed = keys.parse_parquet(found.key)
            assert parsed is not None
            found.key = replace(parsed, last_offset=found.last_offset - 1).key
        return found

    patch.setattr(ledger.parquet.plan, "_file", file)


@mutant("cluster")
def commit_of_a_plan_that_was_finished(patch: Patch) -> None:
    """A runner that was asleep commits its plan again."""
    real = ledger.parquet.round.commit_move

    def commit_move(plan: fmt.CompactionPlan, stored: Any, **more: Any) -> Any:
        move = real(plan, stored, **more)

        def again(draft: fmt.Checkpoint) -> bool:
            if draft.finished_plan >= plan.number:
                draft.finished_plan = plan.number - 1
            return bool(move(draft))

        return again

    patch.setattr(ledger.parquet.round, "commit_move", commit_move)
