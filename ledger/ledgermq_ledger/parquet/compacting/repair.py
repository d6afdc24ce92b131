"""Repair parked partitions: let compaction try again, and accept the loss of records that cannot be
restored.

A repair is a checkpoint move, as every decision is. It ends the parking and names the lost records,
and by whom, when and why their loss was accepted. It declines if its basis has changed meanwhile.
The next plan carries the lost ranges, so all processes that run it write the same rows (`lost`).

It is safe at any time, beside brokers and compaction: nothing is deleted, and no offset changes. A
batch that can be read is never dropped. If a batch becomes readable before the round (its object
was put back), it is written unchanged.

It refuses damaged indexes, checkpoints and missing segments, because they leave unknown what is
lost: put the object back from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import bring_into_force
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compacting.lost import decode_stored, is_lost
from ledgermq_ledger.parquet.compacting.plan import end_of
from ledgermq_ledger.topics.catalog import reread_bundles

LOST_KEPT = 1000
"""Lost ranges of a partition that are remembered after they are in Parquet."""
READS_MAX = 2


@dataclass(slots=True)
class ParkedPartition:
    """`damaged`: the batches after the end of Parquet that cannot be read now; empty if the cause
    of the parking is repaired.
    """

    bundle: int
    part: fmt.PartitionCheckpoint
    damaged: list[fmt.LostRecords] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(each.last_offset + 1 - each.first_offset for each in self.damaged)


async def find_parked(store: ObjectStore, cluster: ClusterSettings, run_blocking: RunBlocking) -> list[ParkedPartition]:
    """Return every parked partition of the cluster; each of its batches is read now.

    Raises DataDamaged (naming what only a copy can restore), the store's errors.
    """
    found = []
    cluster = await reread_bundles(store, cluster)
    for bundle in range(cluster.bundles):
        checkpoint = await newest_checkpoint(store, bundle)
        for part in checkpoint.partitions:
            if part.HasField("parked"):
                damaged = await _find_damaged(LedgerRef(store, bundle, cluster, Sources()), part, run_blocking)
                found.append(ParkedPartition(bundle, part, damaged))
    return found


async def repair_partition(
    store: ObjectStore, cluster: ClusterSettings, found: ParkedPartition, sources: Sources, *, decided_by: str = ""
) -> bool:
    """Let compaction continue with a partition, without the damaged batches in `found`. Return
    False if it has changed since: find parked partitions again.

    Raises Unavailable, DataDamaged, the store's errors.
    """
    for each in found.damaged:
        each.decided_by, each.decided_ms = decided_by, sources.now_ms()
    move = repair_move(found.part, found.damaged)
    return await bring_into_force(LedgerRef(store, found.bundle, cluster, sources), move)


def repair_move(before: fmt.PartitionCheckpoint, damaged: Sequence[fmt.LostRecords]) -> Move:
    """Return the move of a repair; it declines if the partition is not parked as in `before`."""

    def move(draft: fmt.Checkpoint) -> bool:
        for part in draft.partitions:
            if (part.topic_id, part.partition) == (before.topic_id, before.partition):
                if (
                    not part.HasField("parked")
                    or part.parked != before.parked
                    or part.parquet_end != before.parquet_end
                ):
                    return False
                part.ClearField("parked")
                _note_lost(part, damaged)
                return True
        return False

    return move


def _note_lost(part: fmt.PartitionCheckpoint, damaged: Sequence[fmt.LostRecords]) -> None:
    past = [each for each in part.lost if each.last_offset < part.parquet_end][-LOST_KEPT:]
    waiting = [each for each in part.lost if each.last_offset >= part.parquet_end]
    kept = sorted([*past, *waiting, *damaged], key=lambda each: each.first_offset)
    copies = fmt.PartitionCheckpoint(lost=kept)
    del part.lost[:]
    part.lost.MergeFrom(copies.lost)


async def _find_damaged(
    ledger: LedgerRef, part: fmt.PartitionCheckpoint, run_blocking: RunBlocking
) -> list[fmt.LostRecords]:
    history = await read_history(ledger)
    found = []
    for segment in history.segments:
        for entry in segment.index.batches:
            if (entry.topic_id, entry.partition) != (part.topic_id, part.partition) or end_of(
                entry
            ) <= part.parquet_end:
                continue
            key = keys.segment(ledger.bundle, segment.index.slot)
            why = "" if is_lost(entry, part.lost) else await _why_unreadable(ledger.store, key, entry, run_blocking)
            if why:
                found.append(
                    fmt.LostRecords(
                        first_offset=entry.base_offset, last_offset=end_of(entry) - 1, object_key=key, reason=why
                    )
                )
    return found


async def _why_unreadable(store: ObjectStore, key: str, entry: fmt.BatchEntry, run_blocking: RunBlocking) -> str:
    """Return why a batch cannot be read, or "" if it can be; damage in transit does not count."""
    why = ""
    for _ in range(READS_MAX):
        try:
            data = await store.get_range(key, entry.position, entry.length)
            await run_blocking(lambda data=data: decode_stored(data, entry))  # type: ignore[misc]
            return ""
        except (CorruptFrame, MessageTooLarge) as error:
            why = f"batch at byte {entry.position}: {error.message}"
        except ObjectMissing as error:
            raise DataDamaged(f"{key} is missing: put it back from a copy of the bucket", object_key=key) from error
    return why
