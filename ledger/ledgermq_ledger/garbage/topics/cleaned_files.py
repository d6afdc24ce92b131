"""Files of the log of a keyed topic that end below the end of a version that is `parquet_min_age_ms` old
(docs/decisions/0022). First a checkpoint moves `parquet_start` above it, then all below that go, ascending. Their age
and legal holds count as for expired files.
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.cuts.pinned import PinReader
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.ledgers import fences
from ledgermq_ledger.garbage.topics import commit_age, versions
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint, partition_of
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import has_table, may_remove
from ledgermq_ledger.topics.topic import Topic


async def let_cleaned_age(ledger: LedgerRef, catalog: Catalog) -> None:
    """Let the files that cleaning will replace wait for their age, as expired ones do."""
    keyed = {topic.id for topic in catalog.living_topics() if topic.settings.keyed and ledger.bundle in topic.bundles}
    if not keyed:
        return
    parts = (await newest_checkpoint(ledger.store, ledger.bundle)).partitions
    waits_for = max(
        (part.newest_page for part in parts if part.topic_id in keyed and part.parquet_start < part.parquet_end),
        default=0,
    )
    if waits_for:
        await commit_age.note_finished(ledger, waits_for)


async def remove_cleaned(ledger: LedgerRef, topic: Topic, place: PartitionId) -> list[str]:
    """Remove whole files of the log below the end of what has been in a version for
    `parquet_min_age_ms`.
    """
    store, bundle = ledger.store, ledger.bundle
    end = await versions.aged_end(store, ledger.cluster, place)
    checkpoint = await newest_checkpoint(store, bundle)
    counters = partition_of(checkpoint, *place)
    if end <= counters.parquet_start:
        return []
    pins = PinReader(store)
    gate = await Gate.of(store, checkpoint, pins=pins)
    old_enough = await commit_age.finished_long_ago(store, bundle, ledger.cluster.parquet_min_age_ms)
    files = [
        file
        for file in await PageReader(store, bundle).files_from(counters, counters.parquet_start)
        if file.last_offset < end and file.plan <= old_enough and not gate.why_kept(file.key)
    ]
    if not files:
        return []
    await fences.close_finished(store, bundle)
    move = cleaned_move(topic, place.partition, files[-1].last_offset + 1)
    await advance_checkpoint(ledger, move)
    checkpoint = await newest_checkpoint(store, bundle)
    after = partition_of(checkpoint, place.topic_id, place.partition)
    # it declined, or what was won is not the newest: its number was free again
    if after.parquet_start <= files[-1].last_offset:
        return []
    # Not only these: the process that moved the start before may still be deleting, and a higher file must not go
    # before a lower one.
    gate = await Gate.of(store, checkpoint, pins=pins)
    return await _delete_below(store, gate, topic, place, after.parquet_start)


async def _delete_below(store: ObjectStore, gate: Gate, topic: Topic, place: PartitionId, start: int) -> list[str]:
    """Delete every file of the log that ends below `start`, in ascending order, each before the next. The process
    that moved the start has seen in the list that they are old enough. The numbers in their names do not say so: if
    the partition has moved, they are of another bundle's plans (design Y16).
    """
    listed = [keys.parse_parquet(info.key) async for info in store.list(topic.parquet_folder_of(place.partition))]
    deleted = []
    for name in listed:
        if name is None or name.topic_id != place.topic_id or name.last_offset >= start:
            continue
        if not await gate.delete(store, [name.key]):
            break
        deleted.append(name.key)
    return deleted


def cleaned_move(topic: Topic, partition: int, start: int) -> Move:
    """Return the move that lets the log begin at `start`, because a version holds the records
    below. It declines for a topic that is removed, held or was altered, or whose table may name a file below.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if any(note.topic_id == topic.id for note in draft.removed_topics) or not may_remove(draft, topic, partition):
            return False
        for part in draft.partitions:
            if (part.topic_id, part.partition) == (topic.id, partition) and part.parquet_start < start:
                if has_table(draft, topic.id) and start > part.table_start:
                    return False
                if start > part.parquet_end:
                    raise AssertionError(
                        f"{topic.name}/{partition}: the log would begin at {start}, but Parquet ends at"
                        f" {part.parquet_end}"
                    )
                part.parquet_start = start
                return True
        return False

    return move
