"""Commits of one member: what to commit (`Commits`), in which calls to the offset store
(`Committer`), and commits before messages are returned (`CommitFirst`).

Invariants: one call of the store at a time; requests that arrive during a call go together in the
next. An offset that the store is known to have is not sent again. Cancelling one caller does not
cancel the commit of another caller. A commit that was permanently refused under an epoch is not
retried automatically. A partition whose offset is staged in an open transaction is not committed
here. With `CommitFirst` no message is returned before its commit was answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import (
    CommitGoesBack,
    GroupError,
    InvalidRequest,
    LedgerMQError,
    StaleAssignment,
    TransactionError,
    Unavailable,
)
from ledgermq.offset_stores.contract import OffsetEntry, OffsetStore
from ledgermq.offset_stores.rules import METADATA_BYTES_MAX
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.runtime.tasks import end

Refused = dict[TopicPartition, LedgerMQError]


class Wish(NamedTuple):
    """A request to commit in one partition. `offset`: the next one to read."""

    offset: int
    metadata: str = ""


@dataclass(slots=True, eq=False)
class _Round:
    """Requests that are committed together. `outcome`: those that were refused, or the error of
    all.
    """

    outcome: asyncio.Future[dict[Holding, LedgerMQError]]
    wishes: dict[Holding, Wish] = field(default_factory=dict)

    def add(self, wishes: Mapping[Holding, Wish]) -> None:
        for holding, wish in wishes.items():
            before = self.wishes.get(holding)
            if before is None or wish.offset >= before.offset:
                self.wishes[holding] = wish


class Committer:
    """Sends commits to the offset store, one call at a time.

    `timeout_s` bounds each call of the store.
    """

    def __init__(self, store: OffsetStore, group: str, timeout_s: float) -> None:
        self._store = store
        self._group = group
        self._timeout_s = timeout_s
        self._next: _Round | None = None
        self._running: asyncio.Task[None] | None = None

    async def commit(self, wishes: Mapping[Holding, Wish]) -> Refused:
        """Commit, and return an error for each partition that was refused; empty: all is durable.

        Raises if all failed with the same error, or if the outcome is unknown: Unavailable, …
        """
        if not wishes:
            return {}
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = _Round(loop.create_future())
        joined = self._next
        joined.add(wishes)
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="ledgermq commits")
        refused = await asyncio.shield(joined.outcome)
        return {holding.partition: refused[holding] for holding in wishes if holding in refused}

    async def _run(self) -> None:
        while (current := self._next) is not None:
            self._next = None
            try:
                outcome = await self._commit(current)
            except asyncio.CancelledError:
                _fail(
                    current,
                    Unavailable(
                        "the consumer was closed before the offset store answered; the commit may or may not be stored"
                    ),
                )
                raise
            except Exception as error:
                _fail(current, error)
            else:
                if not current.outcome.done():
                    current.outcome.set_result(outcome)

    async def idle(self) -> None:
        """Wait until no call of the store is under way; the outcome is not reported."""
        while self._running is not None and not self._running.done():
            await asyncio.wait((self._running,))

    async def _commit(self, current: _Round) -> dict[Holding, LedgerMQError]:
        wanted = {holding: wish for holding, wish in current.wishes.items() if not _is_stored(holding, wish)}
        refused: dict[Holding, LedgerMQError] = {
            holding: TransactionError(
                f"{holding.partition} has an offset in an open transaction: commit or abort the transaction first"
            )
            for holding in wanted
            if holding.transaction is not None
        }
        for call in _calls({holding: wish for holding, wish in wanted.items() if holding not in refused}):
            refused |= await self._call(call)
        return refused

    async def _call(self, wanted: Mapping[Holding, Wish]) -> dict[Holding, LedgerMQError]:
        entries = [holding.next_entry(*wish) for holding, wish in wanted.items()]
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = dict(await self._store.commit(self._group, entries))
        except TimeoutError as error:
            raise Unavailable(
                f"the offset store did not answer within {self._timeout_s} s; the commit may or may not be stored"
            ) from error
        refused = {holding: answer[holding.partition] for holding in wanted if holding.partition in answer}
        for holding, wish in wanted.items():
            refusal = refused.get(holding)
            if refusal is None:
                holding.committed, holding.committed_metadata = wish
                holding.stored = True
            elif isinstance(refusal, GroupError):
                holding.refused = refusal
        return refused

    async def close(self) -> None:
        """Fail the commits that were not answered."""
        await end(self._running)
        if self._next is not None:
            _fail(self._next, Unavailable("the consumer was closed before its commit was sent"))
            self._next = None


def _calls(wanted: Mapping[Holding, Wish]) -> list[dict[Holding, Wish]]:
    """Distribute over calls of the store, whose answer names a partition once: a member may have lost a
    partition, and have it again under a later epoch, while the commit under the earlier one waits.
    """
    calls: list[dict[Holding, Wish]] = []
    for holding in sorted(wanted, key=lambda holding: holding.given.epoch):
        for call in calls:
            if all(other.partition != holding.partition for other in call):
                break
        else:
            calls.append(call := {})
        call[holding] = wanted[holding]
    return calls


def _is_stored(holding: Holding, wish: Wish) -> bool:
    return holding.stored and wish == (holding.committed, holding.committed_metadata)


def _fail(current: _Round, error: Exception) -> None:
    if not current.outcome.done():
        current.outcome.set_exception(error)
        current.outcome.exception()  # retrieved here, because its waiters may have been cancelled


Committable = Message | Iterable[Message] | Mapping[TopicPartition, int] | None
"""What a program commits. Messages: they are acknowledged first. Offsets: everything below them
counts as finished. None: commit what is finished already.
"""


class Commits:
    """The program's own commits.

    `held`: the member's holdings, by partition. `progressed` is set once a message is finished.
    `mode`: the setting `commit`.
    """

    def __init__(
        self, committer: Committer, held: Mapping[TopicPartition, Holding], progressed: asyncio.Event, mode: str
    ) -> None:
        self._committer = committer
        self._held = held
        self._progressed = progressed
        self._mode = mode

    async def commit(self, what: Committable, metadata: str) -> dict[TopicPartition, int]:
        """Commit, and return the committed offsets. Raises the first refusal, after all others
        were committed.
        """
        _check_metadata(metadata)
        stale: list[TopicPartition] = []
        if what is None:
            wishes = self._finished(metadata)
        elif isinstance(what, Mapping):
            wishes = self._offsets(what, metadata, stale)
        else:
            wishes = self._messages([what] if isinstance(what, Message) else what, metadata, stale)
        refused = await self.send(wishes)
        for holding, wish in wishes.items():
            if holding.partition not in refused:
                holding.progress.finish_through(wish.offset)
        self._progressed.set()
        if refused:
            raise next(iter(refused.values()))
        if stale:
            names = ", ".join(map(str, stale))
            raise StaleAssignment(
                f"{names}: not held by this member any longer, or the program seeked since; nothing of it was committed"
            )
        return {holding.partition: wish.offset for holding, wish in wishes.items()}

    def entries(self, messages: Iterable[Message]) -> list[OffsetEntry]:
        """Return the entries that a commit of these messages would send, for a program that stores
        them itself.
        """
        return [holding.next_entry(*wish) for holding, wish in self._through(messages, "entries", "").items()]

    def wishes_of(self, what: Iterable[Message] | Mapping[TopicPartition, int], metadata: str) -> dict[Holding, Wish]:
        """Return the offsets to stage in a transaction: those behind these messages, or the given
        ones.

        Raises StaleAssignment, InvalidRequest.
        """
        _check_metadata(metadata)
        if not isinstance(what, Mapping):
            return self._through(what, "send_offsets", metadata)
        stale: list[TopicPartition] = []
        wishes = self._offsets(what, metadata, stale)
        if stale:
            raise StaleAssignment(f"{', '.join(map(str, stale))}: not held by this member any longer; abort")
        return wishes

    def counts(self, message: GroupMessage) -> bool:
        """Return whether the message is still this member's, and will not be delivered again."""
        holding = self._held.get(partition_of(message))
        return (
            holding is not None
            and not holding.gone
            and holding.progress.counts(message.offset, message.handout.generation)
        )

    def _through(self, messages: Iterable[Message], call: str, metadata: str) -> dict[Holding, Wish]:
        last: dict[TopicPartition, int] = {}
        for message in messages:
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"{call}() takes messages of this group, not {type(message).__name__}")
            partition = partition_of(message)
            if not self.counts(message):
                raise StaleAssignment(
                    f"{partition}: not held by this member any longer, or the program seeked since; roll the"
                    " transaction back"
                )
            last[partition] = max(last.get(partition, 0), message.offset)
        for partition, offset in last.items():
            waiting = self._held[partition].waiting.first
            if waiting is not None and waiting < offset:
                raise InvalidRequest(
                    f"{partition}: offset {waiting} was refused, and is not finished, so {call}() cannot pass it: wait"
                    " until it was delivered again, or use retry=Retry.in_order()"
                )
        return {
            self._held[partition]: Wish(self._held[partition].progress.past_gaps(offset + 1), metadata)
            for partition, offset in last.items()
        }

    async def commit_all(self) -> None:
        """Commit what is finished, in every mode. Raises as `commit`."""
        refused = await self.send(self._finished("", silent=True))
        if refused:
            raise next(iter(refused.values()))

    async def send(self, wishes: Mapping[Holding, Wish]) -> Refused:
        return await self._committer.commit(wishes)

    def holdings_of(self, messages: Iterable[GroupMessage]) -> list[Holding]:
        """Return the holdings of these messages that are still held."""
        partitions = dict.fromkeys(partition_of(message) for message in messages)
        return [self._held[partition] for partition in partitions if partition in self._held]

    def _finished(self, metadata: str, *, silent: bool = False) -> dict[Holding, Wish]:
        holdings = list(self._held.values())
        wishes = {holding: Wish(holding.to_commit, metadata) for holding in holdings if holding.to_commit is not None}
        if not wishes and not silent and self._mode == "manual":
            waiting = [holding for holding in holdings if holding.outstanding and not holding.answered]
            if waiting:
                raise InvalidRequest(
                    f"no message of {waiting[0].partition} was acknowledged: call message.ack(), or commit(messages)"
                )
        return wishes

    def _offsets(
        self, offsets: Mapping[TopicPartition, int], metadata: str, stale: list[TopicPartition]
    ) -> dict[Holding, Wish]:
        wishes: dict[Holding, Wish] = {}
        for partition, offset in offsets.items():
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                raise InvalidRequest(f"a commit takes offsets, not {offset!r}")
            holding = self._held.get(TopicPartition(*partition))
            if holding is None or holding.reading is None:
                stale.append(TopicPartition(*partition))
                continue
            wishes[holding] = Wish(offset, metadata)
        return wishes

    def _messages(self, messages: Iterable[Message], metadata: str, stale: list[TopicPartition]) -> dict[Holding, Wish]:
        touched: dict[TopicPartition, None] = {}
        for message in messages:
            partition = partition_of(message)
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"commit() takes messages of this group, not {type(message).__name__}")
            if message.ack():
                touched[partition] = None
            elif partition not in stale:
                stale.append(partition)
        found = [self._held[partition] for partition in touched if partition in self._held]
        return {holding: Wish(holding.to_commit, metadata) for holding in found if holding.to_commit is not None}


