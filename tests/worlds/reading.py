"""What a `LedgerReader` shows, as offsets and values."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.blocking import run_inline
from ledger.keys import PartitionId
from ledger.log.stored_batch import StoredBatch
from ledger.object_store.contract import ObjectStore
from ledger.view.reader import LedgerReader
from ledgermq.protocol.batch_header import check_crc
from ledgermq.protocol.records import decode_batch
from tests.worlds.ledgers import ledger_of


async def opened_reader(
    store: ObjectStore, bundle: int = 1, index_batches_max: int = 10_000, recent_bytes_max: int = 0
) -> LedgerReader:
    bounds = {"index_batches_max": index_batches_max, "recent_bytes_max": recent_bytes_max}
    reader = LedgerReader(ledger_of(store, bundle), run_blocking=run_inline, **bounds)
    await reader.open()
    return reader


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
