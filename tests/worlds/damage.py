"""Damage in a bucket, as tests make it."""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.contract import ObjectStore


async def replace_object(store: ObjectStore, key: str, data: bytes) -> None:
    await store.delete([key])
    await store.put_if_absent(key, [data])


async def damage_batch(store: ObjectStore, bundle: int, slot: int, partition: PartitionId) -> None:
    """That of a partition in a segment: a byte in its middle."""
    entries = (await read_index(store, bundle, slot)).index.batches
    entry = next(entry for entry in entries if (entry.topic_id, entry.partition) == partition)
    data = bytearray(await store.get(keys.segment(bundle, slot)))
    data[entry.position + entry.length // 2] ^= 0xFF
    await replace_object(store, keys.segment(bundle, slot), bytes(data))


async def damage_checkpoint(store: ObjectStore, bundle: int) -> str:
    """The bundle's newest, so that all that needs it refuses; its key."""
    key = keys.checkpoint(bundle, (await newest_checkpoint(store, bundle)).number)
    data = bytearray(await store.get(key))
    data[len(data) // 2] ^= 0xFF
    await replace_object(store, key, bytes(data))
    return key
