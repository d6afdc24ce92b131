"""Deliveries: light awaitables that a producer returns for its records, and that share the outcome
of their batch.

A million records in flight are a million small objects but only a few futures, and no task at all
(a future per record costs four times as much, a task forty times). Invariant: every outcome is
settled exactly once, with an offset or an error.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import LedgerMQError, UsedElsewhere


class SendResult(NamedTuple):
    """Where a record is stored. `offset` is -1 with acks="received", because the offset is not
    known yet. It is None in a transaction: records get their offsets after the commit.
    `timestamp_us` is the broker's where that sets it (topic setting message.timestamp.type = LogAppendTime).

    A delayed record has no offset before it is due: its `offset` is None, `timestamp` is the due time,
    and `handle` is the text with which `client.recall` takes it back. Other records have no handle.

    With the settings `raise_on_error=False` and `on_delivery` there are also results of records that failed:
    `error` says why, `offset` is None, `timestamp_us` is 0, and `partition` is -1 if none was chosen yet.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp_us: int
    handle: str | None = None

    @property
    def error(self) -> LedgerMQError | None:
        """Return why the record failed; None: it did not."""
        return None

    @property
    def success(self) -> bool:
        """Return whether the record is stored, staged in its transaction, or spilled."""
        return self.error is None

    @property
    def duplicate(self) -> bool:
        """Return whether the record was not stored, because a record with its id was before, in a topic with
        `dedup.window.ms`. `offset` is that of the record that is stored; its timestamp is another one.
        """
        return False

    @property
    def message_id(self) -> MessageId | None:
        """Return the id of the stored message; None while it has no offset: see `offset`, and -1 there."""
        return None if self.offset is None or self.offset < 0 else MessageId(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> datetime:
        return datetime_of(self.timestamp_us)


class Spilled(SendResult):
    """The result of a record that is in the producer's local file instead of the cluster (setting `spill`). It
    will be stored in this partition; its `offset` is None, because it is not known yet.
    """

    __slots__ = ()


class Duplicate(SendResult):
    """The result of a record whose id was stored before. `offset`: of the record that is stored."""

    __slots__ = ()

    @property
    def duplicate(self) -> bool:
        return True


class Failed(SendResult):
    """The result of a record that failed."""

    @classmethod
    def at(cls, partition: TopicPartition, error: LedgerMQError) -> Failed:
        made = cls(*partition, None, 0)
        made.__dict__["failure"] = error
        return made

    @property
    def error(self) -> LedgerMQError:
        found: LedgerMQError = self.__dict__["failure"]
        return found

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, error={self.error!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed.at, (TopicPartition(self.topic, self.partition), self.error)


class BatchResult(NamedTuple):
    """Where a run of rows of `send_batch` is stored: offsets base_offset to base_offset +
    record_count − 1. `base_offset` is None in a transaction.
    """

    topic: str
    partition: int
    base_offset: int | None
    record_count: int


class SpilledBatch(BatchResult):
    """The result of a run of rows that is in the producer's local file instead of the cluster (setting
    `spill`). Its `base_offset` is None.
    """

    __slots__ = ()


OnDelivery = Callable[[SendResult], object]
"""Called with the result of a record, also if it failed."""


class Outcome:
    """The outcome of a batch, settled once and awaited any number of times."""

    __slots__ = ("_callbacks", "_loop", "_waiters", "error", "reported", "settled")

    def __init__(self) -> None:
        self._loop = asyncio._get_running_loop()
        self.settled = False
        self.error: LedgerMQError | None = None
        self.reported = False
        """Whether a caller has seen the error."""
        self._waiters: dict[asyncio.Future[None], None] | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def settle(self, error: LedgerMQError | None = None) -> None:
        assert not self.settled, "an outcome is settled once"
        self.settled = True
        self.error = error
        for callback in self._callbacks or ():  # before the waiters, so that `flush` returns after them
            asyncio.get_running_loop().call_soon(callback)
        self._callbacks = None
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is settled, without raising the error of the outcome.

        Raises UsedElsewhere in another event loop.
        """
        if self.settled:
            return
        if self._loop not in (None, asyncio.get_running_loop()):
            raise UsedElsewhere("this record was sent from another event loop or process; await its delivery there")
        if self._waiters is None:
            self._waiters = {}
        # one future per waiter, so that cancelling one waiter does not cancel the others
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Have the event loop call a function soon after this is settled. The loop's exception handler gets
        its errors.
        """
        if self.settled:
            asyncio.get_running_loop().call_soon(callback)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def raise_error(self) -> None:
        if self.error is not None:
            self.reported = True
            # A new object each time: many records share the error, but a traceback belongs to one raise.
            raise again(self.error) from self.error


class Place(Protocol):
    """The place of a waiting record: in a batch, or in a queue for a topic whose partitions are
    not known yet. `quiet`: its records have a result even if they fail (`raise_on_error=False`).
    """

    @property
    def at(self) -> TopicPartition: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def quiet(self) -> bool: ...

    def result(self, row: int) -> SendResult: ...


class Delivery:
    """A record on its way. Await it for the `SendResult`, any number of times, or never.

    Raises the error of the record, if it was not stored.
    """

    __slots__ = ("place", "row")

    def __init__(self, place: Place, row: int) -> None:
        self.place = place
        self.row = row

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self._result().__await__()

    async def _result(self) -> SendResult:
        await self.wait()
        return self.result()

    async def wait(self) -> None:
        """Wait until it is done, without raising the error of the record."""
        while not self.place.outcome.settled:  # the place changes when the topic's partitions become known
            await self.place.outcome.wait()

    def done(self) -> bool:
        return self.place.outcome.settled

    def result(self) -> SendResult:
        """Return the result of a delivery that is done.

        Raises the error of the record (unless raise_on_error=False), or asyncio.InvalidStateError before
        it is done.
        """
        self._check_done()
        if self.place.quiet:
            return self._result_or_error()
        self.place.outcome.raise_error()
        return self.place.result(self.row)

    def exception(self) -> LedgerMQError | None:
        """Return the error of a delivery that is done; None: it is stored. Raises
        asyncio.InvalidStateError before it is done.
        """
        self._check_done()
        self.place.outcome.reported = True
        return self.place.outcome.error

    def _result_or_error(self) -> SendResult:
        error = self.exception()
        return self.place.result(self.row) if error is None else Failed.at(self.place.at, error)

    def call_when_done(self, callback: OnDelivery) -> None:
        """Have the event loop call a function with the result of the record, also if it fails."""

        def call() -> None:
            if not self.done():  # the topic's partitions became known, and the record has joined a batch
                self.place.outcome.call_when_settled(call)
                return
            callback(self._result_or_error())

        self.place.outcome.call_when_settled(call)

    def _check_done(self) -> None:
        if not self.place.outcome.settled:
            raise asyncio.InvalidStateError(
                "the record is still on its way: await the delivery, or flush the producer, first"
            )


class StoredRows(Protocol):
    """Rows of `send_batch` that travel together."""

    @property
    def outcome(self) -> Outcome: ...
    def batch_result(self) -> BatchResult: ...


class BatchDelivery:
    """Await it for the `BatchResult`s, one for each run of rows that travels together.

    Raises the first error among them.
    """

    def __init__(self, routed: Outcome) -> None:
        self._routed = routed
        self._later: list[BatchDelivery] = []
        self.batches: Sequence[StoredRows] = ()

    def join(self, later: BatchDelivery) -> None:
        """Make this the delivery of later rows too, which were queued separately."""
        self._later.append(later)

    def __await__(self) -> Generator[Any, None, list[BatchResult]]:
        return self._result().__await__()

    async def _result(self) -> list[BatchResult]:
        parts = [self, *self._later]
        for part in parts:
            await part._routed.wait()
            for batch in part.batches:
                await batch.outcome.wait()
        for part in parts:
            part._routed.raise_error()
            for batch in part.batches:
                batch.outcome.raise_error()
        return [batch.batch_result() for part in parts for batch in part.batches]


class Deliveries(Sequence[Delivery]):
    """A sequence of the deliveries of many records, in their order. Await it for the `SendResult`s of
    all, in the same order; that raises the first error among them.

    Records that joined a batch together are one entry here. Their deliveries are made when they are
    accessed, so a million records whose deliveries are never accessed cost only a few objects.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """The number of the first record of each run of rows in one place."""
        self._places: list[Place | Delivery] = []
        """By run, its place; the delivery instead, where the place may still change."""
        self._rows: list[int] = []
        self._count = 0

    def __await__(self) -> Generator[Any, None, list[SendResult]]:
        return self._results().__await__()

    async def _results(self) -> list[SendResult]:
        for place in dict.fromkeys(self._places):
            await (place if isinstance(place, Delivery) else place.outcome).wait()
        return [delivery.result() for delivery in self]

    def add(self, first: Delivery, count: int = 1) -> None:
        """Append `count` rows of one batch, from `first` on; a place that may change holds one
        record.
        """
        self.add_rows(first if count == 1 else first.place, first.row, count)

    def add_rows(self, place: Place | Delivery, row: int, count: int = 1) -> None:
        """Append `count` rows, from `row` on, of a place that does not change."""
        self._places.append(place)
        self._rows.append(row)
        self._firsts.append(self._count)
        self._count += count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        ends = chain(self._firsts[1:], (self._count,))
        for place, row, first, end in zip(self._places, self._rows, self._firsts, ends, strict=False):
            if isinstance(place, Delivery):
                yield place
            else:
                for after in range(end - first):
                    yield Delivery(place, row + after)

    @overload
    def __getitem__(self, at: int) -> Delivery: ...
    @overload
    def __getitem__(self, at: slice) -> list[Delivery]: ...
    def __getitem__(self, at: int | slice) -> Delivery | list[Delivery]:
        if isinstance(at, slice):
            return [self._at(number) for number in range(*at.indices(self._count))]
        return self._at(range(self._count)[at])

    def _at(self, number: int) -> Delivery:
        run = bisect_right(self._firsts, number) - 1
        place = self._places[run]
        return place if isinstance(place, Delivery) else Delivery(place, self._rows[run] + number - self._firsts[run])


class Refused:
    """The place of a record that was found too large, or without a partition, once its topic was
    known. `at`: its partition, -1 if none was chosen.
    """

    def __init__(self, error: LedgerMQError, at: TopicPartition, *, quiet: bool = False) -> None:
        self.at = at
        self.quiet = quiet
        self.outcome = Outcome()
        self.outcome.settle(error)

    def result(self, row: int) -> SendResult:
        raise AssertionError(f"row {row} was refused")


def again(error: LedgerMQError) -> LedgerMQError:
    """Return a copy of an error, to be raised, with all that it says."""
    copied = type(error)(error.message)
    vars(copied).update((name, value) for name, value in vars(error).items() if name != "__notes__")
    return copied
