"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Generic, Self

from ledgermq.client.consuming.consumer import Consumer as AsyncConsumer
from ledgermq.client.consuming.consumer import State
from ledgermq.client.consuming.message import Message
from ledgermq.client.consuming.reader import FilterCounts
from ledgermq.client.groups.committing.commits import Committable
from ledgermq.client.groups.group_consumer import GroupConsumer as AsyncGroupConsumer
from ledgermq.client.groups.group_consumer import GroupConsumerState
from ledgermq.client.groups.lag import Lag
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.serializers import V
from ledgermq.errors import LedgerMQError
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.sync.background import Background, as_coroutine


class ConsumerCalls(Generic[V]):
    """The calls of `ledgermq.sync.Consumer` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncConsumer[V]) -> None:
        self._background = background
        self._inner = inner

    @property
    def state(self) -> State:
        """The state of the consumer. failing: a partition is not served at present; `last_error`
        says why. draining: `drain` was called.
        """
        return self._inner.state

    @property
    def last_error(self) -> LedgerMQError | None:
        """Return the error of the partition that has failed for longest; None: all are served."""
        return self._inner.last_error

    @property
    def expired(self) -> int:
        """Return the number of messages that were skipped because they had expired."""
        return self._inner.expired

    @property
    def filtered(self) -> int:
        """Return the number of messages that the filter has left out."""
        return self._inner.filtered

    @property
    def filter_counts(self) -> FilterCounts:
        """Return what the filter has left out, and how much of it was fetched in vain."""
        return self._inner.filter_counts

    @property
    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read; empty before `wait_ready`."""
        return self._inner.assignment

    def wait_ready(self) -> None:
        """Look up the partitions and the start positions, once.

        Raises UnknownTopic, UnknownPartition, Unavailable, …
        """
        self._background.run(self._inner.wait_ready())

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to be written in each partition. When all positions have reached
        these offsets, the program has read everything written before this call.
        """
        return self._background.run(self._inner.end_offsets())

    def close(self) -> None:
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class GroupConsumerCalls(Generic[V]):
    """The calls of `ledgermq.sync.GroupConsumer` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncGroupConsumer[V]) -> None:
        self._background = background
        self._inner = inner

    @property
    def state(self) -> GroupConsumerState:
        """The state of the consumer. joining: not a member at present, or its partitions are not
        loaded yet. failing: see `last_error`.
        """
        return self._inner.state

    @property
    def last_error(self) -> LedgerMQError | None:
        """Return the error of the membership, of the last commit, or of the partition that has
        failed for longest; None: everything works.
        """
        return self._inner.last_error

    @property
    def expired(self) -> int:
        """Return the number of messages that were skipped because they had expired."""
        return self._inner.expired

    @property
    def filtered(self) -> int:
        """Return the number of messages that the filter has left out."""
        return self._inner.filtered

    @property
    def filter_counts(self) -> FilterCounts:
        """Return what the filter has left out, and how much of it was fetched in vain."""
        return self._inner.filter_counts

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read at present."""
        return self._inner.assignment

    def wait_ready(self) -> None:
        """Wait until the group has admitted this member, and its partitions, if any, are loaded.

        Raises what calls for messages raise.
        """
        self._background.run(self._inner.wait_ready())

    def commit(self, what: Committable = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commit now. Return by partition the committed offset, which is the next one to read.

        `what`: messages, which are acknowledged first; or offsets, below which everything counts as
        finished; None: what is finished already. Raises StaleAssignment if this member no longer
        holds a partition, CommitGoesBack, OffsetOutOfRange, Unavailable, …; other partitions are
        committed nevertheless, and the consumer continues.
        """
        return self._background.run(self._inner.commit(what, metadata))

    def entries(self, messages: Iterable[Message]) -> list[OffsetEntry]:
        """Return entries for a program that stores offsets and results in one transaction
        (`SqlOffsetStore.commit_in`), with commit="manual".

        The entries state that these messages, and all earlier ones in their partitions, are done.
        Acknowledge the messages once the transaction is committed. Raises StaleAssignment if this
        member no longer holds a partition: roll the transaction back.
        """
        return self._background.run(as_coroutine(lambda: self._inner.entries(messages)))

    def committed(self) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of this member's partitions; None for a partition without one."""
        return self._background.run(self._inner.committed())

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to be written in each held partition."""
        return self._background.run(self._inner.end_offsets())

    def lag(self) -> dict[TopicPartition, Lag]:
        """See `ledgermq.GroupConsumer.lag`; messages that wait in this thread count as returned."""
        return self._background.run(self._inner.lag())

    def close(self) -> None:
        """Commit finished messages (unless commit="manual"), leave the group, and close, within
        `close_timeout_s`.

        Raises the error of the last commit, if it failed. The consumer is closed nevertheless, and
        other members begin at the previous commit.
        """
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._inner.__aexit__(kind, error, trace))
