"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Unpack

from ledgermq.client.setting_types import ProducerOptions
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.admin import TransactionAdmin as AsyncTransactionAdmin
from ledgermq.client.transactions.admin import TransactionDescription, TransactionList
from ledgermq.client.transactions.decisions import TransactionOutcome
from ledgermq.client.transactions.once import SentOnce, TopicRecord
from ledgermq.client.transactions.sending.group_offsets import GroupOffset
from ledgermq.client.transactions.transactions import TransactionClient as AsyncTransactionClient
from ledgermq.client.transactions.two_phase.xid import XidLike
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.transactions.transactions import Transactions, TwoPhase


class TransactionAdmin:
    """The methods of `client.transactions` for operators. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncTransactionAdmin) -> None:
        self._background = background
        self._inner = inner

    def list(self, *, open_only: bool = True) -> TransactionList:
        """Return the transactions of the cluster, and what is staged in its bundles.

        `open_only`: only transactions that are prepared, decided and not complete, or undecided for some
        seconds; otherwise all transactional ids. `unanswered` names partitions that do not answer.
        Raises Unavailable if none does.
        """
        return self._background.run(self._inner.list(open_only=open_only))

    def describe(self, transactional_id: str, *, staged: bool = True) -> TransactionDescription:
        """Return the newest transaction of an id, and everything that the id has staged.

        `staged`: ask all bundles, too; if one does not answer, the call takes half of the client's
        `timeout_s`. Raises InvalidRequest, TransactionUnknown, Unavailable.
        """
        return self._background.run(self._inner.describe(transactional_id, staged=staged))

    def resolve(self, transactional_id: str, *, commit: bool) -> TransactionDescription:
        """Decide in the place of a transaction manager or a producer that will not come back.

        This is a heuristic decision: another participant, for example a database, may have decided
        otherwise. A prepared transaction can be committed or aborted, an undecided one only aborted.
        Raises InvalidRequest, TransactionUnknown, Unavailable.
        """
        return self._background.run(self._inner.resolve(transactional_id, commit=commit))

    def forget(self, transactional_id: str) -> None:
        """Forget the outcome of a two-phase transaction that is complete, or an operator's decision
        about an ordinary one.

        Raises InvalidRequest if the transaction is not decided or there is nothing to forget;
        TransactionUnknown; Unavailable if the transaction is not complete yet.
        """
        self._background.run(self._inner.forget(transactional_id))

    def give_up(self, transactional_id: str, bundle: int) -> TransactionDescription:
        """Declare the part of a transaction in one bundle lost. It then counts as complete there.

        Data that the bundle has not made visible yet is dropped for good. Raises InvalidRequest if the
        transaction is not incomplete in this bundle; TransactionUnknown; Unavailable.
        """
        return self._background.run(self._inner.give_up(transactional_id, bundle))


class TransactionClient(TransactionAdmin):
    """See `ledgermq.TransactionClient`."""

    _inner: AsyncTransactionClient

    def __init__(self, background: Background, inner: AsyncTransactionClient, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources

    def __call__(
        self,
        transactional_id: str,
        *,
        timeout: str | float | timedelta | None = None,
        **settings: Unpack[ProducerOptions[S]],
    ) -> Transactions[S]:
        """Return the transactions of a transactional id: letters, digits, '.', '_' and '-'.

        The id names one producer, which keeps it over restarts. Two processes that use one id at the
        same time fence each other.

            with client.transactions("billing-7", timeout="1m") as transactions:
                with transactions.begin() as transaction:      # commits at the end
                    transaction.send("invoices", value, key=key)
                    transaction.send_offsets(consumer, messages)

        `timeout`: a duration ("30s", "1m", seconds, a timedelta) after which the cluster aborts a
        transaction that is still open; None: the cluster's default. Settings: the fields of
        `ProducerSettings`, without `acks` and `idempotent`; the default of `delivery_timeout_s` is the
        transaction's time-out. Raises InvalidConfig, InvalidRequest.
        """
        made = self._background.run(as_coroutine(lambda: self._inner(transactional_id, timeout=timeout, **settings)))
        return Transactions(self._background, made, self._sources)

    def two_phase(
        self, *, timeout: str | float | timedelta | None = None, **settings: Unpack[ProducerOptions[S]]
    ) -> TwoPhase[S]:
        """Return an object for two-phase transactions, with the methods of PEP 249's extension.

            with client.transactions.two_phase() as branch:
                xid = branch.xid(1, "transfer-17")
                branch.tpc_begin(xid)
                branch.send("transfers", value, key=key)
                branch.tpc_prepare()
                branch.tpc_commit()

        `timeout`: duration after which the cluster rolls back a transaction that is begun and not
        prepared. Settings: as those of `client.transactions(…)`. Raises InvalidConfig.
        """
        made = self._background.run(as_coroutine(lambda: self._inner.two_phase(timeout=timeout, **settings)))
        return TwoPhase(self._background, made, self._sources)

    def send_once(
        self,
        transactional_id: str,
        records: Iterable[TopicRecord],
        *,
        offsets: Sequence[GroupOffset] = (),
        open_max: str | float | timedelta | None = None,
        kept: str | float | timedelta = "1h",
        **settings: Unpack[ProducerOptions[S]],
    ) -> SentOnce:
        """Send records of any topics, all or none, in one transaction. A call that is repeated with the same
        id, by any process, commits nothing twice: it returns that the transaction was committed before.

            sent = client.transactions.send_once("shop.order-17", [("orders", order), ("mails", mail)])

        A call with other contents raises TransactionIdReused once the id has committed. Contents are what the program
        gives, as its serializer writes it: one that writes equal values differently makes a repetition look new. Two
        calls at a time: one of them raises TransactionFenced, and may be repeated.

        `offsets`: of groups without members, which are committed with the records; at most 1,000. `open_max`: its
        time-out, as in `client.transactions(…)`. `kept`: a duration for which the cluster knows the id after its last
        use, at least the time-out; afterwards a call is a new one. `settings`: those of `ProducerSettings`, without
        `acks` and `idempotent`.

        Raises what `Transaction.commit` raises. After TransactionAborted, TransactionFenced and
        TransactionOutcomeUnknown repeat the call with the same id. Raises InvalidRequest, InvalidConfig, InvalidRecord,
        UnknownTopic, Unavailable, and of offsets StaleAssignment (another one is committed than is expected),
        CommitGoesBack, GroupNotEmpty, OffsetOutOfRange: nothing of it happens.
        """
        return self._background.run(
            self._inner.send_once(transactional_id, records, offsets=offsets, open_max=open_max, kept=kept, **settings)
        )

    def outcome(self, transaction: XidLike | str, *, epoch: int = 0, number: int = 0) -> TransactionOutcome:
        """Return the outcome of a transaction. `transaction`: its `Transaction.name`, or the xid of a
        two-phase one, or a transactional id together with `epoch` and `number`.

        The answer is final: this call aborts an undecided transaction. Only a "prepared" one may still
        be committed or rolled back. The outcome of the newest decided transaction of an id is known, and
        that of the newest one of an earlier epoch. Raises TransactionUnknown for any other transaction;
        Unavailable.
        """
        return self._background.run(self._inner.outcome(transaction, epoch=epoch, number=number))

    def forget(self, transactional_id: XidLike | str) -> None:
        """Forget the outcome of a two-phase transaction, or an operator's decision about an ordinary one.

        Call it when the transaction is complete and no other participant will ask for its outcome. The
        outcome of a committed two-phase transaction is kept until then. Raises InvalidRequest if the
        transaction is not decided or there is nothing to forget; TransactionUnknown; Unavailable if the
        transaction is not complete yet.
        """
        self._background.run(self._inner.forget(transactional_id))
