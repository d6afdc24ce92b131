"""The one place that is asked whether an object may be deleted. Every deletion of this package goes through
`Gate.delete`; what keeps an object although nothing of the log needs it any longer is a rule here.

    trashed topic   its files and versions stay until the grace is over (design D11)
    held topic      the same, by the bundle's newest checkpoint (legal hold, or a deletion that is in force)
    table           a file of the log stays until every version of the topic's table that a reader may have open says
                    a log start behind it: until its last offset is below `table_start` (design Z6). Of a removed topic
                    nothing stays. A version of a keyed topic with a table stays until its number is below
                    `table_version` (design V5); its files go when no version names them
    cut             what a cut names stays where it is, but a Parquet file of a log is handed over to `held/` before it
                    is deleted, so that it stops neither retention nor removal (designs I9 to I11)

A remover decides by what it has read, some time ago perhaps. So it builds its gate from what it read last, just
before it deletes: for files of the log that is the checkpoint of the bundle in charge of the partition. Pins are those
of the checkpoint by which the remover decides: a pin that comes later names nothing that this checkpoint lets go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.held import hand_over
from ledgermq_ledger.cuts.pinned import Pinned, PinReader
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import has_table, is_held, versions_kept_from

DELETE_BATCH = 500


class Gate:
    """`catalog`, `checkpoint`: what the remover knows; None where it is about objects of no topic. `was_listed`: False
    if no list names the files that are asked about: a list lets go of files from the front only, so one that begins
    behind the front was never in any list, and no table ever named it. `pinned`: what the pins of the checkpoint keep;
    `Gate.of` reads it.
    """

    def __init__(
        self,
        catalog: Catalog | None = None,
        checkpoint: fmt.Checkpoint | None = None,
        *,
        was_listed: bool = True,
        pinned: Pinned | None = None,
    ) -> None:
        if pinned is None and checkpoint is not None and checkpoint.pins:
            raise AssertionError(f"bundle {checkpoint.bundle}: its pins were not read")
        self._catalog = catalog
        self._checkpoint = checkpoint
        self._was_listed = was_listed
        self._pinned = pinned if pinned is not None else Pinned() if checkpoint is not None else None

    @classmethod
    async def of(
        cls,
        store: ObjectStore,
        checkpoint: fmt.Checkpoint,
        catalog: Catalog | None = None,
        *,
        was_listed: bool = True,
        pins: PinReader | None = None,
    ) -> Self:
        """Return the gate of what `checkpoint` lets go. Without pins it costs no request. `pins`: what several gates
        of one store share.

        Raises DataDamaged if something that a cut names is missing, Unavailable if it was dropped just now, the
        store's errors: then nothing may be deleted.
        """
        return cls(catalog, checkpoint, was_listed=was_listed, pinned=await read_pinned(store, checkpoint, pins))

    @classmethod
    def of_checkpoints(cls, checkpoint: fmt.Checkpoint) -> Self:
        """Return the gate of checkpoints older than this one alone, which costs no request."""
        bases = {keys.checkpoint(checkpoint.bundle, pin.base): pin.cut for pin in checkpoint.pins}
        return cls(checkpoint=checkpoint, pinned=Pinned(objects=bases))

    @classmethod
    async def of_root(cls, store: ObjectStore, bundles: int, catalog: Catalog) -> Self:
        """Return the gate of what a catalog alone lets go: no bundle's pins may keep it. `catalog` was read before."""
        pinned, pins = Pinned(), PinReader(store)
        for bundle in range(bundles):
            pinned.add(await read_pinned(store, await newest_checkpoint(store, bundle), pins))
        return cls(catalog, pinned=pinned)

    def why_kept(self, key: str) -> str:
        """Return why the object has to stay where it is; "" if it may be deleted, after `hand_over` perhaps."""
        topic_id = _topic_of(key)
        if topic_id is None and keys.parse_ledger(key) is None:
            return ""
        if self._pinned is None:
            raise AssertionError(f"{key}: only a checkpoint says whether a cut names it")
        if (cut := self._pinned.keeps(key)) is not None:
            return f"cut {cut} names it"
        if topic_id is None:
            return ""
        topic = self._catalog.topics_by_id.get(topic_id) if self._catalog is not None else None
        if topic is not None and topic.trash is not None:
            return f"topic {topic.name} is deleted, and can be brought back"
        if self._checkpoint is not None and is_held(self._checkpoint, topic_id):
            return f"topic id {topic_id} is held"
        if (version := keys.parse_keyed(key)) is not None:
            return self._why_tables_keep_version(version)
        file = keys.parse_parquet(key)  # a merged file goes after a small one of its range, which tables let go first
        return "" if file is None else self._why_tables_keep(file)

    def _why_tables_keep_version(self, version: keys.KeyedName) -> str:
        """Only a finder knows which versions name a file: it asks about each of them (`keyed.replaced`)."""
        if version.is_file or self._checkpoint is None:
            return ""
        if version.number < versions_kept_from(self._checkpoint, *version.place):
            return ""
        return f"versions of the table of topic id {version.place.topic_id} that can be read may show it"

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
        that has to stay. Those that are handed over to cuts go there first. Return the keys that were deleted.

        Raises what `hand_over` raises; that file and those after it stay.
        """
        free = []
        for key in keys:
            if self.why_kept(key):
                break
            free.append(key)
        for i in range(0, len(free), DELETE_BATCH):
            batch = free[i : i + DELETE_BATCH]
            for key in batch:
                if self.is_handed_over(key):
                    await hand_over(store, key)
            await store.delete(batch)
        return free

    def is_handed_over(self, key: str) -> bool:
        """Return True if a cut names this Parquet file, so that it is copied to `held/` before it goes."""
        return self._pinned is not None and key in self._pinned.files


async def read_pinned(store: ObjectStore, checkpoint: fmt.Checkpoint, pins: PinReader | None = None) -> Pinned:
    """Return what the pins of a checkpoint keep. Raises what `Gate.of` raises."""
    if not checkpoint.pins:
        return Pinned()
    try:
        return await (pins or PinReader(store)).read(checkpoint)
    except DataDamaged as error:
        newest = await newest_checkpoint(store, checkpoint.bundle, checkpoint)
        if newest.pins == checkpoint.pins:
            raise
        text = f"bundle {checkpoint.bundle}: a cut was dropped while its pin was read; retry later"
        raise Unavailable(text, object_key=error.object_key) from error


def _topic_of(key: str) -> int | None:
    """Return the id of the topic whose records an object holds; None for all others."""
    if (file := keys.parse_parquet(key)) is not None:
        return file.topic_id
    if (version := keys.parse_keyed(key)) is not None:
        return version.place.topic_id
    if (merged := parse_merged(key)) is not None:
        return merged.place.topic_id
    return None
