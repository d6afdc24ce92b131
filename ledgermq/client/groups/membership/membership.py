"""Membership in a group: heartbeats that join, report the held partitions, and return the
assignment.

Invariants: an answer counts only if the held partitions have not changed since its request was
sent. A member that got no answer for the session time-out treats its partitions as lost. While the
program does not call for messages, the member is not in the group.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from ledgermq.client.groups.assignment import Subscription, given_from_proto, given_to_proto
from ledgermq.client.groups.holding.handing_out import Polling
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.membership.holdings import Holdings
from ledgermq.client.settings.values import GroupSettings
from ledgermq.errors import LedgerMQError, RetriableError, Unavailable, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import end
from ledgermq.runtime.wait import wait_for

ATTEMPT_S = 10.0
"""Time limit of an answer, on top of the time for which the coordinator may hold it back."""
STEP_OUT_S_MAX = 5.0
"""Time for the last commit, and for leaving, when the program has stopped calling for messages."""
PAUSE_S = 1.0
"""Shortest pause after a heartbeat without a change; the coordinator may require a longer one."""


class Assigner(ABC):
    """The source of a consumer's partitions: a group's coordinator (`Membership`) or, in a
    broadcast, the consumer itself (`Broadcast`).
    """

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """Set while the program calls for messages."""
        self.joined = False
        self.tried = False
        """Whether a coordinator may know this member, and must be notified when it leaves."""
        self.last_error: LedgerMQError | None = None
        self.failing_since_s: float | None = None
        self._refusal: LedgerMQError | None = None
        """Why no partitions are given: raised once to the program, whose next call tries again."""

    @abstractmethod
    async def run(self) -> None:
        """Assign partitions until cancelled."""

    def take_failure(self) -> LedgerMQError | None:
        """Return, once, why no partitions are given."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def _failed(self, error: LedgerMQError) -> None:
        self.last_error = error
        if self.failing_since_s is None:
            self.failing_since_s = asyncio.get_running_loop().time()


class Membership(Assigner):
    """Joins the group, stays in it, and applies what the coordinator assigns.

    `wake` makes the program's waiting calls check again.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member_id: str,
        subscription: Subscription,
        settings: GroupSettings,
        holdings: Holdings,
        polling: Polling,
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._member_id = member_id
        self._subscription = subscription.to_proto(settings)
        self._wait_s = min(settings.longest_heartbeat_s, coordinator.connections.attempt_timeout_s / 2)
        self._holdings = holdings
        self._polling = polling
        self._backoff = coordinator.connections.backoff()
        self._wake = wake
        self._group_epoch = 0
        self._alive_until_s = 0.0

    async def run(self) -> None:
        while True:
            await self.wanted.wait()
            if self._polling.is_away(_now_s()):
                await self._step_out()
                continue
            try:
                await self._turn()
            except UnknownMember as error:
                await self._drop_out(error)
                await asyncio.sleep(self._backoff.next_s())
            except RetriableError as error:
                self._failed(error)
                wait_s = self._backoff.next_s(error.retry_after_ms)
                if self.joined:
                    wait_s = min(wait_s, max(0.0, self._alive_until_s - _now_s()))
                await asyncio.sleep(wait_s)
                if self.joined and _now_s() >= self._alive_until_s:
                    await self._drop_out(error)
            except LedgerMQError as error:
                await self._drop_out(error)
                self._refusal = error
                self.wanted.clear()
                self._wake()

    async def _turn(self) -> None:
        """Send one heartbeat and apply its answer."""
        version, sent_s = self._holdings.version, _now_s()
        self._holdings.changed.clear()
        answer = await self._heartbeat(sent_s)
        if answer is None:
            return
        if self.joined and answer.group_epoch < self._group_epoch:
            raise Unavailable("stale answer from a previous coordinator; the next heartbeat retries")
        self.last_error = self.failing_since_s = None
        if self.joined:
            self._backoff.reset()
        self._alive_until_s = sent_s + answer.session_timeout_ms / 1000
        first, self.joined = not self.joined, True
        if self._holdings.version != version:
            return  # the answer is outdated: applied, it would let go partitions that were just taken in
        self._group_epoch = answer.group_epoch
        something = self._holdings.apply(map(given_from_proto, answer.assigned))
        if first or something:
            self._wake()
        elif _now_s() - sent_s < self._wait_s / 2:
            await wait_for(self._holdings.changed, max(answer.heartbeat_interval_ms / 1000, PAUSE_S))

    async def _heartbeat(self, sent_s: float) -> pb.GroupHeartbeatResponse | None:
        """Return the answer; None: the held partitions have changed, which must be reported first."""
        wait_s = self._wait_s if self.joined else 0.0
        request = pb.GroupHeartbeatRequest(
            group=self._coordinator.group,
            member_id=self._member_id,
            step=pb.STAY if self.joined else pb.JOIN,
            owned=[given_to_proto(given) for given in self._holdings.owned],
            max_wait_ms=round(wait_s * 1000),
            subscription=None if self.joined else self._subscription,
            seen_epoch=self._group_epoch if self.joined else 0,
        )
        self.tried = True
        until_s = sent_s + wait_s + ATTEMPT_S
        if self.joined:
            until_s = min(until_s, self._alive_until_s)  # from then on others may hold these partitions
        call = asyncio.create_task(self._coordinator.ask_once(lambda at: at.group_heartbeat(request), until_s))
        changed = asyncio.create_task(self._holdings.changed.wait())
        try:
            await asyncio.wait(
                [call, changed], timeout=max(0.0, until_s - _now_s()), return_when=asyncio.FIRST_COMPLETED
            )
            if not call.done() and not changed.done():
                raise Unavailable("the coordinator has not answered a heartbeat in time")
            return call.result() if call.done() else None
        finally:
            await end(call, changed)

    async def _drop_out(self, error: LedgerMQError) -> None:
        """Treat all held partitions as lost."""
        self.last_error = error
        if self.joined:
            self.joined = False
            await self._holdings.lose()

    async def _step_out(self) -> None:
        """Leave, because the program has stopped calling for messages. Its next call joins again."""
        self.wanted.clear()
        self.joined = False
        self._holdings.stop_reading([holding for holding in self._holdings.held.values() if holding.kept])
        try:
            async with asyncio.timeout(STEP_OUT_S_MAX):
                await self._holdings.commit_finished()
                await self._coordinator.leave(self._member_id, pb.LEAVE, _now_s() + STEP_OUT_S_MAX)
        except (TimeoutError, LedgerMQError) as error:
            self.last_error = error if isinstance(error, LedgerMQError) else self.last_error
        await self._holdings.lose()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
