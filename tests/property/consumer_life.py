"""Random lives of a group whose members speak our own protocol and Kafka's (KIP-848): a machine for hypothesis.

To the life of our own members it adds clients of the Kafka protocol. Each has one connection: its heartbeats come in
their order, or not at all, and answers are lost. It takes what it was given when it gets round to it, and says so
with its next heartbeat; after an error it says everything again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ledgermq.errors import GroupError, GroupNotEmpty, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.classic.values import ClassicLimits
from ledgermq_offsets.consumer.epochs import shown_epoch
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.topics import TopicsView
from tests.property.group_client import GROUP, REBALANCE_MS, SESSION_MS, TOPICS
from tests.property.group_life import GroupLife
from tests.worlds.coordinators import Desk

KAFKA_MEMBERS = 3
which = st.integers(0, KAFKA_MEMBERS - 1)


def both_kinds(limits: GroupLimits, topics: TopicsView) -> BothKinds:
    return BothKinds(limits, topics, ClassicLimits(), lambda name: name)


@dataclass
class KafkaClient:
    """`given`: what the last answer assigned to it; None while it is not a member. `owned`: what it reads. `told`: the
    coordinator has heard what it owns. `missed`: an answer was lost. `is_lazy`: as librdkafka, it says nothing of an
    assignment that it has already; Java does.
    """

    number: int
    life: int = 0
    static: bool = False
    epoch: int = 0
    given: set[PartitionId] | None = None
    owned: set[PartitionId] = field(default_factory=set)
    told: bool = False
    missed: bool = False
    topics: tuple[str, ...] = TOPICS

    @property
    def member_id(self) -> str:
        return f"k{self.number}-{self.life}"

    @property
    def is_lazy(self) -> bool:
        return self.number % 2 == 1

    @property
    def instance_id(self) -> str:
        return f"ks{self.number}" if self.static else ""

    def request(self, step: pb.GroupStep = pb.STAY) -> pb.GroupHeartbeatRequest:
        joins = step == pb.JOIN
        says_all = joins or self.missed
        says_owned = step == pb.STAY and (says_all or not self.told)
        request = pb.GroupHeartbeatRequest(
            group=GROUP,
            member_id=self.member_id,
            step=step,
            owned=[pb.GivenPartition(topic_id=t, partition=p) for t, p in self.owned] if says_owned else [],
            kafka=pb.KafkaMember(
                epoch=0 if joins else self.epoch, instance_id=self.instance_id, owned=says_owned or joins
            ),
        )
        if says_all:
            request.kafka.topics = True
            request.subscription.CopyFrom(
                pb.GroupSubscription(
                    topics=self.topics,
                    instance_id=self.instance_id,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    kafka_host="/h",
                )
            )
        return request

    def take(self, sent: pb.GroupHeartbeatRequest, answer: pb.GroupHeartbeatResponse) -> None:
        self.epoch = shown_epoch(answer.group_epoch)
        self.missed = False
        if sent.kafka.owned:
            self.told = True
        if answer.is_news or sent.HasField("subscription"):
            self.given = {PartitionId(one.topic_id, one.partition) for one in answer.assigned}
            self.told = self.told and (self.is_lazy or self.given != self.owned)

    def begin_with_what_was_given(self) -> None:
        if self.given is not None and self.given != self.owned:
            self.owned, self.told = set(self.given), False

    def lose_all(self) -> None:
        self.epoch, self.given, self.owned, self.told, self.missed = 0, None, set(), False, False

    def restart(self) -> None:
        self.life += 1
        self.lose_all()


@dataclass(frozen=True)
class SentByEpoch:
    request: pb.CommitForGenerationRequest
    partition: PartitionId
    era: int


class ConsumerLife(GroupLife):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self.catalog, self.desk.limits, both_kinds)
        self.kafka = [KafkaClient(number, static=number == 0) for number in range(KAFKA_MEMBERS)]
        self.late_by_epoch: list[SentByEpoch] = []

    @property
    def core(self) -> BothKinds:
        core = self.desk.coordinator
        assert isinstance(core, BothKinds)
        return core

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        group = self.core.state.groups.get(GROUP)
        members = group.members if group is not None else {}
        readers: dict[PartitionId, str] = {}
        for client in (*self.clients, *self.kafka):
            if client.member_id not in members or members[client.member_id].away:
                continue
            for partition in client.owned:
                assert partition not in readers, f"{partition}: {readers[partition]} and {client.member_id} read it"
                readers[partition] = client.member_id

    # Heartbeats

    def send_kafka(self, client: KafkaClient, step: pb.GroupStep, *, is_lost: bool = False) -> None:
        request = client.request(step)
        try:
            answer = self.heartbeat(request)
        except GroupError:
            if step != pb.JOIN:
                client.lose_all()
            return
        if step in (pb.LEAVE, pb.LEAVE_FOR_A_WHILE):
            client.restart()
        elif is_lost:
            client.missed = client.epoch > 0
        else:
            client.take(request, answer)

    def beat_kafka(self, client: KafkaClient, *, is_lost: bool = False) -> None:
        self.send_kafka(client, pb.STAY if client.epoch else pb.JOIN, is_lost=is_lost)

    @rule(number=which, is_lost=st.booleans())
    def kafka_heartbeat(self, number: int, is_lost: bool) -> None:
        self.beat_kafka(self.kafka[number], is_lost=is_lost and self.kafka[number].epoch > 0)

    @rule(number=which, other=which)
    def kafka_is_slow_to_take_what_it_was_given(self, number: int, other: int) -> None:
        for _ in range(2):
            self.beat_kafka(self.kafka[number])
        self.beat_kafka(self.kafka[other])
        self.kafka[other].begin_with_what_was_given()

    @rule(number=which)
    def kafka_takes_what_it_was_given(self, number: int) -> None:
        self.kafka[number].begin_with_what_was_given()

    @rule(number=which)
    def kafka_goes_on(self, number: int) -> None:
        client = self.kafka[number]
        for _ in range(2):
            self.beat_kafka(client)
            client.begin_with_what_was_given()

    @rule(number=which, topics=st.sampled_from([("t",), ("u",), TOPICS]))
    def kafka_subscribes(self, number: int, topics: tuple[str, ...]) -> None:
        client = self.kafka[number]
        client.topics = topics
        client.missed = client.epoch > 0  # it says everything
        self.beat_kafka(client)

    @rule(number=which, step=st.sampled_from([pb.LEAVE, pb.LEAVE_FOR_A_WHILE]))
    def kafka_leaves(self, number: int, step: pb.GroupStep) -> None:
        client = self.kafka[number]
        if client.epoch and (client.static or step == pb.LEAVE):
            self.send_kafka(client, step)

    @rule(number=which)
    def kafka_dies(self, number: int) -> None:
        self.kafka[number].restart()

    @rule(number=which)
    def kafka_begins_again(self, number: int) -> None:
        """It was fenced, as it believes, and joins under its id."""
        self.kafka[number].lose_all()
        self.beat_kafka(self.kafka[number])

    # Commits

    def commit_by_epoch(self, number: int, at: int, offset: int) -> SentByEpoch | None:
        owners = [client for client in self.kafka if client.owned and client.epoch] or self.kafka
        client = owners[number % len(owners)]
        if not client.owned or not client.epoch:
            return None
        partition = sorted(client.owned)[at % len(client.owned)]
        topic = self.catalog.by_id(partition[0])
        if topic is None:
            return None
        commit = pb.GenerationCommit(topic=topic.name, partition=partition[1], offset=offset)
        request = pb.CommitForGenerationRequest(
            group=GROUP, member_id=client.member_id, generation=client.epoch, commits=[commit]
        )
        return SentByEpoch(request, partition, self.eras.get(partition, 0))

    def deliver_by_epoch(self, sent: SentByEpoch) -> None:
        group = self.core.state.groups.get(GROUP)
        holder = None if group is None else group.holders.get(sent.partition)
        try:
            answer = self.desk.decided(self.core.commit_for_generation(sent.request, self.desk.now_s, self.desk.now_ms))
        except LedgerMQError:
            return
        if answer.results[0].HasField("error"):
            return
        self.may_go_back.add(sent.partition)
        done = self.core.state.groups[GROUP].offset_of(sent.partition)
        assert done is not None
        assert done.offset == sent.request.commits[0].offset
        assert holder in (None, sent.request.member_id), f"{sent.request.member_id} committed what {holder} reads"
        if holder is not None:
            assert sent.era == self.eras.get(sent.partition, 0), "a commit of before its partition changed hands"

    @rule(number=which, at=st.integers(0, 10), offset=st.integers(0, 20), is_late=st.booleans())
    def kafka_commits(self, number: int, at: int, offset: int, is_late: bool) -> None:
        sent = self.commit_by_epoch(number, at, offset)
        if sent is not None and is_late:
            self.late_by_epoch.append(sent)
        elif sent is not None:
            self.deliver_by_epoch(sent)

    @precondition(lambda self: self.late_by_epoch)
    @rule(at=st.integers(0, 1000))
    def a_late_commit_by_epoch_comes(self, at: int) -> None:
        self.deliver_by_epoch(self.late_by_epoch.pop(at % len(self.late_by_epoch)))

    def reset_one(self, topic: str, number: int, offset: int | None) -> None:
        try:
            super().reset_one(topic, number, offset)
        except GroupNotEmpty:
            group = self.core.state.groups[GROUP]
            at = PartitionId(self.catalog.topics[topic].topic_id, number)
            assert group.members[group.holders[at]].subscription.kafka_host

    # Rest

    @rule()
    def all_are_quick(self) -> None:
        """Then every partition that a member subscribes to has exactly one reader."""
        before = self.members_present()
        for _ in range(8):
            for ours in self.clients:
                if ours.joined:
                    self.let_go_one(ours)
                    self.stay_one(ours)
            for theirs in self.kafka:
                if theirs.epoch:
                    self.beat_kafka(theirs)
                    theirs.begin_with_what_was_given()
            self.time_passes(0.5)
        living = [*(c for c in self.clients if c.joined), *(c for c in self.kafka if c.epoch)]
        present = self.members_present()
        if not present or present != before or present != {client.member_id for client in living}:
            return  # a member has died, and is not removed, or only just now
        names = {name for client in living for name in client.topics}
        topics = [topic for topic in self.catalog.topics.values() if topic.name in names]
        wanted = {PartitionId(topic.topic_id, p) for topic in topics for p in range(topic.partitions)}
        assert sorted(p for client in living for p in client.owned) == sorted(wanted)
        assert self.core.describe(GROUP, self.desk.now_s).state == pb.STABLE
