"""Name merged files and their lists (`ledgermq_ledger.keys` names most other objects).

merged/_<topic id>/partition=<p>/lists/<number:020d>-<put id hex>
merged/_<topic id>/partition=<p>/files/<first:020d>-<last:020d>-<number>-<put id hex>.parquet

`number` and `put id` are those of the merge: each merge has its own names, so two never put the same object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledgermq_ledger.keys import MERGED, PartitionId

_NAME = re.compile(
    r"merged/_(\d+)/partition=(\d+)/(?:lists/(\d{20})-([0-9a-f]{32})|files/(\d{20})-(\d{20})-(\d+)-([0-9a-f]{32})\.parquet)\Z"
)


@dataclass(frozen=True, slots=True)
class MergedName:
    """The parts of a key below `merged/`. `offsets`: the first and the last one of a file; None: it is a list."""

    place: PartitionId
    number: int
    put_id: bytes
    offsets: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        folder, put_id = merged_folder(self.place), self.put_id.hex()
        if self.offsets is None:
            return f"{folder}lists/{self.number:020d}-{put_id}"
        first, last = self.offsets
        return f"{folder}files/{first:020d}-{last:020d}-{self.number}-{put_id}.parquet"


def merged_folder(place: PartitionId) -> str:
    return f"{MERGED}_{place.topic_id}/partition={place.partition}/"


def parse_merged(key: str) -> MergedName | None:
    """Parse a key; None if no LedgerMQ process put it."""
    found = _NAME.match(key)
    if found is None:
        return None
    place = PartitionId(int(found[1]), int(found[2]))
    if found[3] is not None:
        name = MergedName(place, int(found[3]), bytes.fromhex(found[4]))
    else:
        name = MergedName(place, int(found[7]), bytes.fromhex(found[8]), (int(found[5]), int(found[6])))
    return name if name.key == key else None
