"""Bugs in brokers, SDK, Parquet compaction and retention (docs/design.md, Produce to Deletion)."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client.consuming.fetching.direct_reads import CannotRead, DirectReads
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import Phase
from ledgermq.errors import DataDamaged
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.committing.group_commit import GroupCommit
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.reading.owned_ledger import OwnedLedger
from ledgermq_broker.bundle.shared.budgets import AnswerReader
from ledgermq_broker.bundle.upkeep.upkeep import Upkeep
from ledgermq_broker.paths import produce_path
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.view.reader import LedgerReader, PartitionRead
from ledgermq_ledger.view.view import LedgerView
from tests.simulation.cluster_plan import cluster_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster")
def shown_before_it_is_durable(patch: Patch) -> None:
    """Readers are given what was handed to the store, not what is stored."""
    real_put = LedgerWriter._put

    def put(self: LedgerWriter, flight: Any) -> None:
        self._on_durable(flight.index, flight.data, flight.keys)
        real_put(self, flight)

    def acknowledge(self: LedgerWriter, flight: Any) -> None:
        assert self.durable.apply(flight.index)
        for append, base_offset in flight.answers:
            if not append.done.done():
                append.done.set_result(base_offset)

    patch.setattr(LedgerWriter, "_put", put)
    patch.setattr(LedgerWriter, "_acknowledge", acknowledge)
    patch.setattr(OwnedLedger, "durable_end", lambda self, key: self._writer._issued.end(*key))


@mutant("cluster")
def trim_moved_outside_a_commit(patch: Patch) -> None:
    """The owner's own checkpoints trim what they cover."""

    def move(draft: fmt.Checkpoint) -> bool:
        draft.trim_slot = max(draft.trim_slot, draft.state.slot + 1)
        return True

    async def checkpoint(self: Upkeep) -> None:
        context = self._context
        await advance_checkpoint(context.ledger(self.bundle), move, self._writer.durable)
        await self._view.look()

    patch.setattr(Upkeep, "_checkpoint", checkpoint)


@mutant("cluster")
def sessions_ignored(patch: Patch) -> None:
    """The broker stores every batch, whatever producer and sequence it carries."""
    patch.setattr(produce_path, "session_of", lambda header, durable, principal=0: None)


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
        self.phase = Phase.ENDING
        batch.in_doubt = False
        found = real(self, batch, error, now_s)
        batch.in_doubt = False
        return found

    patch.setattr(PartitionQueue, "failed", failed)


@mutant("cluster")
def consumer_repeats_the_start_of_a_batch(patch: Patch) -> None:
    """A batch that is fetched again from its middle is handed out from its beginning."""
    from ledgermq.client.consuming.reader import Reader
    from ledgermq.client.consuming.reading import DecodedRun

    real = Reader._current

    def current(self: Reader[Any], *, wait_for_error: bool = False) -> Any:
        heads = self._prefetch.head()
        position = heads.reading.position if heads is not None else 0
        run: DecodedRun[Any] | None = real(self, wait_for_error=wait_for_error)
        if run is not None and heads is not None and run._taken == 0 and position > heads.base_offset:
            run._offsets = range(heads.base_offset, heads.base_offset + len(run._offsets))
        return run

    patch.setattr(Reader, "_current", current)


@mutant("cluster")
def trimmed_fetch_goes_on_behind_it(patch: Patch) -> None:
    """A fetch whose segment has been trimmed meanwhile is answered with the next batches that are
    still there.
    """
    real = LedgerReader._read

    async def read(self: LedgerReader, key: Any, offset: int, bytes_max: int, topic: Any, masks: Any) -> Any:
        known = self.view.index.partitions.get(key)
        if known is not None and len(known) and offset < known.begin:
            offset = known.begin
        return await real(self, key, offset, bytes_max, topic, masks)

    async def fetch(
        self: LedgerReader, key: Any, offset: int, bytes_max: int, topic: Any = None, *, masks: Any = None, **_: object
    ) -> PartitionRead:
        high = self.view.readable_end(key)
        if offset >= high:
            return PartitionRead(high, 0, [])
        return PartitionRead(high, 0, await self._read(key, offset, bytes_max, topic, masks))

    patch.setattr(LedgerReader, "_read", read)
    patch.setattr(LedgerReader, "fetch", fetch)


@mutant("cluster", likely=lambda seed: cluster_plan_of(seed).direct_reads)
def direct_read_goes_on_behind_a_deleted_segment(patch: Patch) -> None:
    """What a consumer could not read by itself it takes for read."""
    real = DirectReads.read

    async def read(self: DirectReads, header: pb.FetchHeader) -> Any:
        try:
            return await real(self, header)
        except CannotRead:
            for part in header.partitions:
                came = [batch for batch in part.batches if not batch.object]
                del part.batches[:]
                part.batches.extend(came)
            return []

    patch.setattr(DirectReads, "read", read)


@mutant("cluster")
def latest_offset_from_memory(patch: Patch) -> None:
    """No fence check before the latest offset is told."""

    async def check_fence(self: LedgerWriter) -> None:
        return None

    patch.setattr(LedgerWriter, "check_fence", check_fence)


@mutant("cluster")
def lost_term_goes_on_answering(patch: Patch) -> None:
    """An owner that knows that it has lost its term answers fetches and offsets from what it
    remembers.
    """
    patch.setattr(BundleOwner, "_check_term", lambda self: None)
    patch.setattr(OwnedLedger, "close", lambda self: self.waiters.close())

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
def missing_segment_taken_for_damage(patch: Patch) -> None:
    """A reader under whom a segment was trimmed does not look for a newer checkpoint."""

    async def look_for(self: LedgerView, missing: ObjectMissing, known: int) -> None:
        raise DataDamaged(missing.message, object_key=missing.object_key)

    patch.setattr(LedgerView, "look_for", look_for)


@mutant("cluster")
def memory_leaked_by_a_failed_flush(patch: Patch) -> None:
    """The bytes of batches that were never stored stay taken."""
    real = GroupCommit._give_back

    def give_back(self: GroupCommit, flush: Any) -> None:
        if self._writer.lost is None:
            real(self, flush)

    patch.setattr(GroupCommit, "_give_back", give_back)


@mutant("cluster")
def memory_of_answers_never_given_back(patch: Patch) -> None:
    """A stream that ends while its answer is in line keeps its room forever."""
    patch.setattr(AnswerReader, "leave", lambda self: None)
    patch.setattr(AnswerReader, "rest", lambda self: None)
