"""Parquet files in no page above `parquet_start` and in no open plan (design D5): one stands for a batch that was
recorded as failed, or a process died while it removed an expired or a cleaned file.

Of a partition that has moved: not in the list of the one bundle that is in charge of it, which is read later than the
file's plan is finished (design D10); while the partition is between two bundles, all its files stay. Their age and
legal holds count as for expired files. A file that is no LedgerMQ file, of another cluster, or of a bundle that cannot
be read is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.pinned import PinReader
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.ledgers import fences
from ledgermq_ledger.garbage.listing import RootListing
from ledgermq_ledger.garbage.topics import commit_age
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, is_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.facts import is_held


async def find_unreferenced(
    store: ObjectStore, cluster: ClusterSettings, listing: RootListing
) -> dict[int, list[Removable]]:
    """Return unreferenced files by bundle, ascending. Reads the footers of files that no readable
    bundle refers to.
    """
    bundles = {number: bundle for number, bundle in listing.bundles.items() if number not in listing.failures}
    lists = _Lists(store)
    live = {key for bundle in bundles.values() for key in bundle.files}
    readable = {(part.topic_id, part.partition) for bundle in bundles.values() for part in bundle.checkpoint.partitions}
    removable: dict[int, list[Removable]] = {}
    for key, info in sorted(listing.parquet.items()):
        name = keys.parse_parquet(key)
        if name is None or key in live:
            continue
        if listing.failures and (name.topic_id, name.partition) not in readable:
            continue  # perhaps live, of a bundle that cannot be read: to read all their footers would take hours
        note = await _note_of(store, cluster, key)
        if note is None or (bundle := bundles.get(note.bundle)) is None:
            continue
        if note.plan > bundle.checkpoint.finished_plan or is_held(bundle.checkpoint, note.topic_id):
            continue
        gate = await lists.gate_of(key, bundle.checkpoint)
        if gate is not None and not gate.why_kept(key):
            why = f"nothing has referred to it since plan {note.plan}"
            found = Removable.of(Kind.PARQUET, info, why, cluster.parquet_min_age_ms)
            removable.setdefault(note.bundle, []).append(found)
    return removable


def _place(name: keys.ParquetName) -> PartitionId:
    return PartitionId(name.topic_id, name.partition)


class _List(NamedTuple):
    checkpoint: fmt.Checkpoint  # of the bundle in charge
    files: frozenset[str]


class _Lists:
    """The lists of partitions that have left the bundles that made their files. Each is read once, when it is first
    asked for.

    A list says something of a file only if it is read when the file's plan is finished: from then on the file is
    in the list of the bundle in charge, or in no list ever, because a list comes from no other one than that.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[tuple[int, PartitionId], _List | None] = {}
        self._pins = PinReader(store)

    async def gate_of(self, key: str, checkpoint: fmt.Checkpoint) -> Gate | None:
        """Return the gate of a file that nothing in its bundle refers to, which a finished plan of this bundle made;
        None if another list names it, or may. `checkpoint`: of that bundle. Raises the store's errors.
        """
        name = keys.parse_parquet(key)
        assert name is not None, key
        if not is_in_charge(checkpoint, *_place(name)):
            listed = await self._list_of(key, checkpoint.bundle)
            if listed is None or key in listed.files:
                return None
            checkpoint = listed.checkpoint
        return await Gate.of(self._store, checkpoint, was_listed=False, pins=self._pins)

    async def is_lowest(self, key: str, bundle: int) -> bool:
        """Return whether each lower file of the partition is in the list of the bundle in charge. Otherwise another
        bundle's file has to go first, so that a plain reader finds no gap (design D10). Raises the store's errors.
        """
        name, listed = keys.parse_parquet(key), await self._list_of(key, bundle)
        if name is None or listed is None:
            return False
        async for info in self._store.list(key[: key.rindex("/") + 1]):
            if info.key >= key:
                return True
            lower = keys.parse_parquet(info.key)
            if lower is not None and lower.topic_id == name.topic_id and info.key not in listed.files:
                return False
        return True

    async def _list_of(self, key: str, bundle: int) -> _List | None:
        name = keys.parse_parquet(key)
        assert name is not None, key
        at = bundle, _place(name)
        if at not in self._known:
            self._known[at] = await self._listed(*at)
        return self._known[at]

    async def _listed(self, bundle: int, place: PartitionId) -> _List | None:
        """Return the list of a partition; None if they stay: it is between two bundles, or under legal hold, or its
        list cannot be read.
        """
        try:
            checkpoint = await checkpoint_in_charge(self._store, bundle, place)
            if checkpoint is None or is_held(checkpoint, place.topic_id):
                return None
            counters = partition_of(checkpoint, *place)
            files = await PageReader(self._store, checkpoint.bundle).files_from(counters, 0)
        except (DataDamaged, FormatNotSupported, ObjectMissing):  # the last one: it is another list by now
            return None
        return _List(checkpoint, frozenset(file.key for file in files))


async def _note_of(store: ObjectStore, cluster: ClusterSettings, key: str) -> FooterNote | None:
    """Return the note of a file of this cluster, which names its bundle; None if it cannot be read
    or contradicts the name.
    """
    name = keys.parse_parquet(key)
    try:
        note = FooterNote.decode((await read_footer(store, key)).metadata)
    except (DataDamaged, ObjectMissing):
        return None
    if name is None or note is None:
        return None
    is_named = (note.topic_id, note.plan) == (name.topic_id, name.plan)
    return note if is_named and cluster.wrote(note.cluster) else None


async def remove_unreferenced(
    store: ObjectStore, cluster: ClusterSettings, bundle: int, files: Sequence[Removable]
) -> list[str]:
    """Remove those of the bundle's files that are old enough, ascending, and return the keys. Of a partition that has
    moved, one waits for another pass while a lower one is left, which may be another bundle's.
    """
    if not files:
        return []
    await fences.close_finished(store, bundle)
    old_enough = await commit_age.finished_long_ago(store, bundle, cluster.parquet_min_age_ms)
    checkpoint = await newest_checkpoint(store, bundle)  # a hold may have come since they were found
    lists, state = _Lists(store), checkpoint.state
    moved = {*map(key_of, state.seals), *map(key_of, state.opens)}
    deleted = []
    for key in sorted(each.key for each in files):
        name = keys.parse_parquet(key)
        if name is None or name.plan > old_enough or is_held(checkpoint, name.topic_id):
            continue
        gate = await lists.gate_of(key, checkpoint)
        if gate is None or (_place(name) in moved and not await lists.is_lowest(key, bundle)):
            continue
        deleted += await gate.delete(store, [key])
    return deleted
