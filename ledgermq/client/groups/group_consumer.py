"""The consumer that is a member of a group.

Its group decides which partitions it reads; its setting `commit` decides what is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Generic, Literal, Self

import pyarrow as pa

from ledgermq.client.consuming.message import Message
from ledgermq.client.consuming.reader import FilterCounts
from ledgermq.client.consuming.start import Wanted
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import Subscription
from ledgermq.client.groups.committing.commit_first import CommitFirst
from ledgermq.client.groups.committing.commits import Committable
from ledgermq.client.groups.holding.handing_out import Drained
from ledgermq.client.groups.lag import Lag
from ledgermq.client.groups.membership.holdings import LettingGo
from ledgermq.client.groups.membership.member import Member
from ledgermq.client.groups.membership.moving import MovingStore
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.positions import Positions, moment_of
from ledgermq.client.groups.retries.refusals import Refusals
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.offsets import At
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import GroupSettings
from ledgermq.errors import Closed, InvalidConfig, LedgerMQError
from ledgermq.offset_stores.contract import OffsetEntry

GroupConsumerState = Literal["new", "joining", "running", "failing", "draining", "closed"]


class GroupConsumer(Generic[V]):
    """A consumer that is a member of a group, made by `client.consumer(…, group=…)`. Use it within
    one event loop: one task calls for messages, any task may acknowledge them.

    Calls for messages raise what `Consumer` raises, and: StaticIdInUse, InvalidGroupName,
    Unauthorized, … when the group refuses this member; OffsetOutOfRange with start="error" if no
    offset is committed; LedgerMQError when a callback, or the member's background task, failed. The
    consumer stays usable: the next call joins again, or continues. `member` is for handlers and
    `ledgermq.sync`.
    """

    def __init__(
        self,
        context: ClientContext,
        subscription: Subscription,
        out_of_range: At | None,
        settings: GroupSettings,
        letting_go: LettingGo = lambda partitions: None,
        refusals: Refusals | None = None,
        moving: MovingStore | None = None,
    ) -> None:
        self.group = subscription.group
        self.settings = settings
        self._home = context.connections.home
        self.member = Member(context, subscription, settings, out_of_range, self._check, letting_go, refusals, moving)
        self._reader = self.member.reader
        self._handing_out = self.member.handing_out
        self._holdings = self.member.holdings
        self._polling = self.member.polling
        self._positions = Positions(context, self._holdings, self._reader, settings.request_timeout_s)
        self._commit_first = CommitFirst(self.member.commits, self._reader) if settings.commit == "before" else None
        self._has_levels = moving is not None
        """Its retry topic has messages whose next attempt is not due yet."""
        self._iterating = False
        self._closing = False
        self.closed = False

    # -- state

    @property
    def state(self) -> GroupConsumerState:
        """The state of the consumer. joining: not a member at present, or its partitions are not
        loaded yet. failing: see `last_error`.
        """
        if self._closing:
            return "closed"
        if not self.member.begun:
            return "new"
        if self._holdings.draining:
            return "draining"
        if self.last_error is not None:
            return "failing"
        return "running" if self.member.membership.joined and self._holdings.loaded else "joining"

    @property
    def last_error(self) -> LedgerMQError | None:
        """Return the error of the membership, of the last commit, or of the partition that has
        failed for longest; None: everything works.
        """
        return self.member.last_error or self._reader.last_error

    @property
    def expired(self) -> int:
        """Return the number of messages that were skipped because they had expired."""
        return self._handing_out.expired

    @property
    def filtered(self) -> int:
        """Return the number of messages that the filter has left out."""
        return self._reader.filter_counts.messages

    @property
    def filter_counts(self) -> FilterCounts:
        """Return what the filter has left out, and how much of it was fetched in vain."""
        return self._reader.filter_counts

    @property
    def member_id(self) -> str:
        return self.member.member_id

    @property
    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read at present."""
        return sorted(holding.partition for holding in self._holdings.readable)

    async def wait_ready(self) -> None:
        """Wait until the group has admitted this member, and its partitions, if any, are loaded.

        Raises what calls for messages raise.
        """
        with self._call():
            await self._enter()
            await self.member.wait_joined()
            self._check()

    async def _enter(self, deadline: float | None = None) -> None:
        self._check()
        await self.member.begin(deadline)
        self._reader.raise_if_dead()

    def _check(self) -> None:
        self._home.check()
        if self._closing:
            raise Closed("the consumer is closed")
        self.member.raise_trouble()
        if self._iterating and self._holdings.draining:
            raise Drained

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Begin a call for messages. With automatic commits, the messages that earlier calls
        returned count as finished.
        """
        self._polling.enter()
        self._finish_handed_out()
        try:
            yield
        finally:
            self._polling.leave(asyncio.get_running_loop().time())

    # -- reading

    async def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[GroupMessage[V]]:  # noqa: ASYNC109  as Consumer.fetch
        """Return up to `max_records` messages as soon as there is one; an empty list after
        `timeout` seconds. The first call takes one second at least if no broker answers, and then
        raises Unavailable.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        with self._call():
            await self._enter(deadline)
            if self._commit_first is not None:
                return await self._commit_first.fetch(max_records, deadline)
            while True:
                if not self._holdings.draining and (again := await self._handing_out.take_turn(max_records)):
                    return again
                messages = await self._reader.fetch(max_records, deadline)
                if self._has_levels:
                    messages = self._handing_out.without_early(messages)
                if messages or (
                    asyncio.get_running_loop().time() >= deadline
                    and (self._holdings.draining or not self._handing_out.is_due())
                ):
                    return messages

    async def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:  # noqa: ASYNC109
        """Return messages like `fetch`, as a table (see `Consumer.fetch_arrow`). With commit="manual",
        `commit({partition: offset})` finishes its rows.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        with self._call():
            await self._enter(deadline)
            if self._has_levels:
                raise InvalidConfig("a table has no messages to refuse one by one; use fetch with Retry.levels")
            if self._commit_first is not None:
                raise InvalidConfig(
                    "tables cannot be committed before they are returned; use fetch, or another commit mode"
                )
            self._holdings.return_refused_in_order()
            while True:
                table = await self._reader.fetch_arrow(max_records, deadline)
                if table.num_rows or asyncio.get_running_loop().time() >= deadline:
                    return table

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupMessage[V]:
        """Return the next message, waiting for it. The iteration ends when the consumer is drained."""
        if self._home.left:
            self._home.check()
        run = self._reader.run
        self._polling.signs += 1
        if self._commit_first is not None:
            if self._commit_first.committed:
                return self._commit_first.committed.popleft()
        elif run is not None and not run.spent:
            self._finish_handed_out()
            if (message := run.take_one()) is not None and not self._is_early(message):
                return message
        self._iterating = True
        try:
            with self._call():
                await self._enter()
                if self._commit_first is not None:
                    return await self._commit_first.next()
                while True:
                    if again := await self._handing_out.take_turn(1):
                        return again[0]
                    run = await self._reader.next_run(None)
                    if run is not None and (message := run.take_one()) is not None and not self._is_early(message):
                        return message
        except Drained:
            raise StopAsyncIteration from None
        finally:
            self._iterating = False

    def _is_early(self, message: GroupMessage) -> bool:
        return self._has_levels and not self._handing_out.without_early([message])

    def _finish_handed_out(self) -> None:
        if self._handing_out.finish():
            self._holdings.progressed.set()

    def expire(self, message: GroupMessage) -> bool:
        """Return whether a message has expired since it was returned; then it is finished, and counted. For
        handlers and `ledgermq.sync`. Call it in the consumer's own thread.
        """
        return self._handing_out.expire(message)

    # -- committing

    async def commit(self, what: Committable = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commit now. Return by partition the committed offset, which is the next one to read.

        `what`: messages, which are acknowledged first; or offsets, below which everything counts as
        finished; None: what is finished already. Raises StaleAssignment if this member no longer
        holds a partition, CommitGoesBack, OffsetOutOfRange, Unavailable, …; other partitions are
        committed nevertheless, and the consumer continues.
        """
        self._check_open()
        return await self.member.commits.commit(what, metadata)

    def entries(self, messages: Iterable[Message]) -> list[OffsetEntry]:
        """Return entries for a program that stores offsets and results in one transaction
        (`SqlOffsetStore.commit_in`), with commit="manual".

        The entries state that these messages, and all earlier ones in their partitions, are done.
        Acknowledge the messages once the transaction is committed. Raises StaleAssignment if this
        member no longer holds a partition: roll the transaction back.
        """
        self._check_open()
        return self.member.commits.entries(messages)

    async def committed(self) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of this member's partitions; None for a partition without one."""
        self._check_open()
        holdings = self._holdings.readable
        stored = await self.member.loading.stored(holdings) if holdings else {}
        return {at.partition: stored[at.partition].offset if at.partition in stored else None for at in holdings}

    def rewind(self) -> None:
        """Deliver again every message that was returned but is not finished, in all partitions.

        A program calls this when its work on messages has failed. An aborted transaction does it for the partitions
        whose offsets it would have committed, and `transactions.begin(reading=consumer)` for all. Partitions with
        offsets in an open transaction are left as they are.
        """
        self._check_open()
        self.member.rewind()

    def _check_open(self) -> None:
        self._home.check()
        if self.closed:
            raise Closed("the consumer is closed")
        self.member.raise_if_dead()

    async def drain(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Stop returning messages, wait until the program has finished those that it has, and
        commit. `resume()` continues.

        If the task that calls for messages calls this, everything returned to it counts as finished
        (with commit="auto"). Raises DeadlineExceeded after `timeout` seconds, and what `commit`
        raises.
        """
        self._check_open()
        self._holdings.drain(True)
        if self._polling.asking is asyncio.current_task():
            self._finish_handed_out()
        await self.member.drain(timeout)

    # -- positions

    async def seek(self, position: Wanted, partition: int | None = None, topic: str | None = None) -> None:
        """Move to an offset, "earliest", "latest", a time, or an age like "15m", in one partition
        or, with None, in all held partitions.

        Only this member's position changes. It never moves committed offsets back; use
        `client.groups.reset` for that. Raises InvalidConfig, UnknownPartition, Unavailable.
        """
        self._check_open()
        for moved in await self._positions.seek(position, partition, topic):
            if self._commit_first is not None:
                self._commit_first.forget(moved)

    async def seek_to_time(
        self, moment: datetime | int, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Move to the first message at or after a time: a datetime with time zone, or milliseconds since the epoch."""
        await self.seek(moment_of(moment), partition, topic)

    def position(self, partition: int, topic: str | None = None) -> int:
        """Return the offset of the partition's next message. Raises UnknownPartition."""
        return self._positions.chosen(partition, topic)[0].position

    def positions(self) -> dict[TopicPartition, int]:
        return self._positions.all()

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to be written in each held partition."""
        self._check_open()
        return await self._positions.ends()

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Return how far the positions are behind the ends, in messages and in seconds; exactly 0
        and 0.0 if everything was returned to the program.

        Only of the partitions that this member holds now: `client.groups.lag` has the whole group's.
        """
        self._check_open()
        return await self._positions.lag()

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Pause these partitions until `resume`, or until they are let go. None: all that are held now."""
        self._positions.set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue after `pause`; without partitions also after `drain`."""
        if partitions is None:
            self._holdings.drain(False)
        self._positions.set_paused(partitions, False)

    # -- end

    async def close(self) -> None:
        """Commit finished messages (unless commit="manual"), leave the group, and close, within
        `close_timeout_s`.

        Raises the error of the last commit, if it failed. The consumer is closed nevertheless, and
        other members begin at the previous commit.
        """
        self._home.check()
        if self._closing:
            return
        self._closing = True
        self._reader.wake()
        failure: LedgerMQError | None = None
        try:
            if self.member.begun:
                failure = await self.member.leave()
        finally:
            self.closed = True
            await self.member.end()
            await self._reader.close()
        if failure is not None:
            raise failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except LedgerMQError:
            if kind is None:
                raise
