"""Check the partitions that moved between bundles: a seal ends its partition, and an open goes on where the
seal of the same move ended. The fold here is separate from the product's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId

Seals = Mapping[PartitionId, fmt.PartitionSeal]
Opens = Mapping[PartitionId, fmt.PartitionOpen]


def check_moves(views: Sequence[LedgerView], problems: Problems) -> None:
    """Check seals and opens within each ledger that could be folded, and of each two against each other."""
    found = {view.bundle: _fold(view, problems) for view in views if view.whole}
    for bundle, (_, opens) in found.items():
        for opened in opens.values():
            if opened.source in found:
                _check_pair(bundle, opened, found[opened.source], problems)


def files_taken_over(checkpoints: Sequence[fmt.Checkpoint]) -> set[tuple[int, PartitionId | None]]:
    """Return the partitions whose file lists another bundle has by now, each with the bundle whose list does not
    count any longer.
    """
    parts = [(checkpoint.bundle, part) for checkpoint in checkpoints for part in checkpoint.partitions]
    taken_over = {(part.topic_id, part.partition, part.taken_over) for _, part in parts if part.taken_over}
    return {
        (bundle, PartitionId(part.topic_id, part.partition))
        for bundle, part in parts
        if part.frozen and (part.topic_id, part.partition, part.frozen) in taken_over
    }


def _fold(view: LedgerView, problems: Problems) -> tuple[Seals, Opens]:
    """Return the partitions that have left, and those that came and are here."""
    state = view.checkpoint.state
    seals = {PartitionId(seal.topic_id, seal.partition): seal for seal in state.seals}
    opens = {PartitionId(opened.topic_id, opened.partition): opened for opened in state.opens}
    for index in view.valid:
        if index.slot <= state.slot:
            continue
        for seal in index.seals:
            key = PartitionId(seal.topic_id, seal.partition)
            seals[key] = seal
            opens.pop(key, None)
        for opened in index.opens:
            key = PartitionId(opened.topic_id, opened.partition)
            opens[key] = opened
            seals.pop(key, None)
        for key in _partitions(index.batches) & seals.keys():
            problems.damage(
                keys.segment(view.bundle, index.slot),
                "BATCH_AFTER_SEAL",
                f"topic id {key.topic_id} partition {key.partition}: move {seals[key].move} sealed it at offset"
                f" {seals[key].end}",
            )
    return seals, opens


def _partitions(entries: Iterable[fmt.BatchEntry]) -> set[PartitionId]:
    return {PartitionId(entry.topic_id, entry.partition) for entry in entries}


def _check_pair(bundle: int, opened: fmt.PartitionOpen, source: tuple[Seals, Opens], problems: Problems) -> None:
    """Compare an open with what the ledger that it names knows; that may know a later move already."""
    key = PartitionId(opened.topic_id, opened.partition)
    seal, later = source[0].get(key), source[1].get(key)
    newest = max(seal.move if seal is not None else 0, later.move if later is not None else 0)
    where = f"topic id {key.topic_id} partition {key.partition}: move {opened.move} opened it at offset {opened.start}"
    if newest < opened.move:
        problems.damage(
            keys.ledger(bundle), "OPEN_WITHOUT_SEAL", f"{where}, but bundle {opened.source} did not seal it"
        )
    elif seal is not None and seal.move == opened.move and (seal.end, seal.target) != (opened.start, bundle):
        problems.damage(
            keys.ledger(bundle),
            "OPEN_WITHOUT_SEAL",
            f"{where}, but bundle {opened.source} sealed it at offset {seal.end} for bundle {seal.target}",
        )
