"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self

from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.transaction import Transaction as AsyncTransaction
from ledgermq.client.transactions.transaction import TransactionStatus
from ledgermq.client.transactions.transactions import Transactions as AsyncTransactions
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase as AsyncTwoPhase
from ledgermq.client.transactions.two_phase.xid import Xid, XidLike
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine


class TransactionsCalls(Generic[S]):
    """The calls of `ledgermq.sync.Transactions` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncTransactions[S], sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def transactional_id(self) -> str:
        return self._inner.transactional_id

    @property
    def epoch(self) -> int:
        """Return the epoch; 0 before `init`."""
        return self._inner.epoch

    @property
    def timeout_s(self) -> float:
        """Return the time after which the cluster aborts a transaction that is still open; 0 before
        `init`.
        """
        return self._inner.timeout_s

    def init(self) -> None:
        """Begin the next epoch of the id; `with` calls this. An undecided transaction of the epoch
        before is aborted; if that one is committed and not complete, this waits for its completion.

        Raises InvalidRequest, ResourceExhausted, Unavailable.
        """
        self._background.run(self._inner.init())

    def close(self) -> None:
        """Abort the open transaction, and close. May be called again."""
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self.init()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TransactionCalls(Generic[S]):
    """The calls of `ledgermq.sync.Transaction` that only wait for the asynchronous ones."""

    _background: Background
    _inner: AsyncTransaction[S]

    @property
    def state(self) -> TransactionStatus:
        return self._inner.state

    @property
    def failure(self) -> LedgerMQError | None:
        return self._inner.failure

    @property
    def epoch(self) -> int:
        """Return the epoch of the transactional id; 0 before the transaction is open."""
        return self._inner.epoch

    @property
    def number(self) -> int:
        """Return the transaction's number in its epoch; 0 before it is open."""
        return self._inner.number

    @property
    def name(self) -> str:
        """Return `ID:EPOCH:NUMBER`. Any process can pass it to `client.transactions.outcome`, also after a
        crash. Once the name was read, the end of the transaction is recorded even if it is empty.

        Raises TransactionError before the transaction is open.
        """
        return self._background.run(as_coroutine(lambda: self._inner.name))

    def start(self) -> None:
        """Open the transaction; `with` calls this. It sends no request, unless the outcome of the
        transaction before is unknown: then it asks for that first.

        Raises TransactionFenced, TransactionError, Unavailable.
        """
        self._background.run(self._inner.start())

    def __enter__(self) -> Self:
        self.start()
        return self


class TwoPhaseCalls(Generic[S]):
    """The calls of `ledgermq.sync.TwoPhase` that only wait for the asynchronous ones."""

    _background: Background
    _inner: AsyncTwoPhase[S]

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def xid(self, format_id: int, gtrid: str, bqual: str = "") -> Xid:
        """Return the name of a global transaction.

        `format_id`: a number that marks the program. `gtrid`: the name of the global transaction.
        `bqual`: the name of its part here. Texts have at most 64 bytes in UTF-8. Every call that takes an
        xid also takes one of a database driver (psycopg.Xid). Raises InvalidRequest.
        """
        return self._inner.xid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: XidLike | str) -> None:
        """Begin a transaction. On return the cluster knows its xid: `outcome` rolls it back from now on.

        May be repeated after an error. Raises InvalidRequest if the xid was used, or another object has
        begun it; ResourceExhausted, Unavailable; TransactionError while another transaction of this
        object is open.
        """
        self._background.run(self._inner.tpc_begin(xid))

    def tpc_recover(self) -> list[Xid]:
        """Return the xids of all prepared transactions of the cluster.

        Other programs' transactions are among them: end only your own, which the format id marks. For a
        transactional id that was not made from an xid, `gtrid` is the id and `format_id` is None.
        Raises Unavailable if a coordinator does not answer.
        """
        return self._background.run(self._inner.tpc_recover())

    def __enter__(self) -> Self:
        return self
