"""A program without asyncio, `ledgermq.sync` in a thread, all along a run: none of its calls takes longer than the
time-out that it has, whatever happens to brokers, and whatever stands in the way of the client's own thread.

    hang          a call took longer than its time-out, by more than a slow machine explains
    lost write    a record that was acknowledged to it cannot be read at the end

Now and then the client's thread waits for a lock that the caller holds. Whatever the client logs meets a handler
that raises.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import ledgermq.sync
from ledgermq.errors import DeadlineExceeded, LedgerMQError
from tests.chaos.workload import REQUEST_S, Workload
from tests.judges.violation import Violation

T = TypeVar("T")
TOPIC = "synchronous"
CALL_S = 10.0
DELIVERY_S = 20.0
SHORT_S = 2.0
LATE_S = 20.0
"""What a busy machine may add to a call."""
READ_S_MAX = 60.0
LOGGER = "ledgermq"


class Raising(logging.Handler):
    """Raises at all that threads of synchronous clients log."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName == LOGGER:
            raise RuntimeError(f"a handler of the program that is broken, at {record.getMessage()[:60]!r}")


class SyncProgram:
    def __init__(self, work: Workload, name: str, late_s: float = LATE_S) -> None:
        self.name = name
        self.calls = self.blocked = 0
        self._work = work
        self._late_s = late_s
        self._random = random.Random(f"{name} {work.seed}")
        self._acknowledged: set[bytes] = set()
        self._sent = 0
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Until the work is stopped, and all that was acknowledged has been read."""
        self._loop = asyncio.get_running_loop()
        handler = Raising()
        logging.getLogger(LOGGER).addHandler(handler)
        try:
            await asyncio.to_thread(self._live)
        finally:
            logging.getLogger(LOGGER).removeHandler(handler)

    def _live(self) -> None:
        steps = (self._list, self._send, self._send, self._fetch, self._flush, self._while_blocked)
        while not self._work.stopped.is_set():
            try:
                client = self._client()
            except LedgerMQError as error:
                self._told("connect", error)
                continue
            for _ in range(self._random.randint(3, 40)):
                if not self._work.stopped.is_set():
                    self._random.choice(steps)(client)
            self._timed("close", DELIVERY_S + CALL_S, client.close)
        self._read_all()

    def _client(self) -> ledgermq.sync.Client:
        client = ledgermq.sync.connect(self._work.target, timeout_s=CALL_S, attempt_timeout_s=REQUEST_S)
        self._producer = client.producer(delivery_timeout_s=DELIVERY_S, request_timeout_s=REQUEST_S)
        self._consumer = client.consumer(TOPIC, auto_offset_reset="earliest", request_timeout_s=REQUEST_S)
        return client

    def _list(self, client: ledgermq.sync.Client) -> None:
        self._timed("list_topics", CALL_S, client.list_topics)
        self._timed("create_topic", CALL_S, lambda: client.create_topic(TOPIC, partitions=1, if_not_exists=True))

    def _send(self, client: ledgermq.sync.Client) -> None:
        self._sent += 1
        value = f"{self.name}.{self._sent}".encode()
        bound_s = self._random.choice((SHORT_S, DELIVERY_S))
        delivery = self._timed("send", CALL_S, lambda: self._producer.send(TOPIC, value))
        if delivery is not None and self._timed("result", bound_s, lambda: delivery.result(bound_s)) is not None:
            self._acknowledged.add(value)

    def _fetch(self, client: ledgermq.sync.Client) -> None:
        bound_s = self._random.choice((0.1, SHORT_S))
        self._timed("fetch", bound_s, lambda: self._consumer.fetch(timeout=bound_s))

    def _flush(self, client: ledgermq.sync.Client) -> None:
        self._timed("flush", SHORT_S, lambda: self._producer.flush(SHORT_S))

    def _while_blocked(self, client: ledgermq.sync.Client) -> None:
        """The thread of the client waits for a lock that this thread holds: a call says so, in time."""
        held, waits = threading.Lock(), threading.Event()

        def wait() -> None:
            waits.set()
            with held:
                pass

        with held:
            client._background.loop.call_soon_threadsafe(wait)
            if waits.wait(CALL_S + self._late_s):
                self.blocked += 1
                self._timed("list_topics of a blocked client", CALL_S, client.list_topics, blocked=True)

    def _timed(self, what: str, bound_s: float, call: Callable[[], T], *, blocked: bool = False) -> T | None:
        """Make a call, and judge how long it took. None: it raised."""
        self.calls += 1
        begun_s = time.monotonic()
        found, raised = None, None
        try:
            found = call()
        except LedgerMQError as error:
            raised = error
            self._told(f"synchronous {what}", error)
        took_s = time.monotonic() - begun_s
        if took_s > bound_s + self._late_s:
            self._report("hang", f"{what} took {took_s:.1f} s, its time-out is {bound_s:g} s ({raised!r})")
        if blocked and not isinstance(raised, DeadlineExceeded):
            self._report("hang", f"{what}: {raised!r} in place of DeadlineExceeded")
        return found

    def _read_all(self) -> None:
        """In good health all that was acknowledged is there."""
        missing = set(self._acknowledged)
        end_s = time.monotonic() + READ_S_MAX + self._late_s
        while missing and time.monotonic() < end_s:
            try:
                with self._client():
                    while missing and time.monotonic() < end_s:
                        missing -= {message.value for message in self._consumer.fetch(timeout=SHORT_S)}
            except LedgerMQError as error:
                self._told("synchronous reader", error)
        if missing:
            self._report("lost write", f"{len(missing)} acknowledged records cannot be read: {sorted(missing)[:5]}")

    def _told(self, what: str, error: LedgerMQError) -> None:
        self._loop.call_soon_threadsafe(self._work.told, what, error)

    def _report(self, kind: str, text: str) -> None:
        self._loop.call_soon_threadsafe(self._work.violations.append, Violation(kind, f"{self.name}: {text}"))
