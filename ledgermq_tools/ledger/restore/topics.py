"""Bring topics of a cut back into a living cluster, as new topics beside those that are there.

    create      the topic with the partitions and settings of the cut, but held: nothing is deleted or refused
    records     those of each partition in order, with keys, values, headers, tags and times, by a producer of the SDK
    settings    those of the cut

The producer's identity is drawn from the cut, the topic and the new name, and the sequence of a record is its row in
the partition at the cut. So a repetition goes on behind what is stored, and of two at once each record is stored once.
A session is opened before the end of its partition is asked for: where brokers remember no record of the session, an
end above 0 means records of others, or that brokers have forgotten, and nothing is sent.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from crc32c import crc32c

from ledgermq.client.client import Client
from ledgermq.client.messages.descriptions import TopicDescription, TopicPartition
from ledgermq.client.producing.delivery import Outcome
from ledgermq.client.producing.partition.sessions import EncodedBatch, Session
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    OutcomeUnknown,
    OutOfOrderSequence,
    RetriableError,
    TopicExists,
    UnknownCut,
    UnknownProducer,
    UnknownTopic,
)
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch, encode_batch, timestamps_of
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking, run_inline
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.reading.left_out import OnlyTopics
from ledgermq_ledger.cuts.reading.restore import cuts_catalog, find_cut
from ledgermq_ledger.cuts.reading.root import RootAtCut, open_at_cut
from ledgermq_ledger.cuts.record import is_taken
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import NAMES
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger

ATTEMPTS_MAX = 5
"""Consecutive attempts that store nothing."""
HELD = {
    "legal.hold": "true",
    "accept.publish": "true",
    "backlog.quota.bytes": "-1",
    "backlog.quota.ms": "-1",
    "cleanup.policy": "delete",
    "dedup.window.ms": "0",
    "max.message.bytes": str(32 * 1024 * 1024),
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "-1",
    "message.timestamp.before.max.ms": "-1",
    "value.validate": "none",
}
"""Settings of a topic while its records come. They are old, and were accepted once: retention must not delete them, nor
may a rule that came later refuse, drop or change them: not all of them need a key in a topic that became keyed later.
"""


@dataclass(frozen=True, slots=True)
class TopicsBack:
    """Which topics of a cut come back, and where to. `store`: the root that has the cut; it is only read. `cluster`:
    its settings. `wanted`: see `find_cut`. `client`: of the living cluster. `suffix`: what the new names end with.
    `stored`: is called with the number of records whenever some are stored, and with 0 when earlier ones are passed.
    """

    store: ObjectStore
    cluster: ClusterSettings
    wanted: str
    client: Client
    only: OnlyTopics
    sources: Sources
    suffix: str = ".restored"
    stored: Callable[[int], object] = lambda records: None
    run_blocking: RunBlocking = run_inline


@dataclass(frozen=True, slots=True)
class TopicBack:
    """`records`: that the topic has of the cut. `sent`: of them, those that came by this call."""

    topic: str
    name: str
    records: int
    sent: int


async def bring_topics_back(back: TopicsBack) -> list[TopicBack]:
    """Bring topics of a cut back, by name, one after the other. A call that was broken off is continued by the same
    one; when all is done, it changes nothing.

    Raises UnknownCut (also if the cut was dropped meanwhile), UnknownTopic, TopicExists, OutcomeUnknown if brokers have
    forgotten how much of a topic is stored, InvalidRequest, DataDamaged, what creating and sending raise.
    """
    record = find_cut(await cuts_catalog(back.store, back.cluster), back.wanted)
    try:
        at = await open_at_cut(back.store, back.cluster, record.id)
        is_same = (await back.client.describe_cluster()).cluster_id == back.cluster.cluster_id
        topics = [(topic, _settings(topic, is_same=is_same)) for topic in _chosen(at.catalog, back.only)]
        for topic, _ in topics:
            keys.check_topic_name(topic.name + back.suffix)
        return [await _OneTopic(back, at, topic, settings).run() for topic, settings in topics]
    except (DataDamaged, ObjectMissing):
        await _explain(back, record)
        raise


async def _explain(back: TopicsBack, record: fmt.CutRecord) -> None:
    """Raise UnknownCut if the cut was dropped since it was looked up."""
    if not is_taken(await cuts_catalog(back.store, back.cluster), record):
        raise UnknownCut(
            f"cut {record.name!r} was dropped, or its time was over, while topics of it came back: keep a cut until"
            " then (`ledgermq cut keep`). The new topic has a part of the records: unset its legal.hold and delete it"
        )


def _chosen(catalog: Catalog, only: OnlyTopics) -> list[Topic]:
    found = [
        topic
        for name, topic in sorted(catalog.topics_by_name.items())
        if topic.living and not topic.internal and only.matches(name)
    ]
    if not found:
        raise UnknownTopic(f"the cut has no topic that {only.pattern[:100]!r} matches; a pattern matches whole names")
    return found


def _settings(topic: Topic, *, is_same: bool) -> dict[str, str]:
    """Return the settings that a topic has in the end. Its table stays with the old topic, its archive with the old
    cluster. Raises InvalidRequest if its values name schemas of another cluster.
    """
    if topic.settings.value_schema_subject and not is_same:
        raise InvalidRequest(
            f"topic {topic.name!r} has values of schemas of its cluster ({topic.settings.value_schema_subject!r}), and"
            " another cluster gives other schemas the same ids: restore the cut into an empty root instead"
        )
    return {
        name: text
        for name, text in topic.raw_settings.items()
        if name in NAMES and not name.startswith("table.") and (is_same or name != "archive.url")
    }


@dataclass(slots=True)
class _OneTopic:
    """`settings`: those that the new topic has in the end."""

    back: TopicsBack
    at: RootAtCut
    topic: Topic
    settings: dict[str, str]
    _ledgers: dict[int, FollowedLedger] = field(default_factory=dict)

    async def run(self) -> TopicBack:
        found = await self._created()
        places = [TopicPartition(self.name, partition) for partition in range(self.topic.partitions)]
        sessions = await self._begun(found, places)
        begun = sum(session.next_sequence for session in sessions.values())
        attempts_left, most = ATTEMPTS_MAX, begun
        while True:
            try:
                records = await self._send(found.topic_id, sessions)
                break
            except UnknownProducer as error:
                raise self._forgotten() from error
            except (OutOfOrderSequence, OutcomeUnknown, RetriableError):
                attempts_left -= 1
                sessions = await self._begun(found, places)
                if (stored := sum(session.next_sequence for session in sessions.values())) > most:
                    attempts_left, most = ATTEMPTS_MAX, stored
                if not attempts_left:
                    raise
        await self._release(records)
        return TopicBack(self.topic.name, self.name, records, records - begun)

    @property
    def name(self) -> str:
        return self.topic.name + self.back.suffix

    @property
    def _producer_id(self) -> bytes:
        what = [self.back.cluster.cluster_id, self.at.store.cut.put_id.hex(), str(self.topic.id), self.name]
        return hashlib.sha256("\n".join(["topic of a cut", *what]).encode()).digest()[:16]

    async def _created(self) -> TopicDescription:
        """Return the new topic, created by this call or by an earlier one. Raises TopicExists."""
        topics = self.back.client.topics
        try:
            return await topics.create(self.name, self.topic.partitions, self.settings | HELD)
        except TopicExists as error:
            try:
                found = await topics.describe(self.name)
            except UnknownTopic:  # it can be brought back, or another caller has deleted it meanwhile
                raise error from None
        places = [TopicPartition(self.name, partition) for partition in range(len(found.partitions))]
        if len(places) == self.topic.partitions:
            sessions = await self.back.client.open_sessions(self._producer_id, places)
            if self._is_held(found) or any(session.next_sequence for session in sessions.values()):
                return found
            if dict(found.settings) == self.settings and await self._is_empty():  # an earlier call may have released it
                return found
        raise TopicExists(
            f"topic {self.name!r} exists, and does not come from this cut: give another --suffix, or delete it first"
        )

    async def _is_empty(self) -> bool:
        """Return whether the topic has nothing at the cut, nor where it would come to."""
        for partition, bundle in enumerate(self.topic.bundles):
            place, reader = PartitionId(self.topic.id, partition), (await self._ledger(bundle)).reader
            if reader.end(place) > reader.log_start(place):
                return False
        return not any((await self.back.client.list_offsets(self.name)).values())

    async def _check_alone(self, records: int) -> None:
        """Raise InvalidRequest if the topic has records that do not come from the cut."""
        if (there := sum((await self.back.client.list_offsets(self.name)).values())) != records:
            raise InvalidRequest(
                f"topic {self.name!r} has {there} records, and {records} of this cut: others have written to it, or"
                " another call brings back another topic or cut under this name. Delete it, and repeat one of the calls"
            )

    def _is_held(self, found: TopicDescription) -> bool:
        return dict(found.settings) == self.settings | HELD

    async def _begun(self, found: TopicDescription, places: Sequence[TopicPartition]) -> dict[TopicPartition, Session]:
        """Return the sessions, after what is stored of them. Raises OutcomeUnknown."""
        client = self.back.client
        sessions = await client.open_sessions(self._producer_id, places)
        ends = await client.list_offsets(self.name)
        unknown = [each for each in places if ends[each.partition] and not sessions[each].next_sequence]
        if unknown:  # another call may have begun between the two questions
            again = await client.open_sessions(self._producer_id, unknown)
            if not all(session.next_sequence for session in again.values()):
                raise self._forgotten()
            sessions |= again
        if (await client.describe_topic(self.name)).topic_id != found.topic_id:
            raise UnknownTopic(f"topic {self.name!r} was deleted while its records came")
        return sessions

    def _forgotten(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"topic {self.name!r} has records, and its brokers do not know how many of them came from this cut: others"
            " have written to it, or it was left for long. Nothing was sent again: unset its legal.hold, delete it,"
            " and repeat the command"
        )

    async def _send(self, topic_id: int, sessions: Mapping[TopicPartition, Session]) -> int:
        """Send what is not stored. Return the number of records of the cut, all stored."""
        waiting: deque[tuple[Outcome, int]] = deque()
        records = 0
        own = {place: replace(each) for place, each in sessions.items()}  # the producer counts in them
        async with self.back.client.resumed_producer(own) as producer:
            for place, session in sessions.items():
                stored, sequence = session.next_sequence, 0
                async for batch in self._rows(place.partition):
                    end = sequence + batch.num_rows
                    if end > stored:
                        first = max(stored, sequence)
                        rows = batch.slice(first - sequence)
                        waiting.append((await self._sent(producer, topic_id, place, rows, first), rows.num_rows))
                        stored = end
                    else:
                        self.back.stored(0)
                    sequence = end
                    self._count(waiting)
                if stored > sequence:
                    raise DataDamaged(f"{self.name}/{place.partition} has {stored} records of the cut's {sequence}")
                records += sequence
            await producer.flush()
            self._count(waiting)
        return records

    def _count(self, waiting: deque[tuple[Outcome, int]]) -> None:
        while waiting and waiting[0][0].settled:
            outcome, records = waiting.popleft()
            outcome.raise_error()
            self.back.stored(records)

    async def _sent(
        self, producer: Producer, topic_id: int, place: TopicPartition, rows: pa.RecordBatch, sequence: int
    ) -> Outcome:
        at = rows.schema.get_field_index("timestampType")  # whose the times were is no claim of a producer
        rows = rows.set_column(at, rows.schema.field(at), pa.array([0] * rows.num_rows, rows.schema.field(at).type))
        data, times = encode_batch(rows, "lz4"), timestamps_of(rows)
        assert times is not None, "stored records have timestamps"
        batch = EncodedBatch(data, crc32c(data), rows.num_rows, *times)
        return await producer.send_encoded(place.topic, topic_id, place.partition, batch, sequence)

    async def _rows(self, partition: int) -> AsyncIterator[pa.RecordBatch]:
        """Read the records of a partition at the cut, from its log start to its end."""
        place = PartitionId(self.topic.id, partition)
        reader = (await self._ledger(self.topic.bundles[partition])).reader
        offset = reader.log_start(place)
        while offset < reader.end(place):
            for stored in await reader.read(place, offset, topic=self.topic):
                check_crc(stored.data, stored.crc)
                yield decode_batch(stored.data).slice(max(0, offset - stored.base_offset))
                offset = stored.end

    async def _ledger(self, bundle: int) -> FollowedLedger:
        if bundle not in self._ledgers:
            ref = LedgerRef(self.at.store, bundle, self.at.cluster, self.back.sources)
            self._ledgers[bundle] = ledger = FollowedLedger(ref, run_blocking=self.back.run_blocking)
            await ledger.open()
        return self._ledgers[bundle]

    async def _release(self, records: int) -> None:
        """Give the topic the settings of the cut, where it still has those of a held one. So what others have set
        meanwhile stays. Raises InvalidRequest if it has records that do not come from the cut.
        """
        topics = self.back.client.topics
        found = (await topics.describe(self.name)).settings
        held = [name for name, text in HELD.items() if found.get(name) == text != self.settings.get(name)]
        own = {name: self.settings[name] for name in held if name in self.settings}
        if held:
            await self._check_alone(records)
            await topics.alter(self.name, 0, own, [name for name in held if name not in own])
