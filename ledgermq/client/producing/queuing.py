"""Calls that queue many records. Each begins when it is made, and goes on in the background while the
buffer is full, whether or not the program awaits it.

A call that the program awaits is a call as any other: when its caller is cancelled, the rest is not
queued. A call that it does not await keeps its place: what is sent later comes behind it, and `flush`
and `close` wait for it and raise its error.

Invariant: records of a call are added in their order, each once, by one of two: the call's own task,
below `buffer_bytes_max`, or a later `send`, which cannot wait and so may go above it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Record, Row
from ledgermq.client.producing.arrow_rows import Piece
from ledgermq.client.producing.delivery import BatchDelivery, Deliveries, Delivery
from ledgermq.client.producing.send_buffer import SendBuffer
from ledgermq.errors import ResourceExhausted
from ledgermq.runtime.tasks import retrieve_error

RECORDS_PER_STEP = 1000
"""Number of records after which a call lets other tasks run."""
UNAWAITED_MAX = 10_000
"""Calls that wait for room without being awaited."""

_END = object()
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Prepared(NamedTuple):
    """A record that was checked. `held`: bytes that it takes in the buffer."""

    topic: str
    row: Row
    size: int
    partition: int | None
    is_delayed: bool

    @property
    def held(self) -> int:
        return self.size + ROW_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Adds:
    """What calls add records to: functions of the producer. `prepare` checks a record. `failed_or_raised`
    returns the delivery of a record that cannot be added, or raises its error, as `raise_on_error` says.
    """

    plain: Callable[[str, bytes, int], Delivery | None]
    plain_values: Callable[[str, Sequence[bytes], int], tuple[Delivery, int] | None]
    prepare: Callable[[str, Record], Prepared]
    prepared: Callable[[Prepared], Delivery]
    piece: Callable[[str, Piece, int | None], BatchDelivery]
    failed_or_raised: Callable[[Exception, str], Delivery]


class Work(Protocol[T_co]):
    """Records of a call. `add` adds some of those that are left, as long as they fit below
    `limit_bytes`, and returns None once all are added, the bytes that the next one needs if it does not
    fit, else 0. `refuse` is called when there was no room for the next one in time.
    """

    @property
    def result(self) -> T_co: ...
    @property
    def left(self) -> int: ...
    def keep(self) -> None: ...
    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None: ...
    def refuse(self, error: Exception) -> None: ...


class ManyRecords:
    """Records of `send_many`."""

    def __init__(
        self, adds: Adds, topic: str, records: Iterable[Record | Any], result: Deliveries | None = None
    ) -> None:
        self.result = Deliveries() if result is None else result
        self._adds = adds
        self._topic = topic
        self._sequence: Sequence[Any] | None = records if isinstance(records, list | tuple) else None
        self._iterator = iter(records) if self._sequence is None else None
        self._at = 0
        self._piece_end = 0
        self._is_plain = False
        """Whether the values up to `_piece_end` are plain bytes."""
        self._waiting: Prepared | None = None

    @property
    def left(self) -> int:
        """Records that are not added yet, as far as their number is known."""
        ahead = 0 if self._sequence is None else len(self._sequence) - self._at
        return ahead + (self._waiting is not None)

    def keep(self) -> None:
        """Make a copy of a list, which the program may change after the call."""
        if isinstance(self._sequence, list):
            self._sequence = self._sequence[self._at :]
            self._at = self._piece_end = 0

    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None:
        left = records_max
        while left > 0:
            if self._waiting is None:
                if count := self._add_values(limit_bytes, left):
                    left -= count
                    continue
                if not self._take(limit_bytes):
                    return None
            elif not buffer.fits(self._waiting.held, limit_bytes):
                return self._waiting.held
            else:
                prepared, self._waiting = self._waiting, None
                self._add(prepared)
            left -= self._waiting is None
        return None if self._sequence is not None and not self.left else 0

    def refuse(self, error: Exception) -> None:
        self._waiting = None
        self.result.add(self._adds.failed_or_raised(error, self._topic))

    def _add(self, prepared: Prepared) -> None:
        try:
            delivery = self._adds.prepared(prepared)
        except Exception as error:  # a user's partitioner may raise anything
            delivery = self._adds.failed_or_raised(error, self._topic)
        self.result.add(delivery)

    def _take(self, limit_bytes: int) -> bool:
        """Take the next record, and add it if that needs no check. Return False if there is none."""
        if self._iterator is not None:
            record = next(self._iterator, _END)
            if record is _END:
                return False
        else:
            assert self._sequence is not None, "records are a sequence or an iterator"
            if self._at >= len(self._sequence):
                return False
            record = self._sequence[self._at]
            self._at += 1
        if type(record) is bytes:
            delivery = self._adds.plain(self._topic, record, limit_bytes)
            if delivery is not None:
                self.result.add(delivery)
                return True
        try:
            self._waiting = self._adds.prepare(self._topic, record if isinstance(record, Record) else Record(record))
        except Exception as error:  # as in `send`
            self.result.add(self._adds.failed_or_raised(error, self._topic))
        return True

    def _add_values(self, limit_bytes: int, count_max: int) -> int:
        """Add plain values of a sequence that join a batch at once. Return their number."""
        if self._sequence is None:
            return 0
        if self._at >= self._piece_end:
            piece = self._sequence[self._at : self._at + RECORDS_PER_STEP]
            self._piece_end = self._at + len(piece)
            self._is_plain = set(map(type, piece)) == {bytes}
        if not self._is_plain:
            return 0
        values = self._sequence[self._at : min(self._piece_end, self._at + count_max)]
        run = self._adds.plain_values(self._topic, cast(Sequence[bytes], values), limit_bytes)
        if run is None:
            return 0
        self.result.add(*run)
        self._at += run[1]
        return run[1]


class ArrowRows:
    """Rows of `send_batch`; one piece is added at a time."""

    def __init__(self, adds: Adds, topic: str, pieces: Iterable[Piece], partition: int | None) -> None:
        self._adds = adds
        self._topic = topic
        self._pieces = iter(pieces)
        self._partition = partition
        self._next = next(self._pieces, None)
        self._delivery: BatchDelivery | None = None

    @property
    def result(self) -> BatchDelivery:
        assert self._delivery is not None, "data without rows is refused"
        return self._delivery

    @property
    def left(self) -> int:
        """Rows of the piece that waits."""
        return 0 if self._next is None else self._next.rows.num_rows

    def keep(self) -> None:
        """Arrow data does not change."""

    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None:
        while (piece := self._next) is not None:
            held: int = piece.rows.nbytes + ROW_OVERHEAD_BYTES
            if not buffer.fits(held, limit_bytes):
                return held
            delivery = self._adds.piece(self._topic, piece, self._partition)
            if self._delivery is None:
                self._delivery = delivery
            else:
                self._delivery.join(delivery)
            self._next = next(self._pieces, None)
            records_max -= piece.rows.num_rows
            if self._next is not None and records_max <= 0:
                return 0
        return None

    def refuse(self, error: Exception) -> None:
        raise error


class Queuing(Coroutine[Any, Any, T], Generic[T]):
    """A call of `send_many` or `send_batch`: it has begun already. Await it until all records are queued,
    for what the call returns, or never. It is used like a coroutine, also in `asyncio.create_task`.
    """

    def __init__(self, work: Work[T] | None, check: Callable[[bool], None], on_awaited: OnAwaited) -> None:
        self.work = work
        self.check = check
        """Raises if the call must not add any further record; gets whether it is awaited."""
        self.is_awaited = False
        self.task: asyncio.Task[T] | None = None
        """Adds what did not fit at once; None: nothing is left."""
        self.result: T | None = None
        self.error: Exception | None = None
        self._on_awaited = on_awaited
        self._steps: Generator[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        self._note_awaited()
        if self.task is not None:
            return (yield from self.task.__await__())
        yield  # let other tasks run, as any call that waits does
        if self.error is not None:
            raise self.error
        return cast(T, self.result)

    @property
    def is_ended(self) -> bool:
        return self.task is None or self.task.done()

    def failure(self) -> BaseException | None:
        """Return the error of a call that has ended, other than its cancellation."""
        if self.task is None or not self.task.done() or self.task.cancelled():
            return self.error
        return self.task.exception()

    def _note_awaited(self) -> None:
        self.is_awaited = True
        self._on_awaited(self)

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        if self._steps is None:  # a task that was cancelled before its first step
            self._note_awaited()
            if self.task is not None:
                self.task.cancel()
            self._steps = self.__await__()
        return self._steps.throw(kind if value is None else value)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()


OnAwaited = Callable[[Queuing[Any]], None]


class Calls:
    """The calls of one producer that are under way without being awaited, in their order."""

    def __init__(self, buffer: SendBuffer) -> None:
        self._buffer = buffer
        self.unawaited: list[Queuing[Any]] = []
        self._is_adding = False

    def begin(self, make: Callable[[], Work[T]], check: Callable[[bool], None]) -> Queuing[T]:
        """Begin a call: add what fits at once. Errors of records are raised where it is awaited.

        Raises ResourceExhausted if too many calls wait.
        """
        if len(self.unawaited) >= UNAWAITED_MAX:
            raise ResourceExhausted(
                f"{len(self.unawaited)} calls of send_many or send_batch wait for room: await some of them",
                retry_after_ms=100,
            )
        earlier = [call.task for call in self.unawaited if call.task is not None and call.work is not None]
        call: Queuing[T] = Queuing(None, check, self._forget_call)
        try:
            call.work = work = make()
            needed = 0 if earlier else self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
        except Exception as error:
            call.error = error
            self.unawaited.append(call)
            return call
        if needed is None:
            call.result = work.result
        else:
            work.keep()
            self._go_on(call, self._rest(call, work, needed, earlier))
        return call

    def begin_reading(
        self, records: AsyncIterable[Any], make: Callable[[Any], Work[T]], check: Callable[[bool], None], result: T
    ) -> Queuing[T]:
        """Begin a call whose records come from the program one after the other. Records that are sent later
        do not wait for it.
        """
        call: Queuing[T] = Queuing(None, check, self._forget_call)

        async def read() -> T:
            count = 0
            async for record in records:
                count += 1
                work = make(record)
                needed = self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
                if needed is not None or count % RECORDS_PER_STEP == 0:
                    await self._rest(call, work, needed, [])
            return result

        self._go_on(call, read())
        return call

    def _go_on(self, call: Queuing[T], rest: Coroutine[Any, Any, T]) -> None:
        call.task = asyncio.get_running_loop().create_task(rest, name="ledgermq records that wait for room")
        call.task.add_done_callback(partial(self._ended, call))
        self.unawaited.append(call)

    async def _rest(
        self, call: Queuing[Any], work: Work[T], needed: int | None, earlier: Sequence[asyncio.Task[Any]]
    ) -> T:
        if earlier:
            await asyncio.wait(earlier)
        while True:
            if needed:
                try:
                    await self._buffer.wait_for_room(needed)
                except Exception as error:
                    call.check(call.is_awaited)
                    work.refuse(error)
            else:
                await asyncio.sleep(0)
            if needed is None:
                return work.result
            call.check(call.is_awaited)
            if call.error is not None:
                raise call.error
            needed = self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
            if needed is None:
                return work.result

    def _add(self, work: Work[Any], limit_bytes: int, records_max: int) -> int | None:
        is_outer, self._is_adding = not self._is_adding, True
        try:
            return work.add(self._buffer, limit_bytes, records_max)
        finally:
            self._is_adding = not is_outer

    def hurry(self) -> None:
        """Add all that waits without being awaited, before a record that must come behind it.

        Raises ResourceExhausted if it does not fit.
        """
        if self._is_adding:  # the records of a call come from a generator that sends records itself
            return
        for call in list(self.unawaited):
            if call.work is None or call.task is None or call.task.done() or call.error is not None:
                continue
            try:
                needed = self._add(call.work, self._buffer.limit_bytes, sys.maxsize)
            except Exception as error:
                call.error = error  # its task raises it
                continue
            if needed is not None:
                raise ResourceExhausted(
                    f"{call.work.left} records of an earlier send_many or send_batch wait for room: await that call"
                    " first",
                    retry_after_ms=100,
                )

    async def queued(self) -> None:
        """Wait until the calls that are not awaited have added their records, or have failed."""
        if tasks := [call.task for call in self.unawaited if call.task is not None]:
            await asyncio.wait(tasks)

    @property
    def waiting_records(self) -> int:
        """Records that wait for room, as far as their number is known."""
        return sum(call.work.left for call in self.unawaited if call.work is not None and not call.is_ended)

    def raise_unseen(self) -> None:
        """Raise the first error of a call that the program has not awaited."""
        errors = [error for call in self.unawaited if (error := call.failure()) is not None]
        self.unawaited = [call for call in self.unawaited if not call.is_ended]
        if errors:
            raise errors[0]

    def forget(self) -> list[asyncio.Task[Any]]:
        """End the calls that are not awaited; return their tasks."""
        tasks = [call.task for call in self.unawaited if call.task is not None]
        self.unawaited = []
        for task in tasks:
            task.cancel()
        return tasks

    def _forget_call(self, call: Queuing[Any]) -> None:
        if call in self.unawaited:
            self.unawaited.remove(call)

    def _ended(self, call: Queuing[Any], task: asyncio.Task[Any]) -> None:
        retrieve_error(task)
        if call.failure() is None:
            self._forget_call(call)
