"""Half messages without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.checks import Resolution
from ledgermq.sync.generated.half_messages import HalfMessage, HalfMessagesCalls


class HalfMessages(HalfMessagesCalls[S]):
    """See `ledgermq.HalfMessages`; use it in a `with` block."""

    def send_in_transaction(
        self,
        topic: str,
        value: S | None,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        ttl: float | timedelta | None = None,
        *,
        execute: Callable[[HalfMessage], Resolution],
        transactional_id: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """See `ledgermq.HalfMessages.send_in_transaction`. `execute` runs in the calling thread."""
        message = self.send(
            topic,
            value,
            key,
            headers,
            tag,
            timestamp,
            partition,
            ttl,
            transactional_id=transactional_id,
            timeout_s=timeout_s,
        )
        message.resolve(execute(message), timeout_s)
        return message
