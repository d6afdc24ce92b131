"""Ask producers about half messages that stay undecided, for one coordinator and one term.

Producers poll. A poll is held until a half message of its check group is due. Each check goes to one
poll, after it was counted durably; polls of a group are served in the order of their arrival. No
check is counted while no producer of the group polls, so an outage of the producers uses up no
checks. Producers answer with `EndTransaction`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.ports.turns import go_on_in_turn
from ledgermq_broker.bundle.shared.waiters import Waiters
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_broker.transactions.state.wire import shown_transaction
from ledgermq_ledger.root.two_clocks import TwoClocks

LOOK_S = 1.0
"""Pause between two searches for due half messages. They cost no request, and stop while there are none."""
HOLD_S_MAX = 30.0
CHECKS_MAX = 32
"""Number of checks in one answer, at most."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of messages in one answer, at most; a single message may be larger."""
UNRESOLVED_AT_ONCE = 100
JUDGE_AGAIN_S = 30.0
"""Pause before the store's clock is read again, after it has shown less than this machine's."""
UNREAD_AGAIN_S = 10.0
"""Pause before a half message is read again that could not be read."""

Read = Callable[[Transaction, Part], Awaitable[pb.StagedData | None]]
"""Read the first batch of a half message; return None if nothing of it is staged."""
Count = Callable[[Transaction], Awaitable[State]]
"""Count a check durably, and return the state of the half message."""
Declare = Callable[[Transaction, int], Awaitable[bool]]
"""Declare a half message UNRESOLVED, durably, if it is at this time."""

log = get_logger(__name__)


