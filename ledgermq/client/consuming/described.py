"""What is known of a message that was looked up: the message, and the objects that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import datetime_of
from ledgermq.protocol import ledgermq_pb2 as pb


@dataclass(frozen=True, slots=True)
class StoredBy:
    """The batch in which a message was stored. `broker`: the one that stored it, in this epoch of its
    ownership. `producer_id`: a hash of the id of the producer's session, which itself is secret; None: it
    was not idempotent. `sequence`: of the batch's first record.
    """

    broker: str
    epoch: int
    base_offset: int
    record_count: int
    producer_id: bytes | None
    producer_epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class MessageDescription:
    """A message, and the objects that hold it, by their keys below the root. `segment`, `position`: the
    segment, and where the message's batch begins there; None: compaction has removed the segment.
    `parquet_file`: None: it is not compacted yet. Times are None if they are not known. `stored_by`: None
    once the segment is removed.
    """

    message: Message
    segment: str | None
    position: int | None
    stored_at: datetime | None
    parquet_file: str | None
    compacted_at: datetime | None
    stored_by: StoredBy | None

    @property
    def id(self) -> MessageId:
        return self.message.id


def description_of(message: Message, found: pb.FoundMessage) -> MessageDescription:
    """Return the description that a broker's answer gives of a message."""
    by = found.stored_by
    stored_by = StoredBy(
        by.broker,
        by.epoch,
        by.base_offset,
        by.record_count,
        by.producer_id or None,
        by.producer_epoch,
        by.sequence,
    )
    return MessageDescription(
        message,
        found.segment or None,
        found.position if found.segment else None,
        _time_of(found.stored_ms),
        found.file or None,
        _time_of(found.compacted_ms),
        stored_by if found.HasField("stored_by") else None,
    )


def _time_of(ms: int) -> datetime | None:
    return datetime_of(ms * 1000) if ms else None
