"""Damage in a bucket, as tests make it."""

from __future__ import annotations

from ledger import keys
from ledger.checkpoint import newest_checkpoint
from ledger.object_store.contract import ObjectStore


async def replace_object(store: ObjectStore, key: str, data: bytes) -> None:
    await store.delete([key])
    await store.put_if_absent(key, [data])


async def damage_checkpoint(store: ObjectStore, bundle: int) -> str:
    """The bundle's newest, so that all that needs it refuses; its key."""
    key = keys.checkpoint(bundle, (await newest_checkpoint(store, bundle)).number)
    data = bytearray(await store.get(key))
    data[len(data) // 2] ^= 0xFF
    await replace_object(store, key, bytes(data))
    return key