def _check_metadata(metadata: object) -> None:
    """Check the metadata of a commit. Raises InvalidRequest."""
    try:
        size = len(metadata.encode()) if isinstance(metadata, str) else None
    except UnicodeEncodeError:
        size = None
    if size is None or size > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"metadata of a commit must be valid text of at most {METADATA_BYTES_MAX} bytes, not {metadata!r:.200}"
        )


ITERATED_RECORDS = 500
"""Number of messages that an iteration commits at once."""
_LOOK_S = 60.0


class CommitFirst:
    """Commits messages before they are returned: at most once.

    A message that was committed and is then lost with the program is never delivered again. If a
    commit is refused or not answered, no message is returned, and the positions stay unchanged.
    """

    def __init__(self, commits: Commits, reader: Reader[GroupMessage]) -> None:
        self._commits = commits
        self._reader = reader
        self.committed: deque[GroupMessage] = deque()
        """Messages that are committed but not yet returned."""

    async def next(self) -> GroupMessage:
        while not self.committed:
            self.committed.extend(await self._fetch(ITERATED_RECORDS, asyncio.get_running_loop().time() + _LOOK_S))
        return self.committed.popleft()

    async def fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        if self.committed:
            return [self.committed.popleft() for _ in range(min(max_records, len(self.committed)))]
        return await self._fetch(max_records, deadline)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the committed messages of a partition in which the program seeks."""
        self.committed = deque(message for message in self.committed if partition_of(message) != partition)

    async def _fetch(self, max_records: int, deadline: float) -> list[GroupMessage]:
        while True:
            messages = await self._reader.fetch(max_records, deadline)
            if not messages:
                if asyncio.get_running_loop().time() >= deadline:
                    return []
                continue
            holdings = self._commits.holdings_of(messages)
            before = {
                holding: next(m.offset for m in messages if partition_of(m) == holding.partition)
                for holding in holdings
            }
            try:
                refused = await self._commits.send({holding: Wish(holding.progress.handed) for holding in holdings})
            except BaseException:
                self._take_back(before)
                raise
            lost = self._judge(refused, before)
            kept = [message for message in messages if partition_of(message) not in lost]
            if kept:
                for holding in holdings:
                    holding.progress.finish_through(holding.progress.handed)
                return kept

    def _judge(self, refused: dict[TopicPartition, LedgerMQError], before: dict[Holding, int]) -> set[TopicPartition]:
        """Return the partitions that this member has lost. Raises any other refusal.

        A commit that goes back is not an error here: an earlier attempt has stored it.
        """
        lost = {partition for partition, error in refused.items() if isinstance(error, GroupError)}
        others = [
            error
            for partition, error in refused.items()
            if partition not in lost and not isinstance(error, CommitGoesBack)
        ]
        if others:
            self._take_back(before)
            raise others[0]
        return lost

    def _take_back(self, before: dict[Holding, int]) -> None:
        for holding, offset in before.items():
            if holding.reading is not None and holding.kept:
                holding.progress.move(offset)
                self._reader.seek([(holding.reading, offset)])
