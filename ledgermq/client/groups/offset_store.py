"""The contract of what keeps a group's committed offsets; the default is the cluster itself
(`groups.topic_store`).

Membership always comes from the group's coordinator; a store keeps offsets only. Three rules make every store safe, whatever it is made of:
  1. `load` under an epoch fences: from then on a commit or a load of that partition with a lower epoch is refused (StaleAssignment).
  2. Under one epoch an offset only grows (lower: CommitGoesBack), and a commit whose counter is not above the stored one is not applied,
     though it is no error: it is a delayed repetition.
  3. The topic id belongs to the key: a topic that was deleted and made again begins with nothing committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ledgermq.client.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError


class GivenPartition(NamedTuple):
    """A partition that its group has given to this member, under `epoch`: the fencing token, higher
    than any before.
    """

    partition: TopicPartition
    topic_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """`offset`: the next one to read.

    `commit_ms`: wall clock of the commit, 0 if the store does not keep it.
    """

    offset: int
    metadata: str = ""
    commit_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One partition of a commit.

    `counter` grows with each commit of the partition under its epoch; `metadata`: at most 4096
    bytes.
    """

    given: GivenPartition
    counter: int
    offset: int
    metadata: str = ""


class OffsetStore(Protocol):
    """Used by one event loop, by one call of `commit` at a time for each consumer; `load` may run
    beside it.
    """

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        """Those that have an offset.

        Raises what a retry may cure (RetriableError: it is called again), or any other
        LedgerMQError.
        """
        ...

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """Durable for all entries but those that are answered: StaleAssignment, UnknownMember,
        CommitGoesBack, OffsetOutOfRange, …

        Raises when the outcome of all is the same error, or not known; committing again with the
        same counters does no harm.
        """
        ...
