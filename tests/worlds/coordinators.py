"""A coordinator with its log, and members that keep to the protocol, for tests of groups without a
broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_offsets.coordinator import GroupCoordinator
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.records import PendingKey
from ledgermq_offsets.topics import TopicSize, TopicsView

T = TypeVar("T")
Kind = Callable[[GroupLimits, TopicsView], GroupCoordinator]


@dataclass
class Catalog:
    """Topics that tests create, grow and remove; ids grow as the catalog's do."""

    version: int = 0
    topics: dict[str, TopicSize] = field(default_factory=dict)
    racks: dict[PartitionId, str] = field(default_factory=dict)
    next_id: int = 1
    kept_until: dict[int, int] = field(default_factory=dict)

    def create(self, name: str, partitions: int) -> TopicSize:
        topic = self.topics[name] = TopicSize(self.next_id, name, partitions)
        self.next_id += 1
        self.version += 1
        return topic

    def grow(self, name: str, partitions: int) -> None:
        self.topics[name] = self.topics[name]._replace(partitions=partitions)
        self.version += 1

    def remove(self, name: str) -> None:
        del self.topics[name]
        self.version += 1

    def by_name(self, name: str) -> TopicSize | None:
        return self.topics.get(name)

    def by_id(self, topic_id: int) -> TopicSize | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return list(self.topics)

    def kept_until_ms(self, topic_id: int, now_ms: int) -> int:
        return self.kept_until.get(topic_id, 0)

    def is_removed(self, topic_id: int) -> bool:
        return topic_id < self.next_id and self.by_id(topic_id) is None

    def rack(self, topic: TopicSize, partition: int) -> str:
        return self.racks.get(PartitionId(topic.topic_id, partition), "")


class Desk:
    """One coordinator over all its terms: the log of batches outlives each of them.

    Time moves only by `wait`.
    """

    def __init__(self, catalog: Catalog, limits: GroupLimits | None = None, kind: Kind = GroupCoordinator) -> None:
        self.kind = kind
        self.catalog = catalog
        self.limits = limits or GroupLimits()
        self.batches: list[list[LogRecord]] = []
        self.now_s = 1000.0
        self.now_ms = 1_700_000_000_000
        self.end = 1_000_000
        self.woken: set[tuple[str, str]] = set()
        self.coordinator = kind(self.limits, catalog)
        self.coordinator.start(self.now_s)

    def take_over(self, batches: int | None = None) -> None:
        """A new term, from the log; of its first `batches` only: a coordinator that died before it
        wrote more.
        """
        del self.batches[len(self.batches) if batches is None else batches :]
        self.coordinator = replayed(self.batches, self.limits, self.catalog, self.kind)
        self.coordinator.start(self.now_s)

    def wait(self, seconds: float) -> None:
        """Ticks come when they are due."""
        until = self.now_s + seconds
        while (due_s := self.coordinator.next_tick_s()) <= until:
            self._to(max(self.now_s, due_s))
            self.decided(self.coordinator.tick(self.now_s, self.now_ms))
            if self.coordinator.wants_expiry(self.now_s, self.now_ms):
                self.decided(self.coordinator.expire(self.now_s, self.now_ms))
        self._to(until)

    def _to(self, now_s: float) -> None:
        self.now_ms += round((now_s - self.now_s) * 1000)
        self.now_s = now_s

    def decided(self, decision: Decision[T]) -> T:
        if decision.records:
            self.batches.append(decision.records)
        self.woken |= set(decision.woken)
        return decision.answer

    def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        return self.decided(self.coordinator.heartbeat(request, self.now_s, self.now_ms))

    def commit(self, request: pb.CommitOffsetsRequest) -> list[str]:
        """The code of each result, "" = done."""
        ends = {PartitionId(end.topic_id, end.partition): self.end for end in self.coordinator.ends_needed(request)}
        answer = self.decided(self.coordinator.commit(request, ends, self.now_s, self.now_ms))
        return [result.error.code for result in answer.results]

    def stage(self, request: pb.StageOffsetsRequest) -> list[str]:
        """The code of each result, "" = staged."""
        ends = {PartitionId(end.topic_id, end.partition): self.end for end in self.coordinator.ends_needed(request)}
        answer = self.decided(self.coordinator.stage_offsets(request, ends, self.now_ms))
        return [result.error.code for result in answer.results]

    def settle(self, key: PendingKey, *commit_groups: str) -> None:
        """A transaction is complete: committed for these groups; without any, aborted."""
        self.decided(self.coordinator.settle_pending(*key, commit_groups, self.now_ms, id_of(key)))

    def reset(self, group: str, *resets: pb.OffsetReset) -> list[str]:
        request = pb.ResetOffsetsRequest(group=group, resets=resets)
        ends = {PartitionId(end.topic_id, end.partition): self.end for end in self.coordinator.ends_needed(request)}
        answer = self.decided(self.coordinator.reset(request, ends, self.now_s, self.now_ms))
        return [result.error.code for result in answer.results]

    def committed(self, group: str, topic: str, partition: int) -> pb.CommittedPartition:
        asked = pb.TopicPartition(topic=topic, partition=partition)
        return self.coordinator.committed(pb.FetchCommittedRequest(group=group, partitions=[asked])).partitions[0]


