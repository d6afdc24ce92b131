"""Find the versions of a keyed partition that newer ones have replaced, and the files that no other version names.

Must not know: what may be removed (`ledgermq_ledger.garbage`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ledgermq_ledger import keys
from ledgermq_ledger.keyed.version import read_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore


@dataclass(frozen=True, slots=True)
class Replaced:
    """`versions`: ascending. `files`: those that no other version names."""

    versions: tuple[ObjectInfo, ...] = ()
    files: tuple[ObjectInfo, ...] = ()


async def find_replaced(
    store: ObjectStore, place: PartitionId, limit_ms: int, stays: Callable[[str], bool]
) -> Replaced:
    """Return the versions whose successors were published up to `limit_ms`, by the store's clock, and the files of
    them that no other version names; also those of rounds that lost. `stays(key)`: whether an object is to stay.

    Files are listed first, so that newer files do not count as replaced. Raises DataDamaged, FormatNotSupported, the
    store's errors.
    """
    files = [
        (info, name.number)
        async for info in store.list(keys.keyed_files(place))
        if (name := keys.parse_keyed(info.key)) is not None
    ]
    listed = [found async for found in list_numbered(store, keys.keyed_versions(place))]
    if not listed:
        return Replaced()
    replaced = {
        number: info
        for (number, info), (_, after) in pairwise(listed)
        if after.modified_ms <= limit_ms and not stays(info.key)
    }
    live: set[str] = set()
    for number, _ in listed:
        if number not in replaced:
            live |= await _files_of(store, place, number)
    unused = tuple(
        info for info, number in files if info.key not in live and number <= listed[-1][0] and not stays(info.key)
    )
    return Replaced(tuple(replaced.values()), unused)


async def _files_of(store: ObjectStore, place: PartitionId, number: int) -> set[str]:
    try:
        return {file.key for file in (await read_version(store, place, number)).files}
    except ObjectMissing:
        return set()  # another process has just deleted it, because it was replaced long ago
