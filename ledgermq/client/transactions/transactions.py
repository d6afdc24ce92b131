"""The transactions of one transactional id (`Transactions`), and the object from which programs get them
(`client.transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, Unpack

from ledgermq.client.context import ClientContext
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.setting_types import ProducerOptions
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.client.settings.values import settings_from
from ledgermq.client.transactions.admin import TransactionAdmin
from ledgermq.client.transactions.decisions import Decisions, TransactionOutcome
from ledgermq.client.transactions.once import SentOnce, TopicRecord, send_once
from ledgermq.client.transactions.sending.group_offsets import GroupOffset
from ledgermq.client.transactions.sending.lane import Lane
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.two_phase.branch import SharedTransactions
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase
from ledgermq.client.transactions.two_phase.xid import XidLike, named, transactional_id_of
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import Closed, InvalidConfig, TransactionError

TIMEOUT_MS_MAX = 2**32 - 1


class Transactions(Generic[S]):
    """The transactions of one transactional id, one after the other; made by `client.transactions`.

    Use `async with`: it begins an epoch, which fences every process that has used the id before.
    """

    def __init__(
        self, context: ClientContext, decisions: Decisions, timeout_ms: int, settings: ProducerSettings, given: bool
    ) -> None:
        """`given`: whether the program has set `delivery_timeout_s`."""
        self._context = context
        self._decisions = decisions
        self._timeout_ms = timeout_ms
        self._settings = settings
        self._given = given
        self._lane: Lane | None = None
        self.closed = False

    @property
    def transactional_id(self) -> str:
        return self._decisions.transactional_id

    @property
    def epoch(self) -> int:
        """Return the epoch; 0 before `init`."""
        return 0 if self._lane is None else self._lane.identity.epoch

    @property
    def timeout_s(self) -> float:
        """Return the time after which the cluster aborts a transaction that is still open; 0 before
        `init`.
        """
        return 0.0 if self._lane is None else self._lane.identity.timeout_ms / 1000

    async def init(self) -> None:
        """Begin the next epoch of the id; `async with` calls this. An undecided transaction of the epoch
        before is aborted; if that one is committed and not complete, this waits for its completion.

        Raises InvalidRequest, ResourceExhausted, Unavailable.
        """
        if self.closed:
            raise Closed("the transactions object is closed: make another one with client.transactions")
        if self._lane is not None:
            raise TransactionError("this object has an epoch already: make another one to begin the next")
        identity = await self._decisions.init(self._timeout_ms, self._context.connections.deadline())
        settings = self._settings
        if not self._given and identity.timeout_ms:
            settings = replace(settings, delivery_timeout_s=identity.timeout_ms / 1000)
        self._lane = Lane(self._context, settings, self._decisions, identity)

    def begin(self, *, reading: GroupConsumer | None = None) -> Transaction[S]:
        """Return the next transaction; use it in `async with`. Sends no request.

        `reading`: the consumer whose messages the transaction processes. After an abort, the consumer
        delivers every message again that it has returned and that is not finished. Without `reading`,
        only partitions whose offsets were passed to `send_offsets` are read again.

        Raises TransactionFenced; TransactionError while another transaction of this object is open.
        """
        if self.closed:
            raise Closed("the transactions object is closed: make another one with client.transactions")
        if self._lane is None:
            raise TransactionError("begin an epoch first: use the transactions object in `async with`")
        self._lane.check()
        return Transaction(self._lane, reading)

    async def close(self) -> None:
        """Abort the open transaction, and close. May be called again."""
        self._context.connections.home.check()
        if self.closed:
            return
        self.closed = True
        if self._lane is not None:
            await self._lane.close()

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class TransactionClient(TransactionAdmin):
    """`client.transactions`: call it to get the transactions of an id. It also returns outcomes, and
    operators list, describe and resolve transactions with it.
    """

    def __init__(self, context: ClientContext, made: Callable[[Transactions | TwoPhase], None]) -> None:
        """`made` is called with each new object, so that the client closes it at the end."""
        super().__init__(context.connections)
        self._context = context
        self._made = made
        self.shared = SharedTransactions(context)
        """Transactions that several processes write."""

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

            async with client.transactions("billing-7", timeout="1m") as transactions:
                async with transactions.begin() as transaction:      # commits at the end
                    transaction.send("invoices", value, key=key)
                    await transaction.send_offsets(consumer, messages)

        `timeout`: a duration ("30s", "1m", seconds, a timedelta) after which the cluster aborts a
        transaction that is still open; None: the cluster's default. Settings: the fields of
        `ProducerSettings`, without `acks` and `idempotent`; the default of `delivery_timeout_s` is the
        transaction's time-out. Raises InvalidConfig, InvalidRequest.
        """
        decisions = Decisions(self._context.connections, transactional_id)
        transactions: Transactions[S] = Transactions(self._context, decisions, *_parsed(timeout, settings))
        self._made(transactions)
        return transactions

    def two_phase(
        self,
        *,
        timeout: str | float | timedelta | None = None,
        **settings: Unpack[ProducerOptions[S]],
    ) -> TwoPhase[S]:
        """Return an object for two-phase transactions, with the methods of PEP 249's extension.

            async with client.transactions.two_phase() as branch:
                xid = branch.xid(1, "transfer-17")
                await branch.tpc_begin(xid)
                branch.send("transfers", value, key=key)
                await branch.tpc_prepare()
                await branch.tpc_commit()

        `timeout`: duration after which the cluster rolls back a transaction that is begun and not
        prepared. Settings: as those of `client.transactions(…)`. Raises InvalidConfig.
        """
        two_phase: TwoPhase[S] = TwoPhase(self._context, *_parsed(timeout, settings))
        self._made(two_phase)
        return two_phase

    async def send_once(
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

            sent = await client.transactions.send_once("shop.order-17", [("orders", order), ("mails", mail)])

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
        timeout_ms, parsed, given = _parsed(open_max, settings)
        kept_ms = _timeout_ms(kept, "kept")
        if not given and timeout_ms:
            parsed = replace(parsed, delivery_timeout_s=timeout_ms / 1000)
        decisions = Decisions(self._context.connections, transactional_id)
        return await send_once(self._context, decisions, records, timeout_ms, parsed, kept_ms, offsets)

    async def outcome(self, transaction: XidLike | str, *, epoch: int = 0, number: int = 0) -> TransactionOutcome:
        """Return the outcome of a transaction. `transaction`: its `Transaction.name`, or the xid of a
        two-phase one, or a transactional id together with `epoch` and `number`.

        The answer is final: this call aborts an undecided transaction. Only a "prepared" one may still
        be committed or rolled back. The outcome of the newest decided transaction of an id is known, and
        that of the newest one of an earlier epoch. Raises TransactionUnknown for any other transaction;
        Unavailable.
        """
        transactional_id, epoch, number = named(transaction, epoch, number)
        decisions = Decisions(self._context.connections, transactional_id)
        return await decisions.outcome(epoch, number, self._context.connections.deadline())

    async def forget(self, transactional_id: XidLike | str) -> None:
        """Forget the outcome of a two-phase transaction, or an operator's decision about an ordinary one.

        Call it when the transaction is complete and no other participant will ask for its outcome. The
        outcome of a committed two-phase transaction is kept until then. Raises InvalidRequest if the
        transaction is not decided or there is nothing to forget; TransactionUnknown; Unavailable if the
        transaction is not complete yet.
        """
        await super().forget(transactional_id_of(transactional_id))


def _parsed(timeout: object, settings: Mapping[str, Any]) -> tuple[int, ProducerSettings, bool]:
    """Return the time-out in ms, the settings, and whether the program has set `delivery_timeout_s`."""
    for name in ("acks", "idempotent"):
        if name in settings:
            raise InvalidConfig(f"a transaction stores every record durably, once: leave out {name}")
    timeout_ms = 0 if timeout is None else _timeout_ms(timeout)
    return (
        timeout_ms,
        settings_from(ProducerSettings, settings).strict_for("a transaction"),
        "delivery_timeout_s" in settings,
    )


def _timeout_ms(timeout: object, name: str = "timeout") -> int:
    if isinstance(timeout, str):
        found = parse_duration_ms(timeout, name, 1)
    elif isinstance(timeout, timedelta):
        found = timeout // timedelta(milliseconds=1)
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        found = round(timeout * 1000) if 0 < timeout < TIMEOUT_MS_MAX else 0
    else:
        raise InvalidConfig(f"{name} must be a duration like '1m', seconds or a timedelta, not {timeout!r}")
    if not 1 <= found <= TIMEOUT_MS_MAX:
        raise InvalidConfig(f"{name} must be at least 1 ms and at most {TIMEOUT_MS_MAX} ms, not {timeout!r}")
    return found
