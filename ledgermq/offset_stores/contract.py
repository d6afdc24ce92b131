"""The contract of an offset store, which keeps a group's committed offsets.

The default is the cluster itself (`offset_stores.cluster`). Membership always comes from the
group's coordinator; a store keeps offsets only. Three rules make every store safe, whatever it is
built on:

  1. `load` under an epoch fences: from then on the store refuses any load or commit of that
     partition with a lower epoch (StaleAssignment).
  2. Under one epoch an offset only grows; a lower one is refused (CommitGoesBack). A commit whose
     counter is not above the stored one is a delayed repetition: it is not applied, and is no error.
  3. The topic id belongs to the key: a topic that was deleted and created again begins with nothing
     committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb


class GivenPartition(NamedTuple):
    """A partition that its group has given to this member.

    `epoch` is the fencing token: higher than that of any earlier holder of the partition.
    """

    partition: TopicPartition
    topic_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A committed offset. `offset`: the next one to read.

    `commit_ms`: wall clock of the commit, 0 if the store does not keep it.
    """

    offset: int
    metadata: str = ""
    commit_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One partition of a commit. `offset`: the next one to read.

    `counter` grows with each commit of the partition under its epoch. `metadata` has at most 4096
    bytes.
    """

    given: GivenPartition
    counter: int
    offset: int
    metadata: str = ""

    def to_proto(self) -> pb.OffsetCommit:
        """Return it as calls to the group's coordinator carry it."""
        topic, partition = self.given.partition
        return pb.OffsetCommit(
            topic=topic,
            topic_id=self.given.topic_id,
            partition=partition,
            epoch=self.given.epoch,
            counter=self.counter,
            offset=self.offset,
            metadata=self.metadata,
        )


class LoadedInPart(Unavailable):
    """Raised by `load` when only some partitions cannot be loaded now, so that reading of the
    others begins.

    `found`: as `load` returns it. `missing`: partitions to load again.
    """

    def __init__(
        self, error: LedgerMQError, found: Mapping[TopicPartition, StoredOffset], missing: Collection[TopicPartition]
    ) -> None:
        super().__init__(error.message, retry_after_ms=error.retry_after_ms)
        self.found = found
        self.missing = missing


class OffsetStore(Protocol):
    """Stores a group's committed offsets.

    Used from one event loop. Each consumer has at most one `commit` in flight; a `load` may run
    beside it.
    """

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        """Return the stored offsets; partitions without a committed offset are left out.

        Raises a RetriableError if a retry may help (the caller tries again; LoadedInPart, if others
        could be loaded), or any other LedgerMQError.
        """
        ...

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        """Store the entries durably, and return an error for each partition that was refused.

        Errors are StaleAssignment, UnknownMember, CommitGoesBack, OffsetOutOfRange, … Raises if all
        entries failed with the same error, or if the outcome is unknown; committing again with the
        same counters is safe.
        """
        ...
