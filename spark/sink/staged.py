"""What tasks tell the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from ledgermq.client.descriptions import TopicPartition


@dataclass
class Staged(WriterCommitMessage):
    """Of an epoch of a write. `objects`: keys of staged rows, in order. `topics`: ids by name. `begun_ms`: by the executor's clock."""

    write: str
    epoch: int
    begun_ms: int
    records: int = 0
    objects: list[str] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    partitions: set[TopicPartition] = field(default_factory=set)


@dataclass
class Sent(WriterCommitMessage):
    """All of a task's rows are in their topics."""

    records: int
