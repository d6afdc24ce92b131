"""Check one ledger: its checkpoints, its slots and the state that they add up to. The fold here is
separate from the product's: two that differ are a finding.

The check covers the slots from the trim slot on. Below it only claims, void segments and objects
not deleted yet remain. Of these, only the claims that the newest checkpoint notes have to exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.ledgers.segment_check import check_segment
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import check_successor, decode_checkpoint, newest_checkpoint
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore

PARALLEL_READS = 8


@dataclass(slots=True)
class LedgerView:
    """The part of a ledger that could be read. `valid`: segments that count, from the trim slot on,
    ascending.

    `whole`: all of it could be folded.
    """

    bundle: int
    checkpoint: fmt.Checkpoint
    indexes: dict[int, fmt.SegmentIndex] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)
    valid: list[fmt.SegmentIndex] = field(default_factory=list)
    ends: dict[PartitionId, int] = field(default_factory=dict)
    whole: bool = True

    def damage(self, problems: Problems, slot: int, code: str, text: str) -> None:
        problems.damage(keys.segment(self.bundle, slot), code, text)
        self.whole = False


async def check_ledger(store: ObjectStore, bundle: int, problems: Problems, *, quick: bool) -> LedgerView | None:
    """Check a ledger; None if the newest checkpoint cannot be read."""
    await _check_checkpoints(store, bundle, problems)
    checkpoint = None
    with problems.collecting(keys.checkpoints(bundle)):
        checkpoint = await newest_checkpoint(store, bundle)
    view = LedgerView(bundle, checkpoint or fmt.Checkpoint(bundle=bundle, trim_slot=1))
    await _read_segments(store, view, problems, quick=quick)
    if checkpoint is None:
        return None
    _check_presence(view, problems)
    if view.whole:
        _fold_older(view, problems)
        _fold_newer(view, problems)
    return view


async def _check_checkpoints(store: ObjectStore, bundle: int, problems: Problems) -> None:
    before: fmt.Checkpoint | None = None
    async for number, info in list_numbered(store, keys.checkpoints(bundle)):
        found = None
        with problems.collecting(info.key):
            try:
                found = decode_checkpoint(await store.get(info.key), info.key)
            except ObjectMissing:
                continue  # deleted, because a newer one exists
        if found is not None and before is not None and before.number + 1 == number:
            try:
                check_successor(before, found)
            except AssertionError as error:
                problems.damage(info.key, "WENT_BACK", str(error))
        before = found


async def _read_segments(store: ObjectStore, view: LedgerView, problems: Problems, *, quick: bool) -> None:
    slots = [number async for number, _ in list_numbered(store, keys.segments(view.bundle))]

    async def read(slot: int) -> None:
        found = await check_segment(store, view.bundle, slot, problems, quick=quick)
        view.present.add(slot)
        if found is not None:
            view.indexes[slot] = found.index

    await all_of((read(slot) for slot in slots), PARALLEL_READS)


def _check_presence(view: LedgerView, problems: Problems) -> None:
    checkpoint = view.checkpoint
    expected = checkpoint.trim_slot
    for slot in [
        *sorted(slot for slot in view.present if expected <= slot <= checkpoint.state.slot),
        checkpoint.state.slot + 1,
    ]:
        if slot > expected:
            which = "it is" if slot == expected + 1 else f"slots {expected} to {slot - 1} are"
            view.damage(
                problems, expected, "MISSING_SEGMENT", f"{which} missing, and the trim slot is {checkpoint.trim_slot}"
            )
        if slot <= checkpoint.state.slot and slot not in view.indexes:
            view.whole = False
        expected = slot + 1
    for claim in checkpoint.state.claims:
        index = view.indexes.get(claim.slot)
        if claim.slot not in view.present or (
            index is not None and (index.kind, index.epoch) != (fmt.CLAIM, claim.epoch)
        ):
            problems.damage(
                keys.segment(view.bundle, claim.slot),
                "MISSING_CLAIM",
                f"the claim of epoch {claim.epoch} is missing, so nothing fences older terms",
            )


def _fold_older(view: LedgerView, problems: Problems) -> None:
    """Follow the links back from the segment that the checkpoint ends with."""
    checkpoint = view.checkpoint
    wanted = checkpoint.state.last_put_id
    valid = []
    for slot in range(checkpoint.state.slot, checkpoint.trim_slot - 1, -1):
        index = view.indexes[slot]
        if wanted and index.put_id == wanted:
            valid.append(index)
            wanted = index.previous
    if checkpoint.trim_slot == 1 and wanted:
        view.damage(
            problems, 1, "BROKEN_LINK", f"the chain of segments refers to put {wanted.hex()}, which no segment has"
        )
    view.valid = valid[::-1]


def _fold_newer(view: LedgerView, problems: Problems) -> None:
    state = view.checkpoint.state
    epoch, writer, last = state.epoch, state.writer, state.last_put_id
    view.ends = {PartitionId(end.topic_id, end.partition): end.end for end in state.ends}
    slot = state.slot + 1
    while slot in view.present:
        index = view.indexes.get(slot)
        if index is None:
            view.whole = False
            return
        opens = index.kind == fmt.CLAIM and index.epoch > epoch
        goes_on = index.kind != fmt.CLAIM and (index.epoch, index.writer) == (epoch, writer)
        if index.previous == last and (opens or goes_on):
            epoch, writer, last = index.epoch, index.writer, index.put_id
            view.valid.append(index)
        else:
            problems.note(
                keys.segment(view.bundle, slot),
                "VOID_SEGMENT",
                f"it is of epoch {index.epoch}, which a newer claim fenced; readers skip it",
            )
        slot += 1
    for later in sorted(slot_after for slot_after in view.present if slot_after > slot):
        problems.note(
            keys.segment(view.bundle, later),
            "AFTER_GAP",
            f"slot {slot} before it is empty; a put into that slot makes this segment void",
        )
