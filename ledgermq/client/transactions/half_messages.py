"""Half messages: stored durably before the program's local transaction, and visible if that commits.

    send ──init, stage──> pending ──commit──> committed
                             ├──rollback──> rolled_back
                             └──neither──> the cluster asks any program of the check group (`checks.py`)

Each half message is the one transaction of a separate transactional id. Invariant: a message whose
local transaction has committed is not lost: a commit without an answer may be repeated, and the
cluster checks every message that was not ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Generic, Literal, Self

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.record import Bytes, Headers, Row, row_bytes
from ledgermq.client.producing.buffering.preparing import prepared
from ledgermq.client.producing.producer import Producer
from ledgermq.client.producing.traced import carrying, make_producer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.client.transactions.checks import Check, Checks, Resolution, check_resolution
from ledgermq.client.transactions.decisions import Decisions, OutcomeState
from ledgermq.client.transactions.sending.staging import Staging
from ledgermq.errors import (
    Closed,
    DeadlineExceeded,
    InvalidConfig,
    LedgerMQError,
    MessageTooLarge,
    TransactionAborted,
    TransactionError,
    TransactionOutcomeUnknown,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import RECORD_BYTES_MAX
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name
from ledgermq.protocol.naming.unresolved import SUFFIX
from ledgermq.runtime.tasks import end

GROUP_CHARS_MAX = NAME_CHARS_MAX - len(SUFFIX)
BYTES_MAX = RECORD_BYTES_MAX - 4096
"""Size of a half message: the copy of an unresolved one has more headers, and has to fit a batch too."""
CONCURRENCY_MAX = 1000
ID_CHARS = 32

HalfMessageState = Literal["pending", "committed", "rolled_back", "unknown"]


class HalfMessage:
    """A message that is stored and invisible, returned by `HalfMessages.send`. End it with `commit`
    or `rollback`, when the local transaction has ended.
    """

    def __init__(
        self,
        connections: Connections,
        decisions: Decisions,
        reference: pb.TransactionRef,
        parts: list[pb.TransactionPart],
        topic: str,
        key: bytes | None,
    ) -> None:
        self.topic = topic
        self.key = key
        self.state: HalfMessageState = "pending"
        self._connections = connections
        self._decisions = decisions
        self._reference = reference
        self._parts = parts

    @property
    def transactional_id(self) -> str:
        """Return the message's transactional id, which checks and operators see."""
        return self._decisions.transactional_id

    async def commit(self, timeout_s: float | None = None) -> None:
        """Make the message visible, for good. May be repeated.

        Raises TransactionAborted if the message was rolled back, or is unresolved after its last check:
        it never becomes visible. Raises TransactionOutcomeUnknown without an answer within `timeout_s`
        (None: the client's): repeat the call, or leave the message to the checks.
        """
        try:
            await self._end(pb.COMMITTED, timeout_s)
        except TransactionAborted:
            self.state = "rolled_back"
            raise
        self.state = "committed"

    async def rollback(self, timeout_s: float | None = None) -> None:
        """Drop the message, for good. May be repeated.

        Raises TransactionError if the message is committed; TransactionOutcomeUnknown as `commit`.
        """
        state = await self._end(pb.ABORTED, timeout_s)
        if state in ("committed", "committed_by_operator"):
            self.state = "committed"
            raise TransactionError(f"half message {self.transactional_id!r} cannot be rolled back: it is committed")
        self.state = "rolled_back"

    async def resolve(self, resolution: Resolution, timeout_s: float | None = None) -> None:
        """Commit or roll back; with "unknown", leave the message to the checks."""
        if check_resolution(resolution) == "commit":
            await self.commit(timeout_s)
        elif resolution == "rollback":
            await self.rollback(timeout_s)

    async def _end(self, outcome: pb.TransactionState, timeout_s: float | None) -> OutcomeState:
        deadline = self._connections.deadline(timeout_s)
        try:
            return await self._decisions.end(self._reference, outcome, self._parts, deadline)
        except TransactionOutcomeUnknown as error:
            self.state = "unknown"
            cause = error.__cause__ if isinstance(error.__cause__, LedgerMQError) else error
            raise TransactionOutcomeUnknown(
                f"half message {self.transactional_id!r} may or may not be ended, because the coordinator did not"
                f" answer: repeat the call, or leave it to the checks of its group ({cause.message})"
            ) from error


@dataclass(frozen=True, slots=True)
class _Line:
    """A producer and its staging, for one half message at a time."""

    staging: Staging
    producer: Producer


