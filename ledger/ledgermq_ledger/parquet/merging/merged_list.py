"""Read and put lists of merged files: each merge puts the whole list of a partition.

    envelope( MergedList{ topic id, partition, number, put id; files, ascending } )

The checkpoint of the bundle in charge names the list in force (`PartitionCheckpoint.merged`). A merged file *stands*
for the small files of its range while all of these are listed, so while it begins at or above `parquet_start`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

from ledgermq.errors import DataDamaged, FormatNotSupported, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.merging.names import MergedName, parse_merged

LISTS_MAX = 256
"""Lists that a reader keeps."""
FILES_MAX = 50_000
"""Files in them, of 400 bytes each. The list that is read last stays, however long it is."""
PASSED_MAX = 1000
"""Files that it tries no second time."""


def list_key(place: PartitionId, merged: fmt.MergedFiles) -> str:
    """Return the key of the list that a checkpoint names."""
    return MergedName(place, merged.number, merged.put_id).key


def place_of(counters: fmt.PartitionCheckpoint) -> PartitionId:
    return PartitionId(counters.topic_id, counters.partition)


def encode_list(listed: fmt.MergedList) -> bytes:
    return seal(ObjectKind.MERGED_LIST, listed)


def decode_list(data: bytes, key: str) -> fmt.MergedList:
    """Decode a list. Raises DataDamaged, FormatNotSupported, naming `key`."""
    listed = unseal(ObjectKind.MERGED_LIST, fmt.MergedList(), data, key)
    place = PartitionId(listed.topic_id, listed.partition)
    if MergedName(place, listed.number, listed.put_id).key != key:
        raise DataDamaged(f"{key}: it says partition {place}, number {listed.number}", object_key=key)
    end = 0
    for file in listed.files:
        name = parse_merged(file.key)
        if name is None or name.place != place or name.offsets != (file.first_offset, file.last_offset):
            raise DataDamaged(f"{key}: {file.key!r} is no merged file of partition {place}", object_key=key)
        if file.first_offset < end or file.last_offset < file.first_offset:
            raise DataDamaged(f"{key}: {file.key} overlaps the file before it", object_key=key)
        end = file.last_offset + 1
    return listed


async def read_list(store: ObjectStore, counters: fmt.PartitionCheckpoint) -> fmt.MergedList:
    """Return the list that a checkpoint names for a partition; an empty one if it names none.

    Raises ObjectMissing (a newer checkpoint names another one), DataDamaged, FormatNotSupported, the store's errors.
    """
    if not counters.merged.number:
        return fmt.MergedList(topic_id=counters.topic_id, partition=counters.partition)
    key = list_key(place_of(counters), counters.merged)
    return decode_list(await store.get(key), key)


class Unread(Enum):
    """Why the files of a list are not known. No record is lost: the small files have them all."""

    LOST = "it is gone, or damaged"
    LATER = "a later release wrote it"


async def read_files(store: ObjectStore, counters: fmt.PartitionCheckpoint) -> list[fmt.ParquetFile] | Unread:
    """Return the files of the list that a checkpoint names, for those who can do without it. Raises the store's
    errors.
    """
    try:
        return list((await read_list(store, counters)).files)
    except (ObjectMissing, DataDamaged):
        return Unread.LOST
    except FormatNotSupported:
        return Unread.LATER


async def put_list(store: ObjectStore, listed: fmt.MergedList, sources: Sources) -> None:
    """Put a list under the name that its merge alone has. Raises Unavailable, the store's errors."""
    key = MergedName(PartitionId(listed.topic_id, listed.partition), listed.number, listed.put_id).key
    for before, after in pairwise(listed.files):
        if after.first_offset <= before.last_offset:
            raise AssertionError(f"{key}: {after.key} would be listed beside {before.key}, which has its first record")
    if await settle_put(store, key, [encode_list(listed)], sources=sources) is not PutOutcome.WON:
        raise Unavailable(f"{key}: outcome of the conditional put is unknown; the next merge has another name")


def standing(files: Sequence[fmt.ParquetFile], counters: fmt.PartitionCheckpoint) -> list[fmt.ParquetFile]:
    """Return the merged files that readers may take: those whose small files are all listed."""
    return [file for file in files if _stands(file, counters)]


def standing_at(
    files: Sequence[fmt.ParquetFile], counters: fmt.PartitionCheckpoint, offset: int
) -> fmt.ParquetFile | None:
    """Return the merged file that stands for the small one with this offset; None: none does. `files`: ascending."""
    file = listed_at(files, offset)
    return file if file is not None and _stands(file, counters) else None


def listed_at(files: Sequence[fmt.ParquetFile], offset: int) -> fmt.ParquetFile | None:
    """Return the merged file that has an offset, be it behind the front or not. `files`: ascending."""
    place = bisect_left(files, offset, key=lambda file: file.last_offset)
    return files[place] if place < len(files) and files[place].first_offset <= offset else None


def _stands(file: fmt.ParquetFile, counters: fmt.PartitionCheckpoint) -> bool:
    return file.first_offset >= counters.parquet_start and file.last_offset < counters.parquet_end


class MergedReader:
    """Finds merged files for readers. Lists never change, so each is read once; what cannot be read stands for
    nothing, because the small files have all records.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lists: OrderedDict[str, Sequence[fmt.ParquetFile]] = OrderedDict()
        self._count = 0
        """Files of all of them."""
        self._passed: OrderedDict[str, None] = OrderedDict()
        """Merged files that could not be read."""

    def pass_over(self, key: str) -> None:
        """Let a merged file that cannot be read stand for nothing from now on. Names are never given twice."""
        self._passed[key] = None
        while len(self._passed) > PASSED_MAX:
            self._passed.popitem(last=False)

    async def at(self, counters: fmt.PartitionCheckpoint, offset: int) -> fmt.ParquetFile | None:
        """Return the merged file that stands for the small one with this offset; None: there is none.

        Raises the store's errors.
        """
        if not counters.merged.number:
            return None
        file = standing_at(await self._files(counters), counters, offset)
        return None if file is None or file.key in self._passed else file

    async def over(self, files: Sequence[fmt.ParquetFile], counters: fmt.PartitionCheckpoint) -> list[fmt.ParquetFile]:
        """Return a partition's files with merged ones in the place of the small ones that they stand for. The first of
        them may begin before the first of `files`. Raises the store's errors.
        """
        if not counters.merged.number:
            return list(files)
        left = deque(standing(await self._files(counters), counters))
        found: list[fmt.ParquetFile] = []
        for file in files:
            while left and left[0].last_offset < file.first_offset:
                left.popleft()
            chosen = left[0] if left and left[0].first_offset <= file.first_offset else file
            if not found or found[-1] is not chosen:
                found.append(chosen)
        return found

    async def _files(self, counters: fmt.PartitionCheckpoint) -> Sequence[fmt.ParquetFile]:
        key = list_key(place_of(counters), counters.merged)
        if key not in self._lists:
            files = await read_files(self._store, counters)
            if key not in self._lists:  # no other task has read it meanwhile
                self._keep(key, () if isinstance(files, Unread) else files)
        self._lists.move_to_end(key)
        return self._lists[key]

    def _keep(self, key: str, files: Sequence[fmt.ParquetFile]) -> None:
        self._lists[key] = files
        self._count += len(files)
        while len(self._lists) > 1 and (len(self._lists) > LISTS_MAX or self._count > FILES_MAX):
            self._count -= len(self._lists.popitem(last=False)[1])
