"""The lane of one transactional id in one epoch: its transactions run one after the other, and share a
producer.

Invariants: at most one transaction is in the lane. A number is used for one transaction only. The next
number is used when the outcome of the one before is known. After another process has begun an epoch
of the id, or the coordinator has forgotten the id, no transaction enters the lane.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.client.producing.traced import make_producer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.client.transactions.sending.staging import Staging
from ledgermq.errors import (
    Closed,
    LedgerMQError,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionUnknown,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb


class Occupant(Protocol):
    """The methods of a transaction that its lane calls."""

    def note_failure(self, error: LedgerMQError) -> LedgerMQError:
        """Note that a record or an offset of the transaction failed; return the error to raise."""
        ...

    async def abort(self) -> None: ...

    def release(self) -> None:
        """Stop waiting for the outcome."""
        ...

    def resolved(self, *, committed: bool) -> None:
        """Note the outcome, which was unknown."""
        ...


class Lane:
    """The lane of one epoch. `identity`: the coordinator's answer to `init`."""

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        decisions: Decisions,
        identity: pb.InitTransactionsResponse,
    ) -> None:
        self.connections: Connections = context.connections
        self.decisions = decisions
        self.identity = identity
        self.staging = Staging()
        self.producer = make_producer(context, settings, self.staging, self._failed)
        if not context.clock.is_known:
            context.clock.learn(identity.now_us, asyncio.get_running_loop().time())
        self.present: Occupant | None = None
        self.broken: LedgerMQError | None = None
        self._number = 1
        self._unsettled: Occupant | None = None

    @property
    def closed(self) -> bool:
        return self.producer.closed

    def check(self) -> None:
        """Raise if no transaction can enter."""
        if self.broken is not None:
            raise type(self.broken)(self.broken.message) from self.broken
        if self.closed:
            raise Closed("the transactions object is closed: make another one with client.transactions")
        if self.present is not None:
            raise TransactionError(
                "another transaction is open: end it first, or use a second transactional id beside it"
            )

    async def enter(self, transaction: Occupant) -> pb.TransactionRef:
        """Let a transaction in, and return its name. This sends no request, unless the outcome of the
        transaction before is unknown.

        Raises TransactionFenced, TransactionError, Unavailable.
        """
        self.check()
        self.present = transaction
        try:
            await self.settle()
        except BaseException as error:
            self.present = None
            if isinstance(error, LedgerMQError):
                self.note_broken(error)
            raise
        reference = pb.TransactionRef(
            transactional_id=self.decisions.transactional_id,
            coordinator=self.identity.coordinator,
            producer_id=self.identity.producer_id,
            epoch=self.identity.epoch,
            number=self._number,
        )
        self.producer.start_over(TransactionAborted("another transaction has begun"))
        self.staging.begin(reference)
        return reference

    async def settle(self) -> None:
        """Ask for the outcome of the former transaction, if it is unknown. This aborts an undecided one."""
        former = self._unsettled
        if former is None:
            return
        outcome = await self.decisions.outcome(self.identity.epoch, self._number, self.connections.deadline())
        if outcome.state == "undecided":
            raise Unavailable(f"transaction {self._number} is still undecided; begin again later")
        self._unsettled = None
        self._number += 1
        former.resolved(committed=outcome.committed)

    async def close(self) -> None:
        """Abort the open transaction, and end the producer."""
        try:
            if self.present is not None:
                with suppress(TransactionError):  # it is committed, or may be
                    await self.present.abort()
            else:
                with suppress(LedgerMQError):
                    await self.settle()
        finally:
            if self._unsettled is not None:
                self._unsettled.release()
            await self.producer.abort()

    def leave(self, transaction: Occupant, *, settled: bool) -> None:
        """Let the transaction out. `settled`: the coordinator has confirmed its outcome, or there was
        nothing to decide.
        """
        assert self.present is transaction, "a transaction leaves once"
        self.present = None
        if not settled:
            self._unsettled = transaction
        elif self.staging.used:
            self._number += 1

    def note_broken(self, error: LedgerMQError) -> None:
        """Note an error after which no transaction of this epoch is possible."""
        if self.broken is None and isinstance(error, TransactionFenced | TransactionUnknown):
            self.broken = error

    def _failed(self, error: LedgerMQError) -> LedgerMQError:
        self.note_broken(error)
        return error if self.present is None else self.present.note_failure(error)
