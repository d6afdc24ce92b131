"""Being a member: the heartbeat that joins, stays, tells what is held and hears what may be held.

Invariants: an answer counts, as seen too, only if what the member holds has not changed since its
request was sent; a member that the coordinator has not heard for the session time-out takes its
partitions as lost, though nobody told it so; while the program is away there is no member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.client.groups.coordinator import Coordinator
from ledgermq.client.groups.holdings import Holdings
from ledgermq.client.groups.polling import Polling
from ledgermq.client.groups.reconcile import given_from_proto, given_to_proto
from ledgermq.client.groups.standing import Standing
from ledgermq.errors import LedgerMQError, RetriableError, Unavailable, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.tasks import end

ATTEMPT_S = 10.0
"""Time for an answer, on top of the time for which the coordinator holds it."""
STEP_OUT_S_MAX = 5.0
"""For the last commit and the good-bye of a member whose program has stopped asking."""
PAUSE_S = 1.0
"""Between two heartbeats that say nothing new; the coordinator may say more."""


class Membership(Standing):
    """`wake` lets the program's calls look again: something is to be told."""

    def __init__(
        self,
        coordinator: Coordinator,
        member_id: str,
        subscription: pb.GroupSubscription,
        heartbeat_wait_s: float,
        holdings: Holdings,
        polling: Polling,
        backoff: Backoff,
        wake: Callable[[], None],
    ) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._member_id = member_id
        self._subscription = subscription
        self._wait_s = heartbeat_wait_s
        self._holdings = holdings
        self._polling = polling
        self._backoff = backoff
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
                await self._put_out(error)
                await asyncio.sleep(self._backoff.next_s())
            except RetriableError as error:
                self._failed(error)
                wait_s = self._backoff.next_s(error.retry_after_ms)
                if self.joined:
                    wait_s = min(wait_s, max(0.0, self._alive_until_s - _now_s()))
                await asyncio.sleep(wait_s)
                if self.joined and _now_s() >= self._alive_until_s:
                    await self._put_out(error)
            except LedgerMQError as error:
                await self._put_out(error)
                self._refusal = error
                self.wanted.clear()
                self._wake()

    async def _turn(self) -> None:
        """One heartbeat, and what follows from its answer."""
        version, sent_s = self._holdings.version, _now_s()
        self._holdings.changed.clear()
        answer = await self._heartbeat(sent_s)
        if answer is None:
            return
        if self.joined and answer.group_epoch < self._group_epoch:
            raise Unavailable("a coordinator of before has answered")
        self.last_error = self.failing_since_s = None
        if self.joined:
            self._backoff.reset()
        self._alive_until_s = sent_s + answer.session_timeout_ms / 1000
        first, self.joined = not self.joined, True
        if self._holdings.version != version:
            return  # nor has it been seen: what it gave would count as let go
        self._group_epoch = answer.group_epoch
        something = self._holdings.apply(map(given_from_proto, answer.assigned))
        if first or something:
            self._wake()
        elif _now_s() - sent_s < self._wait_s / 2:
            await self._pause(max(answer.heartbeat_interval_ms / 1000, PAUSE_S))

    async def _heartbeat(self, sent_s: float) -> pb.GroupHeartbeatResponse | None:
        """None: what is held has changed meanwhile; the coordinator has to hear that first."""
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
            until_s = min(
                until_s, self._alive_until_s
            )  # then others may have what is held, whether anybody answers or not
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

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._holdings.changed.wait()
        except TimeoutError:
            pass

    async def _put_out(self, error: LedgerMQError) -> None:
        self.last_error = error
        if self.joined:
            self.joined = False
            await self._holdings.lose()

    async def _step_out(self) -> None:
        """The program has stopped asking: let others have the partitions.

        Its next call joins again.
        """
        self.wanted.clear()
        self.joined = False
        self._holdings.stop_reading([holding for holding in self._holdings.held.values() if not holding.letting_go])
        try:
            async with asyncio.timeout(STEP_OUT_S_MAX):
                await self._holdings.commit_finished()
                await self._coordinator.leave(self._member_id, pb.LEAVE, _now_s() + STEP_OUT_S_MAX)
        except (TimeoutError, LedgerMQError) as error:
            self.last_error = error if isinstance(error, LedgerMQError) else self.last_error
        await self._holdings.lose()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
