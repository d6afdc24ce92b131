"""Check each object that is stored twice: both of a pair exist and are sound. Other checks judge
what readers get.
"""

from __future__ import annotations

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.copies import CopyingStore, fault_of, read_or_none
from ledgermq_ledger.root.mend import PAIRS_AT_ONCE, is_needed, list_pairs

MEND = "a broker or `ledgermq repair` restores it"


async def check_copies(store: ObjectStore, problems: Problems) -> None:
    """Check all pairs. `store`: without the layer that reads a copy in place of its original."""
    await all_of((_check_pair(store, key, problems) for key in await list_pairs(store)), PAIRS_AT_ONCE)


async def _check_pair(store: ObjectStore, key: str, problems: Problems) -> None:
    copy_key = f"{key}{keys.COPY}"
    original, copy = await read_or_none(store, key), await read_or_none(store, copy_key)
    fault = fault_of(key, original) if original is not None else None
    copy_fault = fault_of(key, copy) if copy is not None else None
    if isinstance(fault, FormatNotSupported) and (copy is None or isinstance(copy_fault, FormatNotSupported)):
        return  # of a later release: another check reports it
    if original is None:
        if copy is not None:
            await _check_orphan(store, key, copy, copy_fault, problems)
        return
    if fault is not None:
        with_copy = "missing" if copy is None else "damaged too" if copy_fault else f"sound, and readers use it; {MEND}"
        problems.damage(key, fault.code, f"{_text(fault, key)}; its second copy is {with_copy}")
    if copy is None:
        # If the original is sound, the owner of bundle 0 makes a copy: an older release has put it, or its writer was
        # cut off.
        return
    if copy_fault is not None:
        which = "damaged too" if fault else f"sound; {MEND}"
        problems.damage(
            copy_key, copy_fault.code, f"{_text(copy_fault, key)}; this is the second copy; the original is {which}"
        )
    elif fault is None and original != copy:
        problems.damage(key, "COPY_DIFFERS", f"it differs from its second copy, which holds what was put first; {MEND}")


async def _check_orphan(
    store: ObjectStore, key: str, copy: bytes, fault: DataDamaged | FormatNotSupported | None, problems: Problems
) -> None:
    copy_key = f"{key}{keys.COPY}"
    if fault is not None:
        problems.damage(key, "OBJECT_MISSING", f"it is missing, and its second copy is damaged: {_text(fault, key)}")
        return
    with problems.collecting(key):
        if is_needed(key, copy, await newest_checkpoint(CopyingStore(store, logs=False), keys.METADATA_BUNDLE)):
            problems.damage(
                key, "OBJECT_MISSING", f"it is missing; its second copy is sound, and readers use it; {MEND}"
            )
        else:
            problems.untidy(copy_key, "UNREFERENCED", "its original was deleted")


def _text(fault: DataDamaged | FormatNotSupported, key: str) -> str:
    return fault.message.removeprefix(f"{key}: ")
