"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import TracebackType
from typing import Generic, Self

from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.checks import Resolution
from ledgermq.client.transactions.half_messages import HalfMessage as AsyncHalfMessage
from ledgermq.client.transactions.half_messages import HalfMessages as AsyncHalfMessages
from ledgermq.client.transactions.half_messages import HalfMessageState
from ledgermq.sync.background import Background


class HalfMessage:
    """See `ledgermq.HalfMessage`."""

    def __init__(self, background: Background, inner: AsyncHalfMessage) -> None:
        self._background = background
        self._inner = inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def key(self) -> bytes | None:
        return self._inner.key

    @property
    def state(self) -> HalfMessageState:
        return self._inner.state

    @property
    def transactional_id(self) -> str:
        """Return the message's transactional id, which checks and operators see."""
        return self._inner.transactional_id

    def commit(self, timeout_s: float | None = None) -> None:
        """Make the message visible, for good. May be repeated.

        Raises TransactionAborted if the message was rolled back, or is unresolved after its last check:
        it never becomes visible. Raises TransactionOutcomeUnknown without an answer within `timeout_s`
        (None: the client's): repeat the call, or leave the message to the checks.
        """
        self._background.run(self._inner.commit(timeout_s), timeout_s)

    def rollback(self, timeout_s: float | None = None) -> None:
        """Drop the message, for good. May be repeated.

        Raises TransactionError if the message is committed; TransactionOutcomeUnknown as `commit`.
        """
        self._background.run(self._inner.rollback(timeout_s), timeout_s)

    def resolve(self, resolution: Resolution, timeout_s: float | None = None) -> None:
        """Commit or roll back; with "unknown", leave the message to the checks."""
        self._background.run(self._inner.resolve(resolution, timeout_s), timeout_s)


class HalfMessagesCalls(Generic[S]):
    """The calls of `ledgermq.sync.HalfMessages` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncHalfMessages[S]) -> None:
        self._background = background
        self._inner = inner

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def start(self) -> None:
        """Begin to answer checks; `with` calls this."""
        self._background.run(self._inner.start())

    def send(
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
        transactional_id: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """Store a message that stays invisible until it is committed. On return it is durable. Begin the
        local transaction only then.

        `transactional_id`: a name that no other transaction has; checks carry it. None: a random one.
        Raises as `Producer.send`; InvalidRequest if the id was used; TransactionAborted if another
        call has begun a message under the id; Unavailable, and DeadlineExceeded after `timeout_s` (None: the
        client's). After an error the message does not become visible, unless `check` returns "commit"
        for it.
        """
        made = self._background.run(
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
            ),
            timeout_s,
        )
        return HalfMessage(self._background, made)

    def close(self) -> None:
        """Stop answering checks, and close. Checks of messages that are not ended go to other programs of
        the group. May be called again.
        """
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
