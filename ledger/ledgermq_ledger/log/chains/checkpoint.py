"""Read and put checkpoints: a numbered chain of summaries of a ledger, so that recovery reads only
the tail (docs/design.md, Checkpoints).

Checkpoint n+1 = checkpoint n, the slots after it, and at most one *move*. The process that creates
number n+1 wins; a loser computes again from the newest. The newest is the highest number that a
LIST shows. Older ones are deleted once a newer one exists, so a number that was won may be an old
one that was created again: look again before acting on it. Slot, trim, finished plan, M, log start
and end of Parquet never go back; `check_successor` asserts that before every put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledgermq.errors import DataDamaged
from ledgermq.runtime.reread import Rereads
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.envelope import FORMAT_VERSION, ObjectKind, seal, unseal
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore

LOOKS_MAX = 100
MOVES_MAX = 100
"""Moves of a partition that are followed from a bundle that it has left."""
MOVES_VERSION = 2
"""Of a checkpoint whose state has seals or opens. A release that does not know them refuses it."""
PINS_VERSION = 3
"""Of a checkpoint with pins. A release that does not know them refuses it, so it deletes nothing that a cut names."""

Move = Callable[[fmt.Checkpoint], bool]
"""Changes a draft of the next checkpoint. False: its precondition no longer holds, so nothing is
put.
"""


def genesis(bundle: int) -> fmt.Checkpoint:
    """Return the checkpoint of number 0, which no object holds."""
    return fmt.Checkpoint(bundle=bundle, trim_slot=1)


def encode_checkpoint(checkpoint: fmt.Checkpoint) -> bytes:
    return seal(ObjectKind.CHECKPOINT, checkpoint, _version(checkpoint))


def _version(checkpoint: fmt.Checkpoint) -> int:
    if checkpoint.pins:
        return PINS_VERSION
    return MOVES_VERSION if checkpoint.state.seals or checkpoint.state.opens else FORMAT_VERSION


def decode_checkpoint(data: bytes, key: str) -> fmt.Checkpoint:
    """Decode a checkpoint. Raises DataDamaged, FormatNotSupported, naming `key`."""
    checkpoint = unseal(ObjectKind.CHECKPOINT, fmt.Checkpoint(), data, key, PINS_VERSION)
    if key != keys.checkpoint(checkpoint.bundle, checkpoint.number):
        raise DataDamaged(f"{key}: it says bundle {checkpoint.bundle}, number {checkpoint.number}", object_key=key)
    if not 1 <= checkpoint.trim_slot <= checkpoint.state.slot + 1:  # no process could recover from it
        raise DataDamaged(
            f"{key}: its trim slot is {checkpoint.trim_slot}, but its state ends at slot {checkpoint.state.slot}",
            object_key=key,
        )
    return checkpoint


async def newest_checkpoint(store: ObjectStore, bundle: int, known: fmt.Checkpoint | None = None) -> fmt.Checkpoint:
    """Return the newest checkpoint by a LIST made now.

    A damaged newest checkpoint is an error that names it: the bundle must not be served from an
    older one.

    `known`: the newest at an earlier look. It is returned without a read if it still is the newest:
    the highest number was never deleted, so its content cannot have changed.
    """
    rereads = Rereads(
        LOOKS_MAX, f"bundle {bundle}: its checkpoints were removed during each attempt to read them; retry later"
    )
    while True:
        rereads.begin()
        newest = None
        async for _, info in list_numbered(store, keys.checkpoints(bundle)):
            newest = info.key
        if newest is None:
            return genesis(bundle)
        if known is not None and keys.number(newest) == known.number:
            return known
        try:
            return decode_checkpoint(await store.get(newest), newest)
        except ObjectMissing:
            continue  # a newer one exists


def state_of(checkpoint: fmt.Checkpoint, producer_states_max: int) -> LedgerState:
    return LedgerState.from_proto(checkpoint.state, producer_states_max)


def partition_of(checkpoint: fmt.Checkpoint, topic_id: int, partition: int) -> fmt.PartitionCheckpoint:
    """Return the partition's counters; zeros if the checkpoint does not name it yet.

    The result may be part of the checkpoint: only read it.
    """
    for found in checkpoint.partitions:
        if (found.topic_id, found.partition) == (topic_id, partition):
            return found
    return fmt.PartitionCheckpoint(topic_id=topic_id, partition=partition)


def is_in_charge(checkpoint: fmt.Checkpoint, topic_id: int, partition: int) -> bool:
    """Return whether this bundle may remove records of a partition: it has not left, and if it came from
    another bundle, its files came, too (design Y6).
    """
    key, state = PartitionId(topic_id, partition), checkpoint.state
    if any(key_of(left) == key for left in state.seals):
        return False
    opened = next((opened for opened in state.opens if key_of(opened) == key), None)
    return opened is None or has_its_files(opened, partition_of(checkpoint, topic_id, partition))


async def checkpoint_in_charge(store: ObjectStore, bundle: int, place: PartitionId) -> fmt.Checkpoint | None:
    """Return the newest checkpoint of the bundle that is in charge of a partition which `bundle` had, or has; None if
    it is between two bundles. A bundle forgets a partition only when the next one has its list, so to look from one to
    the next, each later than the one before, misses none. Raises DataDamaged, FormatNotSupported, the store's errors.
    """
    for _ in range(MOVES_MAX):
        checkpoint = await newest_checkpoint(store, bundle)
        if is_in_charge(checkpoint, *place):
            return checkpoint
        seal = next((seal for seal in checkpoint.state.seals if key_of(seal) == place), None)
        if seal is None or not partition_of(checkpoint, *place).forgotten:
            return None
        bundle = seal.target
    return None


def has_its_files(opened: fmt.PartitionOpen, counters: fmt.PartitionCheckpoint) -> bool:
    """Return whether the file list of a partition that came from another bundle came, too."""
    return counters.taken_over == opened.move


def bundle_of(checkpoint: fmt.Checkpoint, key: PartitionId, offset: int) -> int:
    """Return the bundle that has an offset of a partition, as the checkpoint of one of its bundles says: this one,
    the one that it has left for, or the one that it came from and that still lists its files (design Y7, Y12).
    """
    state, counters = checkpoint.state, partition_of(checkpoint, *key)
    seal = next((left for left in state.seals if key_of(left) == key), None)
    if seal is not None and (counters.forgotten or offset >= seal.end):
        return seal.target
    opened = next((came for came in state.opens if key_of(came) == key), None)
    if opened is not None and offset < opened.start and not has_its_files(opened, counters):
        return opened.source
    return checkpoint.bundle


def partitions_by_key(checkpoint: fmt.Checkpoint) -> dict[PartitionId, fmt.PartitionCheckpoint]:
    return {PartitionId(p.topic_id, p.partition): p for p in checkpoint.partitions}


def replace_partitions(draft: fmt.Checkpoint, parts: Iterable[fmt.PartitionCheckpoint]) -> None:
    """Replace all partitions of the draft by `parts`, which may be some of the draft's own, in
    their order.
    """
    ordered = sorted(parts, key=lambda part: PartitionId(part.topic_id, part.partition))
    copies = fmt.Checkpoint(partitions=ordered)
    del draft.partitions[:]
    draft.partitions.MergeFrom(copies.partitions)


def draft_next(base: fmt.Checkpoint, state: LedgerState, sources: Sources) -> fmt.Checkpoint:
    """Return checkpoint n+1 without a move; `state` is a fold that continues from `base`."""
    draft = fmt.Checkpoint()
    draft.CopyFrom(base)
    draft.number = base.number + 1
    draft.put_id = sources.new_id()
    draft.created_ms = sources.now_ms()
    draft.state.CopyFrom(state.to_proto())
    return draft


def drop_what_was_forgotten(draft: fmt.Checkpoint) -> None:
    """Drop what seals have beside the end, for partitions whose new bundle has all of them."""
    forgotten = {PartitionId(p.topic_id, p.partition): p.frozen for p in draft.partitions if p.forgotten}
    for left in draft.state.seals if forgotten else ():
        if forgotten.get(key_of(left)) == left.move:
            del left.producers[:], left.message_ids[:]


def check_successor(base: fmt.Checkpoint, new: fmt.Checkpoint) -> None:
    """Assert that nothing in `new` goes back. A violation is a bug of LedgerMQ, so it stops the
    caller.
    """
    steps = (
        ("number", base.number + 1, new.number),
        ("slot", base.state.slot, new.state.slot),
        ("trim slot", base.trim_slot, new.trim_slot),
        ("finished plan", base.finished_plan, new.finished_plan),
        ("planned slot", base.planned_slot, new.planned_slot),
        ("metadata offset", base.metadata_offset, new.metadata_offset),
        ("trim slot and state", new.trim_slot - 1, new.state.slot),
    )
    for name, least, found in steps:
        if found < least:
            raise AssertionError(
                f"bundle {base.bundle} checkpoint {new.number}: {name} would go back from {least} to {found}"
            )
    for pin in new.pins:
        if pin not in base.pins and (pin.base != new.number or any(pin.cut == before.cut for before in base.pins)):
            raise AssertionError(
                f"bundle {base.bundle} checkpoint {new.number}: the pin of cut {pin.cut} would name {pin.base}"
            )
    seals = {key_of(left): left.move for left in new.state.seals}
    later = partitions_by_key(new)
    removed = {topic.topic_id for topic in base.removed_topics}
    for key, before in partitions_by_key(base).items():
        after = later.get(key)
        if after is None:
            if key.topic_id not in removed:
                raise AssertionError(
                    f"bundle {base.bundle} checkpoint {new.number}: live partition {key} would be dropped"
                )
        elif before.forgotten or (after.forgotten and before.frozen == after.frozen == seals.get(key)):
            continue  # it left, and has come back or not: what this bundle counted of it says nothing any longer
        elif before.frozen and after != before:
            raise AssertionError(
                f"bundle {base.bundle} checkpoint {new.number}: the frozen file list of partition {key} would change"
            )
        elif (
            after.log_start < before.log_start
            or after.parquet_end < before.parquet_end
            or after.parquet_start < before.parquet_start
            or after.merged.number < before.merged.number
        ):
            raise AssertionError(
                f"bundle {base.bundle} checkpoint {new.number}: counters of partition {key} would go back"
            )
