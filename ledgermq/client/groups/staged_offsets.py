"""Stage offsets of a member with a transaction: they are committed if and when it is.

The group's coordinator judges them now, as a commit, under the same epochs and counters. Until the
transaction has ended, the member commits nothing plainly in these partitions, and does not let them
go (design X14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.client.consuming.message import Message
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.commits import Commits, Committer, Wish
from ledgermq.client.groups.coordinator import Coordinator
from ledgermq.client.groups.holding import Holding, OpenTransaction
from ledgermq.client.groups.holdings import Holdings
from ledgermq.errors import TransactionError, Unavailable
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto

WhatToStage = Iterable[Message] | Mapping[TopicPartition, int]
"""What a program commits in a transaction: messages of its consumer, or the next offsets to read."""


@dataclass(slots=True)
class Staged:
    """Offsets of one member in one transaction. `bundles`: where they are kept."""

    wishes: dict[Holding, Wish] = field(default_factory=dict)
    bundles: set[int] = field(default_factory=set)


class StagedOffsets:
    """`holdings`: those of the member."""

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
        """Return the offsets to stage, and note them in `staged`: from now on their partitions wait
        for the end of the transaction.

        Raises StaleAssignment, InvalidRequest, TransactionError; then nothing is noted.
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
        """Stage offsets that were claimed; a later offset of a partition replaces the earlier one.

        Raises StaleAssignment, CommitGoesBack, TransactionFenced, …; Unavailable at the deadline.
        Then the transaction must abort, because the offsets may or may not be staged.
        """
        await self._committer.idle()  # a plain commit that is under way has a lower counter
        entries = [holding.next_entry(*wish) for holding, wish in wishes.items()]
        staged.bundles.add(await self._stage(reference, entries, deadline))

    async def _stage(self, reference: pb.TransactionRef, entries: list[OffsetEntry], deadline: float) -> int:
        """Return the bundle that keeps them. Attempts have the same counters, so a repeated one
        changes nothing.
        """
        request = pb.StageOffsetsRequest(
            transaction=reference,
            group=self.group,
            member_id=self._member_id,
            commits=[entry.to_proto() for entry in entries],
        )
        backoff = self._coordinator.connections.backoff()
        while True:
            answer = await self._coordinator.ask(lambda at: at.stage_offsets(request), deadline)
            if len(answer.results) != len(entries):
                raise Unavailable(f"the coordinator answered for {len(answer.results)} of {len(entries)} offsets")
            errors = [error_from_proto(result.error) for result in answer.results if result.HasField("error")]
            if not errors:
                return answer.bundle
            for error in errors:
                if not error.retriable:
                    raise error
            if not await backoff.pause(errors[0].retry_after_ms, deadline):
                raise Unavailable(f"the offsets were not staged in time: {errors[0].message}") from errors[0]

    def end(self, staged: Staged, *, committed: bool) -> None:
        """Apply the end of the transaction."""
        self._holdings.end_transaction(staged.wishes, committed=committed)

    def release(self, staged: Staged) -> None:
        """Stop waiting for a transaction whose outcome is unknown: the coordinator knows it."""
        for holding in staged.wishes:
            holding.transaction = None
        self._holdings.progressed.set()
