"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from ledgermq.client.operating.dead_letters import (
    LISTED_BYTES_MAX,
    LISTED_MAX,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterList,
    RetryCopies,
)
from ledgermq.client.operating.dead_letters import DeadLetterAdmin as AsyncDeadLetterAdmin
from ledgermq.client.operating.unresolved import UnresolvedAdmin as AsyncUnresolvedAdmin
from ledgermq.client.operating.unresolved import UnresolvedMessage
from ledgermq.sync.background import Background


class DeadLetterAdmin:
    """Dead letters of consumer groups and queue groups, as `client.dead_letters`: list, redrive, drop."""

    def __init__(self, background: Background, inner: AsyncDeadLetterAdmin) -> None:
        self._background = background
        self._inner = inner

    def groups(self) -> builtins.list[str]:
        """Return the groups that have a dead-letter topic. Raises Unavailable."""
        return self._background.run(self._inner.groups())

    def count(self, group: str) -> DeadLetterCounts:
        """Count a group's dead letters, and find what is settled; none if it never had one. Raises Unavailable,
        DataDamaged.
        """
        return self._background.run(self._inner.count(group))

    def list(
        self,
        group: str,
        wanted: DeadLetterFilter | None = None,
        *,
        settled: bool = False,
        letters_max: int = LISTED_MAX,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> DeadLetterList:
        """Return dead letters of a group that are not redriven or dropped yet; with `settled`, also those that are.
        After `letters_max` of them, or `bytes_max` bytes of keys and values, the rest is only counted; one is returned
        in any case. Raises UnknownGroup, Unavailable, DataDamaged.
        """
        return self._background.run(
            self._inner.list(group, wanted, settled=settled, letters_max=letters_max, bytes_max=bytes_max)
        )

    def redrive(self, group: str, wanted: DeadLetterFilter, *, to: str = "", letters_max: int | None = None) -> int:
        """Send dead letters to be handled again, and return how many: those that `wanted` takes, at most `letters_max`.

        They go to the group's retry topic, which only this group reads, and their attempts count from 1 again. A queue
        group gets one at its first redrive, and its members look for it twice a minute. `to`: another topic, for every
        group that reads it. A letter is sent once, however often this is repeated; it stays readable in the dead-letter
        topic. Raises InvalidRequest if a place has no dead letter, or `to` is for failed messages or does not exist;
        TransactionFenced if another call settles letters of the group at the same time; TransactionOutcomeUnknown, and
        what the topic refuses: repeat the call. Raises UnknownGroup, Unavailable, DataDamaged.
        """
        return self._background.run(self._inner.redrive(group, wanted, to=to, letters_max=letters_max))

    def drop(self, group: str, wanted: DeadLetterFilter, *, letters_max: int | None = None) -> int:
        """Drop dead letters, and return how many: `list` and `redrive` leave them out from now on. They stay readable
        in the dead-letter topic. Raises as `redrive` does.
        """
        return self._background.run(self._inner.drop(group, wanted, letters_max=letters_max))

    def retries(self, group: str) -> RetryCopies:
        """Count what a group has not finished in its retry topic; nothing if it has none. Raises UnknownGroup,
        Unavailable, DataDamaged.
        """
        return self._background.run(self._inner.retries(group))


class UnresolvedAdmin:
    """Half messages whose producers never answered, as `client.unresolved`: list them, publish or drop them."""

    def __init__(self, background: Background, inner: AsyncUnresolvedAdmin) -> None:
        self._background = background
        self._inner = inner

    def groups(self) -> builtins.list[str]:
        """Return the check groups that have, or had, unresolved messages. Raises Unavailable."""
        return self._background.run(self._inner.groups())

    def list(self, group: str, *, decided: bool = False) -> builtins.list[UnresolvedMessage]:
        """Return the unresolved messages of a check group in the order of their arrival, without their contents; with
        `decided`, also those that are decided. None if the group has never had one. Raises Unavailable, DataDamaged.
        """
        return self._background.run(self._inner.list(group, decided=decided))

    def get(self, group: str, transactional_id: str) -> UnresolvedMessage:
        """Return an unresolved message with its contents. Raises InvalidRequest, Unavailable, DataDamaged."""
        return self._background.run(self._inner.get(group, transactional_id))

    def commit(
        self, group: str, transactional_ids: Iterable[str], *, unverified: bool = False
    ) -> builtins.list[UnresolvedMessage]:
        """Publish messages in the topic and the partition that they were meant for, and return them.

        Each is published in a transaction, once, however often this is repeated; it cannot be undone. `unverified`:
        also what its coordinator no longer knows. Raises InvalidRequest for an id that is not there, is decided
        otherwise, or is not the unresolved half message that its headers claim, and nothing has changed then;
        UnknownTopic, UnknownPartition; TransactionFenced if another call decides about the group at the same time,
        TransactionOutcomeUnknown, and what the message's topic refuses: repeat the call.
        """
        return self._background.run(self._inner.commit(group, transactional_ids, unverified=unverified))

    def rollback(self, group: str, transactional_ids: Iterable[str]) -> builtins.list[UnresolvedMessage]:
        """Drop messages, and return them: `list` leaves them out, and `commit` refuses them. They stay readable in
        `<group>.unresolved`. Raises as `commit` does.
        """
        return self._background.run(self._inner.rollback(group, transactional_ids))
