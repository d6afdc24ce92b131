"""Serve the classic members of one partition of `__consumer_offsets`: the calls of clients of the Kafka protocol.

A join and a sync are held until all members have called. What wakes a held call gives it its answer in the same turn,
and it is sent when the log is durable. A call whose caller has gone is dropped, and the group is not changed: the
member may come again over another connection. The end of the term answers NotOwner to all that are held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_to_proto
from ledgermq.runtime.ports.turns import go_on_in_turn
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.classic.values import JoinAnswer, JoinRequest, MemberIdRequired, RebalanceInProgress, SyncAnswer

T = TypeVar("T")

MemberId = tuple[str, str]
"""(group, member id)"""


class ClassicCalls:
    """`take(decision)`: appends its records, wakes what it wakes, and returns its answer. `changed()`: the time of the
    next tick may be another one.
    """

    def __init__(
        self,
        core: BothKinds,
        state: IssuedState,
        clocks: TwoClocks,
        take: Callable[[Decision[Any]], Any],
        changed: Callable[[], None],
    ) -> None:
        self.held = HeldCalls(core.classic)
        self._core = core
        self._state = state
        self._clocks = clocks
        self._take = take
        self._changed = changed

    async def join(self, request: pb.JoinClassicGroupRequest) -> pb.JoinClassicGroupResponse:
        """Raises what `BothKinds.join` raises."""
        wish = _join_request(request)
        try:
            answer = await self._decide(lambda: self._core.join(wish, self._now_s(), self._clocks.stamp_ms()))
        except MemberIdRequired as error:
            return pb.JoinClassicGroupResponse(member_id=error.member_id, join_again=True)
        joined = await self._held((request.group, answer)) if isinstance(answer, str) else answer
        await self._state.confirmed()
        assert isinstance(joined, JoinAnswer)
        return pb.JoinClassicGroupResponse(
            member_id=joined.member_id,
            generation=joined.generation,
            protocol_type=joined.protocol_type,
            protocol=joined.protocol,
            leader=joined.leader,
            members=[
                pb.JoinedMember(member_id=member_id, instance_id=instance_id, metadata=metadata)
                for member_id, instance_id, metadata in joined.members
            ],
            skip_assignment=joined.skip_assignment,
        )

    async def sync(self, request: pb.SyncClassicGroupRequest) -> pb.SyncClassicGroupResponse:
        """Raises what `ClassicGroups.sync` raises."""
        answer = await self._decide(lambda: self._core.sync(request, self._now_s()))
        synced = await self._held((request.group, request.member_id)) if answer is None else answer
        await self._state.confirmed()
        assert isinstance(synced, SyncAnswer)
        return pb.SyncClassicGroupResponse(
            protocol_type=synced.protocol_type, protocol=synced.protocol, assignment=synced.assignment
        )

    async def heartbeat(self, request: pb.ClassicHeartbeatRequest) -> pb.ClassicHeartbeatResponse:
        """Raises what `ClassicGroups.heartbeat` raises."""
        await self._decide(
            lambda: self._core.classic.heartbeat(
                request.group, request.member_id, request.generation, self._now_s(), request.instance_id
            )
        )
        await self._state.durable()
        return pb.ClassicHeartbeatResponse()

    async def leave(self, request: pb.LeaveClassicGroupRequest) -> pb.LeaveClassicGroupResponse:
        results = await self._decide(lambda: self._core.leave(request, self._now_s(), self._clocks.stamp_ms()))
        await self._state.confirmed()
        return pb.LeaveClassicGroupResponse(results=[_left(error) for error in results])

    async def commit(self, request: pb.CommitForGenerationRequest) -> pb.CommitForGenerationResponse:
        """Raises what `BothKinds.commit_for_generation` raises."""
        answer = await self._decide(
            lambda: self._core.commit_for_generation(request, self._now_s(), self._clocks.stamp_ms())
        )
        await self._state.confirmed()
        return answer

    async def _decide(self, decide: Callable[[], Decision[T]]) -> T:
        self._state.check_room(0)
        try:
            answer: T = self._take(await self._state.judged(decide))
        finally:
            self._changed()
        return answer

    async def _held(self, member: MemberId) -> JoinAnswer | SyncAnswer:
        """Return the answer to a held call, in a turn of its caller. Raises its error, when everything before it is
        durable.
        """
        try:
            answer = await self.held.wait(member)
        except LedgerMQError:
            await go_on_in_turn()
            await self._state.confirmed()
            raise
        await go_on_in_turn()
        return answer

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class HeldCalls:
    """Joins and syncs that wait: at most one of each member. A later one takes the place of the one before."""

    def __init__(self, groups: ClassicGroups) -> None:
        self._groups = groups
        self._held: dict[MemberId, asyncio.Future[JoinAnswer | SyncAnswer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def wait(self, member: MemberId) -> JoinAnswer | SyncAnswer:
        """Return the answer. Raises what the answer is instead, and the error of `close`."""
        self._end(member, RebalanceInProgress("a later call of this member has taken the place of this one"))
        waiting: asyncio.Future[JoinAnswer | SyncAnswer] = asyncio.get_running_loop().create_future()
        self._held[member] = waiting
        try:
            return await waiting
        finally:
            if self._held.get(member) is waiting:
                del self._held[member]

    def wake(self, members: Iterable[MemberId]) -> None:
        """Give those of these members that are held their answers. What no caller waits for is dropped."""
        for member in members:
            if not self._groups.has_answer(*member):
                continue  # a member of the other kind
            waiting = self._held.pop(member, None)
            try:
                answer = self._groups.held_answer(*member)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            except LedgerMQError as error:
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)

    def close(self, error: LedgerMQError) -> None:
        """End all with this error."""
        for member in list(self._held):
            self._end(member, error)

    def _end(self, member: MemberId, error: LedgerMQError) -> None:
        waiting = self._held.pop(member, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


def _join_request(request: pb.JoinClassicGroupRequest) -> JoinRequest:
    return JoinRequest(
        request.group,
        request.member_id,
        request.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.id_required,
        request.caller,
    )


def _left(error: object) -> pb.LeaveResult:
    if not isinstance(error, LedgerMQError):
        return pb.LeaveResult()
    return pb.LeaveResult(error=error_to_proto(error), kafka_code=getattr(error, "kafka_code", 0))
