"""A consumer process in the random lives of a group: what it believes, and what it sends."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId

GROUP = "g"
TOPICS = ("t", "u")
SESSION_MS, REBALANCE_MS = 10_000, 5_000


@dataclass
class Client:
    """One consumer process.

    `owned`: what it believes to hold, with what it has still to let go (`letting_go`).
    """

    number: int
    life: int = 0
    static: bool = False
    joined: bool = False
    owned: dict[PartitionId, pb.GivenPartition] = field(default_factory=dict)
    letting_go: set[PartitionId] = field(default_factory=set)
    seen_epoch: int = 0
    counters: dict[PartitionId, int] = field(default_factory=dict)
    position: dict[PartitionId, int] = field(default_factory=dict)
    answers: list[pb.GroupHeartbeatResponse] = field(default_factory=list)
    polling: bool = False
    topics: tuple[str, ...] = TOPICS
    assignor: str = "uniform"

    @property
    def member_id(self) -> str:
        return f"m{self.number}-{self.life}"

    def request(self, step: pb.GroupStep = pb.STAY) -> pb.GroupHeartbeatRequest:
        request = pb.GroupHeartbeatRequest(
            group=GROUP, member_id=self.member_id, step=step, owned=self.owned.values(), seen_epoch=self.seen_epoch
        )
        if step == pb.JOIN:
            request.subscription.CopyFrom(
                pb.GroupSubscription(
                    topics=self.topics,
                    assignor=self.assignor,
                    instance_id=f"s{self.number}" if self.static else "",
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                )
            )
        return request

    def restart(self) -> None:
        self.__init__(self.number, self.life + 1, self.static, topics=self.topics, assignor=self.assignor)  # type: ignore[misc]

    def forget(self) -> None:
        self.owned, self.letting_go, self.seen_epoch, self.answers, self.polling = {}, set(), 0, [], False
        self.position, self.counters = {}, {}

    def take(self, answer: pb.GroupHeartbeatResponse) -> None:
        """Takes at once what it is given; what it is to let go it lets go when it gets round to it."""
        if answer.group_epoch < self.seen_epoch:
            return
        self.seen_epoch = answer.group_epoch
        given = {PartitionId(g.topic_id, g.partition): g for g in answer.assigned}
        for partition, g in given.items():
            if partition not in self.owned or self.owned[partition].epoch != g.epoch:
                self.position.pop(partition, None)
                self.counters.pop(partition, None)
        self.letting_go = set(self.owned) - set(given)
        self.owned = {**self.owned, **given}


@dataclass(frozen=True)
class Sent:
    """A commit on its way: of which partition, in which era it was made, and which offset."""

    request: pb.CommitOffsetsRequest
    partition: PartitionId
    era: int
