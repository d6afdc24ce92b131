"""Answer the cluster's checks of half messages: call the program's `check`, and commit or roll back.

There is one long poll for each coordinator, because half messages are spread over all of them.
Invariants: at most `concurrency` calls of `check` run at a time; a coordinator is polled again when
the checks of its last answer are done. If anything fails here, the cluster checks again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal, NamedTuple

from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.coordinator import Coordinator
from ledgermq.client.consuming.message import Message, MessageHeaders, decode_run, messages_of
from ledgermq.client.messages.record import datetime_of
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import DECODED_BYTES_MAX
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end, own_cancellation_as_error, raise_end

POLL_S_MAX = 20.0
NO_COORDINATOR_S = 2.0
"""Pause while the cluster has had no transaction yet."""
COORDINATORS_MAX = 4096

_log = get_log("ledgermq.half_messages")

Resolution = Literal["commit", "rollback", "unknown"]
"""The outcome of a local transaction. unknown: the cluster asks again later."""


class CheckedMessage(NamedTuple):
    """A half message that is neither committed nor rolled back yet. `attempt`: number of its check, from
    1. `partition`: the partition in which it would become visible.
    """

    transactional_id: str
    attempt: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: MessageHeaders
    timestamp_us: int | None
    tag: str | None

    @property
    def timestamp(self) -> datetime | None:
        """Return the timestamp in UTC."""
        return None if self.timestamp_us is None else datetime_of(self.timestamp_us)


Check = Callable[[CheckedMessage], Resolution | Awaitable[Resolution]]
"""A program's answer to a check."""


def check_resolution(given: object) -> Resolution:
    """Return the resolution. Raises InvalidRequest."""
    if given == "commit":
        return "commit"
    if given == "rollback":
        return "rollback"
    if given == "unknown":
        return "unknown"
    raise InvalidRequest(
        f"the outcome of a local transaction is 'commit', 'rollback' or 'unknown', not {given!r}: return one of these"
    )


class Checks:
    """The checks of one group that this client answers, from `start` until `close`."""

    def __init__(self, connections: Connections, group: str, check: Check, concurrency: int) -> None:
        self._connections = connections
        self._group = group
        self._check = check
        self._concurrency = concurrency
        self._room = asyncio.Semaphore(concurrency)
        self._polls: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._poll_from(0)

    def check_alive(self) -> None:
        """Raise an error if checks are no longer answered, although they should be."""
        for poll in self._polls.values():
            if poll.done():
                raise_end(poll, f"the checks of group {self._group!r}")

    async def close(self) -> None:
        polls, self._polls = list(self._polls.values()), {}
        await end(*polls)

    def _poll_from(self, partition: int) -> None:
        if partition not in self._polls:
            self._polls[partition] = asyncio.get_running_loop().create_task(
                self._poll_forever(partition), name=f"ledgermq checks of {self._group}"
            )

    async def _poll_forever(self, partition: int) -> None:
        coordinator = Coordinator(self._connections, f"check group {self._group!r}")
        backoff = self._connections.backoff()
        while True:
            try:
                checks = await self._poll(coordinator, partition)
                backoff.reset()
            except LedgerMQError as error:
                if not error.retriable:
                    _log.error("coordinator %d does not check %s: %s", partition, self._group, error.message)
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                continue
            await asyncio.gather(*(self._resolve(check) for check in checks))

    async def _poll(self, coordinator: Coordinator, partition: int) -> list[pb.Check]:
        deadline = self._connections.deadline()
        left_s = deadline - asyncio.get_running_loop().time()
        wait_s = min(POLL_S_MAX, self._connections.attempt_timeout_s / 2, left_s / 2)  # the answer needs time, too
        request = pb.PollChecksRequest(
            partition=partition,
            check_group=self._group,
            max_wait_ms=int(wait_s * 1000),
            max_checks=self._concurrency,
        )
        answer = await coordinator.ask_once(lambda at: at.poll_checks(request), deadline)
        for other in range(1, min(answer.partitions, COORDINATORS_MAX)):
            self._poll_from(other)
        if not answer.partitions:
            await asyncio.sleep(NO_COORDINATOR_S)
        return list(answer.checks)

    async def _resolve(self, check: pb.Check) -> None:
        """Call the program's `check`, and commit or roll back as it returns."""
        name = check.transaction.transactional_id
        async with self._room:
            try:
                resolution = await self._ask(checked_message(check))
            except Exception:
                _log.exception("check of half message %s failed, which counts as unknown", name)
                return
            if resolution == "unknown":
                return
            outcome = pb.COMMITTED if resolution == "commit" else pb.ABORTED
            try:
                decisions = Decisions(self._connections, name)
                state = await decisions.end(check.transaction, outcome, [], self._connections.deadline())
                if resolution == "rollback" and state in ("committed", "committed_by_operator"):
                    _log.error("half message %s was not rolled back: it is committed already", name)
            except LedgerMQError as error:
                _log.warning("half message %s: %s failed: %s", name, resolution, error.message)

    async def _ask(self, message: CheckedMessage) -> Resolution:
        with own_cancellation_as_error("check"):
            given = self._check(message)
            return check_resolution(await given if inspect.isawaitable(given) else given)


def checked_message(check: pb.Check) -> CheckedMessage:
    """Return the message that a check carries. Raises CorruptFrame."""
    name, staged = check.transaction.transactional_id, check.message
    rows = decode_run(staged.data, staged.crc, staged.record_count, DECODED_BYTES_MAX, f"half message {name!r}")
    message: Message = messages_of(rows.slice(0, 1), staged.topic, staged.partition, 0)[0]
    return CheckedMessage(
        name,
        check.attempt,
        message.topic,
        message.partition,
        message.key,
        message.value,
        message.headers,
        message.timestamp_us,
        message.tag,
    )
