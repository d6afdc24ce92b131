"""Stage offsets of a member with a transaction: they are committed when the transaction is.

The group's coordinator judges them at once, as a commit, by the same epochs and counters. Until the
transaction has ended, the member commits no other offset in these partitions, and does not let them
go (design X14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.client.consuming.message import Message
from ledgermq.client.groups.committing.commits import Commits
from ledgermq.client.groups.committing.committer import Committer, Wish
from ledgermq.client.groups.holding.holding import Holding, OpenTransaction
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.membership.holdings import Holdings
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import TransactionError, Unavailable
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto

WhatToStage = Iterable[Message] | Mapping[TopicPartition, int]
"""Processed messages of a consumer, or the next offset to read for each partition."""


@dataclass(slots=True)
class Staged:
    """Offsets of one member in one transaction. `bundles`: the bundles that have staged them."""

    wishes: dict[Holding, Wish] = field(default_factory=dict)
    bundles: set[int] = field(default_factory=set)


class StagedOffsets:
    """Stages offsets of one member. `holdings`: the partitions of the member."""

    def __init__(
        self, coordinator: Coordinator, member_id: str, commits: Commits, committer: Committer, holdings: Holdings
    ) -> None:
        self._coordinator = coordinator
        self._member_id = member_id
        self._commits = commits
        self._committer = committer
        self._holdings = holdings

    @property
    def group(self) -> str:
        return self._coordinator.group

    def claim(
        self, transaction: OpenTransaction, staged: Staged, what: WhatToStage, metadata: str
    ) -> dict[Holding, Wish]:
        """Return the offsets to stage, and add them to `staged`. From now on their partitions wait for
        the end of the transaction.

        Raises StaleAssignment, InvalidRequest or TransactionError, and then changes nothing.
        """
        wishes = self._commits.wishes_of(what, metadata)
        for holding in wishes:
            if holding.transaction not in (None, transaction):
                raise TransactionError(
                    f"{holding.partition} has an offset in another open transaction: end that one first"
                )
        for holding, wish in wishes.items():
            holding.transaction = transaction
            staged.wishes[holding] = wish
        return wishes

    async def stage(
        self, reference: pb.TransactionRef, staged: Staged, wishes: Mapping[Holding, Wish], deadline: float
    ) -> None:
        """Stage offsets that were claimed. A later offset of a partition replaces an earlier one.

        Raises StaleAssignment, CommitGoesBack, TransactionFenced, …; Unavailable at the deadline. After
        an error the transaction must abort, because the offsets may or may not be staged.
        """
        await self._committer.idle()  # a plain commit that is under way has a lower counter
        entries = [holding.next_entry(*wish) for holding, wish in wishes.items()]
        staged.bundles.add(await self.stage_entries(reference, entries, deadline))

    async def stage_entries(self, reference: pb.TransactionRef, entries: list[OffsetEntry], deadline: float) -> int:
        """Stage the entries, and return the bundle of the group. All attempts have the same counters, so a
        repeated one changes nothing.
        """
        return await stage_entries(self._coordinator, self._member_id, reference, entries, deadline)

    def end(self, staged: Staged, *, committed: bool) -> None:
        """Apply the end of the transaction."""
        self._holdings.end_transaction(staged.wishes, committed=committed)

    def release(self, staged: Staged) -> None:
        """Stop waiting for a transaction whose outcome this client does not know; the cluster decides it."""
        for holding in staged.wishes:
            holding.transaction = None
        self._holdings.progressed.set()


async def stage_entries(
    coordinator: Coordinator, member_id: str, reference: pb.TransactionRef, entries: list[OffsetEntry], deadline: float
) -> int:
    """Stage the entries, and return the bundle of the group. `member_id`: "" without a member. All attempts have the
    same counters, so a repeated one changes nothing.

    Raises the first error of an entry; Unavailable at the deadline.
    """
    request = pb.StageOffsetsRequest(
        transaction=reference,
        group=coordinator.group,
        member_id=member_id,
        commits=[entry.to_proto() for entry in entries],
    )
    backoff = coordinator.connections.backoff()
    while True:
        answer = await coordinator.ask(lambda at: at.stage_offsets(request), deadline)
        if len(answer.results) != len(entries):
            raise Unavailable(
                f"the coordinator of group {coordinator.group!r} returned {len(answer.results)} results for"
                f" {len(entries)} offsets: abort the transaction, and run it again"
            )
        errors = [error_from_proto(result.error) for result in answer.results if result.HasField("error")]
        if not errors:
            return answer.bundle
        for error in errors:
            if not error.retriable:
                raise error
        if not await backoff.pause(errors[0].retry_after_ms, deadline):
            raise Unavailable(
                f"offsets of group {coordinator.group!r} were not staged in time: {errors[0].message}"
            ) from errors[0]
