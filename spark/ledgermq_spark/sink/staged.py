"""Declare the messages that tasks send to the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.transactions.two_phase.branch import BranchCounts, SharedTransaction
from ledgermq.errors import Unavailable


@dataclass
class Staged(WriterCommitMessage):
    """Staged rows of an epoch of a write. `objects`: their keys, in order. `topics`: ids by name."""

    write: str
    epoch: int
    records: int = 0
    objects: list[str] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    partitions: set[TopicPartition] = field(default_factory=set)


def note_topic(topics: dict[str, int], name: str, topic_id: int) -> None:
    """In `topics`, ids by name. A name has one id in an epoch, because rows are published by id,
    and those of another id would be skipped.

    Raises Unavailable.
    """
    if topics.setdefault(name, topic_id) != topic_id:
        raise Unavailable(
            f"topic {name} was deleted and made again while rows for it were staged; nothing was written: run the write"
            " again"
        )


@dataclass
class StagedInTransaction(WriterCommitMessage):
    """What a task has staged in its branch of a transaction. `write`: empty for a `df.write`."""

    transaction: SharedTransaction
    counts: BranchCounts
    write: str = ""
    records: int = 0
    topics: dict[str, int] = field(default_factory=dict)


@dataclass
class Sent(WriterCommitMessage):
    """All of a task's rows are in their topics."""

    records: int
