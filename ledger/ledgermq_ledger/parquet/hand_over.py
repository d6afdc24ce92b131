"""Hand the Parquet files of a partition that has moved over to its new bundle (design Y9 to Y12).

    drained     rounds of the old bundle have brought the partition to Parquet, up to its seal
    frozen      a numbered plan of the old bundle: no earlier plan can still add a file, and none is deleted
    taken over  a numbered plan of the new bundle, which names the frozen list; its page lists the files then
    forgotten   a checkpoint of the old bundle, once the newest one of the new bundle shows that

Any process may do any step, at any time, several at once. Files keep their names: only the lists
say whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import (
    Move,
    has_its_files,
    newest_checkpoint,
    partition_of,
    partitions_by_key,
    replace_partitions,
)
from ledgermq_ledger.log.chains.plans import open_fences
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.moves import Moves, key_of
from ledgermq_ledger.log.recovery import bring_into_force
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import fact_of

FILES_MAX = 10_000
"""A plan takes over no other list once it names so many files: it is one object, and so is its page."""


def waits_for_files(moves: Moves, key: PartitionId, counters: fmt.PartitionCheckpoint | None) -> bool:
    """Return whether a partition is here, and its files are not: then no plan may name it."""
    opened = moves.open_of(key)
    return opened is not None and not has_its_files(opened, counters or fmt.PartitionCheckpoint())


def is_forgotten(moves: Moves, key: PartitionId, counters: fmt.PartitionCheckpoint | None) -> bool:
    """Return whether a partition has left, and the other bundle has all of it."""
    seal = moves.seal_of(key)
    return seal is not None and counters is not None and counters.forgotten and counters.frozen == seal.move


def is_elsewhere(moves: Moves, key: PartitionId, counters: fmt.PartitionCheckpoint | None) -> bool:
    """Return whether another bundle has the files of a partition."""
    return waits_for_files(moves, key, counters) or is_forgotten(moves, key, counters)


def is_under_way(moves: Moves, counters: Mapping[PartitionId, fmt.PartitionCheckpoint], catalog: Catalog) -> bool:
    """Return whether a bundle has to do something yet for a partition that left or came. One that is parked
    waits for a repair, which changes the checkpoint.
    """
    left = (key_of(seal) for seal in moves.seals() if _lives(catalog, seal))
    came = (key_of(opened) for opened in moves.opens() if _lives(catalog, opened))
    return any(
        not (is_forgotten(moves, key, counters.get(key)) or _is_parked(counters.get(key))) for key in left
    ) or any(waits_for_files(moves, key, counters.get(key)) for key in came)


def has_forgotten(checkpoint: fmt.Checkpoint, key: PartitionId, move: int) -> bool:
    """Return whether the old bundle has done all of its part of a move."""
    counters = partition_of(checkpoint, *key)
    return counters.forgotten and counters.frozen >= move


def _is_parked(counters: fmt.PartitionCheckpoint | None) -> bool:
    return counters is not None and counters.HasField("parked")


def _lives(catalog: Catalog, move: fmt.PartitionSeal | fmt.PartitionOpen) -> bool:
    """Return whether there is anything to hand over: a removed topic has no files to keep."""
    topic = catalog.topics_by_id.get(move.topic_id)
    return topic is not None and not topic.removed


def freezes_due(history: History, catalog: Catalog, undrained: Iterable[PartitionId]) -> list[fmt.PlannedFreeze]:
    """Return what the next plan freezes: what has left, and has nothing that is not in Parquet.

    `undrained`: the partitions with records that are in segments only.
    """
    parts, waiting = partitions_by_key(history.checkpoint), set(undrained)
    due = []
    for seal in history.state.moves.seals():
        key = key_of(seal)
        counters = parts.get(key) or fmt.PartitionCheckpoint()
        if (
            _lives(catalog, seal)
            and counters.frozen != seal.move
            and not counters.HasField("parked")
            and key not in waiting
        ):
            due.append(fmt.PlannedFreeze(topic_id=key.topic_id, partition=key.partition, move=seal.move))
    return due


async def read_frozen(store: ObjectStore, history: History, catalog: Catalog) -> list[fmt.PlannedTakeover]:
    """Return the file lists that the next plan of this bundle may take over, as the other bundles have
    frozen them. Costs no request where nothing came.

    From then on this bundle deletes these files, so the fences under which a late put of the other
    bundle's plans could bring one back are closed first (design T2). A list that cannot be read stays
    where it is, and holds up no other partition: the other bundle's own rounds and `fsck` name the damage.
    Raises the store's errors.
    """
    parts, moves = partitions_by_key(history.checkpoint), history.state.moves
    found: list[fmt.PlannedTakeover] = []
    came: dict[int, list[fmt.PartitionOpen]] = {}
    for opened in moves.opens():
        fact = fact_of(history.checkpoint, opened.topic_id)
        knows_settings = fact is not None and fact.version >= opened.move  # older ones could delete by the list
        if (
            knows_settings
            and _lives(catalog, opened)
            and waits_for_files(moves, key_of(opened), parts.get(key_of(opened)))
        ):
            came.setdefault(opened.source, []).append(opened)
    for source, opens in came.items():
        try:
            there = await newest_checkpoint(store, source)
            frozen = [o for o in opens if _is_frozen(partition_of(there, *key_of(o)), o.move)]
            if frozen:
                for fence, plan in (await open_fences(store)).get(source, {}).items():
                    if plan <= there.finished_plan:
                        await store.close_fence(fence)
            for opened in frozen:
                if sum(len(takeover.files) for takeover in found) < FILES_MAX:
                    found.append(await _takeover(store, source, partition_of(there, *key_of(opened))))
        except (DataDamaged, FormatNotSupported, ObjectMissing):
            continue  # if an object is missing, the list was taken over and forgotten meanwhile
    return found


def _is_frozen(counters: fmt.PartitionCheckpoint, move: int) -> bool:
    return counters.frozen == move and not counters.forgotten


async def _takeover(store: ObjectStore, source: int, counters: fmt.PartitionCheckpoint) -> fmt.PlannedTakeover:
    files = await PageReader(store, source).files_from(counters, counters.parquet_start)
    return fmt.PlannedTakeover(counters=counters, files=files)


def freeze(draft: fmt.Checkpoint, counters: fmt.PartitionCheckpoint, planned: fmt.PlannedFreeze) -> None:
    """Freeze the partition's list. Its counters do not change any longer."""
    key = (planned.topic_id, planned.partition)
    seal = next((seal for seal in draft.state.seals if key_of(seal) == key), None)
    if seal is None or seal.move != planned.move or max(counters.parquet_end, counters.log_start) < seal.end:
        raise AssertionError(
            f"bundle {draft.bundle}: partition {key} would be frozen for move {planned.move} before it is drained"
        )
    counters.frozen = planned.move
    counters.forgotten = False


