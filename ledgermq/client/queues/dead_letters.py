"""Move messages of a queue group to its dead-letter topic: the copy is stored first, then the message is
finished. A process that dies between the two leaves a copy, and its successor makes another one.
"""

from __future__ import annotations

import asyncio

from ledgermq.client.context import ClientContext
from ledgermq.client.groups.retry_creation import RetryTopics
from ledgermq.client.groups.retry_topics import ERROR_BYTES_MAX, Failures, copy_of, cut, dead_letter_topic, origin_of
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.producing.producer import Producer
from ledgermq.client.queues.message import QueueMessage
from ledgermq.client.settings.values import ProducerSettings


class DeadLetters:
    """`topics`: creates the topic at the first dead letter."""

    def __init__(self, context: ClientContext, group: str, topics: RetryTopics) -> None:
        self._context = context
        self._topic = dead_letter_topic(group)
        self._group = group
        self._producer = Producer(context, ProducerSettings())
        self._topics = topics
        self._creating = asyncio.Lock()
        self._is_created = False
        self._expiry = Expiry(context.routing.ttl_of, context.sources.now_us)

    async def put(self, message: QueueMessage, error: str) -> None:
        """Store a copy. Raises InvalidConfig if the topic has other records, InvalidRecord, Unavailable, …"""
        async with self._creating:
            if not self._is_created:
                await self._topics.create()
                self._is_created = True
        now_ms = self._context.sources.now_ms()
        text = cut(error or "no error was given", ERROR_BYTES_MAX)
        failures = Failures(self._group, origin_of(message), message.attempt, now_ms, text)
        expires_us = self._expiry.expires_us(message.topic, message.headers, message.timestamp_us)
        copy = copy_of(message, failures, self._topic, None, expires_us=expires_us)
        await self._producer.send(copy.topic, copy.value, key=copy.key, headers=copy.headers, tag=copy.tag)

    async def close(self) -> None:
        await self._producer.close()
