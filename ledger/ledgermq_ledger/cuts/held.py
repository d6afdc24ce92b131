"""Hand a Parquet file over to the cuts that name it: copied to `held/`, read back, and deleted only then.

A file that stayed below `parquet/` would stop the retention of its partition, because files go in ascending order, and
plain readers would see expired records. Readers of a cut look below `parquet/`, then `held/`, then `parquet/` again.
"""

from __future__ import annotations

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq_ledger.cuts import names
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, ObjectStore, StoreUncertain
from ledgermq_ledger.parquet.archiving.archive import holds
from ledgermq_ledger.parquet.files.footer_checksum import check_whole


async def hand_over(store: ObjectStore, key: str) -> None:
    """Copy a file to `held/`. On return the copy was read back, or the file was deleted meanwhile by the same rules.
    The file is in memory once.

    Raises DataDamaged (the file, or the object in its place), Unavailable, the store's errors.
    """
    try:
        data = await store.get(key)
    except ObjectMissing:
        return
    check_whole(data, key)
    copy = names.held(key)
    try:
        await store.put_if_absent(copy, [data])
    except (AlreadyExists, StoreUncertain):
        pass  # what is there decides
    try:
        is_there = await holds(store, copy, data)
    except ObjectMissing:
        raise Unavailable(f"{copy}: outcome of the conditional put is unknown; {key} stays, retry later") from None
    if not is_there:
        raise DataDamaged(f"{copy}: another object has the name under which {key} is kept for cuts", object_key=copy)
