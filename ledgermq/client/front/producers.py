"""What a client sends with: producers, requests and replies, half messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ledgermq.client.consuming.message import Message
from ledgermq.client.front.making import Making
from ledgermq.client.messages.descriptions import (
    TopicPartition,
)
from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.partition.sessions import Session, open_sessions
from ledgermq.client.producing.producer import Producer
from ledgermq.client.producing.publishing import Producing
from ledgermq.client.producing.traced import make_producer
from ledgermq.client.setting_types import (
    ProducerOptions,
)
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.client.settings.values import settings_from
from ledgermq.client.transactions.checks import Check
from ledgermq.client.transactions.half_messages import HalfMessages
from ledgermq.errors import InvalidConfig


class MakingProducers(Making):
    """The calls of a client that make producers, or send."""

    def producer(self, **settings: Unpack[ProducerOptions[S]]) -> Producer[S]:
        """Return a producer. Settings: the fields of `ProducerSettings`. Raises InvalidConfig."""
        self._forget_closed()
        producer: Producer[S] = make_producer(self._context, settings_from(ProducerSettings, settings))
        self._made.append(producer)
        return producer

    async def request(
        self,
        topic: str,
        value: Any,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109  as Consumer.fetch
    ) -> Message[bytes]:
        """Send a message, and return the first reply to it.

        A program that consumes `topic` replies with `await message.reply(value)`. The request expires after
        `timeout` seconds (1800 at most), so no program begins with it later. Replies go through the topic
        `ledgermq.replies`, which the first request of a cluster creates.

        Raises NoReply after `timeout`: the request may be handled nevertheless. Raises Unavailable if replies cannot be
        read, and what `Producer.send` and its delivery raise.
        """
        return await self._requests.request(topic, value, key, headers, tag, partition, timeout)

    def reply(self, message: Message, value: Any, headers: Headers | None = None) -> Delivery:
        """Reply to a request, like `message.reply`. Raises InvalidRequest if the message is no request."""
        return self._requests.reply(message, value, headers)

    async def open_sessions(
        self, producer_id: bytes, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Session]:
        """Return the sessions of a producer with this identity (16 bytes). Store them before its
        first batch is sent; a process that resumes the producer calls this again.

        Raises UnknownTopic, UnknownPartition, Unavailable.
        """
        return await open_sessions(self._context, producer_id, partitions, self._connections.deadline())

    def resumed_producer(
        self,
        sessions: Mapping[TopicPartition, Session],
        **settings: Unpack[ProducerOptions],
    ) -> Producer:
        """Return a producer that resumes these sessions, through `send_encoded` only; see
        `producing.sessions`.

        Raises InvalidConfig.
        """
        self._forget_closed()
        parsed = settings_from(ProducerSettings, settings).strict_for("a resumed producer")
        producer = Producer(self._context, parsed, Producing(parsed, sessions))
        self._made.append(producer)
        return producer

    def half_messages(
        self,
        group: str,
        *,
        check: Check,
        concurrency: int = 16,
        **settings: Unpack[ProducerOptions[S]],
    ) -> HalfMessages[S]:
        """Return the half messages of a check group: stored before a transaction of the program's own,
        visible if that commits.

            async with client.half_messages("orders-checkers", check=on_check) as half:
                message = await half.send("orders", value, key=key)      # durable, invisible
                ...                                                      # the local transaction
                await message.commit()                                   # or rollback()

        `check(message)` returns the outcome of the message's local transaction: "commit", "rollback" or
        "unknown", or an awaitable of one of these. The cluster has it called, in any program of the
        group, for a message that was not ended. An exception counts as "unknown". It runs on the event
        loop; run a blocking query in a thread. `concurrency`: so many messages are sent at a time, and
        so many checks run at a time. Settings: the fields of `ProducerSettings`, without `acks` and
        `idempotent`. Raises InvalidConfig.
        """
        for name in ("acks", "idempotent"):
            if name in settings:
                raise InvalidConfig(f"a half message is stored durably, once: leave out {name}")
        parsed = settings_from(ProducerSettings, settings).strict_for("a half message")
        made: HalfMessages[S] = HalfMessages(self._context, group, check, concurrency, parsed)
        self._forget_closed()
        self._made.append(made)
        return made
