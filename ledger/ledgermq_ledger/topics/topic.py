"""A topic as a value, and its record in the internal topic `__metadata`: key ``topic/<name>``, value TopicRecord."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.settings import (
    COMPACTED,
    HIDDEN,
    HOLDERS,
    PARTITIONS_MOVED,
    STAGED,
    TopicSettings,
    parse_stored_settings,
)

TRASHED = "topic.trashed"
"""In the settings of a record of a trashed topic, and nowhere else: a process of an earlier release does not know
it, and refuses the catalog; it would serve the topic, and expire its records.
"""
TOPIC_PREFIX = b"topic/"


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The newest move of a partition: from bundle `source` to the one that the topic names.

    `id`: offset of the record that decided it; 0 until it is written. `before`: the move before it; 0: none.
    `ended`: the source has forgotten the partition. `count`: moves so far, this one included.
    """

    id: int
    source: int
    before: int = 0
    ended: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class Trash:
    """A topic was deleted at `deleted_ms`, and can be brought back for `grace_ms`. Both are fixed when it is
    deleted: a controller with other settings keeps what was promised.

    `deleted_ms`: by the later of two clocks. The grace is over when both have passed `until_ms` (decision 30).
    """

    deleted_ms: int
    grace_ms: int

    @property
    def until_ms(self) -> int:
        return self.deleted_ms + self.grace_ms

    def describe(self, name: str) -> str:
        return (
            f"topic {name!r} was deleted at {_utc(self.deleted_ms)}; until {_utc(self.until_ms)}"
            f" `ledgermq topic undelete {name}` brings it back"
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """`bundles[p]`: the bundle of partition p. `removed`: deleted for good, but its name is not free yet.
    `trash`: of a topic that is deleted, and can be brought back: it is not served, and nothing of it is deleted.
    `undeleted_ms`: when it was last brought back, 0 if never.

    `altered_ms`: when settings or partitions were last changed, 0 if never. `version`: offset of
    the record with this state. `moves`: the newest move of each partition that has one. `nonce`: of the call that
    created it, b"" if that is not known. `changes`: those of the newest calls that altered it, oldest first.
    """

    id: int
    name: str
    bundles: tuple[int, ...]
    raw_settings: dict[str, str] = field(default_factory=dict)
    settings: TopicSettings = field(default_factory=TopicSettings)
    created_ms: int = 0
    removed: bool = False
    altered_ms: int = 0
    version: int = 0
    moves: Mapping[int, PartitionMove] = field(default_factory=dict)
    nonce: bytes = b""
    trash: Trash | None = None
    undeleted_ms: int = 0
    changes: tuple[bytes, ...] = ()

    @property
    def living(self) -> bool:
        """Return True if the topic is served: it is neither removed nor trashed."""
        return not self.removed and self.trash is None

    @property
    def partitions(self) -> int:
        return len(self.bundles)

    @property
    def internal(self) -> bool:
        return keys.is_internal(self.name)

    @property
    def compacted(self) -> bool:
        """Return True for an internal topic of which a snapshot keeps the latest record of each key."""
        return self.internal and self.settings.internal_kind in (COMPACTED, HOLDERS)

    @property
    def staged(self) -> bool:
        """Return True for an internal topic of batches that wait in segments until the bundle's owner
        moves the log start: they become neither Parquet nor part of a snapshot, and no client reads
        them.
        """
        return self.internal and self.settings.internal_kind == STAGED

    @property
    def hidden(self) -> bool:
        """Return True for an internal topic of data that becomes Parquet like that of users, under
        names that no plain reader sees. Only the bundle's owner moves the log start, and no client
        reads it.
        """
        return self.internal and self.settings.internal_kind == HIDDEN

    @property
    def parquet_folder(self) -> str:
        """Return the folder of the Parquet files of the topic's log."""
        return keys.hidden_topic(self.id) if self.hidden else keys.parquet_topic(self.name)

    def parquet_folder_of(self, partition: int) -> str:
        """Return the folder of the Parquet files of a partition's log."""
        if self.hidden:
            return keys.hidden_partition(keys.PartitionId(self.id, partition))
        return keys.parquet_partition(self.name, partition)

    @property
    def bundles_in_use(self) -> set[int]:
        """Return the bundles that have records of the topic: also those that a partition has not quite left."""
        return {*self.bundles, *(move.source for move in self.moves.values() if not move.ended)}

    def partitions_in(self, bundle: int) -> Iterator[int]:
        """Return the partitions that are in a bundle, ascending."""
        partition = -1
        for _ in range(self.bundles.count(bundle)):
            partition = self.bundles.index(bundle, partition + 1)
            yield partition


METADATA = Topic(keys.METADATA_TOPIC_ID, keys.METADATA_TOPIC, (keys.METADATA_BUNDLE,))


def topic_key(name: str) -> bytes:
    return TOPIC_PREFIX + name.encode()


def encode_topic_record(topic: Topic, *, creation: bool = False) -> bytes:
    """Encode the value of a topic's record; a creation record leaves the id to its offset."""
    record = fmt.TopicRecord(
        topic_id=0 if creation else topic.id,
        name=topic.name,
        bundles=topic.bundles,
        settings=topic.raw_settings if topic.trash is None else topic.raw_settings | {TRASHED: "true"},
        state=fmt.REMOVED if topic.removed else fmt.LIVING if topic.trash is None else fmt.TRASHED,
        created_ms=topic.created_ms,
        altered_ms=topic.altered_ms,
        moves=[
            fmt.PartitionMove(
                partition=partition,
                move=move.id,
                source=move.source,
                before=move.before,
                ended=move.ended,
                count=move.count,
            )
            for partition, move in sorted(topic.moves.items())
        ],
        nonce=topic.nonce,
        deleted_ms=0 if topic.trash is None else topic.trash.deleted_ms,
        delete_grace_ms=0 if topic.trash is None else topic.trash.grace_ms,
        undeleted_ms=topic.undeleted_ms,
        changes=topic.changes,
    )
    return record.SerializeToString(deterministic=True)


def decode_topic_record(offset: int, value: bytes) -> Topic:
    """Decode a topic's record. Raises DataDamaged, FormatNotSupported."""
    try:
        record = fmt.TopicRecord.FromString(value)
        trash = _trash_of(record, offset)
        raw_settings = dict(record.settings)
        if trash is not None:
            del raw_settings[TRASHED]
        settings = parse_stored_settings(raw_settings)
        return Topic(
            id=keys.METADATA_TOPIC_ID if record.name == METADATA.name else record.topic_id or offset,
            name=record.name,
            bundles=tuple(record.bundles),
            raw_settings=raw_settings,
            settings=settings,
            created_ms=record.created_ms,
            removed=record.state == fmt.REMOVED,
            altered_ms=record.altered_ms,
            version=offset,
            moves=_moves_of(record, offset, settings),
            nonce=record.nonce,
            trash=trash,
            undeleted_ms=record.undeleted_ms,
            changes=tuple(record.changes),
        )
    except DecodeError as error:
        raise DataDamaged(f"record {offset} of {keys.METADATA_TOPIC}: {error}") from error
    except InvalidConfig as error:  # it was valid for the version that wrote it
        raise FormatNotSupported(
            f"record {offset} of {keys.METADATA_TOPIC} has a later format version: {error}"
        ) from error


def _trash_of(record: fmt.TopicRecord, offset: int) -> Trash | None:
    """Return when a topic was deleted, and for how long it is kept; None unless it is trashed. Raises DataDamaged if
    the parts of the record contradict each other, FormatNotSupported for a state of a later release.
    """
    if record.state not in fmt.TopicState.values():
        raise FormatNotSupported(
            f"record {offset} of {keys.METADATA_TOPIC} has a later format version: topic {record.name!r} has state"
            f" {record.state}"
        )
    if record.state != fmt.TRASHED:
        return None
    if TRASHED not in record.settings or record.deleted_ms <= 0 or record.delete_grace_ms <= 0:
        raise DataDamaged(
            f"record {offset} of {keys.METADATA_TOPIC}: topic {record.name!r} is deleted, without a time, a grace or"
            f" the setting {TRASHED}"
        )
    return Trash(record.deleted_ms, record.delete_grace_ms)


def _utc(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


def _moves_of(record: fmt.TopicRecord, offset: int, settings: TopicSettings) -> dict[int, PartitionMove]:
    """Return the moves in a topic's record. Raises DataDamaged if they contradict the rest of it."""
    moves = {
        move.partition: PartitionMove(move.move or offset, move.source, move.before, move.ended, move.count)
        for move in record.moves
    }
    wrong = [
        partition
        for partition, move in moves.items()
        if partition >= len(record.bundles)
        or not move.before < move.id <= offset
        or move.source in (keys.METADATA_BUNDLE, record.bundles[partition])
    ]
    if wrong or len(moves) != len(record.moves) or bool(moves) != settings.partitions_moved:
        raise DataDamaged(
            f"record {offset} of {keys.METADATA_TOPIC}: the moves of topic {record.name!r} contradict its partitions"
            f" or the setting {PARTITIONS_MOVED}"
        )
    return moves


def removed(topic: Topic) -> Topic:
    return replace(topic, removed=True, trash=None)
