"""Hold the catalog: the cluster's topics, as a pure fold of the internal topic `__metadata` (bundle
0, partition 0).

Each topic has one record, key ``topic/<name>``, value TopicRecord. Records with other keys are kept
as they are, for other folds (`security`). A topic's id is the offset of
its creation record. So a name that is deleted and created again is another topic, and an id below M
that is not live was removed (design G1). Record 0 creates `__metadata` itself; later records of it say
how many bundles the cluster has since some were added (decision 72). A record that moves a partition
to another bundle gives the move its offset as id (decision 73).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig, TopicBeingDeleted, UnknownTopic
from ledgermq.hints import nearest
from ledgermq.runtime.reread import Rereads
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import FORMAT_VERSION, ClusterSettings, read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
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
HINT_TOPICS_MAX = 1000
NAME_CHARS_SHOWN = 300
"""Of a name in an error: what a caller sends as one may be megabytes."""

_TOPIC_PREFIX = b"topic/"
ATTEMPTS_MAX = 20


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


class Catalog:
    """Mutable fold; `offset` is M: the offset of the next record to apply.

    `others`: offset and value of the newest record of each key that is no topic's.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.hints = True
        """Whether errors about an unknown topic suggest one with a similar name."""
        self.topics_by_name: dict[str, Topic] = {METADATA.name: METADATA}
        self.topics_by_id: dict[int, Topic] = {METADATA.id: METADATA}
        self.moved: dict[str, Topic] = {}
        """The topics with moves, by name: few of all."""
        self.removed: dict[str, Topic] = {}
        """The topics that are deleted and whose names are not free yet, by name."""
        self.trashed: dict[str, Topic] = {}
        """The topics that are deleted and can be brought back, by name."""
        self.bounded: dict[str, Topic] = {}
        """The living topics with a backlog quota, by name."""
        self.load: Counter[int] = Counter()
        """The partitions in each bundle of topics that are not removed."""
        self.own_topics = 0
        """The topics that do not belong to the system, with those whose names are not free yet."""
        self.others: dict[bytes, tuple[int, bytes]] = {}

    def apply(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Apply the record at `offset`; offsets may have gaps (a snapshot keeps the latest record
        per key).

        Raises DataDamaged, FormatNotSupported, and leaves the catalog unchanged then: a topic that
        is only unreadable must not look removed.
        """
        if offset < self.offset:
            return
        if not key.startswith(_TOPIC_PREFIX):
            self.offset = offset + 1
            self.others.pop(key, None)
            if value is not None:
                self.others[key] = (offset, value)
            return
        name = key[len(_TOPIC_PREFIX) :].decode(errors="replace")
        topic = decode_topic_record(offset, value) if value is not None else None
        if topic is not None and topic.name != name:
            raise DataDamaged(
                f"record {offset} of {keys.METADATA_TOPIC} has the key of topic {name!r}, but its value is of topic"
                f" {topic.name!r}"
            )
        self.offset = offset + 1
        before = self.topics_by_name.pop(name, None)
        if before is not None:
            self.topics_by_id.pop(before.id, None)
            self._count(before, -1)
        for few in (self.moved, self.removed, self.trashed, self.bounded):
            few.pop(name, None)
        if topic is not None:
            self._count(topic, 1)
            self.topics_by_name[topic.name] = topic
            self.topics_by_id[topic.id] = topic
            self._keep_apart(topic)

    def moving(self) -> Iterator[tuple[Topic, int, PartitionMove]]:
        """Yield the partitions whose moves have not ended."""
        for topic in self.moved.values():
            for partition, move in topic.moves.items():
                if not move.ended:
                    yield topic, partition, move

    def _keep_apart(self, topic: Topic) -> None:
        if topic.moves:
            self.moved[topic.name] = topic
        if topic.removed:
            self.removed[topic.name] = topic
        elif topic.trash is not None:
            self.trashed[topic.name] = topic
        elif topic.settings.has_backlog_quota:
            self.bounded[topic.name] = topic

    def _count(self, topic: Topic, sign: int) -> None:
        self.own_topics += 0 if topic.internal else sign
        for bundle, partitions in Counter(() if topic.removed else topic.bundles).items():
            self.load[bundle] += sign * partitions

    def bundles(self, cluster: ClusterSettings) -> int:
        """Return the number of bundles in force, bundle 0 included."""
        return max(cluster.bundles, self.topics_by_name[METADATA.name].settings.cluster_bundles)

    def living(self, name: str) -> Topic:
        """Return a live topic. Raises UnknownTopic, also for a trashed one, and TopicBeingDeleted."""
        topic = self.topics_by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name[:NAME_CHARS_SHOWN]!r} does not exist{self._hint(name)}")
        if topic.removed:
            raise TopicBeingDeleted(f"topic {name!r} is being deleted", retry_after_ms=1000)
        if topic.trash is not None:
            raise UnknownTopic(topic.trash.describe(name))
        return topic

    def _hint(self, name: str) -> str:
        """Suggest a similar name; "" in a large catalog, because the search takes time."""
        if not self.hints:
            return ""
        known = [
            topic.name for topic in self.topics_by_name.values() if topic.living and not topic.name.startswith("__")
        ]
        near = nearest(name, known) if len(known) <= HINT_TOPICS_MAX else None
        return f"; did you mean {near!r}?" if near else ""

    def living_topics(self) -> list[Topic]:
        return [topic for topic in self.topics_by_name.values() if topic.living]

    def is_removed(self, topic_id: int, metadata_offset: int) -> bool:
        """Return True if a topic of this id was removed, by the facts below `metadata_offset`. An
        id at or above it is unknown: False. So is a trashed topic's, which may come back.
        """
        topic = self.topics_by_id.get(topic_id)
        return topic_id < metadata_offset and (topic is None or topic.removed)


def topic_key(name: str) -> bytes:
    return _TOPIC_PREFIX + name.encode()


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


async def read_catalog(ledger: LedgerRef) -> Catalog:
    """Return the catalog that is in the store now, without a broker. `ledger`: that of bundle 0.

    Raises DataDamaged, Unavailable, the store's errors.
    """
    if ledger.bundle != keys.METADATA_BUNDLE:
        raise AssertionError(f"the catalog is in bundle {keys.METADATA_BUNDLE}, not in bundle {ledger.bundle}")
    rereads = Rereads(ATTEMPTS_MAX, f"{keys.METADATA_TOPIC} was trimmed during each attempt to read it; retry later")
    while True:
        rereads.begin()
        history = await read_history(ledger)
        catalog = Catalog()
        try:
            records = await read_internal(ledger.store, history, keys.METADATA_TOPIC_ID, 0)
        except ObjectMissing:
            continue  # trimmed meanwhile
        for record in records:
            catalog.apply(record.offset, record.key, record.value)
        catalog.offset = history.state.end(keys.METADATA_TOPIC_ID, 0)
        return catalog


def grown(cluster: ClusterSettings, catalog: Catalog) -> ClusterSettings:
    """Return the cluster with the number of bundles that is in force by this catalog."""
    return replace(cluster, bundles=catalog.bundles(cluster))


async def reread_bundles(store: ObjectStore, cluster: ClusterSettings) -> ClusterSettings:
    """Return the cluster with the number of bundles that is in force now. Every pass over all bundles
    begins with this: the process may be older than the newest bundle. Costs one request as long as none
    were ever added.

    Raises what `read_catalog` and `read_cluster` raise.
    """
    if cluster.format_version == FORMAT_VERSION:
        cluster = replace(await read_cluster(store), bundles=cluster.bundles)
    if cluster.format_version == FORMAT_VERSION:
        return cluster
    return grown(cluster, await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources())))


def removed(topic: Topic) -> Topic:
    return replace(topic, removed=True, trash=None)
