"""Delete records on demand: move the log start of partitions durably, for every reader after the
answer.

It does not matter where the records are. Parquet files are deleted later as a whole, as after
retention. Records that are still in segments are left out of Parquet, or are deleted after they got
there. The answer waits for a fence check, so that only the true owner gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from ledgermq.errors import InvalidRequest, LedgerMQError, OffsetOutOfRange
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import bring_into_force
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.topics.facts import refuse_held
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.reader import LedgerReader

Before = int | Literal["end"] | timedelta
"""An offset; the end of the log; or a time since the epoch, which means the first record of that
time or later, or the end if there is none.
"""


@dataclass(frozen=True, slots=True)
class Deleted:
    log_start_before: int
    log_start: int


async def delete_records(
    context: BundleContext,
    writer: LedgerWriter,
    reader: LedgerReader,
    topic: Topic,
    befores: Mapping[int, Before],
    *,
    dry_run: bool,
) -> dict[int, Deleted | LedgerMQError]:
    """Delete records and return the results by partition. Raises LegalHold, InvalidRequest,
    NotOwner, the store's errors; in that case a log start may have moved all the same.
    """
    if topic.internal:
        raise InvalidRequest(f"topic {topic.name!r} belongs to the system")
    if "delete" not in topic.settings.cleanup_policy.split(","):
        raise InvalidRequest(
            f"topic {topic.name!r} keeps the latest record of each key: its cleanup.policy has to be, or name, delete"
        )
    view = reader.view
    await view.look()  # other processes may have moved log starts
    refuse_held(view.checkpoint, topic)
    found: dict[int, Deleted | LedgerMQError] = {}
    starts = {partition: view.log_start(PartitionId(topic.id, partition), topic) for partition in befores}
    offsets: dict[int, int] = {}
    for partition, before in befores.items():
        try:
            offsets[partition] = await _offset(writer, reader, topic, partition, before)
        except OffsetOutOfRange as error:
            found[partition] = error
    if dry_run:
        return found | {
            partition: Deleted(starts[partition], max(starts[partition], offset))
            for partition, offset in offsets.items()
        }
    await bring_into_force(context.ledger(writer.bundle), deletion_move(topic, offsets), writer.durable)
    await view.look()
    await writer.check_fence()
    return found | {
        partition: Deleted(starts[partition], view.log_start(PartitionId(topic.id, partition), topic))
        for partition in offsets
    }


async def _offset(writer: LedgerWriter, reader: LedgerReader, topic: Topic, partition: int, before: Before) -> int:
    key = PartitionId(topic.id, partition)
    if isinstance(before, timedelta):
        found = await reader.offset_at(key, before // timedelta(microseconds=1), topic)
        return reader.end(key) if found is None else found
    if before == "end":
        return reader.end(key)
    if before > reader.end(key):
        await writer.check_fence()  # a zombie must not refuse an offset that its successor has
        raise OffsetOutOfRange(f"{topic.name}/{partition}: offset {before} is above the end {reader.end(key)}")
    return before
