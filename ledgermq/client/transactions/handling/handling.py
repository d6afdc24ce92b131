"""Run a transactional handler on one member of its group: the records that it returns are sent, and its
messages are acknowledged, in one transaction.

Invariants: at most one transaction is open. In each partition a transaction has the messages that
follow the last committed one, without gaps. After a transaction that did not commit, all messages
that are not finished are delivered again. If a message has failed, its partition waits for the next
attempt, while other partitions continue. Up to the failed message, each message of the partition then
has its own transaction, so that no other message fails with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ledgermq.client.consuming.message import partition_of
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.middleware import Middleware
from ledgermq.client.groups.handlers.pace import Pace
from ledgermq.client.groups.membership.holdings import LettingGo
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import Outgoing
from ledgermq.client.transactions.handling.calling import Calls, MessageFailed
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.errors import (
    DeadlineExceeded,
    GroupError,
    LedgerMQError,
    RetriableError,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
)
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources

FETCH_WAIT_S = 1.0
ROUND_PER_CALL = 4
"""Number of messages that are begun together, for each concurrent call of the handler."""

_log = get_log("ledgermq.handlers")


class TransactionalRunner:
    """Runs one handler. `make_consumer` makes the handler's consumer; its argument is a function to call
    with partitions that the consumer is about to let go.
    """

    def __init__(
        self,
        handler: Handler,
        make_consumer: Callable[[LettingGo], GroupConsumer],
        client: TransactionClient,
        sources: Sources,
        around_all: Sequence[Middleware] = (),
    ) -> None:
        self._handler = handler
        self._settings = handler.settings
        self._consumer = make_consumer(self._drop)
        self._member = self._consumer.member
        self._client = client
        self._sources = sources
        self._transactions: Transactions | None = None
        self._calls = Calls(handler, around_all)
        self._pace = Pace(handler.settings.rate_per_s)
        self._waiting: deque[GroupMessage] = deque()
        """Messages that the consumer has returned, and that are not begun."""
        self._failing: dict[TopicPartition, int] = {}
        """Partition in which a message has failed -> offset of that message."""
        self._held_back: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._troubles = 0
        """Number of consecutive transactions that did not commit for another reason than a message."""
        self._failed = False
        """Whether the last transaction did not commit, or its outcome is unknown."""
        self._stopping = False
        self._idle = False
        self._interrupted = False

    @property
    def transactional_id(self) -> str:
        settings = self._settings
        name = self._consumer.settings.instance_id or self._consumer.member_id
        return settings.transactional_id or f"{settings.group}-{name}"

    async def run(self, stop: asyncio.Event, drain_timeout_s: float) -> None:
        """Handle messages until `stop` is set, then finish the transaction that is open.

        Raises errors that do not pass with time, such as TransactionFenced.
        """
        try:
            async with self._consumer:
                working = asyncio.create_task(self._work(), name="transactional handler")
                stopped = asyncio.create_task(stop.wait())
                try:
                    await asyncio.wait([stopped, working], return_when=asyncio.FIRST_COMPLETED)
                    if not working.done():
                        await self._finish(working, drain_timeout_s)
                    await working
                finally:
                    await end(stopped, working)
        finally:
            for timer in self._held_back.values():
                timer.cancel()

    async def _finish(self, working: asyncio.Task[None], drain_timeout_s: float) -> None:
        self._stopping = True
        if self._idle:
            self._interrupted = working.cancel()
        if not (await asyncio.wait([working], timeout=drain_timeout_s))[0]:
            raise DeadlineExceeded(
                f"the open transaction of handler group {self._settings.group!r} was not finished within"
                f" {drain_timeout_s} s; it is aborted, and its messages are delivered again"
            )

    async def _work(self) -> None:
        try:
            while not self._stopping:
                await self._once()
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
        finally:
            if self._transactions is not None:
                await self._transactions.close()

    async def _once(self) -> None:
        """Run one transaction, if there are messages. Raises errors that do not pass with time."""
        taken: list[GroupMessage] = []
        try:
            transaction = await self._begin()
            try:
                await self._process(transaction, taken)
            except BaseException:
                if not transaction.closed:
                    with suppress(TransactionError):
                        await transaction.abort()
                raise
        except MessageFailed as failed:
            self._again_later(failed.message)
        except LedgerMQError as error:
            await self._trouble(taken, error)
        else:
            self._succeeded(taken)
            return
        self._failed = True
        self._waiting.clear()  # all of them are delivered again

    async def _begin(self) -> Transaction:
        """Return an open transaction. When it is open, the outcome of the one before is known; if that one
        failed, messages that are not finished are delivered again.
        """
        if self._transactions is None:
            transactions = self._client(self.transactional_id, timeout=self._settings.transaction_timeout_s)
            try:
                await transactions.init()
            except BaseException:
                await transactions.close()
                raise
            self._transactions = transactions
        transaction = self._transactions.begin(reading=self._consumer)
        await transaction.start()
        if self._failed:
            self._failed = False
            self._member.rewind()
        return transaction

    async def _process(self, transaction: Transaction, taken: list[GroupMessage]) -> None:
        """Handle messages and commit. Messages that are begun are added to `taken`."""
        loop = asyncio.get_running_loop()
        until_s = 0.0
        while len(taken) < self._settings.transaction_messages_max:
            if not self._waiting:
                await self._fetch(transaction, wait_s=0.0 if taken else FETCH_WAIT_S)
            most = self._pace.room(loop.time(), self._settings.transaction_messages_max - len(taken))
            chosen = self._choose(most, is_first=not taken)
            if not chosen:
                if not taken and not most:
                    await self._rest(self._pace.wait_s(loop.time()))
                break
            self._pace.begun(loop.time(), len(chosen))
            until_s = until_s or loop.time() + self._settings.transaction_ms_max / 1000
            taken += chosen
            self._send(transaction, await self._calls.call(chosen))
            await transaction.wait_for_room()
            self._member.polling.signs += 1  # the program is at work, although it fetches no messages
            if self._stopping or loop.time() >= until_s or partition_of(chosen[0]) in self._failing:
                break
        if taken:
            await self._stage(transaction, taken)
        await transaction.commit()

    async def _stage(self, transaction: Transaction, taken: Sequence[GroupMessage]) -> None:
        """Flush the records, and stage the offsets at the same time."""
        flushing = asyncio.create_task(transaction.flush(), name="flush of a transactional handler")
        try:
            await transaction.send_offsets(self._consumer, taken)
            await flushing
        finally:
            await end(flushing)

    async def _fetch(self, transaction: Transaction, wait_s: float) -> None:
        self._idle = wait_s > 0
        try:
            self._waiting += await self._consumer.fetch(self._settings.transaction_messages_max, timeout=wait_s)
            if wait_s and not self._waiting:
                await self._member.holdings.commit_skipped()
        finally:
            self._idle = False

    def _choose(self, count: int, *, is_first: bool) -> list[GroupMessage]:
        """Return the messages to begin together. A message of a partition in which one has failed is alone
        in its transaction.
        """
        round_max = self._settings.concurrency * (ROUND_PER_CALL if self._settings.concurrency > 1 else 1)
        chosen: list[GroupMessage] = []
        while self._waiting and len(chosen) < min(count, round_max):
            if partition_of(self._waiting[0]) in self._failing:
                if is_first and not chosen and not self._consumer.expire(message := self._waiting.popleft()):
                    chosen.append(message)
                break
            if not self._consumer.expire(message := self._waiting.popleft()):
                chosen.append(message)
        return chosen

    @staticmethod
    def _send(transaction: Transaction, records: Sequence[Outgoing]) -> None:
        for record in records:
            transaction.send(*record)

    # Outcomes

    def _succeeded(self, taken: Sequence[GroupMessage]) -> None:
        self._troubles = 0
        self._handler.handled += len(taken)
        for message in taken:
            partition = partition_of(message)
            self._calls.succeeded(message)
            if message.offset >= self._failing.get(partition, message.offset + 1):
                del self._failing[partition]

    def _again_later(self, message: GroupMessage) -> None:
        """Hold back the partition of a failed message until the next attempt."""
        partition = partition_of(message)
        self._failing[partition] = max(message.offset, self._failing.get(partition, 0))
        attempt = self._calls.attempts.get((partition, message.offset), 1)
        self._hold_back(partition, self._pause_s(attempt))

    def _hold_back(self, partition: TopicPartition, pause_s: float) -> None:
        if partition in self._held_back:
            self._held_back[partition].cancel()
        self._member.hold_back(partition, True)
        self._held_back[partition] = asyncio.get_running_loop().call_later(pause_s, self._go_on, partition)

    def _go_on(self, partition: TopicPartition) -> None:
        del self._held_back[partition]
        self._member.hold_back(partition, False)

    async def _trouble(self, taken: Sequence[GroupMessage], error: LedgerMQError) -> None:
        """Wait before the next attempt, if one may help. Raises the error otherwise."""
        if isinstance(error, TransactionFenced) or not (taken or _passes(error)):
            raise error
        self._handler.last_error = error
        if isinstance(error, TransactionUnknown) and self._transactions is not None:  # it was idle for days
            await self._transactions.close()
            self._transactions = None
        elif not (_passes(error) or isinstance(error, GroupError)):  # a group may have taken a partition away
            await self._blame(taken, error)
            return
        self._troubles += 1
        _log.warning("a transaction of group %s did not commit: %s", self._settings.group, error.message)
        await self._rest(self._pause_s(self._troubles))

    async def _rest(self, pause_s: float) -> None:
        """Wait, unless the handler is stopped."""
        self._idle = True
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._idle = False

    async def _blame(self, taken: Sequence[GroupMessage], error: LedgerMQError) -> None:
        """Find the message whose records the cluster refuses: run each one in its own transaction."""
        if len(taken) > 1:
            for message in taken:
                partition = partition_of(message)
                self._failing[partition] = max(message.offset, self._failing.get(partition, 0))
            return
        [message] = taken
        await self._calls.refused(message, error)
        self._again_later(message)

    def _pause_s(self, attempt: int) -> float:
        return self._settings.policy.wait_s(attempt, self._sources.random)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        """Give messages that were not begun back to the consumer, because their partitions are let go."""
        gone = set(partitions)
        for message in self._waiting:
            if partition_of(message) in gone:
                message.handout.give_back(message.offset)
        self._waiting = deque(message for message in self._waiting if partition_of(message) not in gone)
        for partition in gone:
            self._failing.pop(partition, None)
            if partition in self._held_back:
                self._held_back.pop(partition).cancel()


def _passes(error: LedgerMQError) -> bool:
    """Return whether a later attempt with the same messages may succeed."""
    return isinstance(error, RetriableError | TransactionAborted | TransactionOutcomeUnknown | TransactionUnknown)
