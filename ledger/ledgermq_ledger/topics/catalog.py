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
from collections.abc import Iterator
from dataclasses import replace

from ledgermq.errors import DataDamaged, TopicBeingDeleted, UnknownTopic
from ledgermq.hints import nearest
from ledgermq.runtime.reread import Rereads
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import FORMAT_VERSION, ClusterSettings, read_cluster
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.topics.topic import METADATA, TOPIC_PREFIX, PartitionMove, Topic, decode_topic_record

HINT_TOPICS_MAX = 1000
NAME_CHARS_SHOWN = 300
"""Of a name in an error: what a caller sends as one may be megabytes."""

ATTEMPTS_MAX = 20


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
        self.tabled: dict[str, Topic] = {}
        """The living topics with a table, by name."""
        self.let_go: dict[str, Topic] = {}
        """The living topics whose tables were unset because of what they held back, by name."""
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
        if not key.startswith(TOPIC_PREFIX):
            self.offset = offset + 1
            self.others.pop(key, None)
            if value is not None:
                self.others[key] = (offset, value)
            return
        name = key[len(TOPIC_PREFIX) :].decode(errors="replace")
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
        for few in (self.moved, self.removed, self.trashed, self.bounded, self.tabled, self.let_go):
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
        if topic.living and topic.settings.table_generation:
            self.tabled[topic.name] = topic
        if topic.living and topic.settings.table_let_go:
            self.let_go[topic.name] = topic

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
        if not self.hints or self.own_topics > HINT_TOPICS_MAX:
            return ""
        known = [
            topic.name for topic in self.topics_by_name.values() if topic.living and not topic.name.startswith("__")
        ]
        near = nearest(name, known)
        return f"; did you mean {near!r}?" if near else ""

    def living_topics(self) -> list[Topic]:
        return [topic for topic in self.topics_by_name.values() if topic.living]

    def is_removed(self, topic_id: int, metadata_offset: int) -> bool:
        """Return True if a topic of this id was removed, by the facts below `metadata_offset`. An
        id at or above it is unknown: False. So is a trashed topic's, which may come back.
        """
        topic = self.topics_by_id.get(topic_id)
        return topic_id < metadata_offset and (topic is None or topic.removed)


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
