"""Principals that fill tables, and each way in which one begins a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.groups.offsets_topic import partition_of
from tests.broker.groups import commit_of

TOPICS = {"mallory": "mine", "victim": "orders"}
GROUP_PARTITIONS = 16
"""Of `__consumer_offsets`, by default."""


@dataclass
class Caller:
    """A principal that fills a table through one line."""

    name: str
    line: Connection
    bundle: int = 1
    topic_id: int = 0
    slot: int = 0
    ref: pb.TransactionRef | None = None
    topic_of: str = ""

    @property
    def topic(self) -> str:
        return self.topic_of or TOPICS[self.name]

    def number(self, n: int) -> bytes:
        return f"{self.name:<8}{n:08}".encode()


Fill = Callable[[Caller, int], Awaitable[pb.Error | None]]
"""Take one more entry of a table, number `n` of this caller; the error if that was refused."""


def group_of(caller: Caller, n: int) -> str:
    """The group number `n` of this caller: all of them are in one partition."""
    names = (f"{caller.topic}-{each}" for each in count())
    return next(islice((name for name in names if partition_of(name, GROUP_PARTITIONS) == 0), n, None))


async def refusal(call: Awaitable[object]) -> pb.Error | None:
    try:
        answer: Any = await call
    except ResourceExhausted as error:
        return error_to_proto(error)
    return next((r.error for r in getattr(answer, "results", ()) if r.HasField("error")), None)


async def one_group_by_a_commit(caller: Caller, n: int) -> pb.Error | None:
    wanted = [pb.TopicPartition(topic=caller.topic)]
    asked = pb.FetchCommittedRequest(group=group_of(caller, n), partitions=wanted)
    [seen] = (await caller.line.fetch_committed(asked)).partitions
    commit = commit_of(asked.group, (caller.topic, 0, 0), epoch=seen.epoch, counter=seen.counter + 1)
    return await refusal(caller.line.commit_offsets(commit))


async def one_group_by_a_member(caller: Caller, n: int) -> pb.Error | None:
    request = pb.GroupHeartbeatRequest(
        group=group_of(caller, n),
        member_id=f"m{n}",
        step=pb.JOIN,
        subscription=pb.GroupSubscription(topics=[caller.topic]),
    )
    return await refusal(caller.line.group_heartbeat(request))


async def one_group_by_a_reset(caller: Caller, n: int) -> pb.Error | None:
    reset = pb.OffsetReset(topic=caller.topic, offset=0)
    return await refusal(caller.line.reset_offsets(pb.ResetOffsetsRequest(group=group_of(caller, n), resets=[reset])))


async def one_group_by_a_staged_offset(caller: Caller, n: int) -> pb.Error | None:
    name = f"{caller.topic}-staging"
    if caller.ref is None:
        made = await caller.line.init_transactions(pb.InitTransactionsRequest(transactional_id=name))
        caller.ref = pb.TransactionRef(
            transactional_id=name,
            coordinator=made.coordinator,
            producer_id=made.producer_id,
            epoch=made.epoch,
            number=1,
        )
    asked = pb.FetchCommittedRequest(group=group_of(caller, n), partitions=[pb.TopicPartition(topic=caller.topic)])
    [seen] = (await caller.line.fetch_committed(asked)).partitions
    commits = commit_of(asked.group, (caller.topic, 0, 0), epoch=seen.epoch, counter=seen.counter + 1).commits
    request = pb.StageOffsetsRequest(transaction=caller.ref, group=asked.group, commits=commits)
    return await refusal(caller.line.stage_offsets(request))


async def one_group_by_a_kafka_commit(caller: Caller, n: int) -> pb.Error | None:
    request = pb.CommitForGenerationRequest(
        group=group_of(caller, n), outside=True, commits=[pb.GenerationCommit(topic=caller.topic)]
    )
    return await refusal(caller.line.commit_for_generation(request))


async def one_group_by_a_kafka_member(caller: Caller, n: int) -> pb.Error | None:
    request = pb.JoinClassicGroupRequest(
        group=group_of(caller, n),
        protocol_type="consumer",
        protocols=[pb.ClassicProtocol(name="range")],
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
    )
    return await refusal(caller.line.join_classic_group(request))


GROUPS = (
    one_group_by_a_commit,
    one_group_by_a_member,
    one_group_by_a_reset,
    one_group_by_a_staged_offset,
    one_group_by_a_kafka_commit,
    one_group_by_a_kafka_member,
)