class HalfMessages(Generic[S]):
    """Half messages of one check group, made by `client.half_messages`. Use `async with`: checks are
    answered while it is open.
    """

    def __init__(
        self, context: ClientContext, group: str, check: Check, concurrency: int, settings: ProducerSettings
    ) -> None:
        self.group: str = _check_group(group)
        _check_concurrency(concurrency)
        if not callable(check):
            raise InvalidConfig("check must be a function of one message, which returns commit, rollback or unknown")
        self.closed = False
        self._context = context
        self._settings = settings
        self._checks = Checks(context.connections, group, check, concurrency)
        self._room = asyncio.Semaphore(concurrency)
        self._free: list[_Line] = []
        self._aborts: set[asyncio.Task[None]] = set()
        self._started = False

    async def start(self) -> None:
        """Begin to answer checks; `async with` calls this."""
        self._check_usable()
        if not self._started:
            self._started = True
            self._checks.start()

    async def send(
        self,
        topic: str,
        value: S | None,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        ttl: float | timedelta | None = None,
        *,
        transactional_id: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """Store a message that stays invisible until it is committed. On return it is durable. Begin the
        local transaction only then.

        `transactional_id`: a name that no other transaction has; checks carry it. None: a random one.
        Raises as `Producer.send`; InvalidRequest if the id was used; TransactionAborted if another
        call has begun a message under the id; Unavailable, and DeadlineExceeded after `timeout_s` (None: the
        client's). After an error the message does not become visible, unless `check` returns "commit"
        for it.
        """
        self._check_usable()
        now_us = self._context.sources.now_us()
        headers = carrying(self._context, headers)
        topic, row, partition = prepared(
            self._settings, topic, value, key, headers, tag, timestamp, partition, ttl, now_us
        )
        if row_bytes(row) > BYTES_MAX:
            raise MessageTooLarge(f"a half message of {row_bytes(row)} bytes; at most {BYTES_MAX} are allowed")
        name = (
            transactional_id or f"{self.group[: NAME_CHARS_MAX - ID_CHARS - 1]}.{self._context.sources.new_id().hex()}"
        )
        decisions = Decisions(self._context.connections, name, self._context.sources.new_id())
        deadline = self._context.connections.deadline(timeout_s)
        try:
            async with asyncio.timeout_at(deadline), self._room:
                self._check_usable()
                return await self._send(topic, row, partition, decisions, deadline, ours=transactional_id is None)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"half message {name!r} may or may not be stored, because no broker answered in time; send it "
                "again under another id, and leave this one to the checks"
            ) from error

    async def send_in_transaction(
        self,
        topic: str,
        value: S | None,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        ttl: float | timedelta | None = None,
        *,
        execute: Callable[[HalfMessage], Resolution | Awaitable[Resolution]],
        transactional_id: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """Send a half message, run the local transaction, and end the message with its outcome.

        `execute(message)` runs the local transaction. It returns "commit", "rollback" or "unknown", or an
        awaitable of one of these. If it raises, its error is raised, and the message is left to the
        checks, because the local transaction may have committed. Raises as `send` and
        `HalfMessage.commit`.
        """
        message = await self.send(
            topic,
            value,
            key,
            headers,
            tag,
            timestamp,
            partition,
            ttl,
            transactional_id=transactional_id,
            timeout_s=timeout_s,
        )
        given = execute(message)
        await message.resolve(await given if inspect.isawaitable(given) else given, timeout_s)
        return message

    async def close(self) -> None:
        """Stop answering checks, and close. Checks of messages that are not ended go to other programs of
        the group. May be called again.
        """
        self._context.connections.home.check()
        if self.closed:
            return
        self.closed = True
        await self._checks.close()
        await end(*self._aborts)
        while self._free:
            await self._free.pop().producer.abort()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(
        self, topic: str, row: Row, partition: int | None, decisions: Decisions, deadline: float, *, ours: bool
    ) -> HalfMessage:
        """Send. `ours`: the id was drawn for this message, so no other message can be stored under it."""
        identity = await decisions.init(0, deadline, kind=pb.HALF_MESSAGE, check_group=self.group)
        reference = pb.TransactionRef(
            transactional_id=decisions.transactional_id,
            coordinator=identity.coordinator,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            number=1,
        )
        line = self._free.pop() if self._free else self._line()
        if line.producer.has_ended:
            await line.producer.abort()
            line = self._line()
        try:
            line.staging.begin(reference)
            await line.producer.add_row(topic, row, row_bytes(row), partition)
            parts = line.staging.parts(())
        except BaseException:
            if ours:
                self._abort_soon(decisions, reference)
            raise
        finally:
            line.producer.start_over(TransactionAborted("the half message was not stored in time: send it again"))
            if self.closed or line.producer.has_ended:
                await line.producer.abort()
            else:
                self._free.append(line)
        return HalfMessage(self._context.connections, decisions, reference, parts, topic, row[0])

    def _line(self) -> _Line:
        staging = Staging()
        return _Line(staging, make_producer(self._context, self._settings, staging))

    def _abort_soon(self, decisions: Decisions, reference: pb.TransactionRef) -> None:
        """Drop a message that was not acknowledged. If that fails and the message is stored, the cluster
        checks it.
        """

        async def abort() -> None:
            with suppress(LedgerMQError):
                await decisions.end(reference, pb.ABORTED, [], self._context.connections.deadline())

        if not self.closed:
            task = asyncio.get_running_loop().create_task(abort(), name="ledgermq abort")
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    def _check_usable(self) -> None:
        if self.closed:
            raise Closed("the half messages object is closed: make another one with client.half_messages")
        self._checks.check_alive()


def _check_group(given: object) -> str:
    if not isinstance(given, str) or not is_name(given) or len(given) > GROUP_CHARS_MAX:
        raise InvalidConfig(
            f"a check group has 1 to {GROUP_CHARS_MAX} letters, digits, '.', '_' and '-', not {given!r}"
        )
    return given


def _check_concurrency(given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= CONCURRENCY_MAX:
        raise InvalidConfig(f"concurrency must be a whole number from 1 to {CONCURRENCY_MAX}, not {given!r}")
