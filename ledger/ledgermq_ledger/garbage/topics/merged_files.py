"""Merged files and their lists (design Q11 to Q13).

behind the front   a merged file goes when the first small file of its range has gone: no reader takes it any longer,
                   and what was deleted must not stay on the store
in no list         what a merge has put goes once the partition's newest merge has its number or a later one: a list
                   is brought into force only by the next number, so nothing can name it any longer
a former list      likewise
list unread        a list that is lost, damaged, or of a later release names nothing that is known: what is behind the
                   front goes by its name, and the rest stays until a new list is in force
everything         of a topic that is removed: its id is in the name, so no later topic has the same folder

Objects are listed first, and judged by the newest checkpoint of the bundle in charge, which is read then. While a
partition is between two bundles all of it stays, as does all of a held topic. No cut names any of it. A reader that
has an older list finds the file missing, and takes the small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.pinned import Pinned
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.merging.merge import forget_front
from ledgermq_ledger.parquet.merging.merged_list import Unread, list_key, place_of, read_files, read_list
from ledgermq_ledger.parquet.merging.names import MergedName, files_there, parse_merged
from ledgermq_ledger.parquet.merging.plan import may_list
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import has_table
from ledgermq_ledger.topics.tables import bundle_before


@dataclass(frozen=True, slots=True)
class _Judge:
    """What decides about the objects of one partition. `counters`: None: its topic is removed."""

    gate: Gate
    counters: fmt.PartitionCheckpoint | None = None
    named: frozenset[str] | None = frozenset()
    """None: it is not known what the list in force names."""

    def why_garbage(self, name: MergedName) -> str:
        """Return why nothing needs an object; "" if something may."""
        if self.gate.why_kept(name.key):
            return ""
        if self.counters is None:
            return f"topic id {name.place.topic_id} is deleted"
        if name.offsets is not None and name.offsets[0] < self.counters.parquet_start:
            return "a small file that it stands for is deleted"
        if self.named is not None and name.number <= self.counters.merged.number and name.key not in self.named:
            return f"merge {self.counters.merged.number} does not list it"
        return ""


async def _judge_of(store: ObjectStore, catalog: Catalog, place: PartitionId) -> _Judge | None:
    """Return what judges the objects of a partition that were listed before; None: they stay."""
    if catalog.is_removed(place.topic_id, catalog.offset):
        return _Judge(Gate(catalog, pinned=Pinned()))
    topic = catalog.topics_by_id.get(place.topic_id)
    if topic is None or place.partition >= len(topic.bundles):
        return None
    checkpoint = await checkpoint_in_charge(store, bundle_before(topic, place.partition), place)
    if checkpoint is None:
        return None
    counters = partition_of(checkpoint, *place)
    gate = Gate(catalog, checkpoint, pinned=Pinned())
    if not counters.merged.number:
        return _Judge(gate, counters)
    try:
        listed = await read_list(store, counters)
    except ObjectMissing:
        newest = await newest_checkpoint(store, checkpoint.bundle, checkpoint)
        if newest.number != checkpoint.number:
            return None  # another merge has replaced the list
        if has_table(checkpoint, place.topic_id):
            return _Judge(gate, counters, None)  # it is lost, and the table may name what it had
        listed = fmt.MergedList()  # it is lost, so it names nothing
    except (DataDamaged, FormatNotSupported):
        return _Judge(gate, counters, None)
    named = {file.key for file in listed.files} | {list_key(place, counters.merged)}
    return _Judge(gate, counters, frozenset(named))


async def find(store: ObjectStore, catalog: Catalog, in_folders: Iterable[ObjectInfo] = ()) -> list[Removable]:
    """Return what nothing needs, by key. One LIST if there is nothing. `in_folders`: objects below `parquet/`.
    A partition whose checkpoint cannot be read keeps all. Raises the store's errors.
    """
    listed: dict[PartitionId, list[tuple[MergedName, ObjectInfo]]] = {}
    for info in [*in_folders, *[info async for info in store.list(keys.MERGED)]]:
        if (name := parse_merged(info.key)) is not None:
            listed.setdefault(name.place, []).append((name, info))
    removable = []
    for place, objects in sorted(listed.items()):
        try:
            judge = await _judge_of(store, catalog, place)
        except (DataDamaged, FormatNotSupported):
            continue  # its checkpoint cannot be read, which others report
        if judge is None:
            continue
        for name, info in objects:
            if why := judge.why_garbage(name):
                removable.append(Removable.of(Kind.MERGED, info, why))
    return sorted(removable, key=lambda each: each.key)


async def remove(store: ObjectStore, catalog: Catalog, removable: Sequence[Removable]) -> list[str]:
    """Delete those of the objects that nothing needs still, and return their keys. Raises the store's errors, and
    DataDamaged or FormatNotSupported of a partition's checkpoint, when all others are done.
    """
    deleted: list[str] = []
    failed: DataDamaged | FormatNotSupported | None = None
    for place, names in _by_place(each.key for each in removable).items():
        try:
            judge = await _judge_of(store, catalog, place)
        except (DataDamaged, FormatNotSupported) as error:
            failed, judge = failed or error, None
        if judge is not None:
            garbage = [each for each in removable if each.key in names and judge.why_garbage(names[each.key])]
            deleted += await found.delete(store, garbage, judge.gate)
    if failed is not None:
        raise failed
    return deleted


def _by_place(wanted: Iterable[str]) -> dict[PartitionId, dict[str, MergedName]]:
    found_names: dict[PartitionId, dict[str, MergedName]] = {}
    for key in wanted:
        if (name := parse_merged(key)) is not None:
            found_names.setdefault(name.place, {})[key] = name
    return found_names


async def remove_behind(ledger: LedgerRef, catalog: Catalog) -> int:
    """Delete the merged files of a bundle whose first small file has gone, and note it; return how many there were.
    Costs nothing where there are none. Raises the store's errors.
    """
    store, count = ledger.store, 0
    checkpoint = await newest_checkpoint(store, ledger.bundle)
    for counters in checkpoint.partitions:
        merged = counters.merged
        if not merged.number or merged.first >= counters.parquet_start or not may_list(checkpoint, counters):
            continue
        behind, first = await _behind(store, catalog, counters)
        if len(await Gate(catalog, checkpoint, pinned=Pinned()).delete(store, behind)) < len(behind):
            continue  # it is held
        count += len(behind)
        await advance_checkpoint(ledger, forget_front(place_of(counters), merged.number, first))
    return count


async def _behind(store: ObjectStore, catalog: Catalog, counters: fmt.PartitionCheckpoint) -> tuple[list[str], int]:
    """Return the merged files that begin behind the front, by the list, or by their names where it cannot be read; and
    below which offset none is left when they are gone.
    """
    files = await read_files(store, counters)
    if isinstance(files, Unread):
        topic = catalog.topics_by_id.get(counters.topic_id)
        names = await files_there(store, place_of(counters), "" if topic is None else topic.name)
        keys = [name.key for name in names if name.offsets is not None and name.offsets[0] < counters.parquet_start]
        return keys, counters.parquet_start
    behind = [file.key for file in files if counters.merged.first <= file.first_offset < counters.parquet_start]
    later = [file.first_offset for file in files if file.first_offset >= counters.parquet_start]
    return behind, min(later, default=counters.parquet_end)
