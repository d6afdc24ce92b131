"""Track what a streaming query reads in each batch: from one position to the next, and from two
positions to ranges for tasks.

The same two positions give the same rows, whenever and in whichever process they are planned:
offsets determine which, the store where they are now. If records, or a topic, were deleted before
they were read, `failOnDataLoss` decides: a typed error, or the remaining records. New partitions,
and topics that a pattern finds later, are read from offset 0 on: so their begin need not be stored,
and a log that starts above 0 has lost some of their records. A partition that is away stays where it
is, or is left out if it is new; nothing of it counts as lost meanwhile. Needs the store, no broker and no
Spark.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.errors import InvalidConfig, LedgerMQError, OffsetOutOfRange, UnknownTopic
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.planning import (
    PARTITIONS_AT_ONCE,
    Part,
    TopicRange,
    deal,
    partitions_of,
    plan_parts,
    resolve,
    topics_of,
)
from ledgermq_spark.source.streaming.followed import FollowedTopics
from ledgermq_spark.source.streaming.positions import Position, TopicPosition, Topics, share

TASK_BYTES = 32 * 1024 * 1024


class Tracker:
    """`warn` is called with each loss that `failOnDataLoss=false` permits."""

    def __init__(
        self, followed: FollowedTopics, cluster_id: str, options: SourceOptions, warn: Callable[[str], None]
    ) -> None:
        self._followed = followed
        self._cluster = cluster_id
        self._options = options
        self._warn = warn
        self._target: Topics | None = None

    async def first(self) -> Position:
        """Return where a query without a checkpoint begins.

        Raises UnknownTopic, UnknownPartition, InvalidConfig, OffsetOutOfRange, DataDamaged, the
        store's errors.
        """
        found: dict[str, TopicPosition] = {}
        for topic in topics_of(self._followed.catalog, self._options):
            partitions = partitions_of(topic, self._options)
            starts = await all_of((self._start(topic, partition) for partition in partitions), PARTITIONS_AT_ONCE)
            found[topic.name] = TopicPosition(topic.id, dict(zip(partitions, starts, strict=True)))
        return Position(self._cluster, found, is_first=True)

    async def _start(self, topic: Topic, partition: int) -> int:
        reader, key = self._followed.reader(topic, partition), PartitionId(topic.id, partition)
        start, end = reader.log_start(key), reader.end(key)
        offset = await resolve(reader, self._options.starting_offsets, topic.name, key, start)
        return self._within(topic, partition, offset, start, end)

    def latest(self) -> Position:
        """Return the latest known position, without a request."""
        return Position(self._cluster, self._ends())

    def _ends(self) -> Topics:
        return {
            name: TopicPosition(
                topic.id,
                {
                    p: self._followed.reader(topic, p).end(PartitionId(topic.id, p))
                    for p in self._followed.partitions(topic)
                    if (topic.id, p) not in self._followed.away
                },
            )
            for name, topic in self._followed.topics.items()
        }

    @property
    def stops(self) -> bool:
        """The query ends at a position."""
        return self._target is not None

    def stop_at_latest(self) -> None:
        """Treat what is known now as the end from now on."""
        self._target = self._ends()

    def behind_its_end(self, start: Position) -> list[PartitionId]:
        """Return the partitions that have not come to the end of a query that stops at a position."""
        return self._between(start.topics, self._target or {})

    def wanted(self, start: Position, end: Position) -> list[PartitionId]:
        """Return the partitions of which the batch between two positions has records."""
        return self._between(_begins(start, end), end.topics)

    def _between(self, begins: Topics, ends: Topics) -> list[PartitionId]:
        return [
            PartitionId(topic.id, partition)
            for name, position in ends.items()
            if (topic := self._followed.topics.get(name)) is not None and topic.id == position.id
            for partition in self._followed.partitions(topic)
            if _offset(begins, topic, partition) < position.offsets.get(partition, 0)
        ]

    def next(self, start: Position, rows_max: int | None) -> Position:
        """Return the end of the batch that begins at `start`; `start` itself if nothing is new.

        Raises UnknownTopic, OffsetOutOfRange; InvalidConfig: the checkpoint is of another cluster.
        """
        self._check(start, start.topics)
        target = self._ends() if self._target is None else self._target
        living = {
            name: topic
            for name, topic in self._followed.topics.items()
            if name in target and target[name].id == topic.id
        }
        begins = {
            (name, p): self._begin(start.topics, topic, p)
            for name, topic in living.items()
            for p in target[name].offsets
            if (topic.id, p) not in self._followed.away
        }
        lags = {part: max(0, target[part[0]].offsets[part[1]] - begin) for part, begin in begins.items()}
        steps = lags if rows_max is None else share(lags, rows_max)
        moved = {name: self._kept(start.topics, topic) for name, topic in living.items()}
        for (name, partition), begin in begins.items():
            moved[name][partition] = begin + steps[name, partition]
        return start.moved_to({name: TopicPosition(living[name].id, offsets) for name, offsets in moved.items()})

    async def ranges(self, start: Position, end: Position) -> list[list[TopicRange]]:
        """Return ranges by task. Raises as `next` does, and DataDamaged, Unavailable, the store's
        errors.
        """
        begins = _begins(start, end)
        self._check(end, end.topics)
        parts: list[Part] = []
        for key in self.wanted(start, end):
            topic, partition = self._followed.catalog.topics_by_id[key.topic_id], key.partition
            first, last = self._begin(begins, topic, partition), end.topics[topic.name].offsets[partition]
            if first < last:
                reader = self._followed.reader(topic, partition)
                last = self._within(topic, partition, last, first, reader.end(key))
                parts.append(Part(topic.name, key, reader, (first, last)))
        return deal(await plan_parts(parts), self._options.min_partitions, TASK_BYTES)

    def _check(self, position: Position, topics: Topics) -> None:
        """Check that the position belongs to the current topics."""
        if position.cluster != self._cluster:
            raise InvalidConfig(
                f"the checkpoint belongs to cluster {position.cluster}, but this root holds cluster {self._cluster}"
            )
        for name in self._options.chosen(sorted(topics)):
            known, topic = topics.get(name), self._followed.topics.get(name)
            if known is None or (topic is not None and topic.id == known.id):
                continue
            what = f"topic {name!r} (id {known.id}) was deleted" + (
                "" if topic is None else f" and created again (id {topic.id})"
            )
            left = "continues without it" if topic is None else "reads the new one from its begin"
            self._lose(UnknownTopic(f"{what} under a query that reads it; failOnDataLoss=false {left}"))

    def _begin(self, begins: Topics, topic: Topic, partition: int) -> int:
        """Return where a batch begins in a partition: at offset 0 if it is new to the query."""
        reader, key = self._followed.reader(topic, partition), PartitionId(topic.id, partition)
        offset = _offset(begins, topic, partition)
        return self._within(topic, partition, offset, reader.log_start(key), reader.end(key))

    def _kept(self, begins: Topics, topic: Topic) -> dict[int, int]:
        """Return the offsets of partitions that are away."""
        known = begins.get(topic.name)
        if known is None or known.id != topic.id:
            return {}
        away = [p for p in self._followed.partitions(topic) if (topic.id, p) in self._followed.away]
        return {p: known.offsets[p] for p in away if p in known.offsets}

    def _within(self, topic: Topic, partition: int, offset: int, start: int, end: int) -> int:
        if not start <= offset <= end:
            text = f"{topic.name}/{partition}: offset {offset} is asked for, the log reaches from {start} to {end}"
            self._lose(OffsetOutOfRange(f"{text}; failOnDataLoss=false reads the remaining records"))
        return min(max(offset, start), end)

    def _lose(self, error: LedgerMQError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        self._warn(error.message)


def _begins(start: Position, end: Position) -> Topics:
    """Return where a batch begins. Spark does not know it of the first one."""
    return start.topics if end.begun is None else end.begun


def _offset(begins: Topics, topic: Topic, partition: int) -> int:
    """Return where a batch begins in a partition, although that may have been deleted."""
    known = begins.get(topic.name)
    return known.offsets.get(partition, 0) if known is not None and known.id == topic.id else 0
