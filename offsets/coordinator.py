"""The door of groups: one `GroupCoordinator` for each partition of `__consumer_offsets` that this broker owns.

How a broker uses it (one term, one partition; nothing here waits):

    c = GroupCoordinator(limits, topics)
    for record in snapshot + tail: c.apply(record.key, record.value)
    c.start(now_s)                                   # session clocks begin anew
    decision = c.heartbeat(request, now_s, now_ms)   # typed errors are raised before anything has changed
    append decision.records as ONE batch, in the order of the decisions; when it is durable:
        wake the held heartbeats of decision.woken; send decision.answer

Invariants: a decision's records, applied to a copy of what was before, give what is now; a prefix of batches is a state that a
coordinator can go on from. Nothing that a caller is told is missing from the records of this decision and those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ledgermq.protocol import ledgermq_pb2 as pb
from offsets.limits import GroupLimits
from offsets.records import LogRecord
from offsets.topics import Partition, TopicsView

T = TypeVar("T")

Ends = Mapping[Partition, int]
"""(topic id, partition) -> an end of it that is durable: the high watermark, or a lower bound of it."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """`records` in order, perhaps none; `woken`: (group, member id) of all whose held heartbeat has something to say now."""

    records: list[LogRecord]
    answer: T
    woken: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class EndWanted:
    topic: str
    topic_id: int
    partition: int


class GroupCoordinator:
    """`now_s`: monotonic seconds, for sessions; `now_ms`: wall clock, for commit times and expiry."""

    def __init__(self, limits: GroupLimits, topics: TopicsView) -> None: ...

    # Replay

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take in one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        raise NotImplementedError

    def start(self, now_s: float) -> None:
        """Once, after the last record was applied."""
        raise NotImplementedError

    # Members

    def heartbeat(self, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int) -> Decision[pb.GroupHeartbeatResponse]:
        """All steps. Raises InvalidGroupName, InvalidRequest, UnknownMember, StaticIdInUse, ResourceExhausted.

        To hold a long poll: while not `changed_for(…)`, keep the request; when the member is in some decision's `woken`, or the wait
        is over, answer `assignment(…)`.
        """
        raise NotImplementedError

    def changed_for(self, group: str, member_id: str, seen_epoch: int) -> bool:
        """Has an answer something to say to a member that has seen this group epoch? True also when it is no member (any more)."""
        raise NotImplementedError

    def assignment(self, group: str, member_id: str) -> pb.GroupHeartbeatResponse:
        """What a heartbeat would be answered now; durable when all records of earlier decisions are. Raises UnknownMember."""
        raise NotImplementedError

    # Committed offsets

    def ends_needed(self, request: pb.CommitOffsetsRequest | pb.ResetOffsetsRequest) -> list[EndWanted]:
        """The partitions whose end has to be known for this request, above what is known already. Raises what the request would."""
        raise NotImplementedError

    def commit(self, request: pb.CommitOffsetsRequest, ends: Ends, now_s: float, now_ms: int) -> Decision[pb.CommitOffsetsResponse]:
        """`ends`: those of `ends_needed` that could be told; a commit that needs a missing one gets Unavailable.

        For the whole request raises InvalidGroupName, InvalidRequest, UnknownMember, GroupNotEmpty, ResourceExhausted; for each commit
        StaleAssignment, CommitGoesBack, OffsetOutOfRange, UnknownTopic, UnknownPartition, InvalidRequest, Unavailable in its result.
        """
        raise NotImplementedError

    def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        """Durable when all records of earlier decisions are. Raises InvalidGroupName, InvalidRequest."""
        raise NotImplementedError

    def reset(self, request: pb.ResetOffsetsRequest, ends: Ends, now_s: float, now_ms: int) -> Decision[pb.ResetOffsetsResponse]:
        """Members that hold a partition get it with a new epoch (`woken`). Errors as of `commit`."""
        raise NotImplementedError

    # Groups

    def groups(self) -> list[pb.GroupInfo]:
        """Without members and offsets; sorted by name."""
        raise NotImplementedError

    def describe(self, group: str, now_s: float) -> pb.GroupInfo:
        """Raises InvalidGroupName, UnknownGroup."""
        raise NotImplementedError

    def delete(self, group: str, now_ms: int) -> Decision[pb.DeleteGroupResponse]:
        """Raises InvalidGroupName, UnknownGroup, GroupNotEmpty."""
        raise NotImplementedError

    # Time

    def tick(self, now_s: float, now_ms: int) -> Decision[None]:
        """Sessions and time to let go that are over, targets that wait, expired offsets, topics that changed.

        Call it at `next_tick_s()`, and when the catalog has changed.
        """
        raise NotImplementedError

    def next_tick_s(self) -> float:
        """Monotonic time at which `tick` has something to do, at the latest."""
        raise NotImplementedError
