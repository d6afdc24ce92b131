"""What a member needs of a store that moves failed messages; the SDK's transactions provide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.membership.staged_offsets import StagedOffsets
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import OffsetStore


class MovingStore(OffsetStore, Protocol):
    """An offset store that commits an offset, and moves all failed messages below it, in one
    transaction.
    """

    def attach(self, plain: OffsetStore, held: Mapping[TopicPartition, Holding], offsets: StagedOffsets) -> None:
        """Give it the member's partitions, and the store for commits that move nothing. Call it once."""
        ...

    async def prepare(self) -> None:
        """Create the topics of the group. Raises InvalidConfig if a name is taken, Unavailable, …"""
        ...

    async def close(self) -> None: ...
