"""Transactions without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from ledgermq.client.groups.group_consumer import GroupConsumer as AsyncGroupConsumer
from ledgermq.client.groups.membership.staged_offsets import WhatToStage
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.transaction import Transaction as AsyncTransaction
from ledgermq.client.transactions.transaction import check_consumer
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase as AsyncTwoPhase
from ledgermq.client.transactions.two_phase.xid import XidLike
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.consuming import GroupConsumer
from ledgermq.sync.generated.transactions import TransactionCalls, TransactionsCalls, TwoPhaseCalls
from ledgermq.sync.producing import Sender


def inner_of(consumer: object) -> AsyncGroupConsumer:
    """Return the consumer that the client's loop runs. Raises InvalidConfig."""
    return check_consumer(consumer.inner if isinstance(consumer, GroupConsumer) else consumer)


class Transaction(Sender[AsyncTransaction[S], S], TransactionCalls[S]):
    """See `ledgermq.Transaction`; use it in a `with` block.

    Here `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def __init__(
        self,
        background: Background,
        inner: AsyncTransaction[S],
        sources: Sources,
        reading: GroupConsumer | None,
    ) -> None:
        super().__init__(background, inner, sources)
        self._consumers: list[GroupConsumer] = [] if reading is None else [reading]

    def _check(self) -> None:
        self._inner.check_open()

    def send_offsets(
        self,
        consumer: GroupConsumer,
        messages: WhatToStage,
        metadata: str = "",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """See `ledgermq.Transaction.send_offsets`."""
        inner = inner_of(consumer)
        if consumer not in self._consumers:
            self._consumers.append(consumer)
        self._background.run(self._inner.send_offsets(inner, messages, metadata, timeout_s=timeout_s))

    def commit(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Transaction.commit`."""

        async def commit() -> None:
            self.hand_over()
            await self._inner.commit(timeout_s)

        self._end(commit)

    def abort(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Transaction.abort`."""

        async def abort() -> None:
            await self._inner.abort(timeout_s)
            self.hand_over()

        self._end(abort)

    def _end(self, how: Callable[[], Any]) -> None:
        """Run the end. Then drop messages that were fetched ahead and will be delivered again."""
        try:
            self._background.run(how())
        finally:
            for consumer in self._consumers:
                consumer.drop_rewound()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave() -> None:
            if kind is None:
                self.hand_over()
            try:
                await self._inner.__aexit__(kind, error, trace)
            finally:
                self.hand_over()

        self._end(leave)


class Transactions(TransactionsCalls[S]):
    """See `ledgermq.Transactions`; use it in a `with` block."""

    def begin(self, *, reading: GroupConsumer | None = None) -> Transaction[S]:
        """See `ledgermq.Transactions.begin`."""
        consumer = None if reading is None else inner_of(reading)
        begun = self._background.run(as_coroutine(lambda: self._inner.begin(reading=consumer)))
        return Transaction(self._background, begun, self._sources, reading)


class TwoPhase(Sender[AsyncTwoPhase[S], S], TwoPhaseCalls[S]):
    """See `ledgermq.TwoPhase`; use it in a `with` block.

    Here `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def _check(self) -> None:
        self._inner.check_open()

    def tpc_prepare(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.TwoPhase.tpc_prepare`."""

        async def prepare() -> None:
            self.hand_over()
            await self._inner.tpc_prepare(timeout_s)

        self._background.run(prepare())

    def tpc_commit(self, xid: XidLike | str | None = None, *, timeout_s: float | None = None) -> None:
        """See `ledgermq.TwoPhase.tpc_commit`."""

        async def commit() -> None:
            self.hand_over()
            await self._inner.tpc_commit(xid, timeout_s=timeout_s)

        self._background.run(commit())

    def tpc_rollback(self, xid: XidLike | str | None = None, *, timeout_s: float | None = None) -> None:
        """See `ledgermq.TwoPhase.tpc_rollback`."""

        async def roll_back() -> None:
            if xid is not None:
                self.hand_over()
            try:
                await self._inner.tpc_rollback(xid, timeout_s=timeout_s)
            finally:
                self.hand_over()

        self._background.run(roll_back())

    def close(self) -> None:
        """See `ledgermq.TwoPhase.close`."""

        async def close() -> None:
            try:
                await self._inner.close()
            finally:
                self.hand_over()

        self._background.run(close())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
