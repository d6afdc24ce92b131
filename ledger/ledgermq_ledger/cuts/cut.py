"""Read and put the object of a cut, `cuts/<id>`: what it names in each bundle.

    envelope( Cut )

It is put once, before the record that says TAKEN. An object whose record never said so stands for an attempt that was
abandoned.
"""

from __future__ import annotations

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.cuts import names
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put


def decode_cut(data: bytes, key: str) -> fmt.Cut:
    """Decode a cut. Raises DataDamaged, FormatNotSupported, naming `key`."""
    cut = unseal(ObjectKind.CUT, fmt.Cut(), data, key)
    if key != names.cut(cut.id):
        raise DataDamaged(f"{key}: it says cut {cut.id}", object_key=key)
    if [each.bundle for each in cut.bundles] != list(range(len(cut.bundles))) or not cut.bundles:
        raise DataDamaged(f"{key}: it does not name each bundle once, in their order", object_key=key)
    return cut


async def read_cut(store: ObjectStore, cut_id: int) -> fmt.Cut | None:
    """Return a cut's object; None if there is none. Raises what `decode_cut` raises, the store's errors."""
    key = names.cut(cut_id)
    try:
        return decode_cut(await store.get(key), key)
    except ObjectMissing:
        return None


async def put_cut(store: ObjectStore, cut: fmt.Cut, sources: Sources) -> None:
    """Put a cut's object. Raises DataDamaged if another object has its name, Unavailable if the outcome is unknown."""
    key = names.cut(cut.id)
    outcome = await settle_put(store, key, [seal(ObjectKind.CUT, cut)], sources=sources)
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(f"{key}: outcome of the conditional put is unknown; take the cut again")
    if outcome is PutOutcome.LOST:
        raise DataDamaged(f"{key}: another object has the name of this cut", object_key=key)


def versions_of(cut: fmt.Cut) -> dict[PartitionId, int]:
    """Return the placed version of each keyed partition that has one."""
    return {
        PartitionId(part.topic_id, part.partition): part.version
        for bundle in cut.bundles
        for part in bundle.partitions
        if part.version
    }
