"""Keep second copies of the objects that the metadata of a cluster needs, so that one damaged
object of bundle 0 does not stop all bundles.

    ledgers/0000/<segments, checkpoints, compactions, snapshots>/<number>         the original, put as everywhere
    ledgers/0000/<segments, checkpoints, compactions, snapshots>/<number>.copy    the same bytes

`CopyingStore` stands around a store. It puts, reads, lists and deletes originals; callers never see
a copy.

    put       the original first. Only the process that has won it puts the copy. The put counts once both stand there
    read      the original, if it is sound; else the copy, if that is sound. Sound: every checksum fits, and bundle
              and number fit the key
    list      an original that is missing is shown if its copy is there
    delete    both with one request, the copy first: what is left of a pair is mostly an original

An original that an outsider deletes leaves its number empty for late puts. Such a put wins the
original and loses the copy, so it has lost: where both are sound and differ, the copy is right.

Invariant: the bytes of a copy have stood at the key of its original. So a read that returns the
copy returns what an earlier read of the original returned or would have returned, and every rule
about reads holds as it is: a number that is still in use (a slot at or above the trim slot, the
newest checkpoint, an open plan, the snapshot in force) was never deleted, so there was only one
winner, and the copy is the winner's. A number that is no longer in use may be filled again, and
readers believe nothing of it, original or copy (docs/decisions/0029).

Must not be used for what is large or written often: a read brings the whole object, and each put
costs a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError
from ledgermq.runtime.process.log import get_log
from ledgermq_ledger import keys
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint
from ledgermq_ledger.log.chains.plans import decode_plan
from ledgermq_ledger.log.chains.snapshot import decode_snapshot
from ledgermq_ledger.log.segments.segment import check_whole
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    Buffer,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    StoreUncertain,
)
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper

log = get_log(__name__)

T = TypeVar("T")
READ_FROM_COPY = "read_from_copy"
MENDED = "mended"
LOST = "lost"
READS_MAX = 3
OUTCOMES = (READ_FROM_COPY, MENDED, LOST)


def fault_of(key: str, data: bytes) -> DataDamaged | FormatNotSupported | None:
    """Return what is wrong with the bytes of an original or of its copy; None if they are sound.
    `key`: that of the original.
    """
    bundle, number = keys.METADATA_BUNDLE, keys.number(key)
    try:
        if key.startswith(keys.segments(bundle)):
            check_whole(data, bundle, number)
        elif key.startswith(keys.checkpoints(bundle)):
            decode_checkpoint(data, key)
        elif key.startswith(keys.compactions(bundle)):
            decode_plan(data, key)
        else:
            decode_snapshot(data, key)
    except (DataDamaged, FormatNotSupported) as error:
        return error
    return None


class CopyingStore(StoreWrapper):
    """`mends`: restore a damaged original from its sound copy when it is read; for processes that
    may write. `meter` is notified of damage.

    `damaged`: objects that this process found damaged and could not restore, by key, with the
    fault. Each is logged as an error, unless `logs` is False.
    """

    def __init__(
        self, inner: ObjectStore, *, mends: bool = False, meter: StoreMeter | None = None, logs: bool = True
    ) -> None:
        super().__init__(inner)
        self.damaged: dict[str, str] = {}
        self.surprised = asyncio.Event()
        """Set when a copy without its original was read; `ledgermq_ledger.root.mend` puts the original back
        if it has to exist.
        """
        self._logs = logs
        self._mends = mends
        self._meter = meter

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)
        if keys.copy_of(key) is None:
            return
        try:
            stands = await self.confirm(key, buffers)
        except StoreUncertain:
            raise
        except LedgerMQError as error:  # final for the copy; the original exists all the same
            raise StoreUncertain(
                f"{key} was put, but its second copy was not: {error.message}", object_key=key
            ) from error
        if not stands:
            raise AlreadyExists(f"the second copy of {key} is from another put", object_key=key)

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        put = (
            self.inner.put_data if keys.copy_of(key) is None else self.put_if_absent
        )  # objects that are stored twice may use the reserve
        await put(key, buffers)

    async def confirm(self, key: str, buffers: Sequence[Buffer]) -> bool:
        copy = keys.copy_of(key)
        if copy is None:
            return await self.inner.confirm(key, buffers)
        try:
            await self.inner.put_if_absent(copy, buffers)
        except AlreadyExists:
            found = await read_or_none(self.inner, copy)
            if found is None:
                raise StoreUncertain(f"the second copy of {key} is being deleted", object_key=key) from None
            if found.endswith(bytes(buffers[-1])):
                return True
            # the copy is the first winner's: its original was deleted from outside, and this put took its place
            if fault_of(key, found) is None:
                await replace_damaged(self.inner, key, found)
                return False
            await replace_damaged(
                self.inner, copy, b"".join(buffers)
            )  # the copy is damaged, and the original is this put's: write the copy, as `mend` does
        return True

    async def get(self, key: str) -> bytes:
        return await self._read(key) if keys.copy_of(key) else await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        if keys.copy_of(key) is None:
            return await self.inner.get_range(key, start, length)
        return (await self._read(key))[start : start + length]

    async def get_suffix(self, key: str, length: int) -> bytes:
        if keys.copy_of(key) is None:
            return await self.inner.get_suffix(key, length)
        data = await self._read(key)
        return data[max(0, len(data) - length) :]

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        last = start_after
        async for info in self.inner.list(prefix, start_after):
            original = keys.original_of(info.key)
            if original is None:
                last = info.key
                yield info
            elif original > last:
                last = original
                yield ObjectInfo(original, info.size, info.etag, info.modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete([each for key in keys for each in _pair(key)])

    async def _read(self, key: str) -> bytes:
        """Return all bytes of the original, or of its copy. Raises ObjectMissing if neither exists.

        Between the two reads another process may put, restore or delete a pair. So the original is
        read again before it counts as lost.
        """
        for _ in range(READS_MAX):
            data = await read_or_none(self.inner, key)
            fault = fault_of(key, data) if data is not None else None
            if data is not None and fault is None:
                self.damaged.pop(key, None)
                return data
            copy = await read_or_none(self.inner, f"{key}{keys.COPY}")
            if copy is None and data is None:
                raise ObjectMissing(f"no object {key}", object_key=key)
            copy_fault = fault_of(key, copy) if copy is not None else None
            if copy is not None and copy_fault is None:
                if fault is not None:
                    await self._use_copy(key, copy, fault)
                else:  # deleted by a rule or from outside: the reader's rules decide, as after a slow read
                    self.surprised.set()
                return copy
        if data is None:  # "missing" would mean the end of the ledger, and an owner could write there
            assert copy_fault is not None
            raise DataDamaged(
                f"{key}: it is missing, and its second copy is damaged: {copy_fault.message}", object_key=key
            ) from copy_fault
        if isinstance(fault, DataDamaged):
            self.report(
                key, LOST, f"{fault.message}; its second copy is {'missing' if copy is None else 'damaged too'}"
            )
        return data

    async def _use_copy(self, key: str, copy: bytes, fault: LedgerMQError) -> None:
        if self._mends:
            try:
                await replace_damaged(self.inner, key, copy)
            except LedgerMQError as error:
                log.warning("%s cannot be restored from its second copy: %s", key, error.message)
            else:
                self.report(key, MENDED, fault.message)
                return
        self.report(key, READ_FROM_COPY, fault.message)

    def report(self, key: str, outcome: str, why: str) -> None:
        """Log and count damage, once for each object and outcome. `outcome`: one of OUTCOMES."""
        text = {
            MENDED: f"a damaged object was restored from its second copy: {why}",
            READ_FROM_COPY: f"an object is damaged and could not be restored; its second copy is read instead: {why}",
            LOST: f"an object is damaged and has no sound copy; put it back from a copy of the bucket: {why}",
        }[outcome]
        if self.damaged.get(key) == text:
            return
        if outcome == MENDED:
            self.damaged.pop(key, None)
        else:
            self.damaged[key] = text
        if self._logs:
            log.error("%s", text)
        if self._meter is not None:
            self._meter.object_damaged(key, outcome)


def _pair(key: str) -> tuple[str, ...]:
    """Return all keys that are deleted with an original, the copy first."""
    copy = keys.copy_of(key)
    return (key,) if copy is None else (copy, key)


async def replace_damaged(store: ObjectStore, key: str, sound: bytes) -> None:
    """Write the bytes of the sound one of a pair over the damaged one. `store`: without copies.

    The key is never empty meanwhile, so no fence opens. The new bytes were at the key before, so a
    reader gets an old but true content.
    """
    await store.put(key, sound)


async def read_or_none(store: ObjectStore, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except ObjectMissing:
        return None


def copies_of(store: ObjectStore) -> CopyingStore | None:
    """Return the layer with the copies, if `store` has one."""
    while isinstance(store, StoreWrapper):
        if isinstance(store, CopyingStore):
            return store
        store = store.inner
    return None
