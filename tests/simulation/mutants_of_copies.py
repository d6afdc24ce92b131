"""Bugs in the second copies of bundle 0's objects (docs/decisions/0029)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import ledgermq_ledger.root.mend
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer
from ledgermq_ledger.root.copies import CopyingStore
from tests.simulation.damage_run import KINDS
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def damages_metadata(seed: int) -> bool:
    return random.Random(f"damage {seed}").choice(KINDS) == "metadata"


@mutant("damage", damages_metadata)
def copy_put_by_losers(patch: Patch) -> None:
    """Every put of an original is followed by a put of its copy, also where another process has won
    the original.
    """
    real = CopyingStore.put_if_absent

    async def put_if_absent(self: CopyingStore, key: str, buffers: Sequence[Buffer]) -> None:
        try:
            await real(self, key, buffers)
        except AlreadyExists:
            if copy := keys.copy_of(key):
                await self.inner.put_if_absent(copy, buffers)
            raise

    patch.setattr(CopyingStore, "put_if_absent", put_if_absent)


@mutant("damage", damages_metadata)
def copy_put_before_its_original(patch: Patch) -> None:
    """The copy is put first, which would save the time of a put if both went together; then who
    loses the original has put a copy, too.
    """
    real = CopyingStore.put_if_absent

    async def put_if_absent(self: CopyingStore, key: str, buffers: Sequence[Buffer]) -> None:
        if copy := keys.copy_of(key):
            try:
                await self.inner.put_if_absent(copy, buffers)
            except AlreadyExists:
                pass
        await real(self, key, buffers)

    patch.setattr(CopyingStore, "put_if_absent", put_if_absent)


@mutant("damage", damages_metadata)
def copies_never_read(patch: Patch) -> None:
    """A damaged original is given to its reader although there is a sound copy."""

    async def read(self: CopyingStore, key: str) -> bytes:
        return await self.inner.get(key)

    patch.setattr(CopyingStore, "_read", read)


@mutant("damage", damages_metadata)
def last_copy_removed(patch: Patch) -> None:
    """A copy without its original is always taken for a left-over."""
    patch.setattr(ledgermq_ledger.root.mend, "is_needed", lambda key, copy, checkpoint: False)


@mutant("damage", damages_metadata)
def sound_original_overwritten(patch: Patch) -> None:
    """Of a pair the copy is always written over the original, whichever is damaged."""

    async def mend_copy(
        store: CopyingStore, key: str, original: bytes, is_missing: bool, fault: object, *, dry_run: bool
    ) -> None:
        copy = f"{key}{keys.COPY}"
        if is_missing:
            await store.inner.put_if_absent(copy, [original])
        else:
            await store.inner.put(key, await store.inner.get(copy))

    patch.setattr(ledgermq_ledger.root.mend, "_mend_copy", mend_copy)
