"""Coordinate the groups of one partition of `__consumer_offsets`, for one term of its bundle.

`PartitionCoordinator` decides at once, on the state in memory, and answers as `IssuedState` does. It
holds heartbeats until there is something to report, and keeps the clock of the groups. Must not know:
how a group finds its coordinator, what a group is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeVar

from ledgermq.errors import BY_CODE, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.ports.turns import go_on_in_turn
from ledgermq_broker.groups.classic import ClassicCalls
from ledgermq_broker.groups.ends import NamedPartition, PartitionEnds
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.committing.pending import PendingTransaction
from ledgermq_offsets.served_offsets import EndWanted
from ledgermq_offsets.state.group import Group

HOLD_S_MAX = 30.0
HOLDS_PER_SESSION = 3
"""Heartbeats per session: a member sends a heartbeat well before its session ends, even if it lets
the coordinator hold heartbeats for longer.
"""
TICK_PAUSE_S_MIN = 0.01
LATE_S, LATE_GRACE_S = 1.0, 2.0
"""A tick that is this late means that the process stood still. The heartbeats of that time get a
moment to arrive first.
"""

T = TypeVar("T")

MemberId = tuple[str, str]
"""(group, member id)"""

log = get_logger(__name__)


class PartitionCoordinator:
    """Made when the state is loaded. Groups go on while the store takes no records, because a heartbeat needs none
    mostly; so the calls check for no room in the store.
    """

    def __init__(self, core: BothKinds, opening: Opening, clocks: TwoClocks, ends: PartitionEnds) -> None:
        self.owner = opening.owner
        self.held = HeldHeartbeats()
        self._core = core
        self._place = opening.place
        self._state = IssuedState("groups", opening.owner, opening.log, opening.place, self._fail)
        self._clocks = clocks
        self._ends = ends
        self._on_failed = opening.on_failed
        self.classic = ClassicCalls(core, self._state, clocks, self._take, self._arm)
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._rings_s = 0.0
        """When the timer fires; kept here because uvloop's handles for timers that are due at once
        do not have the time.
        """
        core.start(self._now_s())
        self._arm()

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    @property
    def bundle(self) -> int:
        return self.owner.bundle

    @property
    def number(self) -> int:
        """Return the partition of `__consumer_offsets`."""
        return self._place.partition

    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        """Answer a heartbeat; it is held up to `max_wait_ms` while there is nothing to report."""
        self._state.check_room(0)
        answer = await self._decide(lambda: self._core.heartbeat(request, self._now_s(), self._clocks.stamp_ms()))
        member = (request.group, request.member_id)
        stays = request.step in (pb.STAY, pb.JOIN)
        if stays and request.max_wait_ms and not self._core.changed_for(*member, request.seen_epoch):
            hold_s = min(HOLD_S_MAX, request.max_wait_ms / 1000, answer.session_timeout_ms / 1000 / HOLDS_PER_SESSION)
            await self.held.wait(member, self._now_s() + hold_s)
            answer = await self._state.judged(lambda: self._core.assignment(*member))
        await self._state.durable()
        return answer

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        self._state.check_room(0)
        wanted = await self._state.judged(lambda: self._core.ends_needed(request))
        highest = _highest((commit.topic, commit.partition, commit.offset) for commit in request.commits)
        ends = await self._ends.of(wanted, highest) if wanted else {}
        self._state.check_room(0)
        answer = await self._decide(lambda: self._core.commit(request, ends, self._now_s(), self._clocks.stamp_ms()))
        await self._confirm_results([result.error for result in answer.results])
        return answer

    async def reset(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        self._state.check_room(0)
        wanted = await self._state.judged(lambda: self._core.ends_needed(request))
        highest = _highest((reset.topic, reset.partition, reset.offset) for reset in request.resets)
        ends = await self._ends.of(wanted, highest) if wanted else {}
        self._state.check_room(0)
        answer = await self._decide(lambda: self._core.reset(request, ends, self._now_s(), self._clocks.stamp_ms()))
        await self._confirm_results([result.error for result in answer.results])
        return answer

    async def stage_offsets(
        self, request: pb.StageOffsetsRequest, check_open: Callable[[], None]
    ) -> pb.StageOffsetsResponse:
        """Stage offsets of a transaction. `check_open` raises TransactionAborted if the transaction
        is over in this bundle; it is called in the turn in which the offsets are judged.
        """
        self._state.check_room(0)
        is_judged = not request.HasField("added")  # commits of a generation may lie beyond the end
        wanted = await self._state.judged(lambda: self._core.ends_needed(request)) if is_judged else []
        highest = _highest((commit.topic, commit.partition, commit.offset) for commit in request.commits)
        ends = await self._ends.of(wanted, highest) if wanted else {}
        self._state.check_room(0)

        def judge() -> Decision[pb.StageOffsetsResponse]:
            check_open()
            if request.HasField("added"):
                return self._core.stage_for_generation(request, self._now_s(), self._clocks.stamp_ms())
            return self._core.stage_offsets(request, ends, self._clocks.stamp_ms())

        decision = await self._state.judged(judge)
        answer = self._take(decision)
        answer.bundle = self.owner.bundle
        errors = [result.error for result in answer.results if result.HasField("error")]
        if decision.records or errors:
            await self._confirm_results(errors)
        else:  # staged before, which a successor may have dropped
            await self._state.confirmed()
        return answer

    def has_pending(self, group: str, producer_id: bytes, epoch: int, number: int) -> bool:
        """Return True if exactly this transaction has staged offsets of the group. Raises NotOwner."""
        self._state.check()
        return self._core.has_pending(group, producer_id, epoch, number)

    def pending_number(self, group: str, producer_id: bytes, epoch: int) -> int:
        """Return the number of the transaction of this epoch that has staged offsets of the group; 0: none. Raises
        NotOwner.
        """
        self._state.check()
        return self._core.pending_number(group, producer_id, epoch)

    def pending_names(self, producer_id: bytes) -> set[str]:
        """Return the transactional ids under which a producer id has staged offsets. Raises NotOwner."""
        self._state.check()
        return self._core.pending_names(producer_id)

    def settle_pending(
        self, producer_id: bytes, epoch: int, number: int, commit_groups: Collection[str], transactional_id: str
    ) -> list[LogRecord]:
        """Complete a transaction here, and return the records. The caller appends them in this turn,
        with those that say that the transaction is complete. Raises NotOwner.
        """
        self._state.check()
        return self._core.settle_pending(
            producer_id, epoch, number, commit_groups, self._clocks.stamp_ms(), transactional_id
        ).records

    def pending_transactions(self, older_than_ms: int) -> list[PendingTransaction]:
        """Return the transactions whose offsets have been staged for so long. Raises NotOwner."""
        self._state.check()
        return self._core.pending_transactions(self._clocks.stamp_ms(), older_than_ms)

    async def delete(self, group: str, epoch: int) -> pb.DeleteGroupResponse:
        self._state.check_room(0)
        answer = await self._decide(lambda: self._core.delete(group, self._clocks.stamp_ms(), epoch))
        await self._state.durable()
        return answer

    async def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        return await self._state.read(lambda: self._core.committed(request))

    async def describe(self, group: str) -> pb.GroupInfo:
        return await self._state.read(lambda: self._core.describe(group, self._now_s()))

    async def groups(self, topic: str = "") -> list[pb.GroupInfo]:
        """Return all groups, or those that read a topic, with their offsets of it."""
        return await self._state.read(lambda: self._core.readers(topic) if topic else self._core.groups())

    def committed_now(self) -> Iterator[tuple[Group, EndWanted, int]]:
        """Yield for metrics each group with each partition that it has committed, and the offset.
        It reads the memory, durable or not.
        """
        for group in self._core.state.groups.values():
            for topic_id, partitions in group.offsets.items():
                for number, value in partitions.items():
                    if value.offset is not None:
                        yield group, EndWanted(value.topic, topic_id, number), value.offset

    def commits_in(self, topic_ids: AbstractSet[int]) -> Iterator[tuple[PartitionId, int, str]]:
        """Yield the partitions of these topics that groups have committed, with the offset and the name of the
        group. It reads the memory, durable or not.
        """
        for group in self._core.state.groups.values():
            for topic_id in topic_ids & group.offsets.keys():
                for number, value in group.offsets[topic_id].items():
                    if value.offset is not None:
                        yield PartitionId(topic_id, number), value.offset, group.name

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of the groups, by the name of the table."""
        state = self._core.state
        return {shares.limit: shares.of(principal) for shares in (state.shares, state.sizes.shares)}

    def keeps(self, place: PartitionId) -> str:
        """Return nothing: committed offsets name no bundle."""
        return ""

    def tick(self) -> None:
        """Apply whatever the time, or a change of the catalog, brings about."""
        if self._state.is_lost():
            return
        if not self._state.has_room:
            self._arm_at(self._now_s() + LATE_S)
            return
        try:
            now_s = self._now_s()
            decision = self._core.tick(now_s, self._clocks.stamp_ms())
            wants_expiry = self._core.wants_expiry(now_s, self._clocks.our_ms())
            self._take(decision)
            if wants_expiry and self._expiring is None:
                self._expiring = asyncio.create_task(self._expire(), name="expiry of committed offsets")
        except Exception as bug:
            self._state.broken(bug)

    def close(self, error: LedgerMQError) -> None:
        """End the term: nothing is answered from this state any longer. Idempotent."""
        self._state.close(error)
        self.held.close()
        self.classic.held.close(
            NotOwner(f"the term of bundle {self.bundle} is over: {error.message}", owner=error.owner)
        )
        if self._timer is not None:
            self._timer.cancel()
        if self._expiring is not None:
            self._expiring.cancel()

    # Deciding

    async def _decide(self, decide: Callable[[], Decision[T]]) -> T:
        """Return the answer, to be sent when the log is durable."""
        return self._take(await self._state.judged(decide))

    def _take(self, decision: Decision[T]) -> T:
        answer = self._state.take(decision)
        self.held.wake(decision.woken)
        self.classic.held.wake(decision.woken)
        self._arm()
        return answer

    async def _confirm_results(self, errors: list[pb.Error]) -> None:
        if any(error.code and not BY_CODE.get(error.code, LedgerMQError).retriable for error in errors):
            await self._state.confirmed()
        else:
            await self._state.durable()

    def _fail(self, error: LedgerMQError) -> None:
        self.close(error)
        self._on_failed()

    # Time

    async def _expire(self) -> None:
        """Expire by the store's clock what has expired by the local clock.

        If the store does not answer, the next look tries again.
        """
        try:
            judged_ms = await self._clocks.earlier_ms()
            if self.lost is None and self._state.has_room:
                self._take(self._core.expire(self._now_s(), judged_ms))
        except LedgerMQError as error:
            log.warning("expiry of committed offsets has to wait", bundle=self.bundle, error=repr(error))
        except Exception as bug:
            self._state.broken(bug)
        finally:
            self._expiring = None

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _arm(self) -> None:
        next_s = self._core.next_tick_s()
        if self._timer is None or self._timer.cancelled() or next_s < self._rings_s:
            self._arm_at(next_s)

    def _arm_at(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = max(when_s, self._now_s() + TICK_PAUSE_S_MIN)
        self._timer = asyncio.get_running_loop().call_at(self._rings_s, self._ring)

    def _ring(self) -> None:
        late_s = self._now_s() - self._rings_s
        self._timer = None
        if late_s > LATE_S:
            self._arm_at(self._now_s() + LATE_GRACE_S)
        else:
            self.tick()


def _highest(offsets: Iterable[tuple[str, int, int]]) -> dict[NamedPartition, int]:
    found: dict[NamedPartition, int] = {}
    for topic, partition, offset in offsets:
        found[topic, partition] = max(offset, found.get((topic, partition), 0))
    return found


class HeldHeartbeats:
    """Heartbeats that a coordinator holds until it has something to report: long polls, at most one
    per member. Each ends at its own time at the latest.
    """

    def __init__(self) -> None:
        self._held: dict[MemberId, asyncio.Future[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    async def wait(self, member: MemberId, until_s: float) -> None:
        """Wait until the member is woken, a newer heartbeat of it arrives, `until_s` (the
        loop's time), or after `close`; and then for a turn.
        """
        self.wake([member])
        loop = asyncio.get_running_loop()
        if self._closed or until_s <= loop.time():
            return
        woken: asyncio.Future[None] = loop.create_future()
        self._held[member] = woken
        timer = loop.call_at(until_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            if self._held.get(member) is woken:
                del self._held[member]
        await go_on_in_turn()

    def wake(self, members: Iterable[MemberId]) -> None:
        for member in members:
            woken = self._held.pop(member, None)
            if woken is not None:
                _wake(woken)

    def close(self) -> None:
        """Wake all; hold none any longer."""
        self._closed = True
        self.wake(list(self._held))


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
