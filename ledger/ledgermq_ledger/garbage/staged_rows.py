"""Staged rows of Spark's sink, with their decisions and done marks (docs/decisions/0024): an object
may go when no driver will ask for it any longer.

staged rows, of an epoch that is done             for good: all its records are in their topics
staged rows, older than the oldest decision       for good: their epoch counts as done
staged rows, nothing decided                      STAGED_AGE_MS after they were put: no driver decides about rows so old
staged rows, decided and not done                 never: the driver that goes on needs them
decision and done mark                            EPOCHS_KEPT epochs later: as many as Spark can go back to by default
everything of a write that is never repeated      when it is done
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq_ledger import keys
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore

STAGED_AGE_MS = 7 * 24 * 3600 * 1000
EPOCHS_KEPT = 100
LAST_EPOCH = 10**20 - 1


@dataclass(slots=True)
class _Write:
    staged: list[tuple[int, ObjectInfo]] = field(default_factory=list)
    decided: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)


async def find(store: ObjectStore) -> list[Removable]:
    """Return removable objects. Staged rows are listed first: what is decided or done after that is
    final.
    """
    writes: dict[str, _Write] = {}
    async for info in store.list(keys.SINKS):
        if (name := keys.parse_sink(info.key)) is not None and name.kind == "staged":
            writes.setdefault(name.write, _Write()).staged.append((name.epoch, info))
    removable: list[Removable] = []
    for name_of_write, write in writes.items():
        for kind, epochs in ((keys.sink_decided, write.decided), (keys.sink_done, write.done)):
            async for info in store.list(kind(name_of_write)):
                if (name := keys.parse_sink(info.key)) is not None:
                    epochs.add(name.epoch)
        for epoch, info in write.staged:
            if epoch in write.done or epoch < min(write.decided, default=0):
                removable.append(Removable.of(Kind.STAGED, info, f"epoch {epoch} of {name_of_write} is finished"))
            elif epoch not in write.decided:
                why = f"staged for epoch {epoch} of {name_of_write}, which was never decided"
                removable.append(Removable.of(Kind.STAGED, info, why, STAGED_AGE_MS))
    return removable


async def remove(store: ObjectStore, staged: Sequence[Removable]) -> None:
    await found.delete(store, staged)


async def remove_done(store: ObjectStore, write: str, epoch: int) -> None:
    """Remove what a finished `epoch` leaves: staged rows up to it, with those of repeated tasks,
    and decisions that no driver will read.
    """
    await _remove_up_to(store, keys.sink_staged(write), epoch)
    if epoch >= EPOCHS_KEPT:
        await _remove_up_to(store, keys.sink_decided(write), epoch - EPOCHS_KEPT)
        await _remove_up_to(store, keys.sink_done(write), epoch - EPOCHS_KEPT)


async def forget(store: ObjectStore, write: str) -> None:
    """Remove everything of a write that is done and never repeated. The done mark goes last."""
    for folder in (keys.sink_staged(write), keys.sink_decided(write), keys.sink_done(write)):
        await _remove_up_to(store, folder, LAST_EPOCH)


async def _remove_up_to(store: ObjectStore, folder: str, last_epoch: int) -> None:
    wanted: list[str] = []
    async for info in store.list(folder):
        name = keys.parse_sink(info.key)
        if name is not None and name.epoch > last_epoch:
            break
        if name is not None:
            wanted.append(info.key)
    if wanted:
        await Gate().delete(store, wanted)
