"""Requests and their replies: a request is a message whose headers say where its reply goes.

    client.request(topic, value) ──> topic ──> message.reply(value) ──> ledgermq.replies ──> the client

All replies of a cluster go through one topic, which the first request creates, and which keeps them for an
hour: nothing of a client that has died has to be removed. A client reads one partition of it, from its end
on, and only messages with its own tag, its *inbox*; brokers leave out batches without that. A program that
replies takes partition, inbox and the number of the request from the header, but never a topic: a request cannot
make a program write elsewhere.

    ledgermq.reply-to      of a request: "partition/inbox/number", such as 3/i91ab…/5c0e…
    ledgermq.in-reply-to   of a reply: the number
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.record import Bytes, Headers, pairs_of, value_of
from ledgermq.client.producing.delivery import Delivery, SendResult, again
from ledgermq.client.producing.partition.batch import SHARED_OF_TIME
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import (
    Closed,
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    LedgerMQError,
    NoReply,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from ledgermq.runtime.tasks import end, retrieve_error
from ledgermq.telemetry.trace_context import trace_headers, with_context

REPLY_TO, IN_REPLY_TO = "ledgermq.reply-to", "ledgermq.in-reply-to"
REPLIES_TOPIC = "ledgermq.replies"
REPLIES_PARTITIONS = 8
REPLIES_SETTINGS = {"retention.ms": 3_600_000}
TIMEOUT_S_MAX = 1800.0
"""Longest wait for a reply: half the time for which replies are kept."""

TTL_S_MIN = 0.001

_ADDRESS = re.compile(r"(\d{1,9})/(i[0-9a-f]{32})/([0-9a-f]{32})")


class Requests:
    """The requests of one client, and the replies that it sends. `context`, `admin`: return the client's, which are
    made after this. `make_producer` is called for the first message.
    """

    def __init__(
        self, context: Callable[[], ClientContext], admin: Callable[[], Admin], make_producer: Callable[[], Producer]
    ) -> None:
        self._context = context
        self._admin = admin
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._inbox: _Inbox | None = None
        self._opening = asyncio.Lock()
        self.closed = False

    async def request(
        self,
        topic: str,
        value: Any,
        key: Bytes | None,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timeout_s: float,
    ) -> Message[bytes]:
        if not 0 < timeout_s <= TIMEOUT_S_MAX or not isfinite(timeout_s):
            raise InvalidConfig(f"timeout must be above 0 and at most {TIMEOUT_S_MAX:g} seconds, not {timeout_s!r}")
        context = self._context()
        context.connections.home.check()
        clock_s = asyncio.get_running_loop().time
        deadline_s = clock_s() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                inbox = await self._opened(context)
                number, reply = inbox.expect()
                try:
                    pairs = [(REPLY_TO, inbox.address(number)), *pairs_of(headers)]
                    ttl_s = max(TTL_S_MIN, deadline_s - clock_s())
                    left_s = max(0.0, deadline_s - clock_s())
                    sent = self._sender().send(
                        topic, value, key, pairs, tag, partition=partition, ttl=ttl_s, timeout=left_s
                    )
                    sent.call_when_done(_reported)
                    try:
                        await sent
                    except (DeadlineExceeded, OutcomeUnknown) as error:
                        # Its time may end a little before that of the request: a batch has one deadline.
                        if clock_s() < deadline_s - SHARED_OF_TIME * timeout_s:
                            raise
                        if isinstance(error, DeadlineExceeded):
                            raise NoReply(f"{_no_reply(topic, timeout_s)}, as it was not stored: {error}") from error
                    return await reply
                finally:
                    inbox.forget(number)
        except TimeoutError:
            raise NoReply(_no_reply(topic, timeout_s)) from None

    def reply(self, message: Message, value: Any, headers: Headers | None = None) -> Delivery:
        partition, inbox, number = _address_of(message.headers)
        pairs = [(IN_REPLY_TO, number), *pairs_of(headers)]
        tracing = self._context().tracing
        if tracing is None or tracing.carried() is None:  # then the reply stays in the trace of its request
            pairs = with_context(pairs, trace_headers(message.headers))
        return self._sender().send(REPLIES_TOPIC, value, None, pairs, inbox, partition=partition)

    def _sender(self) -> Producer:
        if self.closed:
            raise Closed("the client is closed")
        if self._producer is None or self._producer.has_ended:
            self._producer = self._make_producer()
        return self._producer

    async def _opened(self, context: ClientContext) -> _Inbox:
        if self.closed:
            raise Closed("the client is closed")
        async with self._opening:
            if self._inbox is None or self._inbox.failed:
                if self._inbox is not None:
                    await self._inbox.close()
                self._inbox = await _opened_inbox(context, await self._partitions(context))
            return self._inbox

    async def _partitions(self, context: ClientContext) -> int:
        """Return the number of partitions of the topic of replies; create it if it does not exist."""
        try:
            return (await context.routing.refresh(REPLIES_TOPIC, context.connections.deadline())).partitions
        except UnknownTopic:
            made = await self._admin().create_topic(
                REPLIES_TOPIC, REPLIES_PARTITIONS, REPLIES_SETTINGS, if_not_exists=True
            )
            return len(made.partitions)

    async def close(self) -> None:
        """Read no further replies; requests that wait fail."""
        self.closed = True
        if self._inbox is not None:
            await self._inbox.close()


class _Inbox:
    """Reads the replies to one client. `failed`: it reads no longer."""

    def __init__(self, name: str, partition: int, consumer: Consumer, context: ClientContext) -> None:
        self._name = name
        self._partition = partition
        self._consumer = consumer
        self._sources = context.sources
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._reading = asyncio.create_task(self._read(), name="ledgermq replies")

    @property
    def failed(self) -> bool:
        return self._reading.done()

    def expect(self) -> tuple[str, asyncio.Future[Message]]:
        """Return the number of a new request, and what becomes its reply."""
        if self.failed:
            raise Unavailable("the client no longer reads replies; repeat the request")
        number = self._sources.new_id().hex()
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(retrieve_error)
        return number, reply

    def forget(self, number: str) -> None:
        self._waiting.pop(number, None)

    def address(self, number: str) -> str:
        return f"{self._partition}/{self._name}/{number}"

    async def _read(self) -> None:
        try:
            async for message in self._consumer:
                if (number := _number_of(message.headers)) is not None:
                    self._take(number, message)
        except LedgerMQError as error:
            self._fail(Unavailable(f"replies cannot be read: {error}"))
        except asyncio.CancelledError:
            self._fail(Unavailable("replies are no longer read"))
            raise

    def _take(self, number: str, message: Message) -> None:
        """Pass a reply to its request; without one it is late, or a repetition."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _fail(self, error: LedgerMQError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(again(error))
        self._waiting.clear()

    async def close(self) -> None:
        self._fail(Unavailable("the client was closed"))
        await end(self._reading)
        await self._consumer.close()


