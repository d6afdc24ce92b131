"""The one place that is asked whether an object may be deleted. Every deletion of this package goes through
`Gate.delete`; what keeps an object although nothing of the log needs it any longer is a rule here.

    trashed topic   its files and versions stay until the grace is over (design D11)
    held topic      the same, by the bundle's newest checkpoint (legal hold, or a deletion that is in force)
    table           a file of the log stays until every version of the topic's table that a reader may have open says
                    a log start behind it: until its last offset is below `table_start` (design Z6). Of a removed topic
                    nothing stays

A remover decides by what it has read, some time ago perhaps. So it builds its gate from what it read last, just
before it deletes: for files of the log that is the checkpoint of the bundle in charge of the partition. Pure but for
the deletion itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import has_table, is_held

DELETE_BATCH = 500


class Gate:
    """`catalog`, `checkpoint`: what the remover knows; None where it is about objects of no topic. `was_listed`: False
    if no list names the files that are asked about: a list lets go of files from the front only, so one that begins
    behind the front was never in any list, and no table ever named it.
    """

    def __init__(
        self,
        catalog: Catalog | None = None,
        checkpoint: fmt.Checkpoint | None = None,
        *,
        was_listed: bool = True,
    ) -> None:
        self._catalog = catalog
        self._checkpoint = checkpoint
        self._was_listed = was_listed

    def why_kept(self, key: str) -> str:
        """Return why the object has to stay; "" if it may be deleted."""
        topic_id = _topic_of(key)
        if topic_id is None:
            return ""
        if self._catalog is None and self._checkpoint is None:
            raise AssertionError(f"{key} belongs to a topic: only a catalog or a checkpoint says whether it may go")
        topic = self._catalog.topics_by_id.get(topic_id) if self._catalog is not None else None
        if topic is not None and topic.trash is not None:
            return f"topic {topic.name} is deleted, and can be brought back"
        if self._checkpoint is not None and is_held(self._checkpoint, topic_id):
            return f"topic id {topic_id} is held"
        file = keys.parse_parquet(key)
        return "" if file is None else self._why_tables_keep(file)

    def _why_tables_keep(self, file: keys.ParquetName) -> str:
        if self._catalog is not None and self._catalog.is_removed(file.topic_id, self._catalog.offset):
            return ""
        if self._checkpoint is None:
            raise AssertionError(f"{file.key}: only a checkpoint says whether the topic's table may name it")
        counters = partition_of(self._checkpoint, file.topic_id, file.partition)
        if not has_table(self._checkpoint, file.topic_id) or file.last_offset < counters.table_start:
            return ""
        if not self._was_listed and file.first_offset >= counters.parquet_start:
            return ""
        return f"versions of the table of topic id {file.topic_id} that can be read may name it"

    async def delete(self, store: ObjectStore, keys: Sequence[str]) -> list[str]:
        """Delete the objects in the given order, one request for each `DELETE_BATCH` of them, up to the first one
        that has to stay. Return the keys that were deleted.
        """
        free = []
        for key in keys:
            if self.why_kept(key):
                break
            free.append(key)
        for i in range(0, len(free), DELETE_BATCH):
            await store.delete(free[i : i + DELETE_BATCH])
        return free


def _topic_of(key: str) -> int | None:
    """Return the id of the topic whose records an object holds; None for all others."""
    if (file := keys.parse_parquet(key)) is not None:
        return file.topic_id
    if (version := keys.parse_keyed(key)) is not None:
        return version.place.topic_id
    return None
