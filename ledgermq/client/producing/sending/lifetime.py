"""The life of a producer: its parts, the background task that sends, and the calls that wait for what
was sent, or end it.

`Adding` has what puts records in, `Producer` the calls of programs.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ledgermq.client.context import ClientContext
from ledgermq.client.producing.buffering.queuing import Calls
from ledgermq.client.producing.buffering.send_buffer import OnFailure, SendBuffer
from ledgermq.client.producing.delivery import SendResult, again
from ledgermq.client.producing.dispatching.discovery import Discovery
from ledgermq.client.producing.dispatching.dispatcher import Dispatcher
from ledgermq.client.producing.exclusive import Exclusive
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.publishing import Producing, Publishing
from ledgermq.client.producing.routing.places_of_keys import PlacesOfKeys
from ledgermq.client.producing.routing.topics import ProducerTopics
from ledgermq.client.producing.spilling.spilling import Spilling
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import Closed, DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import all_of, end, ended_by, first_of

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing

DRAINED = "the producer is drained and takes no further records: make another one"


_log = get_log("ledgermq.producer")


class Lifetime:
    """A producer without the calls that send."""

    _fresh_starts = 0
    """How often `start_over` was called."""
    _keeps = False
    """Whether the end of the background leaves the batches to `_spill_rest`."""

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        publishing: Publishing | None = None,
        on_failure: OnFailure = lambda error: error,
        buffer: SendBuffer | None = None,
    ) -> None:
        """`publishing`: how batches reach brokers; None: they are produced. `buffer`: one that is shared
        with another producer.
        """
        publishing = publishing or Producing(settings)
        self.settings = settings
        self._context = context
        self._publishing = publishing
        self._sources = context.sources
        self._home = context.connections.home
        self._wake = asyncio.Event()
        """Set when the dispatcher may have work."""
        on_full = self._wake.set if settings.spill is not None else None
        self._buffer = buffer or SendBuffer(settings, on_failure, on_full, context.metrics)
        self._calls = Calls(self._buffer)
        self._topics = ProducerTopics(context, settings, self._buffer, self._wake, publishing)
        self._spilling: Spilling | None = None
        if settings.spill is not None:
            self._spilling = Spilling(settings.spill, context, settings, self._topics, self._buffer, self._wake)
        self._exclusive: Exclusive | None = None
        if settings.access_mode != "shared":
            self._exclusive = Exclusive(context, settings.access_mode, settings.name, auto_create=settings.auto_create)
        self._discovery = Discovery(
            context, settings, self._topics, self._buffer, self._wake, self._spilling, publishing, self._exclusive
        )
        self._dispatcher = Dispatcher(
            context,
            settings,
            self._topics,
            self._discovery,
            self._buffer,
            self._wake,
            publishing,
            self._spilling,
            self._exclusive,
        )
        self._background: asyncio.Task[None] | None = None
        self._open: dict[str, Batch] = {}
        """By topic, the batch that the last record without a key joined; it decides whether it takes more."""
        self._keyed: dict[str, PlacesOfKeys] = {}
        """By topic, the queues among which keys choose; their open batches decide likewise."""
        self._takes_plain = settings.serializer is None and not settings.interceptors and settings.on_delivery is None
        """Whether records may take the fast path: values are stored as given, and nothing is called for each."""
        self._ended_before: LedgerMQError = Unavailable("the producer has begun again")
        """The error of the last `start_over`."""
        self._delayed: Self | None = None
        """Sends the records with a due time; made for the first one. It shares the buffer."""
        self.closed = False
        self.is_part = False
        """Whether it belongs to another producer, which counts its records."""
        _made.add(self)
        self.draining = False
        """Whether `drain` was called."""

    @property
    def tracing(self) -> Tracing | None:
        """Return the spans of the client; None: it does not trace."""
        return self._context.tracing

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of records that are not answered yet, including their overhead."""
        return self._buffer.held_bytes

    @property
    def unanswered_records(self) -> int:
        """Return the number of records that are neither stored, nor spilled, nor refused yet."""
        delayed = 0 if self._delayed is None else self._delayed.unanswered_records
        waiting = sum(waiting.record_count for waiting in self._topics.unrouted.values())
        queued = delayed + waiting + sum(b.record_count for b in self._batches() if not b.outcome.settled)
        return queued + self._calls.waiting_records

    def _batches(self) -> list[Batch]:
        """Return the batches of records that are neither stored, nor spilled, nor refused yet."""
        unwritten = () if self._spilling is None else self._spilling.unwritten()
        return [*self._topics.batches(), *unwritten]

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and return when every record sent before this call is answered, or is
        in the local file of the setting `spill`.

        Raises DeadlineExceeded after `timeout_s` (the rest stays queued), and the first error of a
        record whose result the program has not awaited.
        """
        self._check_usable()
        await self._flush(timeout_s)
        self._raise_unseen()

    async def drain(self, timeout: float | None = None) -> list[SendResult]:  # noqa: ASYNC109  as GroupConsumer.drain
        """Take no further records, send everything that is queued, and return when it is answered, or is in the local
        file of the setting `spill`. Close the producer next.

        Returns the results of the records that failed meanwhile, and of those that failed before without being
        awaited; empty: none did. From now on `send` and its like raise Closed. Raises DeadlineExceeded after
        `timeout` seconds (None: the delivery timeout): the rest stays queued, and the call may be repeated.
        """
        self._check_usable()
        self.draining = True
        self._close_fast_path()
        self._buffer.keep_failures()
        await self._flush(self.settings.delivery_timeout_s if timeout is None else timeout)
        return self._buffer.take_failed()

    def raise_unseen_calls(self) -> None:
        """Raise the first error of a `send_many` or `send_batch` that the program has not awaited."""
        self._calls.raise_unseen()

    def _raise_unseen(self) -> None:
        self._calls.raise_unseen()
        if self.settings.raise_on_error:
            self._buffer.raise_unseen()
        else:
            self._buffer.forget_failures()

    async def _flush(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._calls.queued()
                if self._delayed is None:
                    await self._answered()
                else:
                    await all_of((self._answered(), self._delayed._answered()))
        except TimeoutError as error:
            waiting = self._calls.waiting_records
            further = f", and {waiting} further records wait for room" if waiting else ""
            raise DeadlineExceeded(
                f"{self._buffer.held_bytes} bytes are not stored after {timeout_s} s{further}"
            ) from error

    async def _answered(self) -> None:
        """Send everything now, and wait until it is answered."""
        self._dispatcher.flushing += 1
        self._wake.set()
        try:
            for waiting in list(self._topics.unrouted.values()):
                await waiting.outcome.wait()
            for batch in self._batches():
                await batch.outcome.wait()
        finally:
            self._dispatcher.flushing -= 1

    async def settle(self) -> None:
        """Send everything now, and return when every record is answered or has failed."""
        await self._flush(None)

    def start_over(self, error: LedgerMQError) -> None:
        """Fail everything that is not answered, and begin again with new queues. Calls that wait for
        room raise `error`.

        Answers that still arrive are ignored. For transactions: each begins its own numbering.
        """
        self._fresh_starts += 1
        self._ended_before = error
        self._calls.forget()
        self._close_fast_path()
        self._topics.abandon(error)
        if self._delayed is not None:
            self._delayed.start_over(error)
        self._buffer.forget_failures()

    def _check_usable(self) -> None:
        self._home.check()
        if self.closed:
            raise Closed("the producer is closed")
        self._check_alive()

    @property
    def has_ended(self) -> bool:
        """Return whether the producer has failed, or was closed: it takes no further records."""
        return self.closed or (self._background is not None and self._background.done())

    def _check_alive(self) -> None:
        if self._background is None:
            self._background = asyncio.get_running_loop().create_task(self._dispatcher.run(), name="ledgermq producer")
            self._background.add_done_callback(self._ended)
        elif self._background.done():
            failure = _failure(self._background)
            raise again(failure) from ended_by(self._background, "the producer")

    def _check_takes_records(self) -> None:
        self._check_usable()
        if self.draining:
            raise Closed(DRAINED)

    def _ended(self, background: asyncio.Task[None]) -> None:
        self._close_fast_path()
        if self._keeps:
            return
        was_closed = self.closed and background.cancelled()
        if background.cancelled() and not self.closed:
            self.warn_of_lost_records()
        self._abandon(Unavailable("the producer was closed") if was_closed else _failure(background))

    def warn_of_lost_records(self) -> None:
        """Log how many records are not answered, because nothing will send them any longer."""
        if not self.is_part and (lost := self.unanswered_records):
            _log.warning(
                "%d records may not be stored: a producer was not closed before its event loop ended; use `async with`,"
                " or call close()",
                lost,
            )

    def _abandon(self, error: LedgerMQError) -> None:
        self._topics.abandon(error)
        if self._spilling is not None:
            self._spilling.abandon(error)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush within `timeout_s` (the delivery timeout if None), then close. With the setting
        `spill`, what is not stored by then is written to the local file.

        Raises what `flush` raises; the producer is closed nevertheless.
        """
        self._home.check()
        if self.closed:
            return
        self.closed = True
        self._close_fast_path()
        try:
            if self._background is not None and not self._background.done():
                try:
                    await self._flush(self.settings.delivery_timeout_s if timeout_s is None else timeout_s)
                except DeadlineExceeded:
                    if self._spilling is None:
                        raise
                    await self._spill_rest(self._spilling)
                    if self._calls.waiting_records or (self._delayed is not None and self._delayed.unanswered_records):
                        raise  # delayed records are not spilled, nor are those that wait for room
            self._raise_unseen()
        finally:
            await self.abort()

    async def _spill_rest(self, spilling: Spilling) -> None:
        """End the background, and write what it has not sent. Batches on their way are in doubt, and are written
        with their sequences.
        """
        self._keeps = True
        await end(self._background)
        try:
            await spilling.finish(keeps=True)
        finally:
            self._abandon(Unavailable("the producer was closed"))

    async def abort(self) -> None:
        """Close at once: unanswered records fail with Unavailable, or with OutcomeUnknown if they
        were on their way.
        """
        self._home.check()
        self.closed = True
        await end(*self._calls.forget())
        self._close_fast_path()
        if self._delayed is not None:
            await self._delayed.abort()
        await end(self._background)
        if self._spilling is not None:
            await self._spilling.finish()
        if self._exclusive is not None:
            await self._exclusive.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    def _close_fast_path(self) -> None:
        """From now on, every record takes the path with all checks."""
        self._open.clear()
        self._keyed.clear()
        if self._delayed is not None:
            self._delayed._close_fast_path()


_made: weakref.WeakSet[Lifetime] = weakref.WeakSet()


def _warn_at_exit() -> None:
    """Warn of the records of producers whose loops have stopped. `ledgermq.sync`, whose loop runs on, warns itself."""
    for producer in list(_made):
        if not (producer.closed or producer._home.left or producer._home.runs):
            producer.warn_of_lost_records()


atexit.register(_warn_at_exit)


def _failure(background: asyncio.Task[None]) -> LedgerMQError:
    """Return why the background task failed: an error of the spill, or one that is a bug."""
    error = ended_by(background, "the producer")
    first = first_of(error) if isinstance(error, BaseExceptionGroup) else error
    if isinstance(first, LedgerMQError):
        return first
    return LedgerMQError(f"the producer's background task failed: {error!r}")
