"""Find bundles in which nothing changes: the compaction service reads them with two LISTs, where a
full run without work makes fourteen.

A bundle is still if its untrimmed segments hold no records. The next run sees a new segment or
checkpoint, or a change in `__metadata`. Work that becomes due by age alone (retention, cleaning), a
plan that a rival left open, and anything else that is missed waits for the periodic look at the
whole bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partitions_by_key
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.partitions.moves import Moves
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.hand_over import is_under_way
from ledgermq_ledger.topics.catalog import Catalog

STILL_S_MAX = 480.0
"""With a pause of a minute between two runs, this is less than the ten minutes that retention may
take, in a broker as here.
"""


@dataclass(frozen=True, slots=True)
class Stillness:
    """The state of a bundle when it was found still. `until_s`: on the event loop's clock."""

    checkpoint: int
    next_slot: int
    catalog_offset: int
    until_s: float


async def find_stillness(compaction: Compaction, bundle: int, catalog: Catalog, now_s: float) -> Stillness | None:
    """Return the stillness of a bundle after a run, which knows its segments; None if they hold
    records.

    Raises what `newest_checkpoint` raises.
    """
    if any(slot.index.kind == fmt.DATA for slot in compaction.known.held(bundle)):
        return None
    checkpoint = await newest_checkpoint(compaction.store, bundle)
    moves = Moves()
    moves.load([*checkpoint.state.seals, *checkpoint.state.opens])
    if is_under_way(moves, partitions_by_key(checkpoint), catalog):  # the next step depends on another bundle
        return None
    next_slot = checkpoint.trim_slot
    async for slot, info in list_numbered(compaction.store, keys.segments(bundle), next_slot - 1):
        found = compaction.known.find(bundle, slot, info.etag)
        if found is None or found.index.kind == fmt.DATA:
            return None
        next_slot = slot + 1
    return Stillness(checkpoint.number, next_slot, catalog.offset, now_s + STILL_S_MAX)


async def lasts(stillness: Stillness, store: ObjectStore, bundle: int, catalog: Catalog, now_s: float) -> bool:
    """Return True if the bundle is still unchanged. Raises the store's errors."""
    if now_s >= stillness.until_s or catalog.offset != stillness.catalog_offset:
        return False
    async for _ in list_numbered(store, keys.segments(bundle), stillness.next_slot - 1):
        return False
    newest = 0
    async for number, _ in list_numbered(store, keys.checkpoints(bundle)):
        newest = number
    return newest == stillness.checkpoint
