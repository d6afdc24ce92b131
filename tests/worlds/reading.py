"""What the reader of a ledger shows, as offsets and values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.reader import LedgerReader
from tests.worlds.ledgers import ledger_of


async def opened_ledger(
    store: ObjectStore, bundle: int = 1, index_batches_max: int = 10_000, **bounds: int
) -> FollowedLedger:
    ledger = FollowedLedger(
        ledger_of(store, bundle), run_blocking=run_inline, index_batches_max=index_batches_max, **bounds
    )
    await ledger.open()
    return ledger


async def following(
    ledger: FollowedLedger, positions: Mapping[PartitionId, int], *, poll_s: float = 0.2
) -> AsyncIterator[tuple[PartitionId, list[StoredBatch]]]:
    """Everything from these offsets on, forever: a partition, and batches of it, in turn."""
    positions = dict(positions)
    while True:
        behind = [key for key, offset in positions.items() if offset < ledger.reader.end(key)]
        for key in behind:
            batches = await ledger.reader.read(key, positions[key])
            yield key, batches
            positions[key] = batches[-1].end
        if not behind and not await ledger.refresh():
            await asyncio.sleep(poll_s)


def rows_of(batches: Sequence[StoredBatch], offset: int) -> dict[int, bytes]:
    """Offset → value, from `offset` on; asserts that the batches are whole and follow one another."""
    found: dict[int, bytes] = {}
    for stored in batches:
        assert stored.base_offset <= offset < stored.end, (offset, stored)
        check_crc(stored.data, stored.crc)
        values = decode_batch(stored.data).column("value").to_pylist()
        assert len(values) == stored.record_count
        found |= {at: value for at, value in enumerate(values, stored.base_offset) if at >= offset}
        offset = stored.end
    return found


async def read_to_end(
    reader: LedgerReader, key: PartitionId, offset: int = 0, bytes_max: int = 1 << 20
) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while batches := await reader.read(key, offset, bytes_max):
        found |= rows_of(batches, offset)
        offset = batches[-1].end
    return found
