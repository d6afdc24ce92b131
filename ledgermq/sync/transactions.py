"""Transactions without asyncio."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, Unpack

import ledgermq
from ledgermq.client.groups.staged_offsets import WhatToStage
from ledgermq.client.setting_types import ProducerOptions
from ledgermq.client.transactions.transaction import TransactionStatus, check_consumer
from ledgermq.client.transactions.xid import XidLike
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.consuming import GroupConsumer
from ledgermq.sync.producing import Sender
from ledgermq.sync.transaction_admin import TransactionAdmin


def inner_of(consumer: object) -> ledgermq.GroupConsumer:
    """Return the consumer that the client's loop runs. Raises InvalidConfig."""
    return check_consumer(consumer.inner if isinstance(consumer, GroupConsumer) else consumer)


class Transaction(Sender[ledgermq.Transaction]):
    """See `ledgermq.Transaction`; use it in a `with` block.

    Here `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def __init__(
        self,
        background: Background,
        inner: ledgermq.Transaction,
        sources: Sources,
        reading: GroupConsumer | None,
    ) -> None:
        super().__init__(background, inner, sources)
        self._consumers: list[GroupConsumer] = [] if reading is None else [reading]

    @property
    def state(self) -> TransactionStatus:
        return self._inner.state

    @property
    def failure(self) -> LedgerMQError | None:
        """See `ledgermq.Transaction.failure`."""
        return self._inner.failure

    @property
    def epoch(self) -> int:
        """See `ledgermq.Transaction.epoch`."""
        return self._inner.epoch

    @property
    def number(self) -> int:
        """See `ledgermq.Transaction.number`."""
        return self._inner.number

    @property
    def name(self) -> str:
        """See `ledgermq.Transaction.name`."""
        return self._background.run(as_coroutine(lambda: self._inner.name))

    def _check(self) -> None:
        self._inner.check_open()

    def start(self) -> None:
        """See `ledgermq.Transaction.start`."""
        self._background.run(self._inner.start())

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

    def __enter__(self) -> Self:
        self.start()
        return self

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


class Transactions:
    """See `ledgermq.Transactions`; use it in a `with` block."""

    def __init__(self, background: Background, inner: ledgermq.Transactions, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources

    @property
    def transactional_id(self) -> str:
        return self._inner.transactional_id

    @property
    def epoch(self) -> int:
        """See `ledgermq.Transactions.epoch`."""
        return self._inner.epoch

    @property
    def timeout_s(self) -> float:
        """See `ledgermq.Transactions.timeout_s`."""
        return self._inner.timeout_s

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def init(self) -> None:
        """See `ledgermq.Transactions.init`."""
        self._background.run(self._inner.init())

    def begin(self, *, reading: GroupConsumer | None = None) -> Transaction:
        """See `ledgermq.Transactions.begin`."""
        consumer = None if reading is None else inner_of(reading)
        begun = self._background.run(as_coroutine(lambda: self._inner.begin(reading=consumer)))
        return Transaction(self._background, begun, self._sources, reading)

    def close(self) -> None:
        """See `ledgermq.Transactions.close`."""
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self.init()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TwoPhase(Sender[ledgermq.TwoPhase]):
    """See `ledgermq.TwoPhase`; use it in a `with` block.

    Here `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def xid(self, format_id: int, gtrid: str, bqual: str = "") -> ledgermq.Xid:
        """See `ledgermq.TwoPhase.xid`."""
        return self._inner.xid(format_id, gtrid, bqual)

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def _check(self) -> None:
        self._inner.check_open()

    def tpc_begin(self, xid: XidLike | str) -> None:
        """See `ledgermq.TwoPhase.tpc_begin`."""
        self._background.run(self._inner.tpc_begin(xid))

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

    def tpc_recover(self) -> list[ledgermq.Xid]:
        """See `ledgermq.TwoPhase.tpc_recover`."""
        return self._background.run(self._inner.tpc_recover())

    def close(self) -> None:
        """See `ledgermq.TwoPhase.close`."""

        async def close() -> None:
            try:
                await self._inner.close()
            finally:
                self.hand_over()

        self._background.run(close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TransactionClient(TransactionAdmin):
    """See `ledgermq.TransactionClient`."""

    def __init__(self, background: Background, inner: ledgermq.TransactionClient, sources: Sources) -> None:
        super().__init__(background, inner)
        self._inner = inner
        self._sources = sources

    def __call__(
        self,
        transactional_id: str,
        *,
        timeout: str | float | timedelta | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> Transactions:
        """Return the transactions of an id, as `client.transactions` of the asyncio client does.

        with client.transactions("billing-7", timeout="1m") as transactions:
            with transactions.begin() as transaction:      # commits at the end
                transaction.send("invoices", value, key=key)
                transaction.send_offsets(consumer, messages)
        """
        made = self._background.run(as_coroutine(lambda: self._inner(transactional_id, timeout=timeout, **settings)))
        return Transactions(self._background, made, self._sources)

    def two_phase(
        self,
        *,
        timeout: str | float | timedelta | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> TwoPhase:
        """Return an object for two-phase transactions, with the methods of PEP 249's extension.

        with client.transactions.two_phase() as branch:
            xid = branch.xid(1, "transfer-17")
            branch.tpc_begin(xid)
            branch.send("transfers", value, key=key)
            branch.tpc_prepare()
            branch.tpc_commit()
        """
        made = self._background.run(as_coroutine(lambda: self._inner.two_phase(timeout=timeout, **settings)))
        return TwoPhase(self._background, made, self._sources)

    def outcome(self, transaction: XidLike | str, *, epoch: int = 0, number: int = 0) -> ledgermq.TransactionOutcome:
        """See `ledgermq.TransactionClient.outcome`."""
        return self._background.run(self._inner.outcome(transaction, epoch=epoch, number=number))

    def forget(self, transactional_id: XidLike | str) -> None:
        """See `ledgermq.TransactionClient.forget`."""
        self._background.run(self._inner.forget(transactional_id))
