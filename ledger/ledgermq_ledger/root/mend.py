"""Check all objects that are stored twice, and restore the damaged or missing one of each pair
(`ledgermq_ledger.root.copies`).

    original sound     copy missing     put the copy: its writer was cut off, or knows no copies
    original sound     copy damaged     write the original over it
    original damaged   copy sound       write the copy over it
    both sound, not the same            write the copy over the original, which a late put has put where the first one
                                        was deleted
    original missing   copy sound       put the original where the metadata still needs it; else remove the copy, or
                                        leave it to compaction
    anything else                       nothing: two damaged ones stay as they are; only a copy of the bucket can help

Safe at any time, beside brokers and others of its kind, and to interrupt anywhere: the bytes that
are put at a key have been there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectStore
from ledgermq_ledger.root.copies import LOST, MENDED, CopyingStore, fault_of, read_or_none, replace_damaged

PAIRS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """One object that is, or was, wrong.

    `outcome`: text for operators. `damage`: False for a left-over. `is_lost`: it could not be
    restored.
    """

    object_key: str
    reason: str
    outcome: str
    damage: bool = True
    is_lost: bool = False


async def mend_copies(store: CopyingStore, *, dry_run: bool = False) -> list[Mended]:
    """Return what was wrong, and what was done about it. Copies that were only missing are made and
    not returned.

    `dry_run`: only report. Raises the store's errors, and DataDamaged if an original is missing and
    the checkpoint that would explain it is lost.
    """
    listed = await list_pairs(store.inner)
    done = await all_of((_mend(store, key, dry_run=dry_run) for key in listed), PAIRS_AT_ONCE)
    return sorted(each for each in done if each is not None)


async def list_pairs(store: ObjectStore) -> Sequence[str]:
    """Return the keys of originals that exist, or whose copy exists. `store`: without copies."""
    found: dict[str, None] = {}
    async for info in store.list(keys.ledger(keys.METADATA_BUNDLE)):
        if keys.copy_of(info.key):
            found[info.key] = None
        elif (original := keys.original_of(info.key)) is not None:
            found[original] = None
    return list(found)


async def _mend(store: CopyingStore, key: str, *, dry_run: bool) -> Mended | None:
    inner, copy_key = store.inner, f"{key}{keys.COPY}"
    original, copy = await read_or_none(inner, key), await read_or_none(inner, copy_key)
    fault = fault_of(key, original) if original is not None else None
    copy_fault = fault_of(key, copy) if copy is not None else None
    if isinstance(fault, FormatNotSupported) and (copy is None or isinstance(copy_fault, FormatNotSupported)):
        return None  # of a later release
    if original is not None and fault is None and copy is not None and copy_fault is None and original != copy:
        fault = DataDamaged(f"{key}: it differs from what was put first", object_key=key)
    if original is not None and fault is None:
        return await _mend_copy(store, key, original, copy is None, copy_fault, dry_run=dry_run)
    if copy is not None and copy_fault is None:
        return await _mend_original(store, key, copy, fault, dry_run=dry_run)
    if original is None and copy is None:
        return None  # deleted meanwhile
    text = (
        f"{fault.message if fault else 'it is missing'}; its second copy is"
        f" {'missing' if copy is None else 'damaged too'}"
    )
    if not dry_run:
        store.report(key, LOST, text)
    return Mended(key, text, "put it back from a copy of the bucket", is_lost=True)


async def _mend_copy(
    store: CopyingStore,
    key: str,
    original: bytes,
    is_missing: bool,
    fault: DataDamaged | FormatNotSupported | None,
    *,
    dry_run: bool,
) -> Mended | None:
    copy_key = f"{key}{keys.COPY}"
    if not is_missing and fault is None:
        return None
    if not dry_run:
        if is_missing:
            await _put(store.inner, copy_key, original)
        else:
            await replace_damaged(store.inner, copy_key, original)
            store.report(copy_key, MENDED, f"it is the second copy: {fault.message if fault else ''}")
    return (
        None
        if is_missing
        else Mended(copy_key, fault.message if fault else "", _done("written again from the original", dry_run))
    )


async def _mend_original(
    store: CopyingStore, key: str, copy: bytes, fault: DataDamaged | FormatNotSupported | None, *, dry_run: bool
) -> Mended | None:
    if fault is not None:
        if not dry_run:
            await replace_damaged(store.inner, key, copy)
            store.report(key, MENDED, fault.message)
        return Mended(key, fault.message, _done("written again from the second copy", dry_run))
    checkpoint = await newest_checkpoint(
        store, keys.METADATA_BUNDLE
    )  # read now: a rule may have deleted it just before
    if is_needed(key, copy, checkpoint):
        if not dry_run:
            await _put(store.inner, key, copy)
            store.report(key, MENDED, f"{key}: it was missing")
        return Mended(key, "it is missing", _done("put again from the second copy", dry_run))
    # compaction removes other copies with the objects that it has replaced
    if key.startswith(keys.segments(keys.METADATA_BUNDLE)):
        if not dry_run:
            await store.inner.delete([f"{key}{keys.COPY}"])
        return Mended(f"{key}{keys.COPY}", "its original was trimmed", _done("removed", dry_run), damage=False)
    return None


def is_needed(key: str, copy: bytes, checkpoint: fmt.Checkpoint) -> bool:
    """Return True if the original at `key`, of which only this sound copy is left, was not deleted
    by a rule and has to exist.

    `checkpoint`: the newest, read after the original was found missing.
    """
    bundle, number = checkpoint.bundle, keys.number(key)
    if key.startswith(keys.segments(bundle)):
        return number >= checkpoint.trim_slot or decode_tail(copy, bundle, number).index.kind == fmt.CLAIM
    if key.startswith(keys.checkpoints(bundle)):
        return number >= checkpoint.number
    if key.startswith(keys.compactions(bundle)):
        return number > checkpoint.finished_plan
    return number >= checkpoint.snapshot_plan


async def _put(store: ObjectStore, key: str, data: bytes) -> None:
    try:
        await store.put_if_absent(key, [data])
    except AlreadyExists:
        pass  # its own writer, or another process that restores it


def _done(what: str, dry_run: bool) -> str:
    return f"would be {what}" if dry_run else what
