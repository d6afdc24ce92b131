"""Half messages without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import ledgermq
from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.client.transactions.checks import Resolution
from ledgermq.client.transactions.half_messages import HalfMessageState
from ledgermq.sync.background import Background


class HalfMessage:
    """See `ledgermq.HalfMessage`."""

    def __init__(self, background: Background, inner: ledgermq.HalfMessage) -> None:
        self._background = background
        self._inner = inner

    @property
    def transactional_id(self) -> str:
        """See `ledgermq.HalfMessage.transactional_id`."""
        return self._inner.transactional_id

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def key(self) -> bytes | None:
        return self._inner.key

    @property
    def state(self) -> HalfMessageState:
        return self._inner.state

    def commit(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.HalfMessage.commit`."""
        self._background.run(self._inner.commit(timeout_s), timeout_s)

    def rollback(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.HalfMessage.rollback`."""
        self._background.run(self._inner.rollback(timeout_s), timeout_s)

    def resolve(self, resolution: Resolution, timeout_s: float | None = None) -> None:
        """See `ledgermq.HalfMessage.resolve`."""
        self._background.run(self._inner.resolve(resolution, timeout_s), timeout_s)


class HalfMessages:
    """See `ledgermq.HalfMessages`; use it in a `with` block."""

    def __init__(self, background: Background, inner: ledgermq.HalfMessages) -> None:
        self._background = background
        self._inner = inner

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def start(self) -> None:
        """See `ledgermq.HalfMessages.start`."""
        self._background.run(self._inner.start())

    def send(
        self,
        topic: str,
        value: Any,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        ttl: float | timedelta | None = None,
        *,
        transactional_id: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """See `ledgermq.HalfMessages.send`."""
        sent = self._background.run(
            self._inner.send(
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
        )
        return HalfMessage(self._background, sent)

    def send_in_transaction(
        self,
        topic: str,
        value: Any,
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

    def close(self) -> None:
        """See `ledgermq.HalfMessages.close`."""
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
