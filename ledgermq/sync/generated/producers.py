"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from typing import Any

from ledgermq.client.consuming.message import Message
from ledgermq.client.front.producers import MakingProducers as AsyncMakingProducers
from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.sync.background import Background


class MakingProducers:
    """The calls of a client that make producers, or send."""

    def __init__(self, background: Background, inner: AsyncMakingProducers) -> None:
        self._background = background
        self._inner = inner

    def request(
        self,
        topic: str,
        value: Any,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        *,
        timeout: float = 10.0,
    ) -> Message[bytes]:
        """Send a message, and return the first reply to it.

        A program that consumes `topic` replies with `message.reply(value)`. The request expires after
        `timeout` seconds (1800 at most), so no program begins with it later. Replies go through the topic
        `ledgermq.replies`, which the first request of a cluster creates.

        Raises NoReply after `timeout`: the request may be handled nevertheless. Raises Unavailable if replies cannot be
        read, and what `Producer.send` and its delivery raise.
        """
        return self._background.run(
            self._inner.request(topic, value, key, headers, tag, partition, timeout=timeout), timeout
        )
