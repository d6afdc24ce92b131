"""Pin what a checkpoint names, for a cut: a fact in the checkpoints of each bundle (design I8 to I12).

The checkpoint that first has the pin of a cut is the cut's *base* in its bundle. What it names was removable by no
process before it, and each process that removes something by this checkpoint or a later one finds the pin there. So
neither a clock nor a lock is needed.
"""

from __future__ import annotations

from collections.abc import Collection

from ledgermq.errors import ResourceExhausted, Unavailable
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import bring_into_force

PINS_MAX = 1000
"""In one bundle."""


def base_of(checkpoint: fmt.Checkpoint, cut_id: int) -> int:
    """Return the number of the base of a cut in this bundle; 0 if it has no pin here."""
    return next((pin.base for pin in checkpoint.pins if pin.cut == cut_id), 0)


def pin_move(cut_id: int) -> Move:
    """Return the move that pins the checkpoint which has it; it declines where the cut has a pin. It raises
    ResourceExhausted at the bound.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if base_of(draft, cut_id):
            return False
        if len(draft.pins) >= PINS_MAX:
            raise ResourceExhausted(
                f"bundle {draft.bundle} has {PINS_MAX} pins of cuts, which is the bound: drop cuts that are no longer"
                " needed (`ledgermq cut list`), then take this one again"
            )
        _set(draft, [*draft.pins, fmt.Pin(cut=cut_id, base=draft.number)])
        return True

    return move


async def pin_for_cut(ledger: LedgerRef, cut_id: int, durable: LedgerState | None = None) -> int:
    """Put a checkpoint with the pin of a cut, unless there is one; return the number of its base.

    `durable`: the owner's fold; without it the ledger is recovered, which reads its tail. Raises ResourceExhausted at
    the bound of pins, Unavailable, the store's errors.
    """
    await bring_into_force(ledger, pin_move(cut_id), durable)
    base = base_of(await newest_checkpoint(ledger.store, ledger.bundle), cut_id)
    if not base:
        raise Unavailable(f"bundle {ledger.bundle}: the pin of cut {cut_id} was removed at once, so the cut is over")
    return base


def unpin_move(over: Collection[int]) -> Move:
    """Return the move that removes the pins of cuts that are over, as the registry said after these pins were read."""

    def move(draft: fmt.Checkpoint) -> bool:
        left = [pin for pin in draft.pins if pin.cut not in over]
        if len(left) == len(draft.pins):
            return False
        _set(draft, left)
        return True

    return move


def _set(draft: fmt.Checkpoint, pins: Collection[fmt.Pin]) -> None:
    ordered: list[fmt.Pin] = sorted(pins, key=lambda pin: pin.cut)
    copies = fmt.Checkpoint(pins=ordered)
    del draft.pins[:]
    draft.pins.MergeFrom(copies.pins)
