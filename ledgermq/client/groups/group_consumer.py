"""The consumer that is a member of a group: what programs call. Its group decides which partitions it reads, its mode what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa

from ledgermq.client.connections import Connections
from ledgermq.client.consuming.message import messages_as
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.consuming.start import Position, check_position
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.at_most_once import CommitFirst
from ledgermq.client.groups.committing import Commits, Committable
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.lag import Lag, Lags
from ledgermq.client.groups.member import Member
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.start_rule import StartRule
from ledgermq.client.groups.subscription import Topics, check_group, topics_of
from ledgermq.client.offsets import At, Offsets
from ledgermq.client.routing import Routing
from ledgermq.client.settings import GroupSettings
from ledgermq.errors import DeadlineExceeded, InvalidConfig, LedgerMQError, Unavailable, UnknownPartition
from ledgermq.sources import Sources

GroupConsumerState = Literal["new", "joining", "running", "failing", "draining", "closed"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GroupConsumer:
    """Made by `client.consumer(…, group=…)`. Use within one event loop; one task asks for messages, any task answers to them.

    Calls for messages raise what `Consumer` raises, and: StaticIdInUse, InvalidGroupName, Unauthorized, … when the group does not take this
    member; OffsetOutOfRange with start="error" where nothing is committed; LedgerMQError when a callback, or the member's background,
    failed. The consumer stays usable: the next call joins, or goes on.
    """

    def __init__(
        self,
        connections: Connections,
        routing: Routing,
        offsets: Offsets,
        sources: Sources,
        group: str,
        topics: Topics,
        rule: StartRule,
        out_of_range: At | None,
        settings: GroupSettings,
    ) -> None:
        self.group = check_group(group)
        self.settings = settings
        self._connections = connections
        self._routing = routing
        self._offsets = offsets
        self._names, pattern = topics_of(topics)
        self._reader: Reader[GroupMessage] = Reader(
            connections,
            routing,
            offsets,
            settings,
            out_of_range=out_of_range,
            check=self._check,
            messages_of=self._messages_of,
            taken=self._taken,
        )
        self._member = Member(connections, offsets, sources, group, (self._names, pattern), rule, settings, self._reader)
        self._holdings = self._member.holdings
        self._polling = self._member.polling
        self._lags = Lags(connections, routing, offsets, sources)
        self._commits = Commits(self._member.committer, self._holdings, settings.commit)
        self._commit_first = CommitFirst(self._commits, self._reader) if settings.commit == "before" else None
        self._auto = settings.commit == "auto"
        self._touched: list[Holding] = []
        """What the latest call for messages handed out of."""
        self._asking: asyncio.Task[object] | None = None
        self._iterating = False
        self._starting = asyncio.Lock()
        self.closed = False

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupConsumerState:
        """joining: no member at present, or its partitions are not known yet. failing: something does not work; see `last_error`."""
        if self.closed:
            return "closed"
        if not self._member.begun:
            return "new"
        if self._holdings.draining:
            return "draining"
        if self.last_error is not None:
            return "failing"
        return "running" if self._member.membership.joined and self._holdings.loaded else "joining"

    @property
    def last_error(self) -> LedgerMQError | None:
        """Of the membership, of the last commit, or of the partition that fails the longest; None: everything works."""
        return self._member.last_error or self._reader.last_error

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read at present."""
        return sorted(holding.partition for holding in self._holdings.readable)

    async def wait_ready(self) -> None:
        """Until the group has taken this member, and its partitions, if it has any, are known. Raises as calls for messages do."""
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        with self._call():
            await self._enter()
            while not (self._member.membership.joined and self._holdings.loaded):
                if not await self._reader.changed(deadline):
                    last = self.last_error
                    raise Unavailable(f"group {self.group!r} was not joined in time: {last}") from last

    async def _enter(self) -> None:
        self._check()
        if not self._member.begun:
            async with self._starting:
                if not self._member.begun:
                    deadline = self._connections.deadline(self.settings.request_timeout_s)
                    for name in self._names:
                        await self._routing.refresh(name, deadline)
                    self._reader.start()
                    self._member.begin()
        self._reader.raise_if_dead()
        self._member.membership.wanted.set()

    def _check(self) -> None:
        if self.closed:
            raise Unavailable("the consumer is closed")
        self._member.raise_trouble()
        if self._iterating and self._holdings.draining:
            raise _Drained

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call for messages: the program is there, and has finished, if commits are automatic, what it was handed before."""
        self._polling.enter()
        self._asking = asyncio.current_task()
        self._finish_handed_out()
        try:
            yield
        finally:
            self._polling.leave(asyncio.get_running_loop().time())

    # -- reading -------------------------------------------------------------------------------------------------------

    async def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[GroupMessage]:  # noqa: ASYNC109  as Consumer.fetch
        """Up to `max_records` messages; as soon as there is one, or an empty list after `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        with self._call():
            await self._enter()
            if self._commit_first is not None:
                return await self._commit_first.fetch(max_records, deadline)
            return await self._reader.fetch(max_records, deadline)

    async def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:  # noqa: ASYNC109
        """As `fetch`, as a table (see `Consumer.fetch_arrow`); with commit="manual" `commit({partition: offset})` says what is finished."""
        deadline = asyncio.get_running_loop().time() + timeout
        with self._call():
            await self._enter()
            if self._commit_first is not None:
                raise InvalidConfig("tables are not committed before they are handed out; use fetch, or another commit mode")
            return await self._reader.fetch_arrow(max_records, deadline)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupMessage:
        """The next message, whenever it comes; the iteration ends when the consumer is drained."""
        run = self._reader.run
        if run is not None and not run.spent and self._commit_first is None:
            self._finish_handed_out()
            self._polling.signs += 1
            return run.take_one()
        self._iterating = True
        try:
            with self._call():
                await self._enter()
                if self._commit_first is not None:
                    return await self._commit_first.next()
                while (run := await self._reader.next_run(None)) is None:
                    pass
                return run.take_one()
        except _Drained:
            raise StopAsyncIteration from None
        finally:
            self._iterating = False

    def _messages_of(self, reading: Reading, rows: pa.RecordBatch, offset: int) -> list[GroupMessage]:
        holding = self._holding_of(reading, offset)
        messages = messages_as(GroupMessage, rows, *reading.partition, offset)
        handout = holding.handout()
        for message in messages:
            message.handout = handout
        return messages

    def _holding_of(self, reading: Reading, offset: int) -> Holding:
        holding = self._holdings.held[reading.partition]
        if offset < holding.progress.handed:
            holding.progress.move(offset)  # the offset was out of range, and the settings say to go back
        return holding

    def _taken(self, reading: Reading, first: int, end: int) -> None:
        holding = self._holding_of(reading, first)
        holding.progress.hand_out(first, end)
        if self._auto and (not self._touched or self._touched[-1] is not holding):
            self._touched.append(holding)

    def _finish_handed_out(self) -> None:
        if self._touched:
            for holding in self._touched:
                holding.progress.finish_through(holding.progress.handed)
            self._touched.clear()
            self._holdings.progressed.set()

    # -- committing ----------------------------------------------------------------------------------------------------

    async def commit(self, what: Committable = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commit now; what is committed then, by partition (the next offset to read).

        `what`: messages, which this acknowledges; or offsets, which this takes as finished; None: what is finished already. Raises
        StaleAssignment where a partition is no longer this member's, CommitGoesBack, OffsetOutOfRange, Unavailable, …; the consumer
        goes on. Offsets of other partitions are committed nevertheless.
        """
        self._check_open()
        return await self._commits.commit(what, metadata)

    async def committed(self) -> dict[TopicPartition, int | None]:
        """What the offset store has for the partitions of this member; None: nothing."""
        self._check_open()
        holdings = self._holdings.readable
        stored = await self._member.loading.stored(holdings) if holdings else {}
        return {at.partition: stored[at.partition].offset if at.partition in stored else None for at in holdings}

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable("the consumer is closed")
        self._member.raise_if_dead()

    async def drain(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Hand out nothing more, wait until the program has finished what it has, commit. `resume()` goes on.

        Called by the task that asks for messages, everything handed out to it counts as finished (with commit="auto"). Raises
        DeadlineExceeded after `timeout` seconds, and what `commit` raises.
        """
        self._check_open()
        self._holdings.drain(True)
        if self._asking is asyncio.current_task():
            self._finish_handed_out()
        held = list(self._holdings.held.values())
        finished = await self._holdings.finished(held, asyncio.get_running_loop().time() + timeout)
        await self._commits.commit_all()
        if not finished:
            count = sum(holding.outstanding for holding in held)
            raise DeadlineExceeded(f"{count} messages were not finished within {timeout} s; what was, is committed")

    # -- positions -----------------------------------------------------------------------------------------------------

    async def seek(self, position: Position, partition: int | None = None, topic: str | None = None) -> None:
        """Go to an offset, "earliest", "latest" or a time, in one partition or, with `partition=None`, in all that are held.

        Only this member's position changes. What is committed never goes back by it; `client.reset_offsets` does that.
        Raises InvalidConfig, UnknownPartition, Unavailable.
        """
        wanted = check_position(position)
        self._check_open()
        chosen = self._chosen(partition, topic)
        found: dict[TopicPartition, int] = {}
        if not isinstance(wanted, int):
            deadline = self._connections.deadline(self.settings.request_timeout_s)
            found = await self._offsets.find({holding.partition: wanted for holding in chosen}, deadline)
        for holding in chosen:
            if holding.reading is not None and not holding.gone and not holding.letting_go:
                target = wanted if isinstance(wanted, int) else found[holding.partition]
                holding.progress.move(target)
                holding.start_unknown = False
                self._reader.seek([(holding.reading, target)])
                self._holdings.settle(holding)
                if self._commit_first is not None:
                    self._commit_first.forget(holding.partition)
        self._holdings.progressed.set()

    async def seek_to_time(self, moment: datetime | int, partition: int | None = None, topic: str | None = None) -> None:
        """Go to the first message at or after a moment: a datetime with time zone, or milliseconds since the epoch."""
        if isinstance(moment, int) and not isinstance(moment, bool):
            moment = _EPOCH + timedelta(milliseconds=moment)
        if not isinstance(moment, datetime):
            raise InvalidConfig(f"a moment is a datetime or milliseconds since the epoch, not {moment!r}")
        await self.seek(moment, partition, topic)

    def position(self, partition: int, topic: str | None = None) -> int:
        """Offset of the next message that is handed out of the partition. Raises UnknownPartition."""
        return self._chosen(partition, topic)[0].position

    def positions(self) -> dict[TopicPartition, int]:
        return {holding.partition: holding.position for holding in self._holdings.readable}

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to be written in each partition that is held."""
        self._check_open()
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        return await self._offsets.find(dict.fromkeys(self.assignment, "latest"), deadline)

    async def lag(self) -> dict[TopicPartition, Lag]:
        """How far the positions are behind the ends, in messages and in seconds; exactly 0 and 0.0 where everything was handed out."""
        self._check_open()
        return await self._lags.find(self.positions(), self._connections.deadline(self.settings.request_timeout_s))

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Hand out nothing of these partitions (None: all that are held now) until `resume`, or until they are let go."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on after `pause`; without partitions also after `drain`."""
        if partitions is None:
            self._holdings.drain(False)
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition] | None, paused: bool) -> None:
        chosen = self._holdings.readable if partitions is None else [self._chosen(at, topic)[0] for topic, at in partitions]
        for holding in chosen:
            holding.paused_by_program = paused
            self._holdings.settle(holding)

    def _chosen(self, partition: int | None, topic: str | None) -> list[Holding]:
        if topic is None and partition is not None and len({at.partition.topic for at in self._holdings.readable}) > 1:
            raise InvalidConfig("the consumer reads several topics: say which")
        chosen = [
            holding
            for holding in self._holdings.readable
            if partition in (None, holding.partition.partition) and topic in (None, holding.partition.topic)
        ]
        if not chosen and partition is not None:
            raise UnknownPartition(f"this member does not hold {topic or '…'}/{partition} at present")
        return chosen

    # -- end -----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit what is finished (but with commit="manual"), leave the group, end; within `close_timeout_s`.

        Raises why the commit could not be; the consumer is closed nevertheless, and others begin at the last commit before.
        """
        if self.closed:
            return
        self.closed = True
        self._reader.wake()
        failure: LedgerMQError | None = None
        try:
            if self._member.begun:
                async with asyncio.timeout(self.settings.close_timeout_s):
                    failure = await self._member.leave()
        except TimeoutError:
            failure = Unavailable(f"the group was not left within {self.settings.close_timeout_s} s; perhaps nothing more is committed")
        finally:
            await self._member.end()
            await self._reader.close()
        if failure is not None:
            raise failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.close()
        except LedgerMQError:
            if kind is None:
                raise


class _Drained(Exception):
    """Ends an iteration."""
