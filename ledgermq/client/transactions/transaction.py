"""One transaction: send records and stage offsets, then commit or abort.

    new ──start──> open ──commit──> committing ──> committed │ aborted │ unknown ──> committed │ aborted
                    └──abort, failure──> aborting ──> aborted

Invariants: a transaction does not commit if anything in it failed. A batch is never numbered again.
The state is unknown only after a commit without an answer; the next transaction of the same id
begins when the outcome is known.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.membership.staged_offsets import Staged, StagedOffsets, WhatToStage
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.sending.lane import Lane
from ledgermq.client.transactions.sending.records import TransactionRecords, shown
from ledgermq.errors import (
    InvalidConfig,
    LedgerMQError,
    StaleAssignment,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
    Unavailable,
)
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb

TransactionStatus = Literal[
    "new", "open", "committing", "committed", "aborting", "aborted", "unknown", "preparing", "prepared"
]
"""`preparing` and `prepared`: only of a two-phase transaction (`branch.py`)."""

T = TypeVar("T")


class Transaction(TransactionRecords[S], Generic[S]):
    """A transaction, made by `Transactions.begin`. Use `async with`: it commits at the end, and
    aborts on an exception.

    Nothing in it is visible before it is committed. After a failure of a record or an offset, it can
    only be aborted: later calls, and `commit`, raise. TransactionAborted means that the transaction may
    succeed if the program runs it again; another error (MessageTooLarge, UnknownTopic,
    TransactionTooLarge, …) means that it would fail again.
    """

    def __init__(self, lane: Lane, reading: GroupConsumer | None = None) -> None:
        self._lane = lane
        self._producer = lane.producer
        self._reading = None if reading is None else check_consumer(reading)
        self._staged: dict[StagedOffsets, Staged] = {}
        self._one_at_a_time = asyncio.Lock()
        self._reference = pb.TransactionRef()
        self._asked = False
        """Whether a commit or a preparation was sent to the coordinator."""
        self._condemned: asyncio.Task[None] | None = None
        self._adders = 0
        """Number of calls that add records now, and may be waiting."""
        self._added = asyncio.Event()
        self._ended_by_program = False
        """Whether the program has called `commit` or `abort`, which return or raise the outcome."""
        self.state: TransactionStatus = "new"
        self.failure: LedgerMQError | None = None
        """The first failure, after which it can only abort."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the transactional id; 0 before the transaction is open."""
        return self._reference.epoch

    @property
    def number(self) -> int:
        """Return the transaction's number in its epoch; 0 before it is open."""
        return self._reference.number

    @property
    def name(self) -> str:
        """Return `ID:EPOCH:NUMBER`. Any process can pass it to `client.transactions.outcome`, also after a
        crash. Once the name was read, the end of the transaction is recorded even if it is empty.

        Raises TransactionError before the transaction is open.
        """
        if self.state == "new":
            raise TransactionError("a transaction has a name when it is open: use it in `async with`")
        if self.state == "open":
            self._lane.staging.used = True
        return f"{self._lane.decisions.transactional_id}:{self.epoch}:{self.number}"

    @property
    def settings(self) -> ProducerSettings:
        return self._producer.settings

    @property
    def closed(self) -> bool:
        """Return whether the transaction has ended."""
        return self.state in ("committed", "aborted", "unknown", "prepared")

    # -- begin

    async def start(self) -> None:
        """Open the transaction; `async with` calls this. It sends no request, unless the outcome of the
        transaction before is unknown: then it asks for that first.

        Raises TransactionFenced, TransactionError, Unavailable.
        """
        if self.state != "new":
            raise TransactionError(f"this transaction is {self.state}: begin another one")
        self._reference = await self._lane.enter(self)
        self.state = "open"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def check_open(self) -> None:
        """Raise the transaction's failure, or TransactionError, if it accepts no further records."""
        if self.failure is not None:
            raise shown(self.failure) from self.failure
        if self.state != "open":
            advice = "use it in `async with`" if self.state == "new" else "begin another one"
            raise TransactionError(f"the transaction is {self.state}, not open: {advice}")

    def _sending(self) -> Producer[S]:
        self.check_open()
        return self._producer

    def _adding(self, call: Queuing[T]) -> Queuing[T]:
        """Count a call that adds records and waits. A commit waits until the call has ended."""
        if call.task is not None:
            self._adders += 1
            call.task.add_done_callback(self._note_added)
        return call

    def _note_added(self, task: asyncio.Task[Any]) -> None:
        self._adders -= 1
        self._added.set()

    def refused(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record that could not be added and has no caller to raise to."""
        return self._producer.refused(error, topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and return when every record is stored. `commit` does this too.

        Raises DeadlineExceeded after `timeout_s`, and the failure of the transaction.
        """
        self.check_open()
        await self._producer.flush(timeout_s)
        self.check_open()

    async def send_offsets(
        self,
        consumer: GroupConsumer,
        messages: WhatToStage,
        metadata: str = "",
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit offsets of a group's consumer with the transaction.

        `messages`: messages that the program has processed, or a mapping from partitions to the next
        offset to read. All earlier messages of a partition count as processed, too. After a commit they
        are finished; after an abort they are delivered again.

        The consumer needs commit="manual". Until the transaction has ended, no other offset is committed
        in these partitions, and the consumer does not let them go. If the group wants one back, the
        transaction has `revoke_wait_s` to end; then it is aborted.

        Raises InvalidConfig, InvalidRequest; TransactionAborted if a partition is no longer held, or
        after `timeout_s` (None: the client's).
        """
        self.check_open()
        offsets = check_consumer(consumer).member.transactions
        if offsets is None or consumer.settings.commit != "manual":
            raise InvalidConfig(
                'a consumer whose offsets are committed in transactions needs commit="manual", and neither'
                " offset_store nor broadcast"
            )
        deadline = self._lane.connections.deadline(timeout_s)
        async with self._one_at_a_time:
            self.check_open()
            staged = self._staged.setdefault(offsets, Staged())
            try:
                wishes = offsets.claim(self, staged, messages, metadata)
            except StaleAssignment as error:
                raise self.note_failure(error) from error
            if not wishes:
                return
            self._lane.staging.used = True
            try:
                await offsets.stage(self._reference, staged, wishes, deadline)
            except LedgerMQError as error:
                raise self.note_failure(error) from error
            except BaseException:
                self.note_failure(Unavailable("send_offsets was cancelled"))
                raise

    async def stage_entries(self, offsets: StagedOffsets, entries: list[OffsetEntry]) -> None:
        """Stage offsets of a member that commits by transactions alone, and so keeps its own account of the
        outcome. Raises as `send_offsets`.
        """
        self.check_open()
        async with self._one_at_a_time:
            self.check_open()
            staged = self._staged.setdefault(offsets, Staged())
            self._lane.staging.used = True
            try:
                deadline = self._lane.connections.deadline(None)
                staged.bundles.add(await offsets.stage_entries(self._reference, entries, deadline))
            except LedgerMQError as error:
                raise self.note_failure(error) from error
            except BaseException:
                self.note_failure(Unavailable("the offsets were not staged in time"))
                raise

    # -- failure

    def note_failure(self, error: LedgerMQError) -> LedgerMQError:
        """Note a failure, after which the transaction can only abort. Return the error to raise."""
        self._lane.note_broken(error)
        if self.failure is None and self.state in ("open", "committing") and not self._asked:
            self.failure = error
            asyncio.get_running_loop().call_soon(self._give_up)  # later, because the producer may be at work now
        return shown(error)

    def _give_up(self) -> None:
        if self.failure is not None and self.state in ("open", "committing"):
            self._producer.start_over(shown(self.failure))

    def condemn(self, error: LedgerMQError) -> None:
        """Abort the transaction in the background, unless its commit was sent already."""
        if self.state not in ("open", "committing") or self._asked:
            return
        self.note_failure(error)
        if self.state == "open" and self._condemned is None:
            self._condemned = asyncio.get_running_loop().create_task(self._abort_condemned(), name="ledgermq abort")

    async def _abort_condemned(self) -> None:
        async with self._one_at_a_time:
            if self.state == "open":
                await self._abort(None)

    # -- end

    async def commit(self, timeout_s: float | None = None) -> None:
        """Flush, and commit. On return the transaction is committed for good; readers see it shortly after.

        Raises:
        * TransactionAborted: nothing of the transaction happens; run it again.
        * TransactionFenced: another process uses the transactional id; stop this one.
        * TransactionOutcomeUnknown: the coordinator has not answered within `timeout_s` (None: the
          client's) after the flush. Ask `client.transactions.outcome`. The next transaction begins only
          when the outcome is known.
        * the error of a record or an offset that failed; the transaction is aborted.
        """
        self._ended_by_program = True
        async with self._one_at_a_time:
            await self._settle(timeout_s)
            if not self._lane.staging.used:
                self._end("committed")
                return
            await self._commit(timeout_s)

    async def _settle(self, timeout_s: float | None) -> None:
        """Flush before the end. If the transaction has failed, abort it and raise the failure."""
        if self.state != "open":
            self.check_open()
        while self._adders and self.failure is None:  # another task is in `send_many`
            self._added.clear()
            await self._added.wait()
        self.state = "committing"
        if self.failure is None:
            try:
                await self._producer.settle()
            except BaseException:
                self.state = "open"
                raise
            try:
                self._producer.raise_unseen_calls()
            except Exception:
                await self._abort(timeout_s)
                raise
        if self.failure is not None:
            await self._abort(timeout_s)
            raise shown(self.failure) from self.failure

    async def _commit(self, timeout_s: float | None) -> None:
        self._asked = True
        deadline = self._lane.connections.deadline(timeout_s)
        try:
            await self._lane.decisions.end(self._reference, pb.COMMITTED, self._parts(), deadline)
        except (TransactionAborted, TransactionFenced, TransactionUnknown) as error:
            self._lane.note_broken(error)
            self._end("aborted")
            raise
        except TransactionOutcomeUnknown as error:
            if isinstance(error.__cause__, LedgerMQError):
                self._lane.note_broken(error.__cause__)
            self._end("unknown")
            raise
        except LedgerMQError:  # the coordinator refused, so it is not decided
            await self._abort(timeout_s)
            raise
        except BaseException:
            self._end("unknown")
            raise
        self._end("committed")

    async def abort(self, timeout_s: float | None = None) -> None:
        """Abort the transaction: nothing of it happens, even if no broker answers within `timeout_s`
        (None: the client's). May be called again.

        Raises TransactionError if it is committed, or may be.
        """
        self._ended_by_program = True
        async with self._one_at_a_time:
            if self.state == "new":
                self.state = "aborted"
            if self.state in ("committed", "unknown"):
                raise TransactionError(f"the transaction cannot be aborted: it is {self.state}")
            if self.state != "aborted":
                await self._abort(timeout_s)

    async def _abort(self, timeout_s: float | None) -> None:
        self.state = "aborting"
        self._producer.start_over(TransactionAborted("the transaction was aborted"))
        settled = not self._lane.staging.used
        try:
            if not settled:
                deadline = self._lane.connections.deadline(timeout_s)
                await self._lane.decisions.end(self._reference, pb.ABORTED, self._parts(), deadline)
                settled = True
        except LedgerMQError as error:  # then the coordinator aborts it at its time-out
            self._lane.note_broken(error)
            settled = isinstance(error, TransactionAborted)
        finally:
            self._end("aborted", settled=settled)

    def _parts(self) -> list[pb.TransactionPart]:
        groups = [(bundle, offsets.group) for offsets, staged in self._staged.items() for bundle in staged.bundles]
        return self._lane.staging.parts(sorted(set(groups)))

    def _end(self, state: TransactionStatus, *, settled: bool = True) -> None:
        """Leave the lane. After an abort that the coordinator has not confirmed, the next transaction asks first."""
        self.state = state
        self._lane.leave(self, settled=settled and state != "unknown")
        if state != "unknown":
            self._end_offsets(committed=state == "committed")

    def resolved(self, *, committed: bool) -> None:
        """Note the outcome, which was unknown or not confirmed before."""
        if self.state == "unknown":
            self.state = "committed" if committed else "aborted"
            self._end_offsets(committed=committed)

    def release(self) -> None:
        """Release the consumers although the outcome is unknown, because the client is being closed."""
        for offsets, staged in self._staged.items():
            offsets.release(staged)
        self._staged.clear()

    def _end_offsets(self, *, committed: bool) -> None:
        for offsets, staged in self._staged.items():
            offsets.end(staged, committed=committed)
        self._staged.clear()
        if not committed and self._reading is not None and not self._reading.closed:
            self._reading.member.rewind()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort on an exception, unless the program has ended the transaction already."""
        if kind is not None:
            if not self.closed:
                await self.abort()
        elif not (self.closed and self._ended_by_program):
            try:
                await self.commit()
            except BaseException:
                if not self.closed:  # cancelled before all records were staged
                    await self.abort()
                raise


def check_consumer(given: object) -> GroupConsumer:
    """Raises InvalidConfig."""
    if not isinstance(given, GroupConsumer):
        raise InvalidConfig(f"a transaction takes offsets of a consumer with a group, not {type(given).__name__}")
    return given
