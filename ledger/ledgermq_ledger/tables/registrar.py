"""Register the Parquet files of a topic in its Delta table (design Z1 to Z5).

A registrar holds no state: each turn reads the table, then the list of each partition, and puts at most
one version. It may die anywhere, and several may run at once.

NOT in use: no topic has a table yet. What is missing before one may: the gate that keeps a file which a
held version names (design Z6), and the look whether every bundle knows of the table (design Z2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.sources import Sources
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.statistics import Statistics, encode_statistics, time_of_us
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Listed, ListedFile, draft_version
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.checkpoint import checkpoint_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.columns import APPENDED, SCHEMA
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.tables.table_log import Committed, TableLog
from ledgermq_ledger.topics.catalog import Topic

LOG_CHECKPOINT_EVERY = 100
"""Versions between two checkpoints of the table's log."""
TURNS_MAX = 10_000


@dataclass(slots=True)
class Turn:
    """`version`: the newest one that was read. `committed`: None if there was nothing to say. `stopped`: by
    partition, why nothing is said of it.
    """

    version: int
    committed: Committed | None = None
    stopped: dict[int, str] = field(default_factory=dict)


class Registrar:
    """`generation`: the offset in `__metadata` of the record that set the topic's table. `keep_ms`: how long a
    version can be read after the next one came.
    """

    def __init__(
        self, store: ObjectStore, cluster_id: str, topic: Topic, generation: int, keep_ms: int, sources: Sources
    ) -> None:
        self._store = store
        self._keep_ms = keep_ms
        self._bundles = topic.bundles
        self._topic = versions.Topic(cluster_id, topic.name, (topic.id, generation), topic.partitions, SCHEMA)
        self._log = TableLog(store, self._topic.folder, sources)

    async def catch_up(self) -> Turn:
        """Take turns until the table has all that Parquet has. Return the last one.

        Raises what `turn` raises, and AssertionError if the turns never end.
        """
        for _ in range(TURNS_MAX):
            turn = await self.turn()
            if turn.committed is None:
                return turn
        raise AssertionError(f"{self._topic.folder}: {TURNS_MAX} versions, and the table is still behind")

    async def turn(self) -> Turn:
        """Put the next version of the table, if there is anything to say.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors. A repeated call is harmless.
        """
        table = await self._log.read()  # before the lists: a version is computed from what was there after it
        now_ms = await self._store.store_time_ms()
        if table.commits >= LOG_CHECKPOINT_EVERY:
            await self._log.put_checkpoint(table, now_ms - self._keep_ms)
            await self._log.clean(self._keep_ms)
        draft = draft_version(table, self._topic, await self._lists(table), now_ms)
        if not draft.operation:
            return Turn(table.version, None, draft.stopped)
        return Turn(table.version, await self._log.commit(table, draft, now_ms), draft.stopped)

    async def _lists(self, table: Table) -> dict[int, Listed]:
        """Return the lists of the partitions that some bundle is in charge of."""
        is_same = versions.generation_of(table, self._topic) == self._topic.generation
        found = {}
        for partition in range(self._topic.partitions):
            end = versions.registered(table, self._topic, partition, "end") if is_same else 0
            listed = await self._list(partition, end)
            if listed is not None:
                found[partition] = listed
        return found

    async def _list(self, partition: int, registered: int) -> Listed | None:
        """Return a partition's list from the registered end on; None if it is between two bundles."""
        place = PartitionId(self._topic.generation[0], partition)
        while True:
            checkpoint = await checkpoint_in_charge(self._store, self._bundles[partition], place)
            if checkpoint is None:
                return None
            counters = partition_of(checkpoint, *place)
            try:
                files = await PageReader(self._store, checkpoint.bundle).files_from(counters, registered)
            except ObjectMissing:
                if (await newest_checkpoint(self._store, checkpoint.bundle)).number == checkpoint.number:
                    raise
                continue  # another process has replaced the list
            listed = [_listed(file, self._topic.name, partition) for file in files]
            return Listed(counters.log_start, counters.parquet_end, listed)


def _listed(file: fmt.ParquetFile, topic: str, partition: int) -> ListedFile:
    rows = file.last_offset + 1 - file.first_offset
    bounds = (
        ("timestamp", file.timestamp_min_us, file.timestamp_max_us),
        (APPENDED, file.appended_min_us, file.appended_max_us),
    )
    found = Statistics(
        rows,
        {"topic": topic, "partition": partition, "offset": file.first_offset},
        {"topic": topic, "partition": partition, "offset": file.last_offset},
    )
    for name, least_us, most_us in bounds:
        least, most = time_of_us(least_us), time_of_us(most_us)
        if (least_us or most_us) and least is not None and most is not None:
            found.least[name], found.most[name] = least, most
    return ListedFile(
        file.key, file.first_offset, file.last_offset + 1, file.size, file.committed_ms, encode_statistics(found)
    )
