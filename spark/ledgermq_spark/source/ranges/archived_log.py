"""Read a partition whose log continues below its log start, in the archive; `includeArchive` plans
with it. No Spark.
"""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.archiving.reading import ArchivedFile, ArchiveReader
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.ranges.range_read import OffsetRange
from ledgermq_ledger.view.reader import LedgerReader


class ArchivedLog:
    """Made by `open`. Its earliest offset is the first archived one; there may be gaps below the
    `border`, the log start.
    """

    def __init__(
        self, reader: LedgerReader, archive: ArchiveReader, key: PartitionId, files: list[ArchivedFile], border: int
    ) -> None:
        self._reader = reader
        self._archive = archive
        self._key = key
        self._files = files
        self.border = border
        self._searched = 0, 0
        """A time that was searched, and the offset where it was found: later times are not below
        it.
        """

    @classmethod
    async def open(
        cls, store: ObjectStore, archive: ArchiveReader, reader: LedgerReader, topic: Topic, partition: int
    ) -> ArchivedLog:
        """Open the checkpoint first, then the archive, because records move from the first to the
        second.

        Raises the errors of both stores.
        """
        key = PartitionId(topic.id, partition)
        await reader.view.look()
        part = partition_of(reader.view.checkpoint, *key)
        live = await PageReader(store, reader.bundle).files_from(part, part.parquet_start) if part.newest_page else []
        files = await archive.files_before(topic, part, live)
        return cls(reader, archive, key, files, max(part.log_start, reader.log_start(key)))

    def log_start(self, key: PartitionId) -> int:
        return self._files[0].first if self._files else self.border

    def end(self, key: PartitionId) -> int:
        return max(self.border, self._reader.end(key))

    async def offset_at(self, key: PartitionId, timestamp_us: int) -> int | None:
        known_us, known = self._searched
        files = [file for file in self._files if timestamp_us < known_us or file.end > known]
        found = await self._archive.offset_at(files, timestamp_us)
        self._searched = timestamp_us, self.border if found is None else found
        return found if found is not None else await self._reader.offset_at(key, timestamp_us)

    def ranges(self, first: int, end: int) -> list[OffsetRange]:
        """Return the archived ranges of these offsets; the log continues at `border`."""
        return [
            OffsetRange(
                self._reader.bundle, self._key, max(first, file.first), min(end, file.end), file.bytes, archived=file
            )
            for file in self._files
            if file.first < end and file.end > first
        ]
