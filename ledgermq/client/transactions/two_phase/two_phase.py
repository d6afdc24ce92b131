"""Two-phase commit beside databases, with the names of PEP 249's optional extension.

    idle ──tpc_begin──> begun ──tpc_prepare──> prepared ──tpc_commit, tpc_rollback──> idle
                          └──tpc_commit (one phase), tpc_rollback──> idle

Invariants: a prepared transaction is ended by its name only, so that any process can do it. After an
error the state is unchanged if the same call may be repeated; otherwise the transaction has ended.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.delivery import Delivery, Refused
from ledgermq.client.producing.routing.unrouted import typed
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.admin import TransactionAdmin
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.client.transactions.sending.lane import Lane
from ledgermq.client.transactions.sending.records import TransactionRecords
from ledgermq.client.transactions.two_phase.preparable import Branch
from ledgermq.client.transactions.two_phase.xid import Xid, XidLike, transactional_id_of, xid_from, xid_of
from ledgermq.errors import Closed, LedgerMQError, TransactionError, TransactionOutcomeUnknown
from ledgermq.protocol import ledgermq_pb2 as pb

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing


class TwoPhase(TransactionRecords[S], Generic[S]):
    """Two-phase transactions, one after the other; made by `client.transactions.two_phase`.

    An xid is used once. Use `async with`, or call `close()` at the end: this rolls back a transaction
    that is begun and not prepared. A prepared one stays prepared until a process ends it by its xid.
    """

    def __init__(self, context: ClientContext, timeout_ms: int, settings: ProducerSettings, given: bool) -> None:
        """`given`: whether the program has set `delivery_timeout_s`."""
        self._context = context
        self._timeout_ms = timeout_ms
        self._settings = settings
        self._given = given
        self._nonce = context.sources.new_id()
        """Of this object, not of one call: `tpc_begin` may be repeated after an error."""
        self._decisions: Decisions | None = None
        """The decisions of the xid that this object has begun or prepared."""
        self._lane: Lane | None = None
        self._branch: Branch[S] | None = None
        self.closed = False

    def xid(self, format_id: int, gtrid: str, bqual: str = "") -> Xid:
        """Return the name of a global transaction.

        `format_id`: a number that marks the program. `gtrid`: the name of the global transaction.
        `bqual`: the name of its part here. Texts have at most 64 bytes in UTF-8. Every call that takes an
        xid also takes one of a database driver (psycopg.Xid). Raises InvalidRequest.
        """
        return xid_of(format_id, gtrid, bqual)

    @property
    def settings(self) -> ProducerSettings:
        return self._settings

    @property
    def tracing(self) -> Tracing | None:
        return self._context.tracing

    # -- begin

    async def tpc_begin(self, xid: XidLike | str) -> None:
        """Begin a transaction. On return the cluster knows its xid: `outcome` rolls it back from now on.

        May be repeated after an error. Raises InvalidRequest if the xid was used, or another object has
        begun it; ResourceExhausted, Unavailable; TransactionError while another transaction of this
        object is open.
        """
        self._check()
        if self._decisions is not None:
            raise TransactionError(
                f"transaction {self._decisions.transactional_id!r} is open: commit it or roll it back first, or use a"
                " second object"
            )
        decisions = Decisions(self._context.connections, transactional_id_of(xid), self._nonce)
        self._decisions = decisions
        try:
            deadline = self._context.connections.deadline()
            identity = await decisions.init(self._timeout_ms, deadline, pb.TWO_PHASE)
            settings = self._settings
            if not self._given and identity.timeout_ms:
                settings = replace(settings, delivery_timeout_s=identity.timeout_ms / 1000)
            lane = Lane(self._context, settings, decisions, identity)
            branch: Branch[S] = Branch(lane)
            await branch.start()
        except BaseException:
            self._decisions = None
            raise
        self._lane, self._branch = lane, branch

    # -- send

    def _sending(self) -> Branch[S]:
        return self._begun()

    def refused(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record that could not be added and has no caller to raise to."""
        if self._branch is None:
            return Delivery(Refused(typed(error), TopicPartition(topic, -1)), 0)
        return self._branch.refused(error, topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and return when every record is stored; `tpc_prepare` does this too.

        Raises DeadlineExceeded after `timeout_s`, and the failure of the transaction.
        """
        await self._begun().flush(timeout_s)

    def check_open(self) -> None:
        """Raise if no record can be sent now."""
        self._begun().check_open()

    # -- prepare

    async def tpc_prepare(self, timeout_s: float | None = None) -> None:
        """End the first phase: flush, and prepare. On return only `tpc_commit` and `tpc_rollback` end the
        transaction, in any process; no time-out does.

        Raises TransactionAborted, TransactionFenced, or the error of a record: the transaction is rolled
        back, so roll the databases back too. Raises TransactionOutcomeUnknown if the coordinator has not
        answered within `timeout_s` (None: the client's) after the flush: call this again, or roll back.
        """
        branch = self._begun()
        try:
            await branch.prepare(timeout_s)
        finally:
            if branch.closed:
                await self._leave()

    # -- end

    async def tpc_commit(self, xid: XidLike | str | None = None, *, timeout_s: float | None = None) -> None:
        """Commit. Without an xid: the transaction of this object, in one phase if it is not prepared. With
        an xid: the transaction that any process has prepared under it. May be repeated.

        Raises:
        * TransactionAborted: it is rolled back; the text says if an operator did that.
        * TransactionUnknown: no transaction has this xid, or it was forgotten.
        * InvalidRequest: it is not prepared.
        * TransactionOutcomeUnknown: the coordinator has not answered within `timeout_s` (None: the
          client's). Call this again; after a commit in one phase, ask
          `client.transactions.outcome(xid)`.
        """
        self._check()
        if xid is not None:
            await self._named(xid).end_by_name(pb.COMMITTED, self._deadline(timeout_s))
            self._forget_ended(xid)
        elif self._branch is not None:
            await self._commit_in_one_phase(self._branch, timeout_s)
        else:
            decisions = self._prepared()
            try:
                await decisions.end_by_name(pb.COMMITTED, self._deadline(timeout_s))
            except TransactionOutcomeUnknown:
                raise
            except LedgerMQError:
                self._decisions = None
                raise
            self._decisions = None

    async def _commit_in_one_phase(self, branch: Branch, timeout_s: float | None) -> None:
        if branch.state == "preparing":
            raise TransactionError(
                f"transaction {branch.transactional_id!r} may or may not be prepared: call tpc_prepare again, or"
                " tpc_rollback"
            )
        try:
            await branch.commit(timeout_s)
        finally:
            if branch.closed:
                await self._leave()

    async def tpc_rollback(self, xid: XidLike | str | None = None, *, timeout_s: float | None = None) -> None:
        """Roll back. Without an xid: the transaction of this object. With an xid: the transaction that any
        process has begun or prepared under it. May be repeated.

        A transaction that this object has begun and not prepared never commits, even if the coordinator
        does not answer. Raises:
        * TransactionError: it is committed; the text says if an operator did that.
        * TransactionUnknown: no transaction has this xid, or it was forgotten.
        * Unavailable, TransactionOutcomeUnknown: the coordinator has not answered within `timeout_s`
          (None: the client's). Call this again.
        """
        self._check()
        if xid is not None:
            await self._roll_back(self._named(xid), timeout_s)
            self._forget_ended(xid)
        elif self._branch is None or self._branch.state == "preparing":
            await self._roll_back(self._prepared(), timeout_s)
            if self._branch is not None:
                self._branch.rolled_back()
            await self._leave()
        else:
            try:
                await self._branch.abort(timeout_s)
            finally:
                if self._branch.closed:
                    await self._leave()

    async def _roll_back(self, decisions: Decisions, timeout_s: float | None) -> None:
        deadline = self._deadline(timeout_s)
        state = (await decisions.outcome(0, 0, deadline)).state  # this aborts an undecided one
        if state == "prepared":
            state = await decisions.end_by_name(pb.ABORTED, deadline)
        if state in ("committed", "committed_by_operator"):
            raise TransactionError(
                f"transaction {decisions.transactional_id!r} cannot be rolled back: it is {state.replace('_', ' ')}"
            )

    # -- recover

    async def tpc_recover(self) -> list[Xid]:
        """Return the xids of all prepared transactions of the cluster.

        Other programs' transactions are among them: end only your own, which the format id marks. For a
        transactional id that was not made from an xid, `gtrid` is the id and `format_id` is None.
        Raises Unavailable if a coordinator does not answer.
        """
        self._check()
        found = await TransactionAdmin(self._context.connections).list()
        if found.unanswered:
            raise next(iter(found.unanswered.values()))
        return [
            xid_from(each.transactional_id)
            for each in found.transactions
            if each.kind == "two_phase" and each.state == "prepared"
        ]

    # -- the object

    async def close(self) -> None:
        """Roll back the transaction if it is begun and not prepared, and close. May be called again."""
        self._context.connections.home.check()
        if self.closed:
            return
        if self._branch is not None:
            with suppress(LedgerMQError):
                await self.tpc_rollback()
            await self._leave()
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _leave(self) -> None:
        """Release the producer; and the name of the transaction too, unless it is prepared."""
        lane, branch = self._lane, self._branch
        self._lane = self._branch = None
        if branch is None or branch.state != "prepared":
            self._decisions = None
        if lane is not None:
            await lane.producer.abort()

    def _check(self) -> None:
        if self.closed:
            raise Closed("the two-phase object is closed: make another one with client.transactions.two_phase")

    def _begun(self) -> Branch[S]:
        self._check()
        if self._branch is None:
            advice = "call tpc_begin first" if self._decisions is None else "it is prepared, so end it first"
            raise TransactionError(f"the transaction of this object takes no records now: {advice}")
        return self._branch

    def _prepared(self) -> Decisions:
        if self._decisions is None:
            raise TransactionError("this object has no transaction to end: name the xid of the transaction to end")
        return self._decisions

    def _named(self, xid: XidLike | str) -> Decisions:
        transactional_id = transactional_id_of(xid)
        if self._branch is not None and transactional_id == self._branch.transactional_id:
            raise TransactionError(f"transaction {transactional_id!r} is begun here: end it without its xid")
        return Decisions(self._context.connections, transactional_id)

    def _forget_ended(self, xid: XidLike | str) -> None:
        if self._decisions is not None and self._decisions.transactional_id == transactional_id_of(xid):
            self._decisions = None

    def _deadline(self, timeout_s: float | None) -> float:
        return self._context.connections.deadline(timeout_s)
