"""Check that everything a cut names is there (design I10), and find out what stays for cuts alone."""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.pinned import NO_END, Pinned, PinReader
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore


async def check_cuts(store: ObjectStore, cluster: ClusterSettings, problems: Problems) -> None:
    """Add what is missing of cuts; left-over objects that a cut keeps are no problem from now on."""
    pins = PinReader(store)
    for bundle in range(cluster.bundles):
        with problems.collecting(keys.checkpoints(bundle)):
            checkpoint = await newest_checkpoint(store, bundle)
            if checkpoint.pins:
                pinned = await pins.read(checkpoint)
                problems.pinned |= pinned.objects.keys()
                await _check_there(store, bundle, pinned, problems)


async def _check_there(store: ObjectStore, bundle: int, pinned: Pinned, problems: Problems) -> None:
    for key, cut in sorted(pinned.objects.items()):
        if not await _exists(store, key):
            problems.damage(key, "CUT_OBJECT_MISSING", f"cut {cut} names it, and it is gone")
    for key, cut in sorted(pinned.files.items()):
        if (
            not await _exists(store, key)
            and not await _exists(store, names.held(key))
            and not await _exists(store, key)
        ):
            text = f"cut {cut} names it, and it is neither there nor below {names.HELD}"
            problems.damage(key, "CUT_OBJECT_MISSING", text)
    there = {slot async for slot, _ in list_numbered(store, keys.segments(bundle))} if pinned.slots else set()
    for first, last, cut in pinned.slots:
        for slot in range(first, last + 1) if last < NO_END else ():
            if slot not in there:
                problems.damage(keys.segment(bundle, slot), "CUT_OBJECT_MISSING", f"cut {cut} names it, and it is gone")


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except ObjectMissing:
        return False
    return True
