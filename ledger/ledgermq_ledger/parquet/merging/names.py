"""Name merged files and their lists (`ledgermq_ledger.keys` names most other objects).

merged/_<topic id>/partition=<p>/lists/<number:020d>-<put id hex>
merged/_<topic id>/partition=<p>/files/<first:020d>-<last:020d>-<number>-<put id hex>.parquet
parquet/topic=<topic>/_merged/_<topic id>/partition=<p>/files/<the same>    of a topic with a Delta table

`number` and `put id` are those of the merge: each merge has its own names, so two never put the same object. Readers of
Delta find a table's files only in its folder. Plain readers pass over a name there that begins with "_".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledgermq_ledger.keys import MERGED, PartitionId, parquet_topic
from ledgermq_ledger.object_store.contract import ObjectStore

_FILE = r"files/(\d{20})-(\d{20})-(\d+)-([0-9a-f]{32})\.parquet"
_IN_FOLDER = re.compile(rf"parquet/topic=([^/]+)/_merged/_(\d+)/partition=(\d+)/{_FILE}\Z")
_BESIDE = re.compile(rf"merged/_(\d+)/partition=(\d+)/(?:lists/(\d{{20}})-([0-9a-f]{{32}})|{_FILE})\Z")


@dataclass(frozen=True, slots=True)
class MergedName:
    """The parts of a key. `offsets`: the first and the last one of a file; None: it is a list. `topic`: whose table's
    folder a file is in; "": none.
    """

    place: PartitionId
    number: int
    put_id: bytes
    offsets: tuple[int, int] | None = None
    topic: str = ""

    @property
    def key(self) -> str:
        folder, put_id = merged_folder(self.place, self.topic), self.put_id.hex()
        if self.offsets is None:
            return f"{folder}lists/{self.number:020d}-{put_id}"
        first, last = self.offsets
        return f"{folder}files/{first:020d}-{last:020d}-{self.number}-{put_id}.parquet"


def merged_folder(place: PartitionId, topic: str = "") -> str:
    above = f"{parquet_topic(topic)}_{MERGED}" if topic else MERGED
    return f"{above}_{place.topic_id}/partition={place.partition}/"


async def files_there(store: ObjectStore, place: PartitionId, topic: str) -> list[MergedName]:
    """Return the merged files of a partition that are on the store, listed or not. Two LIST requests. Raises the
    store's errors.
    """
    folders = [f"{merged_folder(place, of)}files/" for of in ("", topic)]
    found = [parse_merged(info.key) for folder in folders async for info in store.list(folder)]
    return [name for name in found if name is not None and name.offsets is not None]


def parse_merged(key: str) -> MergedName | None:
    """Parse a key; None if no LedgerMQ process put it."""
    name = _parse_beside(key) if key.startswith(MERGED) else _parse_in_folder(key)
    return name if name is not None and name.key == key else None


def _parse_beside(key: str) -> MergedName | None:
    found = _BESIDE.match(key)
    if found is None:
        return None
    place = PartitionId(int(found[1]), int(found[2]))
    if found[3] is not None:
        return MergedName(place, int(found[3]), bytes.fromhex(found[4]))
    return MergedName(place, int(found[7]), bytes.fromhex(found[8]), (int(found[5]), int(found[6])))


def _parse_in_folder(key: str) -> MergedName | None:
    found = _IN_FOLDER.match(key)
    if found is None:
        return None
    place, offsets = PartitionId(int(found[2]), int(found[3])), (int(found[4]), int(found[5]))
    return MergedName(place, int(found[6]), bytes.fromhex(found[7]), offsets, found[1])