def take_over(draft: fmt.Checkpoint, takeover: fmt.PlannedTakeover, plan: int) -> fmt.PartitionCheckpoint:
    """Return the partition's counters in this bundle, as they were frozen."""
    counters = fmt.PartitionCheckpoint()
    counters.CopyFrom(takeover.counters)
    key, move = (counters.topic_id, counters.partition), counters.frozen
    opened = next((opened for opened in draft.state.opens if key_of(opened) == key), None)
    if opened is None or opened.move != move or has_its_files(opened, partition_of(draft, *key)):
        raise AssertionError(f"bundle {draft.bundle}: the files of partition {key} would be taken over out of turn")
    counters.newest_page = plan if takeover.files else 0
    counters.taken_over = move
    counters.frozen = 0
    return counters


def forget_move(moves: Mapping[PartitionId, int]) -> Move:
    """Return the change that removes handed-over partitions from the old bundle's checkpoint. It declines if
    they are removed already.
    """

    def forget(draft: fmt.Checkpoint) -> bool:
        parts = partitions_by_key(draft)
        due = [key for key, move in moves.items() if key in parts and _is_frozen(parts[key], move)]
        for key in due:
            parts[key] = fmt.PartitionCheckpoint(
                topic_id=key.topic_id, partition=key.partition, frozen=moves[key], forgotten=True
            )
        replace_partitions(draft, parts.values())
        return bool(due)

    return forget


async def forget_handed_over(ledger: LedgerRef, checkpoint: fmt.Checkpoint) -> None:
    """Forget the partitions whose files other bundles have taken over. Costs no request where nothing has left.

    `checkpoint`: the newest one. A bundle that cannot be read holds up no other one. Raises Unavailable, the
    store's errors.
    """
    parts, left = partitions_by_key(checkpoint), dict[int, list[fmt.PartitionSeal]]()
    for seal in checkpoint.state.seals:
        if _is_frozen(parts.get(key_of(seal)) or fmt.PartitionCheckpoint(), seal.move):
            left.setdefault(seal.target, []).append(seal)
    due: dict[PartitionId, int] = {}
    for target, seals in left.items():
        try:
            there = partitions_by_key(await newest_checkpoint(ledger.store, target))
        except (DataDamaged, FormatNotSupported):
            continue
        due |= {
            key_of(seal): seal.move
            for seal in seals
            if key_of(seal) in there and there[key_of(seal)].taken_over == seal.move
        }
    if due:
        await bring_into_force(ledger, forget_move(due))