def replayed(
    batches: Iterable[list[LogRecord]], limits: GroupLimits, catalog: Catalog, kind: Kind = GroupCoordinator
) -> GroupCoordinator:
    coordinator = kind(limits, catalog)
    for records in batches:
        for record in records:
            coordinator.apply(record.key, record.value)
    return coordinator


def id_of(key: PendingKey) -> str:
    """Return the transactional id under which tests stage offsets of a producer."""
    return f"id-{key.producer_id.hex()[:4]}"


def staged_in(key: PendingKey, request: pb.CommitOffsetsRequest) -> pb.StageOffsetsRequest:
    """The same offsets, staged by a transaction instead of committed."""
    ref = pb.TransactionRef(
        transactional_id=id_of(key),
        coordinator=3,
        producer_id=key.producer_id,
        epoch=key.epoch,
        number=key.number,
    )
    return pb.StageOffsetsRequest(
        transaction=ref, group=request.group, member_id=request.member_id, commits=request.commits
    )


class Consumer:
    """A member that keeps to the protocol: takes its partitions at once, lets go what it must,
    says so with the next heartbeat.
    """

    def __init__(
        self, desk: Desk, group: str, member_id: str, topics: Iterable[str] = ("t",), **subscription: object
    ) -> None:
        self.desk = desk
        self.group = group
        self.member_id = member_id
        pattern = subscription.get("topic_pattern")
        self.subscription = pb.GroupSubscription(topics=[] if pattern else topics, **subscription)  # type: ignore[arg-type]
        self.owned: dict[PartitionId, pb.GivenPartition] = {}
        self.seen_epoch = 0
        self.counters: dict[PartitionId, int] = {}

    def join(self) -> None:
        self.owned, self.seen_epoch = {}, 0
        self._beat(pb.JOIN)

    def beat(self) -> None:
        self._beat(pb.STAY)

    def leave(self, step: pb.GroupStep = pb.LEAVE) -> None:
        self.desk.heartbeat(self.request(step))
        self.owned = {}

    def request(self, step: pb.GroupStep) -> pb.GroupHeartbeatRequest:
        return pb.GroupHeartbeatRequest(
            group=self.group,
            member_id=self.member_id,
            step=step,
            owned=self.owned.values(),
            seen_epoch=self.seen_epoch,
            subscription=self.subscription if step == pb.JOIN else None,
        )

    def _beat(self, step: pb.GroupStep) -> None:
        self.take(self.desk.heartbeat(self.request(step)))

    def take(self, answer: pb.GroupHeartbeatResponse) -> None:
        self.owned = {PartitionId(given.topic_id, given.partition): given for given in answer.assigned}
        self.seen_epoch = answer.group_epoch

    def commit_request(self, offsets: dict[PartitionId, int]) -> pb.CommitOffsetsRequest:
        commits = []
        for partition, offset in offsets.items():
            given = self.owned[partition]
            self.counters[partition] = self.counters.get(partition, 0) + 1
            commits.append(
                pb.OffsetCommit(
                    topic=given.topic,
                    topic_id=partition[0],
                    partition=partition[1],
                    epoch=given.epoch,
                    counter=self.counters[partition],
                    offset=offset,
                )
            )
        return pb.CommitOffsetsRequest(group=self.group, member_id=self.member_id, commits=commits)

    def commit(self, offsets: dict[PartitionId, int]) -> list[str]:
        return self.desk.commit(self.commit_request(offsets))

    def stage(self, key: PendingKey, offsets: dict[PartitionId, int]) -> list[str]:
        return self.desk.stage(staged_in(key, self.commit_request(offsets)))


def settle(consumers: Iterable[Consumer], beats: int = 6) -> None:
    """Enough heartbeats, and time between them, for everything to come to rest."""
    for _ in range(beats):
        for consumer in consumers:
            consumer.desk.wait(0.01)
            consumer.beat()
