"""The rules that make an offset store safe (see `offset_stores.contract`), as pure decisions about
one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import CommitGoesBack, InvalidRequest, LedgerMQError, StaleAssignment
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset

METADATA_BYTES_MAX = 4096


class RowKey(NamedTuple):
    group: str
    topic: str
    topic_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class Row:
    """The stored state of one partition. `offset` None: fenced by a load, but no offset committed
    yet.
    """

    epoch: int
    counter: int = 0
    offset: int | None = None
    metadata: str = ""
    commit_ms: int = 0

    @property
    def stored(self) -> StoredOffset | None:
        return None if self.offset is None else StoredOffset(self.offset, self.metadata, self.commit_ms)


def key_of(group: str, given: GivenPartition) -> RowKey:
    return RowKey(group, given.partition.topic, given.topic_id, given.partition.partition)


def fenced(row: Row | None, given: GivenPartition) -> Row:
    """Return the row after a load under this epoch.

    Raises StaleAssignment: a later member has loaded it.
    """
    if row is None:
        return Row(given.epoch)
    _check_epoch(row, given)
    return row if row.epoch == given.epoch else replace(row, epoch=given.epoch, counter=0)


def committed(row: Row | None, entry: OffsetEntry, now_ms: int) -> Row:
    """Return the row after a commit; a delayed repetition leaves it unchanged.

    Raises StaleAssignment, CommitGoesBack, InvalidRequest.
    """
    size = len(entry.metadata.encode())
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(f"metadata of a commit may have at most {METADATA_BYTES_MAX} bytes, not {size}")
    if row is not None:
        _check_epoch(row, entry.given)
        if row.epoch == entry.given.epoch and entry.counter <= row.counter:
            return row
        if row.offset is not None and entry.offset < row.offset:
            raise CommitGoesBack(
                f"{entry.given.partition}: offset {row.offset} is committed already; committing {entry.offset} would go"
                " back"
            )
    return Row(entry.given.epoch, entry.counter, entry.offset, entry.metadata, now_ms)


def load_rows(
    rows: MutableMapping[RowKey, Row], group: str, partitions: Iterable[GivenPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Fence the partitions, and return their offsets. On StaleAssignment, nothing is changed."""
    changed = {key_of(group, given): (given, fenced(rows.get(key_of(group, given)), given)) for given in partitions}
    rows.update({key: row for key, (_, row) in changed.items()})
    return {given.partition: row.stored for given, row in changed.values() if row.stored is not None}


def commit_rows(
    rows: MutableMapping[RowKey, Row], group: str, entries: Iterable[OffsetEntry], now_ms: int
) -> Mapping[TopicPartition, LedgerMQError]:
    """Commit the entries that the rules allow. Return an error for each partition that was
    refused.
    """
    refused: dict[TopicPartition, LedgerMQError] = {}
    for entry in entries:
        key = key_of(group, entry.given)
        try:
            rows[key] = committed(rows.get(key), entry, now_ms)
        except LedgerMQError as error:
            refused[entry.given.partition] = error
    return refused


def _check_epoch(row: Row, given: GivenPartition) -> None:
    if given.epoch < row.epoch:
        raise StaleAssignment(
            f"{given.partition} was given to another member under epoch {row.epoch}; this member holds epoch"
            f" {given.epoch}"
        )
