"""Copy what a cut names into another root.

Of each bundle the base, without its pins, the segments up to the place, and the claims that the base notes; pages and
snapshot; the Parquet files, below `parquet/` again; placed versions of keyed partitions. `restore` says what is put
before and after that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from ledgermq.errors import DataDamaged, InvalidRequest
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.pinned import PinReader
from ledgermq_ledger.cuts.reading.left_out import is_of
from ledgermq_ledger.cuts.reading.root import RootAtCut
from ledgermq_ledger.cuts.reading.store import CutStore
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import encode_checkpoint
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, ObjectStore

COPIES_AT_ONCE = 4


@dataclass(slots=True)
class Copied:
    """What is in the copy now."""

    objects: int = 0
    bytes: int = 0


async def copy_named(at: RootAtCut, target: ObjectStore, without: Collection[int] = ()) -> Copied:
    """Copy what a cut names, without `cluster.json`, and without the files of some topics, by id. Whole objects are in
    memory, four at a time.

    Raises InvalidRequest if the target has other objects under these names; DataDamaged if something of the cut is
    missing; the stores' errors.
    """
    copied, done = Copied(), set[str]()

    async def put(key: str, data: bytes) -> None:
        done.add(key)
        await put_same(target, key, data)
        copied.objects += 1
        copied.bytes += len(data)

    async def copy(key: str) -> None:
        try:
            await put(key, await at.store.get(key))
        except ObjectMissing as error:
            raise DataDamaged(f"{key}: it is missing, but the cut needs it", object_key=key) from error

    for bundle in at.store.cut.bundles:
        base = at.store.base(bundle.bundle)
        await all_of(
            [
                copy(key)
                async for key in named_by(at.store, bundle, base)
                if key not in done and not is_of(key, without)
            ],
            COPIES_AT_ONCE,
        )
        alone = fmt.Checkpoint()
        alone.CopyFrom(base)
        del alone.pins[:]
        for part in alone.partitions:  # a cut has no merged files
            part.ClearField("merged")
        await put(keys.checkpoint(base.bundle, base.number), encode_checkpoint(alone))
    return copied


async def put_same(target: ObjectStore, key: str, data: bytes) -> None:
    """Put an object, if it is not there yet. Raises InvalidRequest if another one has the name, the store's errors."""
    try:
        await target.put_if_absent(key, [data])
    except AlreadyExists:
        if await target.get(key) != data:
            raise InvalidRequest(f"{target.url}: it has another {key}; give an empty root") from None


async def named_by(at: CutStore, bundle: fmt.CutBundle, base: fmt.Checkpoint) -> AsyncIterator[str]:
    """Yield what a cut names in one bundle, but for the base itself; keys of files as below `parquet/`. Raises
    DataDamaged if what it is read from is missing, the store's errors.
    """
    pinned = await PinReader(at.inner).of_base(base, at.cut)
    own = keys.checkpoint(bundle.bundle, base.number)
    for key in sorted({*pinned.files, *pinned.objects} - {own}):
        yield key
    claims = {claim.slot for claim in base.state.claims if claim.slot < base.trim_slot}
    for slot in sorted({*claims, *range(base.trim_slot, bundle.slot + 1)}):
        yield keys.segment(bundle.bundle, slot)
