"""A transaction that can be prepared: the part of a global transaction in LedgerMQ.

    open ──prepare──> preparing ──> prepared
      │                   └── no answer: prepare again, or abort
      └──commit──> committing ──> committed │ aborted │ unknown

Invariant: its end is recorded by the coordinator even if it has no record, because other processes ask
for it by its name.
"""

from __future__ import annotations

from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.errors import (
    LedgerMQError,
    TransactionAborted,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
)
from ledgermq.protocol import ledgermq_pb2 as pb


class Branch(Transaction[S]):
    """The one transaction of an id that is used once."""

    @property
    def transactional_id(self) -> str:
        return self._lane.decisions.transactional_id

    async def start(self) -> None:
        await super().start()
        self._lane.staging.used = True

    async def prepare(self, timeout_s: float | None) -> None:
        """Flush, and prepare. On return any process can commit the transaction or roll it back, and no
        time-out aborts it. May be repeated after TransactionOutcomeUnknown.

        Raises as `commit`. After any error other than TransactionOutcomeUnknown the transaction is
        aborted.
        """
        self._ended_by_program = True
        async with self._one_at_a_time:
            if self.state != "preparing":
                await self._settle(timeout_s)
            self._asked = True
            self.state = "preparing"
            await self._prepare(timeout_s)

    async def _prepare(self, timeout_s: float | None) -> None:
        deadline = self._lane.connections.deadline(timeout_s)
        try:
            await self._lane.decisions.end(self._reference, pb.PREPARED, self._parts(), deadline)
        except TransactionOutcomeUnknown:
            raise
        except (TransactionAborted, TransactionFenced, TransactionUnknown) as error:
            self._lane.note_broken(error)
            self._end("aborted")
            raise
        except LedgerMQError:  # the coordinator refused, so it is not prepared
            await self._abort(timeout_s)
            raise
        self._end("prepared")

    def rolled_back(self) -> None:
        """Note that the transaction was rolled back by its name."""
        self._end("aborted")
