"""The table: a live key → value view of a keyed topic, held in memory.

It reads the topic from its beginning and follows it. Invariant: once it has caught up, the table
equals a dict to which every message up to `positions` was applied, in the order of each partition.

Cleaning removes superseded records, and tombstones after some time. So a table that lags and finds
missing offsets cannot rule out that a tombstone was among them. It then reads everything again, and
replaces its rows in one step. It does the same if the log begins later than the table's position.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Generic, Literal, Self, overload

from ledgermq.client.connection.home import Home
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import as_bytes
from ledgermq.client.settings.serializers import B
from ledgermq.client.tables.rows import Change, Rows, change_of
from ledgermq.errors import Closed, DeadlineExceeded, LedgerMQError, OffsetOutOfRange
from ledgermq.runtime.tasks import cancelled_outside, end

FETCH_RECORDS = 5000
FETCH_WAIT_S = 1.0
RELOADS_PAUSE_S = 1.0

TableState = Literal["loading", "following", "failing", "failed", "closed"]


class Table(Generic[B]):
    """A live view of a keyed topic, made by `client.table(…)`. Use it within one event loop, from
    any number of tasks.

    `async with` starts it and waits until it has read everything that is in the topic at that time.
    Keys are bytes; text stands for its UTF-8. To type checkers, a table with
    `deserializer=Serializer.pydantic(Order)` is a `Table[Order]`; `Table` alone means Table[bytes].
    """

    def __init__(self, make_consumer: Callable[[], Consumer[B]], topic: str, bytes_max: int) -> None:
        self.topic = topic
        self._make_consumer = make_consumer
        self._home = Home()
        self._bytes_max = bytes_max
        self._rows: Rows[B] = Rows(bytes_max)
        self._consumer = make_consumer()
        self._next: dict[TopicPartition, int] = {}
        self._loading: dict[TopicPartition, int] | None = None
        self._listeners: set[_Listener[B]] = set()
        self._moved = asyncio.Condition()
        self._work: asyncio.Task[None] | None = None
        self._failure: LedgerMQError | None = None
        self._trouble: LedgerMQError | None = None
        self.caught_up = False
        """Whether it has caught up once; since then it follows the topic."""
        self.closed = False

    # -- looking

    @overload
    def get(self, key: bytes | str) -> B | None: ...
    @overload
    def get(self, key: bytes | str, default: B) -> B: ...

    def get(self, key: bytes | str, default: B | None = None) -> B | None:
        """Return the value of a key. Raises BadValue if the deserializer refuses it, and the error that ended the
        table: ResourceExhausted, UnknownTopic, DataDamaged, …
        """
        found = self.message(key)
        return default if found is None else found.value

    def message(self, key: bytes | str) -> Message[B] | None:
        """Return the message that holds the value, with its partition, offset and headers."""
        self._check()
        return self._rows.messages.get(as_bytes("key", key) or b"")

    def __getitem__(self, key: bytes | str) -> B:
        found = self.message(key)
        if found is None:
            raise KeyError(key)
        return found.value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes | str) and self.message(key) is not None

    def __len__(self) -> int:
        self._check()
        return len(self._rows.messages)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over a copy of the keys, in no particular order."""
        return iter(self.keys())

    def keys(self) -> list[bytes]:
        self._check()
        return list(self._rows.messages)

    def values(self) -> list[B]:
        self._check()
        return [message.value for message in list(self._rows.messages.values())]

    def items(self) -> list[tuple[bytes, B]]:
        """Return a copy of the rows."""
        self._check()
        return [(key, message.value) for key, message in list(self._rows.messages.items())]

    @property
    def size_bytes(self) -> int:
        """Return the estimated memory of the rows."""
        return self._rows.size_bytes

    @property
    def state(self) -> TableState:
        """The state of the table. failing: a partition is not served at present; see `last_error`.
        failed: every call raises `last_error`.
        """
        if self.closed:
            return "closed"
        if self._failure is not None:
            return "failed"
        if self._trouble is not None or self._consumer.state == "failing":
            return "failing"
        return "following" if self.caught_up and self._loading is None else "loading"

    @property
    def last_error(self) -> LedgerMQError | None:
        return self._failure or self._trouble or self._consumer.last_error

    def positions(self) -> dict[TopicPartition, int]:
        """Return by partition the offset of the next message that is not in the table."""
        return dict(self._next)

    # -- waiting

    async def wait_caught_up(self, timeout_s: float | None = None) -> None:
        """Wait until the table has read everything that is in the topic now.

        Raises DeadlineExceeded after `timeout_s`, and the error that ended the table.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_for(await self._ends())
        except TimeoutError as error:
            why = f": {self.last_error.message}" if self.last_error is not None else ""
            raise DeadlineExceeded(
                f"the table of {self.topic!r} has not caught up within {timeout_s} s{why}"
            ) from error

    async def _ends(self) -> dict[TopicPartition, int]:
        while True:
            self._start()
            try:
                ends = await self._consumer.end_offsets()
                self._next = self._next or self._consumer.positions()
                return ends
            except LedgerMQError as error:
                self._check()
                if not error.retriable:
                    raise
                await asyncio.sleep(FETCH_WAIT_S)

    async def _wait_for(self, ends: dict[TopicPartition, int]) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._is_over or (self._loading is None and _reached(self._next, ends)))
        self._check()
        self.caught_up = True

    async def changes(self, *, existing: bool = False) -> AsyncIterator[Change[B]]:
        """Iterate over all changes from now on, without end. `existing`: begin with the present
        rows.

        A listener that is slower than the topic receives only the newest change of each key, so it
        never holds more than the table does. Raises the error that ends the table.
        """
        self._start()
        self._check()
        listener: _Listener[B] = _Listener()
        if existing:
            listener.pending = {key: change_of(message) for key, message in self._rows.messages.items()}
        self._listeners.add(listener)
        try:
            while True:
                while listener.pending:
                    yield listener.pending.pop(next(iter(listener.pending)))
                listener.woken.clear()
                self._check()
                await listener.woken.wait()
        finally:
            self._listeners.discard(listener)

    # -- the background

    def _start(self) -> None:
        self._home.check()
        if self._work is None and not self.closed:
            self._work = asyncio.get_running_loop().create_task(self._run(), name=f"ledgermq table {self.topic}")

    async def _run(self) -> None:
        must_reload = False
        try:
            while True:
                try:
                    if must_reload:
                        await self._reload()
                        must_reload = False
                    await self._follow()
                except OffsetOutOfRange:
                    must_reload = True
        except LedgerMQError as error:
            self._failure = error
        except asyncio.CancelledError:
            if not self.closed:
                self._failure = cancelled_outside(f"the table of {self.topic!r}")
            raise
        except Exception as error:  # a bug must not look like a topic without new messages
            self._failure = LedgerMQError(f"the table of {self.topic!r} ended because of a bug: {error!r}")
            raise
        finally:
            await self._notify_all()

    async def _follow(self) -> None:
        """Apply new messages, without end. Raises errors that do not pass with time."""
        while True:
            messages = await self._fetch()
            if self._has_gap(messages):
                await self._reload()
                continue
            for message in messages:
                self._apply(message)
            self._next = self._consumer.positions()
            async with self._moved:
                self._moved.notify_all()

    async def _fetch(self) -> list[Message[B]]:
        """Return some messages, or none after a while. Errors that may pass are waited out."""
        try:
            messages = await self._consumer.fetch(FETCH_RECORDS, FETCH_WAIT_S)
            self._trouble = None
            return messages
        except LedgerMQError as error:
            if not error.retriable or self.closed:
                raise
            self._trouble = error
            await asyncio.sleep(FETCH_WAIT_S)
            return []

    def _has_gap(self, messages: list[Message[B]]) -> bool:
        """Return whether offsets are missing that the caught-up table had to read."""
        if not self.caught_up:
            return False
        expected = dict(self._next)
        for message in messages:
            partition = partition_of(message)
            if message.offset > expected.get(partition, message.offset):
                return True
            expected[partition] = message.offset + 1
        return False

    def _apply(self, message: Message[B]) -> None:
        change = self._rows.apply(message)
        if change is not None:
            for listener in self._listeners:
                listener.notify(change)

    async def _reload(self) -> None:
        """Read everything again into new rows, then replace the old ones."""
        await self._consumer.close()
        self._consumer = self._make_consumer()
        rows: Rows[B] = Rows(self._bytes_max)
        self._loading = ends = await self._ends_of_reload()
        while not _reached(self._consumer.positions(), ends):
            for message in await self._fetch():
                rows.apply(message)
        changes = list(self._rows.changes_to(rows.messages))
        self._rows, self._next, self._loading = rows, self._consumer.positions(), None
        for change in changes:
            for listener in self._listeners:
                listener.notify(change)
        async with self._moved:
            self._moved.notify_all()

    async def _ends_of_reload(self) -> dict[TopicPartition, int]:
        while True:
            try:
                return await self._consumer.end_offsets()
            except LedgerMQError as error:
                if not error.retriable or self.closed:
                    raise
                self._trouble = error
                await asyncio.sleep(RELOADS_PAUSE_S)

    @property
    def _is_over(self) -> bool:
        return self.closed or self._failure is not None

    def _check(self) -> None:
        self._home.check_process()
        if self._failure is not None:
            raise self._failure
        if self.closed:
            raise Closed(f"the table of {self.topic!r} is closed")

    async def _notify_all(self) -> None:
        for listener in self._listeners:
            listener.woken.set()
        async with self._moved:
            self._moved.notify_all()

    # -- end

    async def close(self) -> None:
        self._home.check()
        self.closed = True
        if self._work is not None:
            await end(self._work)
        await self._consumer.close()
        await self._notify_all()

    async def __aenter__(self) -> Self:
        try:
            await self.wait_caught_up()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Listener(Generic[B]):
    """`pending`: by key, the newest change that the listener has not received."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Change[B]] = {}
        self.woken = asyncio.Event()

    def notify(self, change: Change[B]) -> None:
        self.pending.pop(change.key, None)
        self.pending[change.key] = change
        self.woken.set()


def _reached(positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
    return all(positions.get(partition, -1) >= end for partition, end in ends.items())
