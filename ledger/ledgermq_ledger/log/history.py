"""Read the valid segments of a ledger that still count: all from the trim slot on, not only those
after the newest checkpoint. Optionally, read only those that no finished plan names: they hold what
is not yet in the snapshot of the internal topics.

The fold decides which slots after the checkpoint are valid. For the slots before it, the links are
followed back from the last valid segment that the checkpoint names: a valid segment links to the
valid one before it, and put ids are never drawn twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ledgermq.errors import DataDamaged
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import ATTEMPTS_MAX, read_slots_between, recover
from ledgermq_ledger.log.segments.segment import SlotIndex
from ledgermq_ledger.object_store.contract import ObjectMissing

T = TypeVar("T")


@dataclass(slots=True)
class History:
    """`segments`: every valid segment from slot `first` on, ascending.

    `state`: the fold up to the end.
    """

    bundle: int
    checkpoint: fmt.Checkpoint
    state: LedgerState
    segments: list[SlotIndex]
    first: int = 0


async def read_history(ledger: LedgerRef, *, unplanned: bool = False) -> History:
    """Read the history from the trim slot on; `unplanned`: only after the slots of the finished
    plans.

    Raises DataDamaged or FormatNotSupported, naming the object, and the store's errors.
    """
    rereads = Rereads(
        ATTEMPTS_MAX, f"bundle {ledger.bundle}: it was trimmed during each attempt to read it; retry later"
    )
    while True:
        rereads.begin()
        recovered = await recover(ledger)
        first = max(recovered.checkpoint.trim_slot, recovered.checkpoint.planned_slot + 1 if unplanned else 0)
        older = await read_slots_between(ledger, first, recovered.checkpoint.state.slot)
        if (await newest_checkpoint(ledger.store, ledger.bundle, recovered.checkpoint)).trim_slot <= first:
            last_put_id = recovered.checkpoint.state.last_put_id
            segments = [*valid_before(older, last_put_id, recovered.checkpoint, first), *recovered.tail]
            return History(ledger.bundle, recovered.checkpoint, recovered.state, segments, first)


async def read_whole(ledger: LedgerRef, read: Callable[[History], Awaitable[T]]) -> T:
    """Return what `read` makes of the history and the objects that it names, all of one moment. If one of
    them was trimmed meanwhile, both begin again.

    Raises what `read_history` and `read` raise, but ObjectMissing.
    """
    rereads = Rereads(ATTEMPTS_MAX, f"bundle {ledger.bundle} was trimmed during each attempt to read it; retry later")
    while True:
        rereads.begin()
        history = await read_history(ledger)
        try:
            return await read(history)
        except ObjectMissing:
            continue


def valid_before(older: list[SlotIndex], last_put_id: bytes, checkpoint: fmt.Checkpoint, first: int) -> list[SlotIndex]:
    """Return those of `older` (all slots from `first` to the checkpoint's) that the chain of links
    from `last_put_id` reaches, ascending.

    Raises DataDamaged if a slot is missing.
    """
    covered = checkpoint.state.slot - first + 1
    if len(older) < covered:
        missing = first + len(older)
        raise DataDamaged(
            f"bundle {checkpoint.bundle}: slot {missing} is missing, but the newest checkpoint trims only up to"
            f" {checkpoint.trim_slot}"
        )
    valid = []
    wanted = last_put_id
    for slot in reversed(older):
        if slot.index.put_id == wanted:
            valid.append(slot)
            wanted = slot.index.previous
    return valid[::-1]
