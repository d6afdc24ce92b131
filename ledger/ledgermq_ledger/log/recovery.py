"""Recover the current state of a ledger, in O(tail) (design L4).

Fold from the newest checkpoint to the first empty slot. The result counts only if the newest
checkpoint, read *after* the fold, has not trimmed past the slot where the fold began. Otherwise
slots that were read may have been created again, or be empty only because they were deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ledgermq.runtime.reread import Rereads
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import (
    Move,
    check_successor,
    draft_next,
    drop_what_was_forgotten,
    encode_checkpoint,
    newest_checkpoint,
    state_of,
)
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.segment import SlotIndex, read_index
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put

PARALLEL_READS = 32
READ_AHEAD = 256
"""Slots whose indexes are read before the first of them is used."""
ATTEMPTS_MAX = 100
IN_FORCE_ATTEMPTS_MAX = 5


@dataclass(slots=True)
class Recovered:
    """`tail`: the valid segments after the checkpoint, in order.

    `state` belongs to the caller. `next_slot`: the first empty one.
    """

    bundle: int
    checkpoint: fmt.Checkpoint
    state: LedgerState
    tail: list[SlotIndex] = field(default_factory=list)

    @property
    def next_slot(self) -> int:
        return self.state.slot + 1


async def read_slots(ledger: LedgerRef, first: int) -> AsyncIterator[SlotIndex]:
    """Yield the indexes of the slots from `first` to the first empty one, void segments included;
    unknown ones by several GETs at a time, the slot behind the last that a LIST shows among them.
    """
    slot = first
    listed = await _list_run(ledger, first)
    while True:
        width = max(1, min(READ_AHEAD, first + len(listed) + 1 - slot))
        for index in await _read_indexes(ledger, range(slot, slot + width), listed):
            if index is None:
                return
            yield index
        slot += width


async def read_slots_between(ledger: LedgerRef, first: int, last: int) -> list[SlotIndex]:
    """Return the indexes of the slots from `first` to `last`, or to the first that is missing.

    All should exist: only known indexes need a LIST.
    """
    found: list[SlotIndex] = []
    listed = await _list_run(ledger, first, last) if ledger.known is not None and first <= last else {}
    for slot in range(first, last + 1, READ_AHEAD):
        for index in await _read_indexes(ledger, range(slot, min(slot + READ_AHEAD, last + 1)), listed):
            if index is None:
                return found
            found.append(index)
    return found


async def _list_run(ledger: LedgerRef, first: int, last: int | None = None) -> dict[int, ObjectInfo]:
    """Return the objects of the slots from `first` to `last` or to the first empty one."""
    listed: dict[int, ObjectInfo] = {}
    async for number, info in list_numbered(ledger.store, keys.segments(ledger.bundle), first - 1):
        if number != first + len(listed) or (last is not None and number > last):
            break
        listed[number] = info
    return listed


async def _read_indexes(ledger: LedgerRef, slots: range, listed: dict[int, ObjectInfo]) -> list[SlotIndex | None]:
    """Read all indexes, some at the same time, with the dates that were listed; None for an empty slot."""
    store, bundle, known = ledger.store, ledger.bundle, ledger.known
    found = [
        known.find(bundle, slot, listed[slot].etag) if known is not None and slot in listed else None for slot in slots
    ]
    missing = [slot for slot, index in zip(slots, found, strict=True) if index is None]
    if len(missing) == 1:
        read = [await _index_or_none(store, bundle, missing[0])]
    else:
        read = await all_of((_index_or_none(store, bundle, slot) for slot in missing), PARALLEL_READS)
    for slot, index in zip(missing, read, strict=True):
        found[slot - slots.start] = index
        if known is not None and index is not None and slot in listed:
            known.keep(bundle, index, listed[slot].etag)
    return [
        SlotIndex(index.index, index.tail_length, listed[slot].modified_ms) if index and slot in listed else index
        for slot, index in zip(slots, found, strict=True)
    ]


async def _index_or_none(store: ObjectStore, bundle: int, slot: int) -> SlotIndex | None:
    try:
        return await read_index(store, bundle, slot)
    except ObjectMissing:
        return None


async def recover(ledger: LedgerRef) -> Recovered:
    """Return the current state of the ledger.

    Raises DataDamaged or FormatNotSupported, naming the object, and the store's errors.
    """
    store, bundle, known = ledger.store, ledger.bundle, ledger.known
    rereads = Rereads(ATTEMPTS_MAX, f"bundle {bundle}: it was trimmed during each attempt to recover it; retry later")
    while True:
        rereads.begin()
        checkpoint = await newest_checkpoint(store, bundle)
        recovered = Recovered(bundle, checkpoint, state_of(checkpoint, ledger.cluster.producer_states_max))
        first = recovered.next_slot
        async for slot in read_slots(ledger, first):
            if recovered.state.apply(slot.index):
                recovered.tail.append(slot)
        trim_slot = (await newest_checkpoint(store, bundle, checkpoint)).trim_slot
        if known is not None:
            known.drop_below(bundle, trim_slot)
        if trim_slot <= first:
            return recovered


async def advance_checkpoint(
    ledger: LedgerRef, move: Move | None = None, durable: LedgerState | None = None
) -> fmt.Checkpoint | None:
    """Put the next checkpoint, with `move`; None if the move declines.

    `durable`: the owner's own fold, used instead of recovery if it is ahead of the newest
    checkpoint. The move is judged again against each newest checkpoint.

    Raises Unavailable if the outcome stays unknown.
    """
    rereads = Rereads(ATTEMPTS_MAX, f"bundle {ledger.bundle}: each put of a checkpoint failed; retry later")
    while True:
        rereads.begin()
        base, state = await _base(ledger, durable)
        draft = draft_next(base, state, ledger.sources)
        if move is not None and not move(draft):
            return None
        drop_what_was_forgotten(draft)
        check_successor(base, draft)
        key = keys.checkpoint(ledger.bundle, draft.number)
        outcome = await settle_put(ledger.store, key, [encode_checkpoint(draft)], sources=ledger.sources)
        if outcome is PutOutcome.WON:
            return draft


async def bring_into_force(ledger: LedgerRef, move: Move, durable: LedgerState | None = None) -> bool:
    """Put checkpoints until the move declines because nothing is left to do. Return False if it
    declined at once.

    A checkpoint that was won may have a number that was free again, and then no process reads it.
    Raises what `advance_checkpoint` raises.
    """
    rereads = Rereads(
        IN_FORCE_ATTEMPTS_MAX,
        f"bundle {ledger.bundle}: its checkpoints were deleted during each attempt to change one; retry later",
        retry_after_ms=100,
    )
    has_moved = False
    while True:
        rereads.begin()
        if await advance_checkpoint(ledger, move, durable) is None:
            return has_moved
        has_moved = True


async def _base(ledger: LedgerRef, durable: LedgerState | None) -> tuple[fmt.Checkpoint, LedgerState]:
    """Return the newest checkpoint, and a fold that continues from it."""
    if durable is not None:
        base = await newest_checkpoint(ledger.store, ledger.bundle)
        if durable.slot >= base.state.slot:
            return base, durable.copy()
    recovered = await recover(ledger)
    return recovered.checkpoint, recovered.state