class Checker:
    """Hands out checks to polls, and declares half messages UNRESOLVED."""

    def __init__(
        self,
        state: IssuedState,
        coordinator: Coordinator,
        read: Read,
        count: Count,
        declare: Declare,
        clocks: TwoClocks,
    ) -> None:
        self._state = state
        self._coordinator = coordinator
        self._read = read
        self._count = count
        self._declare = declare
        self._clocks = clocks
        self._judge_again_s = 0.0
        self._polls = HeldPolls()
        self._asking: set[Transaction] = set()
        """Half messages that are being read and counted for a poll."""
        self._unread_s: dict[Transaction, float] = {}
        """Half messages that could not be read, and when that was, by the loop's clock."""
        self._may_be_due = asyncio.Event()
        self._may_be_due.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look(), name="checks of half messages")

    def wake(self) -> None:
        """Note a new decision, after which a half message may become due."""
        self._may_be_due.set()

    def close(self) -> None:
        self._polls.close()
        if self._task is not None:
            self._task.cancel()

    async def poll(self, group: str, wait_s: float, checks_max: int) -> list[pb.Check]:
        """Return checks for one producer of a group; an empty list after `wait_s`. Raises NotOwner."""
        until_s = asyncio.get_running_loop().time() + min(wait_s, HOLD_S_MAX)
        checks_max = min(checks_max or CHECKS_MAX, CHECKS_MAX)
        while True:
            self._state.check()
            checks = await self._take(group, checks_max)
            if checks or not await self._polls.until(group, until_s):
                self._state.check()
                return checks

    async def _take(self, group: str, checks_max: int) -> list[pb.Check]:
        """Read half messages that are due, then count the checks that fit into one answer."""
        due = [one for one in self._due(self._clocks.stamp_ms()).get(group, ()) if one not in self._asking][:checks_max]
        self._asking.update(due)
        try:
            read = await asyncio.gather(*(self._read_due(one) for one in due))
            fitting: list[tuple[Transaction, pb.StagedData]] = []
            size_bytes = 0
            for transaction, message in zip(due, read, strict=True):
                if message is not None and (not fitting or size_bytes + len(message.data) <= ANSWER_BYTES_MAX):
                    size_bytes += len(message.data)
                    fitting.append((transaction, message))
            checks = await asyncio.gather(*(self._check(*one) for one in fitting))
        finally:
            self._asking.difference_update(due)
        return [check for check in checks if check is not None]

    async def _read_due(self, transaction: Transaction) -> pb.StagedData | None:
        part = self._coordinator.half_messages.part_of(transaction)
        try:
            message = None if part is None else await self._read(transaction, part)
            if message is None:
                log.warning(
                    "half message cannot be checked: nothing of it is staged", transaction=transaction.transactional_id
                )
        except LedgerMQError as error:
            message = None
            self._wait(transaction, error)
        if message is None:
            self._unread_s[transaction] = asyncio.get_running_loop().time()
        return message

    async def _check(self, transaction: Transaction, message: pb.StagedData) -> pb.Check | None:
        """Count a check and return it; return None if the half message was ended meanwhile."""
        try:
            if await self._count(transaction) is not State.PREPARED:
                return None
        except LedgerMQError as error:
            self._wait(transaction, error)
            return None
        attempt = self._coordinator.operators.describe(transaction.transactional_id).checks
        return pb.Check(transaction=shown_transaction(transaction), attempt=attempt, message=message)

    def _wait(self, transaction: Transaction, error: LedgerMQError) -> None:
        """Log why a check is delayed. Raises NotOwner if this term is over."""
        self._state.check()
        log.info("check of a half message delayed", transaction=transaction.transactional_id, error=str(error))

    def _due(self, now_ms: int) -> dict[str, list[Transaction]]:
        """Return what producers have to be asked about. What could not be read comes last, so that it
        does not take the places of others.
        """
        due = dict(self._coordinator.half_messages.due_checks(now_ms))
        self._unread_s = {one: at_s for one, at_s in self._unread_s.items() if one in due}
        again_s = asyncio.get_running_loop().time() - UNREAD_AGAIN_S
        found: dict[str, list[Transaction]] = {}
        for transaction in sorted(due, key=lambda one: self._unread_s.get(one, 0.0)):
            if self._unread_s.get(transaction, again_s) <= again_s:
                found.setdefault(due[transaction], []).append(transaction)
        return found

    async def _look(self) -> None:
        while self._state.lost is None:
            if not self._coordinator.prepared_count:
                self._may_be_due.clear()
                await self._may_be_due.wait()
            try:
                await self._declare_unresolved()
                for group, due in self._due(self._clocks.stamp_ms()).items():
                    self._polls.wake([group], len(due))
            except LedgerMQError as error:
                if not self._state.is_lost():
                    log.info("checks of half messages delayed", error=str(error))
            except Exception as bug:
                self._state.broken(bug)
                return
            await asyncio.sleep(LOOK_S)

    async def _declare_unresolved(self) -> None:
        """Judge by the earlier of two clocks: UNRESOLVED is final, and one clock may be ahead."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._judge_again_s or not self._coordinator.half_messages.unresolved(self._clocks.our_ms()):
            return
        judged_ms = await self._clocks.earlier_ms()
        wanted = self._coordinator.half_messages.unresolved(judged_ms)[:UNRESOLVED_AT_ONCE]
        if not wanted:
            self._judge_again_s = now_s + JUDGE_AGAIN_S
        declared = await asyncio.gather(*(self._declare(one, judged_ms) for one in wanted))
        for transaction, is_unresolved in zip(wanted, declared, strict=True):
            if is_unresolved:
                log.warning(
                    "half message is unresolved: no producer gave an answer", transaction=transaction.transactional_id
                )


class HeldPolls(Waiters[str]):
    """Polls that are held, by check group."""

    async def until(self, group: str, until_s: float) -> bool:
        """Wait until the poll is woken. Return False at `until_s` (the loop's time), or when this object
        is closed.
        """
        if self.closed or until_s <= asyncio.get_running_loop().time():
            return False
        try:
            async with asyncio.timeout_at(until_s):
                await self.wait([group])
        except TimeoutError:
            await go_on_in_turn()
            return False
        return not self.closed
