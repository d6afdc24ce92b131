"""Commit offsets of a member with `Retry.levels`: an offset, and the copies of all failed messages below
it, in one transaction.

Invariants: a copy is visible if, and only if, an offset above its original is committed. A commit whose
outcome is unknown is settled before the next one begins. A member that has lost a partition moves
nothing of it, because the group's coordinator refuses its offset, and so the transaction.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from ledgermq.buffers import MIB
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.membership.staged_offsets import StagedOffsets
from ledgermq.client.groups.retries.moves import Move, MovePolicy, size_of
from ledgermq.client.groups.retry_topics import ERROR_BYTES_MAX, copy_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.errors import (
    CommitGoesBack,
    GroupError,
    LedgerMQError,
    MessageTooLarge,
    OffsetOutOfRange,
    TransactionError,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionUnknown,
    UnknownTopic,
)
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, OffsetStore, StoredOffset
from ledgermq.protocol.naming.names import NAME_CHARS_MAX
from ledgermq.runtime.process.log import get_log
from ledgermq.sources import Sources

MOVES_MAX, MOVED_BYTES_MAX = 1_000, 8 * MIB
"""About so many messages are moved in one transaction."""
TIMEOUT_S = 30.0
"""Time after which the cluster aborts a transaction of a member that has crashed."""

_log = get_log("ledgermq.handlers")


def moving_id(group: str, member: str) -> str:
    """Return the transactional id of a member's moves. `member`: its `instance_id`, or an id that no other
    member has. Two members of a group, or two groups, have different ids, however long their names are.
    """
    whole = f"{group}.moves-{member}"
    if len(whole) <= NAME_CHARS_MAX and re.fullmatch(r"[A-Za-z0-9._-]+", whole):
        return whole
    digest = sha256(f"{group}\n{member}".encode()).hexdigest()
    return f"{group[: NAME_CHARS_MAX - len(digest) - 7]}.moves-{digest}"


class Part(NamedTuple):
    """What one transaction does in one partition: it commits `offset`, and moves `moves`."""

    holding: Holding
    offset: int
    metadata: str
    moves: Sequence[Move]


class TransactionalMoves:
    """See `ledgermq.client.groups.membership.moving.MovingStore`. `create`: creates the topics. `moved`: called with
    the numbers of messages that were moved to the retry topic and to the dead-letter topic.
    """

    def __init__(
        self,
        transactional_id: str,
        policy: MovePolicy,
        client: TransactionClient,
        sources: Sources,
        create: Callable[[], Awaitable[None]],
        moved: Callable[[int, int], None],
    ) -> None:
        self._transactional_id = transactional_id
        self._policy = policy
        self._client = client
        self._sources = sources
        self._create = create
        self._count = moved
        self._transactions: Transactions | None = None
        self._unknown: tuple[Transaction, Sequence[Part]] | None = None
        """The transaction whose outcome is unknown."""
        self._plain: OffsetStore
        self._held: Mapping[TopicPartition, Holding] = {}
        self._offsets: StagedOffsets

    def attach(self, plain: OffsetStore, held: Mapping[TopicPartition, Holding], offsets: StagedOffsets) -> None:
        self._plain, self._held, self._offsets = plain, held, offsets

    async def prepare(self) -> None:
        await self._create()

    async def close(self) -> None:
        if self._transactions is not None:
            await self._transactions.close()

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        return dict(await self._plain.load(group, partitions))

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit, with a transaction where there is something to move. A partition that is refused does
        not hold up the others.
        """
        plain = [entry for entry in entries if self._unknown is None and not self._moves_below(entry)]
        moving = [entry for entry in entries if entry not in plain]
        refused: dict[TopicPartition, LedgerMQError] = {}
        while moving:
            step, moving = self._step(moving)
            try:
                await self._commit_parts(step)
            except LedgerMQError as error:
                if isinstance(error, TransactionFenced | TransactionOutcomeUnknown):
                    raise
                if len(step) == 1:
                    refused[step[0].given.partition] = error
                else:
                    refused |= await self._one_by_one(step)
            moving = [entry for entry in moving if entry.given.partition not in refused]
        if plain:
            refused |= await self._plain.commit(group, plain)
        return refused

    async def _one_by_one(self, entries: Sequence[OffsetEntry]) -> dict[TopicPartition, LedgerMQError]:
        refused: dict[TopicPartition, LedgerMQError] = {}
        for entry in entries:
            try:
                await self._commit_parts([entry])
            except (TransactionFenced, TransactionOutcomeUnknown):
                raise
            except LedgerMQError as error:
                refused[entry.given.partition] = error
        return refused

    def _step(self, entries: Sequence[OffsetEntry]) -> tuple[list[OffsetEntry], list[OffsetEntry]]:
        """Return what the next transaction commits, and what is left for later ones: a transaction moves a
        bounded number of messages, so that it fits into the producer's buffer and ends in time. The offset
        behind any moved message may be committed, because all below it is finished.
        """
        step: list[OffsetEntry] = []
        count = size = 0
        for number, entry in enumerate(entries):
            holding = self._holding(entry)
            for move in self._moves_below(entry):
                offset = move.message.offset
                is_full = count >= MOVES_MAX or size >= MOVED_BYTES_MAX
                if is_full and holding is not None and offset > holding.committed:
                    return [*step, replace(entry, offset=offset)], list(entries[number:])
                count, size = count + 1, size + size_of(move.message)
            step.append(entry)
        return step, []

    def _holding(self, entry: OffsetEntry) -> Holding | None:
        holding = self._held.get(entry.given.partition)
        return holding if holding is not None and holding.given == entry.given else None

    def _moves_below(self, entry: OffsetEntry) -> Sequence[Move]:
        holding = self._holding(entry)
        return () if holding is None else holding.moves.below(entry.offset)

    async def _commit_parts(self, entries: Sequence[OffsetEntry]) -> None:
        """Commit in one transaction. Raises the first error that concerns a partition or a copy."""
        error_bytes_max = ERROR_BYTES_MAX
        while True:
            try:
                await self._try(entries, error_bytes_max)
                return
            except MessageTooLarge:
                if error_bytes_max == 0:
                    await self._create()  # the topic of the message may allow larger ones now
                    raise
                error_bytes_max = 0

    async def _try(self, entries: Sequence[OffsetEntry], error_bytes_max: int) -> None:
        transaction = await self._begin()
        parts: list[Part] = []
        for entry in entries:
            holding = self._holding(entry)
            if holding is not None:  # a partition that was lost meanwhile is left to its next member
                parts.append(Part(holding, entry.offset, entry.metadata, holding.moves.below(entry.offset)))
        try:
            for part in parts:
                for move in part.moves:
                    self._send(transaction, move, error_bytes_max)
            await transaction.flush()
            staged = [part.holding.next_entry(part.offset, part.metadata) for part in parts]
            if staged:
                await transaction.stage_entries(self._offsets, staged)
            await transaction.commit()
        except BaseException as error:
            if not transaction.closed:
                with suppress(TransactionError):
                    await transaction.abort()
            if transaction.state == "unknown":
                self._unknown = transaction, parts
            raise await self._reason(transaction, error) from error
        self._committed(parts)

    async def _begin(self) -> Transaction:
        """Return an open transaction, after the outcome of the one before is known."""
        if self._transactions is None:
            transactions = self._client(self._transactional_id, timeout=TIMEOUT_S)
            try:
                await transactions.init()
            except BaseException:
                await transactions.close()
                raise
            self._transactions = transactions
        try:
            transaction = self._transactions.begin()
            await transaction.start()
        except TransactionUnknown:  # it was idle for days
            await self._transactions.close()
            self._transactions = None
            raise
        if self._unknown is not None:
            before, parts = self._unknown
            self._unknown = None
            if before.state == "committed":
                self._committed(parts)
        return transaction

    def _send(self, transaction: Transaction, move: Move, error_bytes_max: int) -> None:
        message, failures, topic, due_ms = move[:4]
        transaction.send(*copy_of(message, failures, topic, due_ms, error_bytes_max, move.expires_us))

    async def _reason(self, transaction: Transaction, error: BaseException) -> BaseException:
        """Return the error to raise: what the cluster refuses, if it refuses something."""
        failure = transaction.failure
        if isinstance(error, TransactionFenced | TransactionOutcomeUnknown) or not isinstance(error, LedgerMQError):
            return error
        if isinstance(failure, UnknownTopic):
            await self._create()
        if isinstance(failure, GroupError | CommitGoesBack | OffsetOutOfRange | MessageTooLarge):
            return failure
        return error

    def _committed(self, parts: Sequence[Part]) -> None:
        for part in parts:
            failed = [move for move in part.moves if not move.carried]
            dead = sum(move.is_dead for move in failed)
            self._count(len(failed) - dead, dead)
            for move in failed:
                _log.log(
                    logging.ERROR if move.is_dead and not move.expired else logging.INFO,
                    "group %s moved the message of %s to %s (attempt %d): %s",
                    self._policy.group,
                    move.failures.origin,
                    move.topic,
                    move.failures.attempts,
                    move.failures.error,
                )
            if not part.holding.gone:
                part.holding.moved(part.offset, part.metadata)