async def _opened_inbox(context: ClientContext, partitions: int) -> _Inbox:
    """Return an inbox that has found the end of its partition: it reads every reply to a later request."""
    name = f"i{context.sources.new_id().hex()}"
    partition = context.sources.random.randrange(partitions)
    settings = ConsumerSettings(filter=name, auto_offset_reset="earliest", deliver_expired=True)
    consumer = Consumer(context, [REPLIES_TOPIC], [partition], "latest", None, settings)
    try:
        await consumer.wait_ready()
    except BaseException:
        await consumer.close()
        raise
    return _Inbox(name, partition, consumer, context)


def _no_reply(topic: str, timeout_s: float) -> str:
    return f"no reply to a request in topic {topic!r} within {timeout_s:g} s"


def _reported(result: SendResult) -> None:
    """Take the result of a request's message, so that closing the client does not raise its error: `request` has
    raised one to its caller.
    """


def _address_of(headers: Iterable[tuple[str, bytes | None]]) -> tuple[int, str, str]:
    """Return partition, inbox and number of a request. Raises InvalidRequest."""
    given = value_of(headers, REPLY_TO)
    found = None if given is None else _ADDRESS.fullmatch(given.decode(errors="replace"))
    if found is None:
        raise InvalidRequest(
            "the message is no request: it has no valid header ledgermq.reply-to, which client.request sets"
        )
    return int(found[1]), found[2], found[3]


def _number_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    given = value_of(headers, IN_REPLY_TO)
    return None if given is None else given.decode(errors="replace")
